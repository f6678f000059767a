"""The conformance kit finds every fault, by the check that is meant to find it."""

from collections.abc import Callable, Iterable
from functools import partial
from types import ModuleType

import pytest
from hypothesis import Phase

from leasedkeyq import MemoryStore, connect
from leasedkeyq.stores import Store
from leasedkeyq.testing import (
    ConformanceReport,
    Place,
    StoreConformance,
    hypothesis_machine,
    run_conformance,
)
from leasedkeyq.testing.suite import Option, checks_of
from tests.testing.broken import (
    amends,
    caps,
    durability,
    edits,
    held_keys,
    inspection,
    leases,
    line_puts,
    lines,
    processes,
    puts,
    random_comparison,
    settlements,
    urgency,
    watches,
)
from tests.testing.broken.through import FAULTS, Through

ACCEPTS: tuple[Option, ...] = ("clock", "limits")
PATIENCE = 2.0
"""Seconds to wait for what a broken store never does."""

Base = Callable[[Place], Callable[..., Store]]

# A store that waits where it must not leaves coroutines behind that nobody can end.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def memory(_: Place) -> Callable[..., Store]:
    return MemoryStore


def sqlite(place: Place) -> Callable[..., Store]:
    return partial(connect, f"sqlite:///{place.folder}/jobs.db", durability="normal")


def of(*modules: ModuleType) -> list[type[Through]]:
    # By module: in `FAULTS` they are in the order of imports, which is another one in each process.
    places = {module.__name__: place for place, module in enumerate(modules)}
    faults = [fault for fault in FAULTS if fault.__module__ in places]
    return sorted(faults, key=lambda fault: places[fault.__module__])


def caught(
    fault: type[Through],
    base: Base,
    check: str = "",
    accepts: tuple[Option, ...] = ACCEPTS,
    seeds: Iterable[int | None] = (None,),
) -> None:
    reports: list[ConformanceReport] = []
    for seed in seeds:
        report = run_conformance(
            lambda place: partial(fault, base(place)),
            accepts=accepts,
            only=[check or FAULTS[fault]],
            patience=PATIENCE,
            seed=seed,
        )
        if [result.outcome for result in report.results] == ["failed"]:
            return
        reports.append(report)
    raise AssertionError(f"the fault was not found: {', '.join(map(str, reports))}")


@pytest.fixture(autouse=True)
def _no_shrinking(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is enough to find a fault; making an example short takes long."""
    monkeypatch.setattr(hypothesis_machine, "PHASES", (Phase.generate,))


ANYWHERE = of(
    puts,
    line_puts,
    lines,
    held_keys,
    amends,
    leases,
    caps,
    urgency,
    settlements,
    inspection,
    watches,
    edits,
)
"""Faults that can be caught on any store."""


@pytest.mark.parametrize("fault", ANYWHERE)
def test_a_fault_is_caught(fault: type[Through]) -> None:
    caught(fault, memory)


@pytest.mark.parametrize("fault", of(durability, processes))
def test_a_fault_over_processes_is_caught(fault: type[Through]) -> None:
    caught(fault, sqlite)


@pytest.mark.parametrize("fault", of(random_comparison))
def test_a_fault_in_answers_is_caught(fault: type[Through]) -> None:
    """Their checks make random requests, which may miss it once."""
    caught(fault, sqlite, seeds=range(5))


RANDOM = "test_it_answers_random_requests_as_the_model_does"
HYPOTHESIS = "test_hypothesis_finds_no_requests_that_it_answers_otherwise"


@pytest.mark.parametrize(
    "fault",
    [
        puts.ForgetsPriority,
        puts.LosesBufferedValues,
        puts.StoresHalfAPut,
        leases.AcceptsExpiredLeases,
        leases.DoesNotCountAttempts,
        leases.ForgetsTheFront,
        leases.IgnoresKinds,
        leases.SendsExpiredItemsToTheBack,
        caps.CountsWholeTokens,
        caps.DoesNotSweepTokens,
        caps.IgnoresEach,
        caps.StopsAtWhatHasNoRoom,
        urgency.DecidesOnce,
        urgency.IgnoresSteps,
        urgency.TakesTokensForCandidates,
        settlements.BuriesWithoutEnd,
        settlements.CountsResultsForEver,
        settlements.ForgetsHowItEnded,
        settlements.KeepsResultsForEver,
        edits.EditsStepByStep,
        line_puts.AnswersTheHead,
        line_puts.AppendsToAFullQueue,
        line_puts.ForgetsTheTermsOfALine,
        line_puts.ForgetsWhatIsDone,
        line_puts.IsUniqueWhileAResultIsKept,
        line_puts.UpdatesByAppending,
        lines.BuffersByAppending,
        lines.CancelsTheHeadToo,
        lines.CountsKeys,
        lines.FinishesOneKeyFirst,
        lines.LosesAValueBetweenPages,
        lines.RequeuesOverNewerValues,
        held_keys.DropsALineForRoom,
        held_keys.HoldsNoKeyWithoutALine,
        held_keys.HoldsWhatIsCancelled,
        held_keys.LetsTheNextGo,
        held_keys.ReplacesABuriedItem,
        held_keys.RequeuesBehindTheLine,
        amends.AmendsHeadsOnly,
        amends.LeavesAmendedPriorities,
        amends.LeavesAmendedSchedules,
    ],
)
def test_a_fault_is_found_by_random_requests(fault: type[Through]) -> None:
    # About one run in ten meets the rarest of them.
    caught(fault, memory, RANDOM, seeds=range(40))


@pytest.mark.parametrize(
    "fault",
    [
        puts.StoresHalfAPut,
        leases.DoesNotCountAttempts,
        leases.SendsExpiredItemsToTheBack,
        settlements.KeepsResultsForEver,
        edits.EditsTwice,
        line_puts.KeepsTheNewestOnly,
        lines.ReleasesToTheEnd,
        held_keys.LetsTheNextGo,
    ],
)
def test_a_fault_is_found_by_hypothesis(fault: type[Through]) -> None:
    caught(fault, memory, HYPOTHESIS, seeds=range(10))


@pytest.mark.parametrize("fault", [puts.IgnoresDelays, leases.SendsExpiredItemsToTheBack])
@pytest.mark.parametrize("check", [RANDOM, HYPOTHESIS])
def test_a_fault_is_found_without_a_clock(fault: type[Through], check: str) -> None:
    caught(fault, memory, check, (), seeds=range(5))


def test_every_check_has_a_fault_to_find() -> None:
    """A check that has never failed proves nothing."""
    checks = {check.name for check in checks_of(StoreConformance)}
    # It is about the suite and not about a store; see test_conformance_kit.py.
    checks.remove("test_what_it_lacks_is_declared")
    assert checks - set(FAULTS.values()) == set()


class TestNoFault(StoreConformance, accepts=ACCEPTS, without=("durability", "cross_process")):
    """What stands between the faults and the good store has none of its own."""

    def opener(self, place: Place) -> Callable[..., Store]:
        return partial(Through, memory(place))
