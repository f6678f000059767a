"""A store at a glance: what most pages show a part of."""

import time

import msgspec

from leasedkeyq.operations.operator import Operator
from leasedkeyq.operations.views import LaneView, QueueView, WorkerView


class Glance(msgspec.Struct, frozen=True, kw_only=True):
    """The queues, lanes and workers of a store.

    Attributes:
        at: When that was, as Unix time.
        took: How many seconds it took to look.
        queues: All queues but those of leasedkeyq itself.
        lanes: The lanes.
        workers: The workers.
    """

    at: float
    took: float
    queues: tuple[QueueView, ...]
    lanes: tuple[LaneView, ...]
    workers: tuple[WorkerView, ...]

    def queue(self, name: str) -> QueueView | None:
        """A queue by name; None if it holds nothing."""
        return next((queue for queue in self.queues if queue.name == name), None)

    def lane(self, name: str) -> LaneView | None:
        """A lane by name."""
        return next((lane for lane in self.lanes if lane.name == name), None)

    @property
    def totals(self) -> dict[str, int]:
        """The sums over all queues, by state."""
        states = ("available", "scheduled", "in_flight", "buried", "held", "done")
        return {state: sum(getattr(queue, state) for queue in self.queues) for state in states}


async def glance_at(operator: Operator) -> Glance:
    """Look at a store."""
    began = time.perf_counter()
    queues = await operator.queues()
    lanes = await operator.lanes()
    workers = await operator.workers()
    return Glance(
        at=time.time(),
        took=time.perf_counter() - began,
        queues=tuple(queues),
        lanes=tuple(lanes),
        workers=tuple(workers),
    )
