"""The search finds bugs that were planted, in few histories."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from leasedkeyq.engines.memory import MemoryStore
from leasedkeyq.stores.store import Store
from tests.torture.histories.history import by_key
from tests.torture.histories.planted_bugs import BUGS, Planted
from tests.torture.histories.rounds import UNEXPLAINED, in_virtual_time, quiet, weigh
from tests.torture.histories.search import judge
from tests.torture.histories.specification import KeyMachine
from tests.torture.part import Findings, Trial

ENOUGH = 100
"""Histories, among which each bug shows itself."""
MEMORY = Trial("memory", range(1, ENOUGH + 1), Path())


def planted(bug: type[Planted]) -> Callable[..., Store]:
    return partial(_open, bug)


def _open(bug: type[Planted], clock: Callable[[], float]) -> Store:
    return bug(MemoryStore(clock=clock), Random(1))


def first_found(bug: type[Planted]) -> int | None:
    """The first seed whose history cannot be explained."""
    with quiet():
        for seed in MEMORY.seeds:
            calls, keys = in_virtual_time(MEMORY, seed, planted(bug))
            verdicts = {judge(part, KeyMachine()).verdict for part in by_key(calls, keys).values()}
            if "unexplained" in verdicts:
                return seed
    return None


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    assert first_found(BUGS[name]) is not None


def test_what_is_found_can_be_read() -> None:
    bug = BUGS["an update is lost"]
    seed = first_found(bug)
    assert seed is not None
    found = Findings()
    with quiet():
        calls, keys = in_virtual_time(MEMORY, seed, planted(bug))
    weigh(found, seed, calls, keys, KeyMachine())
    assert found.wrong[UNEXPLAINED] >= 1
    first, *lines = found.violations[0].splitlines()
    assert first.startswith(f"seed {seed}: {UNEXPLAINED}: no order explains these answers on key")
    assert any("put(" in line for line in lines)


def test_a_store_without_a_bug_is_explained() -> None:
    found = Findings()
    with quiet():
        for seed in range(1, 6):
            calls, keys = in_virtual_time(MEMORY, seed, planted(Planted))
            weigh(found, seed, calls, keys, KeyMachine())
    assert found.tried == 5
    assert not found.wrong[UNEXPLAINED], found.violations


def test_a_history_in_virtual_time_is_the_same_at_each_repetition() -> None:
    with quiet():
        first, again = (in_virtual_time(MEMORY, 3) for _ in range(2))
    assert first == again
