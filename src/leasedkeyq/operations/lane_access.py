"""The lanes of a store as a manager has them, for actions that a manager would do in the same way.

An operator has no manager, and no command types. What workers have told of their lanes is enough to
submit a command, and to cancel one so that its submitter and its workflow hear of it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from leasedkeyq.checks import storable
from leasedkeyq.errors import describe
from leasedkeyq.lanes.commands.command import CommandRegistry
from leasedkeyq.lanes.commands.submit_terms import SubmitTerms
from leasedkeyq.lanes.config import LaneConfig
from leasedkeyq.lanes.durable.envelope import CANCELLED
from leasedkeyq.lanes.durable.submission import Submissions, SubmittedPlace
from leasedkeyq.lanes.durable.workflow import StoreWorkflow
from leasedkeyq.lanes.errors import CommandCancelledError, UnknownLaneError
from leasedkeyq.lanes.running.error_text import error_line
from leasedkeyq.lanes.running.lane import Lane
from leasedkeyq.lanes.workflow.outcome import failed_outcome
from leasedkeyq.model.requests import Cancel, StoredItem
from leasedkeyq.operations.items.item_views import envelope_of, is_command
from leasedkeyq.operations.store_layout import StoreLayout
from leasedkeyq.stores.store import Store

KEEP_RESULTS = 3600.0
"""Seconds for which the result of a command is kept whose lane no worker has told of."""


class LaneAccess:
    """The lanes of a store, ready for submissions and cancellations.

    Args:
        store: The store.
        layout: Its lanes and their queues.
        keep_results: For how many seconds each lane keeps results, as far as workers told.
        clock: Unix time.
    """

    def __init__(
        self,
        store: Store,
        layout: StoreLayout,
        keep_results: Mapping[str, float],
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._layout = layout
        self._clock = clock
        self.lanes: dict[str, Lane] = {}
        for index, (name, queues) in enumerate(layout.lanes.items()):
            kept = keep_results.get(name, KEEP_RESULTS)
            config = LaneConfig(0, 1, partitions=len(queues), keep_results=kept)
            self.lanes[name] = Lane(name, index, config, 0)
        self._workflow = StoreWorkflow(store, self.lanes, CommandRegistry(), clock)

    def lane(self, name: str) -> Lane:
        """A lane.

        Raises:
            UnknownLaneError: No worker has told of it, and no queue looks like it.
        """
        found = self.lanes.get(name)
        if found is None:
            known = ", ".join(sorted(self.lanes)) or "none"
            raise UnknownLaneError(
                f"no worker of this store has told of a lane {name!r}; known are: {known}. Start a "
                "worker that has it, or leave it unchecked",
                lane=name,
            )
        return found

    def assumed_lane(self, name: str) -> Lane:
        """A lane, also one that is not known: it is taken to have one partition."""
        return self.lanes.get(name) or Lane(name, len(self.lanes), LaneConfig(0, 1), 0)

    async def submit(
        self, lane: Lane, kind: str, payload: Any, key: str | None, terms: SubmitTerms
    ) -> SubmittedPlace:
        """Put a command whose arguments are JSON, as `QueueManager.submit` does.

        Raises:
            LeasedKeyQError: The store did not take it.
        """
        submissions = Submissions(self._store, CommandRegistry(), self._clock)
        commands = [(key, kind, payload)]
        stored, refusal = await submissions.put_many(lane, commands, terms, None)
        if refusal is not None:
            raise refusal
        return stored[0]

    def cancel_request(self, item: StoredItem, *, whole_key: bool) -> Cancel:
        """What cancels an item, or all values of its key, so that submitters hear of it."""
        number = None if whole_key else item.id
        lane = self._layout.lane_of(item.queue)
        if not is_command(item, lane):
            return Cancel(item.queue, item.key, id=number)
        kept = self.lanes[lane].keep_results if lane in self.lanes else KEEP_RESULTS
        return Cancel(item.queue, item.key, CANCELLED, kept, number)

    async def tell_workflow(self, item: StoredItem) -> None:
        """Let the chain or the gather of a command know that it was cancelled.

        Raises:
            LeasedKeyQError: The store could not.
        """
        lane = self._layout.lane_of(item.queue)
        envelope = envelope_of(item, lane)
        if envelope is None or envelope.workflow is None:
            return
        text = f"lane {lane!r}: command {item.kind!r} of key {describe(item.key)} was cancelled"
        error = CommandCancelledError(text, lane=lane or "", command_type=item.kind, key=item.key)
        outcome = failed_outcome("cancelled", error, storable(error_line(error)))
        await self._workflow.cancelled(envelope.workflow, item.kind, outcome)
