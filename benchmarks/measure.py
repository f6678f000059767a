"""Measuring: fresh processes in every round, that take turns within it.

The speed of a shared machine changes from second to second, so figures are compared only with
what was measured right beside them: a ratio is made from neighbouring turns, its median is taken
over the turns of a round, and then over the rounds. Where a rare clean-up is part of the cost, a
median would overlook it: there the ratio is made from the averages of a round.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import fmean, median
from time import monotonic
from typing import Any, ClassVar

from benchmarks.peers import ENVIRONMENTS, ROOT, Peer
from benchmarks.scenarios import Case, Claim, Scenario

Turns = dict[str, list[float]]
"""The values of one round by the name of the case, in the order of the turns."""
Facts = dict[str, dict[str, str]]
"""What the workers said about how they ran, by the name of the case."""


@dataclass
class Measured:
    """What the rounds of one scenario have found.

    Attributes:
        seconds: That it took, with the start of the workers.
    """

    rounds: list[Turns] = field(default_factory=list[Turns])
    facts: Facts = field(default_factory=dict[str, dict[str, str]])
    seconds: float = 0.0


class WorkerError(Exception):
    """A worker process failed; its own words are on the standard error."""


@dataclass(frozen=True)
class Figure:
    """The median over the rounds, and what the single rounds said."""

    value: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, rounds: Sequence[float]) -> "Figure":
        return cls(median(rounds), min(rounds), max(rounds), len(rounds))


class Worker:
    """A process that holds one case ready.

    Attributes:
        facts: What it said about how it runs.
    """

    _numbers: ClassVar[set[int]] = set()
    """Of the workers that run now."""

    def __init__(self, peer: Peer, case: Case, folder: Path) -> None:
        self._number = next(number for number in count(1) if number not in self._numbers)
        self._numbers.add(self._number)
        self._folder = Path(tempfile.mkdtemp(dir=folder))
        self._name = f"{case.workload} of {peer.name}"
        options = json.dumps(dict(case.options))
        module = "benchmarks.worker"
        # Python is to import this package from here, and the queue from where it is installed.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        environment |= {"BENCH_FOLDER": str(self._folder), "BENCH_SHARED": str(folder)}
        environment["BENCH_NUMBER"] = str(self._number)
        self._process = subprocess.Popen(
            [peer.python, "-m", module, peer.workloads, case.workload, options],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self.facts: dict[str, str] = self._answer()["facts"]
        except WorkerError:
            self.stop()
            raise

    def measure(self) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._answer()["value"])

    def stop(self) -> None:
        self._process.kill()  # it has nothing to lose, and up to a million things to clean up
        with self._process:
            pass
        shutil.rmtree(self._folder)
        self._numbers.discard(self._number)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(f"the worker for {self._name} has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


def run_round(
    scenario: Scenario, peers: Mapping[str, Peer], folder: Path, facts: Facts, *, backwards: bool
) -> Turns:
    """One round of one scenario, without the cases whose peer is missing."""
    cases = [case for case in scenario.cases if case.peer in peers]
    values: Turns = {case.name: [] for case in cases}
    if backwards:
        cases.reverse()
    with ExitStack() as stack:
        workers: list[tuple[str, Worker]] = []
        for case in cases:
            worker = Worker(peers[case.peer], case, folder)
            stack.callback(worker.stop)
            if worker.facts:
                facts[case.name] = worker.facts
            workers.append((case.name, worker))
        for _ in range(scenario.warm_up):
            for _, worker in workers:
                worker.measure()
        for _ in range(scenario.turns):
            for name, worker in workers:
                values[name].append(worker.measure())
    return values


def run_scenarios(
    scenarios: Sequence[Scenario],
    peers: Mapping[str, Peer],
    rounds: int,
    say: Callable[[str], None],
) -> list[Measured]:
    """All rounds of all scenarios.

    A round goes through all scenarios, so that the rounds of each lie minutes apart. Every other
    round goes through the cases backwards, so that no case always comes first.
    """
    measured = [Measured() for _ in scenarios]
    ENVIRONMENTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=ENVIRONMENTS) as folder:
        for number in range(rounds):
            for scenario, found in zip(scenarios, measured, strict=True):
                if len(found.rounds) == scenario.rounds:
                    continue
                say(f"round {number + 1} of {rounds}: {scenario.title}")
                start = monotonic()
                backwards = number % 2 == 1
                turns = run_round(scenario, peers, Path(folder), found.facts, backwards=backwards)
                found.rounds.append(turns)
                found.seconds += monotonic() - start
    return measured


def case_figure(scenario: Scenario, case: Case, rounds: Sequence[Turns]) -> Figure | None:
    """The seconds or bytes of a case; None if it was not measured."""
    middle = fmean if scenario.averaged else median
    values = [middle(turns[case.name]) for turns in rounds if case.name in turns]
    return Figure.of(values) if values else None


def claim_figure(scenario: Scenario, claim: Claim, rounds: Sequence[Turns]) -> Figure | None:
    """The figure of a claim; None if one of its cases was not measured."""
    names = (*claim.over, *claim.under)
    if not rounds or any(name not in turns for turns in rounds for name in names):
        return None
    return Figure.of([_claimed(scenario, claim, turns) for turns in rounds])


def _claimed(scenario: Scenario, claim: Claim, turns: Turns) -> float:
    """The figure of a claim in one round, from the pair of cases that looks worst for it."""
    worst, other = (min, max) if claim.at_most is None else (max, min)
    over = _each_turn(worst, [turns[name] for name in claim.over])
    under = _each_turn(other, [turns[name] for name in claim.under])
    if not under:
        under = [1.0] * len(over)
    if scenario.averaged:
        return fmean(over) / fmean(under)
    return median(a / b for a, b in zip(over, under, strict=True))


def _each_turn(
    choose: Callable[[Iterable[float]], float], cases: Sequence[Sequence[float]]
) -> list[float]:
    return [choose(values) for values in zip(*cases, strict=True)]


def is_met(claim: Claim, figure: Figure | None) -> bool | None:
    """Whether the target is met; None when there is none. What was not measured is not met."""
    if claim.at_least is None and claim.at_most is None:
        return None
    if figure is None:
        return False
    if claim.at_least is not None:
        return figure.value >= claim.at_least
    return claim.at_most is None or figure.value <= claim.at_most
