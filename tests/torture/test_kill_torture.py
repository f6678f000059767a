"""Processes on one store, killed at every step of their work: 50 rounds, and 1,000 of them under
``TORTURE=1``. Nothing is lost, no key is held twice, no lease is settled after its end.

A round starts three processes on a store that the rounds before it have left behind. Two of them
are killed at named points, the third at random. ``KILL_SEED`` makes all rounds start elsewhere.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.engines.kill_points import FILE_POINTS, SQLITE_POINTS
from tests.engines.kill_rounds import Arena, Kind

TORTURE = os.environ.get("TORTURE") == "1"
FIRST_SEED = int(os.environ.get("KILL_SEED", "0"))

SERIES: dict[Kind, int] = (
    {"sqlite-full": 75, "sqlite-normal": 50, "yaml": 30, "json": 15}
    if TORTURE
    else {"sqlite-full": 3, "sqlite-normal": 2, "yaml": 2, "json": 1}
)
"""Each visits all points once."""
RUNS: dict[Kind, int] = (
    {"sqlite-full": 4, "sqlite-normal": 4, "yaml": 4, "json": 2}
    if TORTURE
    else {"sqlite-full": 1, "yaml": 1}
)
SECONDS = 90.0 if TORTURE else 2.0


def seeds(counts: dict[Kind, int]) -> list[tuple[Kind, int]]:
    return [(kind, FIRST_SEED + number) for kind, many in counts.items() for number in range(many)]


def test_there_are_enough_rounds() -> None:
    rounds = 0
    for kind, series in SERIES.items():
        points = SQLITE_POINTS if kind.startswith("sqlite") else FILE_POINTS
        rounds += series * ((len(points) + 1) // 2)
    assert rounds >= (1000 if TORTURE else 50)


@pytest.mark.parametrize("kind, seed", seeds(SERIES))
def test_killed_at_each_point_and_at_random(tmp_path: Path, kind: Kind, seed: int) -> None:
    with Arena(tmp_path, kind, seed) as arena:
        arena.series()
        judge = arena.judge()
    settles = [settle for lease in judge.leases.values() for settle in lease.settles]
    assert len(judge.puts) > 5
    assert sum(settle.accepted is True for settle in settles) > 5


@pytest.mark.parametrize("kind, seed", seeds(RUNS))
def test_killed_and_replaced_all_the_time(tmp_path: Path, kind: Kind, seed: int) -> None:
    with Arena(tmp_path, kind, seed) as arena:
        dice = arena.dice
        lives = [arena.start("queue") for _ in range(4)]
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            time.sleep(dice.random() * 0.3)
            life = dice.choice(lives)
            if dice.random() < 0.3:
                life.send(signal.SIGSTOP)
                time.sleep(dice.random() * 0.5)
                life.send(signal.SIGCONT)
            else:
                arena.kill(life)
                lives.remove(life)
                lives.append(arena.start("queue"))
        for life in lives:
            arena.kill(life)
        judge = arena.judge(by_key=True)
    assert sum(map(len, judge.acks.values())) > 5
