"""What an operator sees and does: what the command line and the web page have in common.

`operator` has the `Operator`, which looks and acts, by the parts in `items` and `schedules`. In
`live`, `feed` tells what happens, and `series` what has happened in the last two days. `views` is
what they show, as plain data.
`doctor` finds what goes wrong, and `bench` measures a store.
All of it uses the contract of stores and the names of lanes, so that it works on every store. In
the package, only `web` and `cli` may import it; programs import the names below. Begin with
`views`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from leasedkeyq.operations.views import (
    ActionReport,
    ErrorGroup,
    ErrorGroups,
    FeedEvent,
    FeedOutcome,
    ItemFilter,
    ItemPage,
    ItemView,
    LaneSeries,
    LaneTotals,
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

if TYPE_CHECKING:
    from leasedkeyq.operations.doctor import examine, examine_url
    from leasedkeyq.operations.live.feed import Feed
    from leasedkeyq.operations.live.series import SeriesReader
    from leasedkeyq.operations.operator import Operator
else:
    # A command that only looks starts without the others: they take long to import.
    _LAZY = {
        "examine": "doctor",
        "examine_url": "doctor",
        "Feed": "live.feed",
        "Operator": "operator",
        "SeriesReader": "live.series",
    }

    def __getattr__(name):
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = getattr(import_module(f"leasedkeyq.operations.{_LAZY[name]}"), name)
        return globals()[name]

    def __dir__():
        return sorted({*globals(), *_LAZY})


__all__ = [
    "Operator",
    "Feed",
    "SeriesReader",
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
    "FeedEvent",
    "FeedOutcome",
    "LaneSeries",
    "LaneTotals",
    # What it has done
    "ActionReport",
]
