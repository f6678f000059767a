"""Chains and gathers on a store: how one command leads to the next, whatever is killed meanwhile.

**A chain.** What comes next travels with each step, in its envelope. The worker that has run a step
puts the next one, under a key that is fixed from the beginning, and only then acknowledges the
step, with a result that says as what the chain goes on. A worker that is killed in between leaves
a step that runs again, and then finds the next one there. A worker whose lease was lost takes back
what it has put, unless the worker that came after it goes on with just that.

**A gather.** `GATHERS_QUEUE` has an item for each gather, its plan. The outcomes of its members are
items of a queue of their own, one for each number: so each is recorded once, and the store knows
how many there are. The command that gets the outcomes is put before the members, and scheduled for
the time at which the gather is over at the latest. The worker that records the last outcome lets
it start at once. A member is acknowledged when its outcome is recorded, and not before.
"""

import asyncio
import logging
from asyncio import Future, Task
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import msgspec

from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.lanes.commands.command import CommandRegistry
from leasedkeyq.lanes.durable.envelope import (
    CANCELLED,
    Continuation,
    Envelope,
    continuation,
    decode_envelope,
    encode_envelope,
    is_cancelled,
)
from leasedkeyq.lanes.errors import CommandLostError, CommandPayloadError, UnknownLaneError
from leasedkeyq.lanes.running.job import Job
from leasedkeyq.lanes.running.lane import Lane, Partition
from leasedkeyq.lanes.workflow.note import (
    Gathered,
    Membership,
    WorkflowNote,
    may_have_note,
    part_key,
)
from leasedkeyq.lanes.workflow.outcome import (
    LOST,
    GatheredOutcomes,
    GatherOutcome,
    read_outcomes,
)
from leasedkeyq.lanes.workflow.steps import full_payload, write
from leasedkeyq.model.requests import (
    Ack,
    Cancel,
    Change,
    Claim,
    Claimed,
    Extend,
    Placed,
    Purge,
    Put,
    Refusal,
    StoredItem,
)
from leasedkeyq.stores.codec import UNREADABLE
from leasedkeyq.stores.store import Store
from leasedkeyq.stores.system.holder import this_process

logger = logging.getLogger("leasedkeyq")

GATHERS_QUEUE = "leasedkeyq.gathers"
"""The queue with the plans of all gathers. An item of it that comes due is a gather to forget."""
STEP_UNIQUE = 3600.0
"""Seconds for which a step that was completed is not put again by a worker that comes late."""
CONTINUATION_KEPT = 7 * 86400.0
"""Seconds for which a step tells as what its chain goes on."""
AT_ONCE = 1000
"""Outcomes that are read, and members that are cancelled, by one request."""
WRAPPING = 100
"""Bytes that an outcome takes in a store beside itself, at most."""
TIDYING = 300.0
"""Seconds between two looks for gathers to forget."""
TIDIED_AT_ONCE = 100
TIDYING_LEASE = 60.0


class StorePart:
    """The part of a command in its workflow, while it runs here.

    Attributes:
        note: What travels with the command.
        payload: The arguments of the command, as JSON: those that it has before it gets outcomes.
        following: The partition, the key and the value of the next step, once the result is there.
    """

    __slots__ = ("following", "note", "payload")

    def __init__(self, note: WorkflowNote, payload: msgspec.Raw) -> None:
        self.note = note
        self.payload = payload
        self.following: tuple[Partition, str, bytes] | None = None


class GatherPlan(msgspec.Struct, frozen=True):
    """A gather, for workers that have a part in it."""

    size: int
    queue: str
    """The queue of the command that gets the outcomes. Its key is that of the gather."""
    members: tuple[tuple[str, int], ...]
    """The lanes of the members in order, each with the number of members that follow each other."""


_encoder = msgspec.json.Encoder()
_plans = msgspec.json.Decoder(GatherPlan)


