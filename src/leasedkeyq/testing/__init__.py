"""Tools for testing programs that use leasedkeyq, and stores that implement its contract.

`virtual_time` and `clock` are for programs. The rest is the conformance kit: `conformance` and
`suite` are what a store's tests inherit, `checks` has the checks, `comparison` and `menu` compare a
store with the model by random requests. It may import everything; nothing of the package imports
it. Begin with `conformance`.
"""

from leasedkeyq.testing.clock import ManualClock
from leasedkeyq.testing.conformance import StoreConformance, run_conformance
from leasedkeyq.testing.report import CheckResult, ConformanceReport
from leasedkeyq.testing.site import Place
from leasedkeyq.testing.virtual_time import DeadlockError, VirtualTimeLoop

__all__ = [
    # Time in tests
    "DeadlockError",
    "ManualClock",
    "VirtualTimeLoop",
    # The conformance of stores
    "CheckResult",
    "ConformanceReport",
    "Place",
    "StoreConformance",
    "run_conformance",
]
