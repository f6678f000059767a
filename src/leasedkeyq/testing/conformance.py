"""The conformance kit: what a store must do to be one.

Subclass `StoreConformance`, say how to open a store, and let pytest find the class::

    class TestMyStore(StoreConformance):
        def opener(self, place: Place) -> str:
            return f"mystore://{place.folder}/queue"

Every check is an ordinary test method that needs no plugin. Without pytest, `run_conformance` runs
them and returns a report.
"""

from collections.abc import Callable, Collection

from leasedkeyq.stores.store import Store
from leasedkeyq.testing.checks.amends import AmendChecks
from leasedkeyq.testing.checks.caps import CapChecks
from leasedkeyq.testing.checks.durability import DurabilityChecks
from leasedkeyq.testing.checks.edits import EditChecks
from leasedkeyq.testing.checks.held_keys import HeldKeyChecks
from leasedkeyq.testing.checks.inspection import InspectionChecks
from leasedkeyq.testing.checks.leases import LeaseChecks
from leasedkeyq.testing.checks.line_puts import LinePutChecks
from leasedkeyq.testing.checks.lines import LineChecks
from leasedkeyq.testing.checks.processes import ProcessChecks
from leasedkeyq.testing.checks.puts import PutChecks
from leasedkeyq.testing.checks.random_comparison import ComparisonChecks
from leasedkeyq.testing.checks.settlements import SettleChecks
from leasedkeyq.testing.checks.urgency import UrgencyChecks
from leasedkeyq.testing.checks.watches import WatchChecks
from leasedkeyq.testing.report import ConformanceReport, run_checks
from leasedkeyq.testing.site import Address, Place
from leasedkeyq.testing.suite import Need, Option, check, gap


class StoreConformance(
    PutChecks,
    LeaseChecks,
    CapChecks,
    UrgencyChecks,
    SettleChecks,
    LinePutChecks,
    LineChecks,
    HeldKeyChecks,
    AmendChecks,
    InspectionChecks,
    WatchChecks,
    EditChecks,
    ComparisonChecks,
    DurabilityChecks,
    ProcessChecks,
):
    """All checks of a store. Subclass it and supply `opener`.

    A store that lacks a capability declares the gap, and the checks of it are not there::

        class TestMyStore(StoreConformance, without=("durability", "cross_process")): ...

    A gap that is not declared fails, and so does a declared gap that is none. ``"hypothesis"``
    leaves out the check that needs the library of that name.

    If the opener accepts a ``clock``, a function without arguments that returns Unix time, checks
    need not wait for time to pass, and compare every moment exactly. If it accepts ``limits``, a
    `Limits`, they reach the limits soon. Say so::

        class TestMyStore(StoreConformance, accepts=("clock", "limits")): ...

    Without them the checks run as well, longer and less strictly.
    """

    @check
    async def test_what_it_lacks_is_declared(self, store: Store) -> None:
        """A gap that a suite declares is one that the store does not claim to fill."""
        for need in self.without - {"hypothesis"}:
            assert gap(need, store.capabilities), f"the store claims {need}: it is no gap"


def run_conformance(
    factory: Callable[[Place], Address],
    *,
    accepts: tuple[Option, ...] = (),
    without: tuple[Need, ...] = (),
    only: Collection[str] | None = None,
    seed: int | None = None,
    patience: float = StoreConformance.patience,
) -> ConformanceReport:
    """Run all checks, one after the other, and report what became of each.

    Checks of what the store does not claim are reported as not applicable, with the reason.
    Checks over processes start new interpreters: call this below ``if __name__ == "__main__":``.

    Args:
        factory: Says how to open a store at a place: `StoreConformance.opener` as a function.
        accepts: Which of the options ``"clock"`` and ``"limits"`` openers take.
        without: Checks to leave out, by what they need.
        only: The names of the checks to run; None for all.
        seed: Where the random checks start, to repeat a failure.
        patience: How many seconds those who were woken may take to come.

    Raises:
        ValueError: An argument has a name that means nothing.
    """

    class Given(StoreConformance, accepts=accepts):
        """The store in question."""

        def opener(self, place: Place) -> Address:
            return factory(place)

    Given.seed, Given.patience = seed, patience
    return run_checks(Given, without, only)