class StoreWorkflow:
    """What the engine on a store does for commands of workflows.

    Args:
        store: Where the commands are.
        lanes: The lanes by name.
        registry: Their types.
        clock: Unix time.
    """

    def __init__(
        self,
        store: Store,
        lanes: Mapping[str, Lane],
        registry: CommandRegistry,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._lanes = lanes
        self._registry = registry
        self._clock = clock
        self._unrecorded: dict[str, list[tuple[int, bytes, Future[None]]]] = {}
        """By gather: outcomes that wait until those that are being recorded are."""
        self._recording: dict[str, Task[None]] = {}
        self._tidied = -inf

    # Chains

    def prepare_next(self, job: Job, result: Any) -> None:
        """Write down the next step with the result of this one, before this one counts as done.

        Raises:
            CommandPayloadError: The result cannot be written down.
            LimitExceededError: It is too large.
            UnknownLaneError: The next step runs in a lane that this manager does not have.
        """
        part: StorePart = job.workflow
        if not part.note.steps:
            return
        step, note = part.note.steps[0], part.note.following()
        key = part_key(note.chain, note.position)
        partition = self._partition(step.lane, key)
        raw = write(result, job.kind, "the result")
        envelope = Envelope(
            full_payload(step.given, step.into, raw),
            self._clock(),
            trace=job.carrier,
            unique_for=STEP_UNIQUE,
            workflow=note if note.steps or note.member else None,
        )
        value = encode_envelope(envelope, step.type, key, self._store.limits)
        part.following = partition, key, value

    async def put_next(self, job: Job, lease: Claimed) -> tuple[Partition, Placed, str, str] | None:
        """Put the next step of a chain; None if the lease of this one is gone.

        Raises:
            LeasedKeyQError: The store could not.
        """
        part: StorePart = job.workflow
        assert part.following is not None
        partition, key, value = part.following
        step = part.note.steps[0]
        kind = step.type
        time_left = job.partition.lane.lease_time
        [held] = await self._store.settle([Extend(lease.queue, lease.key, lease.token, time_left)])
        if isinstance(held, Refusal):
            return None
        if isinstance(held, LeasedKeyQError):
            raise held
        if lease.attempt > 1 and (number := await self._buried(partition, key)) is not None:
            # An earlier attempt has put it, and it was given up: its dead letter has the chain.
            return partition, Placed(number, "skipped"), key, kind
        put = Put(
            partition.queue,
            ((key, value),),
            "skip",
            # Commands are counted as lanes are, lower first, and the items of queues the other way.
            None if step.priority is None else -step.priority,
            kind=kind,
            unique_for=STEP_UNIQUE,
        )
        [answer] = await self._store.put([put])
        if isinstance(answer, LeasedKeyQError):
            raise answer
        return partition, answer[0], key, kind

    def _partition(self, lane: str, key: str) -> Partition:
        found = self._lanes.get(lane)
        if found is None:
            raise UnknownLaneError(
                f"a workflow goes on in lane {lane!r}, which this manager does not have; give "
                "every worker the lanes of the workflows that it runs",
                lane=lane,
            )
        return found.partition_of(key)

    async def _buried(self, partition: Partition, key: str) -> int | None:
        """The id of the dead letter of a key, if there is one."""
        cursor: str | None = None
        while True:
            page = await self._store.browse(
                partition.queue, states=("buried",), prefix=key, cursor=cursor, limit=AT_ONCE
            )
            for item in page.items:
                if item.key == key:
                    return item.id
            cursor = page.cursor
            if cursor is None:
                return None

    async def take_back_next(self, job: Job, step: Continuation) -> None:
        """Cancel a step that was put by a worker whose lease was gone, unless it counts.

        It counts if the worker that came after has gone on with it, or still may.
        """
        [ended] = await self._store.results(job.partition.queue, [job.id])
        if ended is None:
            return
        followed = continuation(ended.value)
        if (followed is None and is_cancelled(ended.value)) or (
            followed is not None and followed.id != step.id
        ):
            partition = self._partition(step.lane, step.key)
            await self._store.settle([Cancel(partition.queue, step.key, id=step.id)])

    # Gathers

    async def begin_gather(self, gather: str, plan: GatherPlan, within: float) -> None:
        """Note a gather, before its members are submitted."""
        item = (gather, self._wrapped(_encoder.encode(plan)))
        [answer] = await self._store.put(
            [Put(GATHERS_QUEUE, (item,), "only_new", delay=2 * within)]
        )
        if isinstance(answer, LeasedKeyQError):
            raise answer

    def written_outcome(self, kind: str, outcome: GatherOutcome[Any]) -> bytes:
        """An outcome as the store keeps it; at least as text."""
        try:
            raw = bytes(write(outcome, kind, "the result"))
        except CommandPayloadError as error:
            return _encoder.encode(
                GatherOutcome("failed", error=str(error), error_type="TypeError")
            )
        most = self._store.limits.value_size
        if len(raw) + WRAPPING > most:
            text = (
                f"the result of command {kind!r} has {len(raw)} bytes, and the store takes {most}"
            )
            return _encoder.encode(GatherOutcome("failed", error=text, error_type="ValueError"))
        return raw

    async def record(self, member: Membership, raw: bytes) -> None:
        """Record the outcome of a member; the last one lets the gather go on.

        Outcomes that come while others of the gather are being recorded are recorded together.

        Raises:
            LeasedKeyQError: The store could not.
        """
        gather = member.gather
        done: Future[None] = asyncio.get_running_loop().create_future()
        self._unrecorded.setdefault(gather, []).append((member.number, raw, done))
        if gather not in self._recording:
            self._recording[gather] = asyncio.create_task(self._record_waiting(gather))
        await done

    async def _record_waiting(self, gather: str) -> None:
        """Record the outcomes of a gather that wait, until none is left."""
        try:
            while batch := self._unrecorded.pop(gather, None):
                error: Exception | None = None
                try:
                    await self._record_all(gather, [(number, raw) for number, raw, _ in batch])
                except Exception as caught:
                    error = caught
                for done in [done for _, _, done in batch if not done.done()]:
                    if error is None:
                        done.set_result(None)
                    else:
                        done.set_exception(error)
        finally:
            del self._recording[gather]

    def close(self) -> list[Task[None]]:
        """The tasks that end now."""
        return list(self._recording.values())

    async def _record_all(self, gather: str, outcomes: Sequence[tuple[int, bytes]]) -> None:
        queue = _outcomes_queue(gather)
        size = self._store.limits.batch_size
        items = [(str(number), self._wrapped(raw)) for number, raw in outcomes]
        puts = [Put(queue, tuple(items[i : i + size]), "skip") for i in range(0, len(items), size)]
        for answer in await self._store.put(puts):
            if isinstance(answer, LeasedKeyQError):
                raise answer
        plan = await self._plan(gather)
        if plan is None:  # the gather is over
            await self._store.settle([Purge(queue)])
            await self._store.sweep([queue])
            return
        counts = await self._store.count([queue])
        if counts[queue].available >= plan.size:
            await self._let_go_on(gather, plan.queue)

    def _wrapped(self, raw: bytes) -> bytes:
        """A plan or an outcome as a command is written down, which every `Storage` can keep."""
        return _encoder.encode(Envelope(msgspec.Raw(raw), self._clock()))

    async def _plan(self, gather: str) -> GatherPlan | None:
        """The plan of a gather, unless it is over, or somebody else has written there."""
        [found] = await self._store.look(GATHERS_QUEUE, [gather])
        try:
            return _plans.decode(_unwrapped(found[0])) if found else None
        except (CommandPayloadError, *UNREADABLE) as error:
            logger.error("the plan of %s cannot be read, so it does not go on: %s", gather, error)  # noqa: TRY400
            return None

    async def _let_go_on(self, gather: str, queue: str) -> None:
        """Let the command start that gets the outcomes, if it still waits for them."""

        def start(items: Sequence[StoredItem]) -> list[Put | Change]:
            return [
                Put(queue, ((gather, item.value),), "update", delay=0.0, kind=item.kind)
                for item in items
                if item.state == "scheduled" and not item.attempt
            ]

        await self._store.edit(queue, start, keys=[gather])

    async def complete_arguments(self, job: Job) -> None:
        """Give a command the outcomes of its gather.

        Raises:
            CommandLostError: They are not there any more.
            CommandPayloadError: The command does not take them.
        """
        part: StorePart = job.workflow
        gathered = part.note.gathered
        if gathered is None:
            return
        raw = await self._outcomes(job, gathered)
        if gathered.into:
            listed = msgspec.Raw(b"[" + b",".join(raw) + b"]")
            full = full_payload(part.payload, gathered.into, listed)
            job.command = self._registry.decode(job.kind, bytes(full))
        else:
            returns = self._registry.returns(job.kind)
            job.command = GatheredOutcomes(job.kind, read_outcomes(raw, returns))

    async def _outcomes(self, job: Job, gathered: Gathered) -> list[bytes]:
        if await self._plan(gathered.gather) is None:
            lane = job.partition.lane.id
            raise CommandLostError(
                f"lane {lane!r}: the outcomes for command {job.kind!r} of {gathered.gather!r} are "
                "not kept any more: it was put back too late, or has been done before",
                lane=lane,
                command_type=job.kind,
                key=job.key,
            )
        queue = _outcomes_queue(gathered.gather)
        lost = _encoder.encode(LOST)
        raw: list[bytes] = []
        for first in range(0, gathered.size, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, gathered.size))
            found = await self._store.look(queue, [str(number) for number in numbers])
            raw += [_unwrapped(items[0]) if items else lost for items in found]
        return raw

    async def forget(self, gather: str) -> None:
        """The gather is over: remove its plan and its outcomes."""
        queue = _outcomes_queue(gather)
        await self._store.settle([Cancel(GATHERS_QUEUE, gather), Purge(queue)])
        await self._store.sweep([queue])
        await self.tidy()

    async def tidy(self) -> None:
        """Forget gathers whose time is up, once in a while."""
        now = asyncio.get_running_loop().time()
        if now < self._tidied + TIDYING:
            return
        self._tidied = now
        some = ((GATHERS_QUEUE, TIDIED_AT_ONCE),)
        claim = Claim(some, TIDIED_AT_ONCE, None, TIDYING_LEASE, holder=this_process())
        for old in (await self._store.claim([claim]))[0]:
            queue = _outcomes_queue(old.key)
            await self._store.settle([Purge(queue), Ack(GATHERS_QUEUE, old.key, old.token)])
            await self._store.sweep([queue])
            logger.warning(
                "the outcomes of %r were forgotten: the command that was to get them was not done "
                "in time",
                old.key,
            )

    # Cancellations

    async def part_of(self, partition: Partition, key: str) -> tuple[WorkflowNote, str] | None:
        """The note and the type of the command of a key, if it is a part of a workflow."""
        if not may_have_note(key):
            return None
        [found] = await self._store.look(partition.queue, [key])
        if not found:
            return None
        try:
            note = decode_envelope(found[0].value).workflow
        except CommandPayloadError:
            return None
        return None if note is None else (note, found[0].kind)

    async def cancelled(self, note: WorkflowNote, kind: str, outcome: GatherOutcome[Any]) -> None:
        """A command was cancelled: nothing of its chain goes on, and its gather hears of it."""
        steps = [
            Cancel(self._partition(step.lane, key).queue, key, CANCELLED, STEP_UNIQUE)
            for number, step in enumerate(note.steps, note.position + 1)
            for key in [part_key(note.chain, number)]
            if step.lane in self._lanes
        ]
        if steps:  # a worker that was killed may have left one
            await self._store.settle(steps)
        if note.member is not None:
            await self.record(note.member, self.written_outcome(kind, outcome))
        if note.gathered is not None:
            await self._cancel_members(note.gathered)

    async def _cancel_members(self, gathered: Gathered) -> None:
        plan = await self._plan(gathered.gather)
        if plan is None:
            return
        await self.forget(gathered.gather)
        keys = (part_key(gathered.gather, number) for number in range(plan.size))
        homes = (lane for lane, number in plan.members for _ in range(number))
        changes: list[Change] = []
        for key, lane in zip(keys, homes, strict=True):
            home = self._lanes.get(lane)
            if home is not None:
                queue = home.partition_of(key).queue
                changes.append(Cancel(queue, key, CANCELLED, home.keep_results))
        for first in range(0, len(changes), AT_ONCE):
            await self._store.settle(changes[first : first + AT_ONCE])


def _unwrapped(item: StoredItem) -> bytes:
    return bytes(decode_envelope(item.value).payload)


def _outcomes_queue(gather: str) -> str:
    """The queue with the outcomes of a gather."""
    return f"{GATHERS_QUEUE}:{gather}"
