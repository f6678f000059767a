"""What an operator sees and does: what the command line and the web page have in common.

`operator` has the `Operator`, which looks and acts; `views` is what they show, as plain data.
`doctor` finds what goes wrong, and `bench` measures a store.
All of it uses the contract of stores and the names of lanes, so that it works on every store. In
the package, only `web` and `cli` may import it; programs import the names below. Begin with
`views`.
"""

from leasedkeyq.operations.doctor import examine, examine_url
from leasedkeyq.operations.operator import Operator
from leasedkeyq.operations.views import (
    ActionReport,
    ErrorGroup,
    ErrorGroups,
    ItemFilter,
    ItemPage,
    ItemView,
    LaneView,
    MatchCount,
    ParameterView,
    QueueView,
    RunningView,
    ScheduleView,
    StoreStats,
    TypeView,
    WorkerLane,
    WorkerView,
)

__all__ = [
    "Operator",
    "examine",
    "examine_url",
    # What it shows
    "QueueView",
    "LaneView",
    "ItemView",
    "ItemPage",
    "ItemFilter",
    "MatchCount",
    "ErrorGroup",
    "ErrorGroups",
    "WorkerView",
    "WorkerLane",
    "RunningView",
    "ScheduleView",
    "TypeView",
    "ParameterView",
    "StoreStats",
    # What it has done
    "ActionReport",
]
