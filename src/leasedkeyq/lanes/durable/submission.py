"""Commands on their way into a store: one, or many by few requests that are all or nothing."""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from itertools import count
from typing import Any, TypeAlias, cast

import msgspec

from leasedkeyq.errors import KeyAlreadyPresentError, LeasedKeyQError
from leasedkeyq.lanes.commands.command import CommandRegistry
from leasedkeyq.lanes.commands.submit_terms import SubmitTerms
from leasedkeyq.lanes.durable.envelope import Envelope, encode_envelope
from leasedkeyq.lanes.running.engine import Submitted, key_present
from leasedkeyq.lanes.running.lane import Lane, Partition
from leasedkeyq.lanes.running.tracing import GuardedTracing
from leasedkeyq.lanes.workflow.note import WorkflowNote
from leasedkeyq.model.admission import check_name, check_priority, limit_exceeded
from leasedkeyq.model.requests import Limits, Placed, Put
from leasedkeyq.stores.store import Store

_NOTHING = msgspec.Raw()
_UNTRACED: nullcontext[dict[str, str]] = nullcontext({})
PartitionRun: TypeAlias = tuple[str, list[tuple[str, bytes]]]
"""Items of one type that follow each other: a type, and keys and values."""
SubmittedPlace: TypeAlias = tuple[Partition, Placed, str, str, Any]
"""A command in a store: its partition of the lane, its place, its key, its type and itself."""


class Submissions:
    """Puts commands into a store.

    Args:
        store: Where they go.
        registry: Knows how they are written down.
        clock: Unix time.
    """

    def __init__(self, store: Store, registry: CommandRegistry, clock: Callable[[], float]) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock
        self._prefix = ""
        self._numbers = count()

    async def put(
        self, lane: Lane, submitted: Submitted, terms: SubmitTerms, tracing: GuardedTracing | None
    ) -> SubmittedPlace:
        """Put a command.

        Raises:
            LeasedKeyQError: The store did not take it.
        """
        key, kind, command = submitted
        limits = self._store.limits
        key = self._new_key() if key is None else check_name("key", key, limits)
        check_name("command_type", kind, limits)
        priority = self._priority(kind, terms)
        envelope = self._envelope(lane, terms)
        envelope.payload = msgspec.Raw(self._registry.encode(command, lane.id))
        partition = lane.partition_of(key)
        with _UNTRACED if tracing is None else tracing.submitting(lane.id, kind, key) as carrier:
            envelope.trace = carrier or None
            item = key, encode_envelope(envelope, kind, key, limits)
            put = command_put(partition, (item,), kind, terms, priority)
            [answer] = await self._store.put([put])
        if isinstance(answer, LeasedKeyQError):
            raise _of_lane(lane, answer, 1)
        return partition, answer[0], key, kind, command

    async def put_many(
        self,
        lane: Lane,
        commands: Sequence[Submitted],
        terms: SubmitTerms,
        tracing: GuardedTracing | None,
    ) -> tuple[list[SubmittedPlace], BaseException | None]:
        """Put commands, all or nothing in each partition of the lane.

        Returns those that are in the store now, in order, and why others are not.

        Raises:
            LimitExceededError: They are too many for the store, or one is too large.
            CommandPayloadError: One cannot be written down.
        """
        with (
            _UNTRACED
            if tracing is None
            else tracing.submitting_many(lane.id, len(commands)) as carrier
        ):
            keys, puts = self.puts(lane, commands, terms, carrier)
            answers, refusal = await _put_everywhere(self._store, puts)
        stored = _in_order(lane, zip(keys, commands, strict=True), answers)
        if refusal is not None:
            refusal = _of_lane(lane, refusal, len(commands), len(puts))
        return stored, refusal

    async def put_parts(
        self, lane: Lane, commands: Sequence[Submitted], puts: Mapping[Partition, Sequence[Put]]
    ) -> list[SubmittedPlace]:
        """Put commands of a workflow by requests that `puts` has made; each has a key.

        Raises:
            LeasedKeyQError: The store did not take those of one partition.
        """
        answers, refusal = await _put_everywhere(self._store, puts)
        if refusal is not None:
            raise refusal
        return _in_order(lane, [(str(command[0]), command) for command in commands], answers)

    async def put_within(
        self,
        connection: Any,
        lane: Lane,
        commands: Sequence[Submitted],
        terms: SubmitTerms,
        tracing: GuardedTracing | None,
    ) -> list[SubmittedPlace]:
        """Put commands in the transaction that is open on a connection.

        Raises:
            ValueError: They have a deadline, which a put in a transaction cannot keep.
            StoreError: The store cannot, or no transaction is open.
            LeasedKeyQError: The store did not take one of them. What was put before it is undone
                when the caller rolls back.
        """
        if terms.deadline is not None:
            raise ValueError("deadline and connection exclude each other")
        answers: dict[Partition, list[Placed]] = {}
        with (
            _UNTRACED
            if tracing is None
            else tracing.submitting_many(lane.id, len(commands)) as carrier
        ):
            keys, puts = self.puts(lane, commands, terms, carrier)
            for partition, requests in puts.items():
                answers[partition] = []
                for answer in await self._store.put_within(connection, requests):
                    if isinstance(answer, LeasedKeyQError):
                        raise _of_lane(lane, answer, len(commands))
                    answers[partition] += answer
        return _in_order(lane, zip(keys, commands, strict=True), answers)

    def puts(
        self,
        lane: Lane,
        commands: Sequence[Submitted],
        terms: SubmitTerms,
        carrier: dict[str, str] | None = None,
        notes: Sequence[WorkflowNote] = (),
    ) -> tuple[list[str], dict[Partition, list[Put]]]:
        """The keys of commands, and what puts them into each partition, in order.

        `notes` are the parts of the commands in a workflow, one for each, or none at all.

        Raises:
            LimitExceededError: They are too many for the store, or one is too large.
            CommandPayloadError: One cannot be written down.
        """
        envelope = self._envelope(lane, terms)
        envelope.trace = carrier or None
        limits = self._store.limits
        _check_number(lane, len(commands), limits)
        keys = [
            self._new_key() if key is None else check_name("key", key, limits)
            for key, _, _ in commands
        ]
        runs: dict[Partition, list[PartitionRun]] = {}
        for number, (key, (_, kind, command)) in enumerate(zip(keys, commands, strict=True)):
            if notes:
                envelope.workflow = notes[number]
            if isinstance(command, msgspec.Raw):  # of a command that lacks an argument
                envelope.payload = command
            else:
                envelope.payload = msgspec.Raw(self._registry.encode(command, lane.id))
            item = key, encode_envelope(envelope, kind, key, limits)
            mine = runs.setdefault(lane.partition_of(key), [])
            if not mine or mine[-1][0] != kind:
                check_name("command_type", kind, limits)
                mine.append((kind, []))
            mine[-1][1].append(item)
        return keys, {
            partition: [
                command_put(partition, tuple(some), kind, terms, self._priority(kind, terms))
                for kind, some in mine
            ]
            for partition, mine in runs.items()
        }

    def _priority(self, kind: str, terms: SubmitTerms) -> int | None:
        """The priority of commands of a type: as was said, or as their type says."""
        priority = terms.priority
        if priority is None:
            options = self._registry.options.get(kind)
            priority = None if options is None else options.priority
        check_priority(priority)
        return priority

    def _new_key(self) -> str:
        """For a command that has none."""
        # Drawn here and not before: a manager may be made before a fork.
        self._prefix = self._prefix or secrets.token_hex(8)
        return f"{self._prefix}-{next(self._numbers):x}"

    def _envelope(self, lane: Lane, terms: SubmitTerms) -> Envelope:
        envelope = Envelope(_NOTHING, self._clock())
        if terms.delay:
            envelope.after = terms.delay
        if terms.timeout is not None:
            envelope.timeout = terms.time_limit(lane.timeout) or 0.0
        envelope.coalesces = terms.coalesces
        envelope.unique_for = terms.unique_for
        return envelope


def command_put(
    partition: Partition,
    items: tuple[tuple[str, bytes], ...],
    kind: str,
    terms: SubmitTerms,
    priority: int | None,
) -> Put:
    """The request that puts commands of one type into a partition."""
    return Put(
        partition.queue,
        items,
        terms.policy,
        # Commands are counted as lanes are, lower first, and the items of queues the other way.
        None if priority is None else -priority,
        terms.delay,
        kind=kind,
        deadline=terms.deadline,
        unique_for=terms.unique_for,
    )


def _of_lane(lane: Lane, error: BaseException, commands: int, partitions: int = 1) -> BaseException:
    """A refusal of the store of so many commands, in the words of lanes."""
    if isinstance(error, KeyAlreadyPresentError):
        keys = [str(key) for key in error.keys]
        return key_present(lane, keys, commands, partitions=partitions)
    return error


def _in_order(
    lane: Lane,
    commands: Iterable[tuple[str, Submitted]],
    answers: Mapping[Partition, Sequence[Placed]],
) -> list[SubmittedPlace]:
    """The commands that are in the store, in the order in which they were submitted."""
    places = {partition: iter(placed) for partition, placed in answers.items()}
    stored: list[SubmittedPlace] = []
    for key, (_, kind, command) in commands:
        partition = lane.partition_of(key)
        if partition in places:
            stored.append((partition, next(places[partition]), key, kind, command))
    return stored


def _check_number(lane: Lane, number: int, limits: Limits) -> None:
    if number > limits.batch_size:
        message = f"lane {lane.id!r}: {number} commands in one submit_many"
        raise limit_exceeded(message, "batch_size", limits)


async def _put_everywhere(
    store: Store, puts: Mapping[Partition, Sequence[Put]]
) -> tuple[dict[Partition, list[Placed]], BaseException | None]:
    """Put into each queue, all or nothing; returns the places, and why a queue took none."""
    if len(puts) == 1:
        [(partition, requests)] = puts.items()
        try:
            return {partition: await _put_into_one(store, requests)}, None
        except KeyAlreadyPresentError as error:
            return {}, error
    works = [_put_into_one(store, requests) for requests in puts.values()]
    placed: dict[Partition, list[Placed]] = {}
    refusal: BaseException | None = None
    for partition, answer in zip(
        puts, await asyncio.gather(*works, return_exceptions=True), strict=True
    ):
        if isinstance(answer, BaseException):
            refusal = refusal or answer
        else:
            placed[partition] = answer
    return placed, refusal


async def _put_into_one(store: Store, puts: Sequence[Put]) -> list[Placed]:
    """Put into one queue, all or nothing."""
    answers: Any
    if len(puts) == 1:
        answers = await store.put(puts)
        if isinstance(answers[0], LeasedKeyQError):
            raise answers[0]
    else:
        # A request is of one type only. An edit makes several of them one step.
        answers = await store.edit(puts[0].queue, lambda _: puts, keys=[puts[0].items[0][0]])
    return [place for answer in cast("list[tuple[Placed, ...]]", answers) for place in answer]
