"""Commands on their way into a store: one, or many by few requests that are all or nothing."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import count
from typing import Any, TypeAlias, cast

import msgspec

from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.lanes.command import CommandRegistry
from leasedkeyq.lanes.durable.envelope import Envelope, encode_envelope
from leasedkeyq.lanes.running.engine import Submitted
from leasedkeyq.lanes.running.lane import Lane, Partition
from leasedkeyq.lanes.running.tracing import GuardedTracing
from leasedkeyq.lanes.submit_terms import SubmitTerms
from leasedkeyq.model.admission import check_name, check_priority, limit_exceeded
from leasedkeyq.model.requests import Limits, Put
from leasedkeyq.stores.store import Store

_NOTHING = msgspec.Raw()
_UNTRACED: nullcontext[dict[str, str]] = nullcontext({})
PartitionRun: TypeAlias = tuple[str, list[tuple[str, bytes]]]
"""Items of one type that follow each other: a type, and keys and values."""
Placed: TypeAlias = tuple[Partition, int, str, str, Any]
"""A command in a store: its partition of the lane, its id, its key, its type and itself."""


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
    ) -> Placed:
        """Put a command.

        Raises:
            LeasedKeyQError: The store did not take it.
        """
        key, kind, command = submitted
        limits = self._store.limits
        key = self._new_key() if key is None else check_name("key", key, limits)
        check_name("command_type", kind, limits)
        check_priority(terms.priority)
        envelope = self._envelope(lane, terms)
        envelope.payload = msgspec.Raw(self._registry.encode(command, lane.id))
        partition = lane.partition_of(key)
        with _UNTRACED if tracing is None else tracing.submitting(lane.id, kind, key) as carrier:
            envelope.trace = carrier or None
            item = key, encode_envelope(envelope, kind, key, limits)
            [answer] = await self._store.put([_put(partition, (item,), kind, terms)])
        if isinstance(answer, LeasedKeyQError):
            raise answer
        return partition, answer[0], key, kind, command

    async def put_many(
        self,
        lane: Lane,
        commands: Sequence[Submitted],
        terms: SubmitTerms,
        tracing: GuardedTracing | None,
    ) -> tuple[list[Placed], BaseException | None]:
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
            envelope = self._envelope(lane, terms)
            envelope.trace = carrier or None
            return await self._put_all(lane, commands, terms, envelope)

    async def _put_all(
        self, lane: Lane, commands: Sequence[Submitted], terms: SubmitTerms, envelope: Envelope
    ) -> tuple[list[Placed], BaseException | None]:
        """The envelope is used for one command after the other, with the arguments of each."""
        limits = self._store.limits
        check_priority(terms.priority)
        _check_number(lane, len(commands), limits)
        keys = [
            self._new_key() if key is None else check_name("key", key, limits)
            for key, _, _ in commands
        ]
        runs: dict[Partition, list[PartitionRun]] = {}
        for key, (_, kind, command) in zip(keys, commands, strict=True):
            envelope.payload = msgspec.Raw(self._registry.encode(command, lane.id))
            item = key, encode_envelope(envelope, kind, key, limits)
            mine = runs.setdefault(lane.partition_of(key), [])
            if not mine or mine[-1][0] != kind:
                check_name("command_type", kind, limits)
                mine.append((kind, []))
            mine[-1][1].append(item)
        ids, refusal = await _put_everywhere(
            self._store,
            [
                [_put(partition, tuple(some), kind, terms) for kind, some in mine]
                for partition, mine in runs.items()
            ],
        )
        placed: list[Placed] = [
            (lane.partition_of(key), ids[key], key, kind, command)
            for key, (_, kind, command) in zip(keys, commands, strict=True)
            if key in ids
        ]
        return placed, refusal

    def _new_key(self) -> str:
        """For a command that has none."""
        # Drawn here and not before: a manager may be made before a fork.
        self._prefix = self._prefix or secrets.token_hex(8)
        return f"{self._prefix}-{next(self._numbers):x}"

    def _envelope(self, lane: Lane, terms: SubmitTerms) -> Envelope:
        envelope = Envelope(_NOTHING, self._clock())
        if terms.delay:
            envelope.after = terms.delay
        limit = terms.time_limit(lane.timeout)
        if limit != lane.timeout:
            envelope.timeout = limit or 0.0
        return envelope


def _put(
    partition: Partition, items: tuple[tuple[str, bytes], ...], kind: str, terms: SubmitTerms
) -> Put:
    return Put(
        partition.queue,
        items,
        terms.policy,
        # Commands are counted as lanes are, lower first, and the items of queues the other way.
        None if terms.priority is None else -terms.priority,
        terms.delay,
        kind=kind,
        deadline=terms.deadline,
    )


def _check_number(lane: Lane, number: int, limits: Limits) -> None:
    if number > limits.batch_size:
        message = f"lane {lane.id!r}: {number} commands in one submit_many"
        raise limit_exceeded(message, "batch_size", limits)


async def _put_everywhere(
    store: Store, requests: Sequence[Sequence[Put]]
) -> tuple[dict[str, int], BaseException | None]:
    """Put into each queue, all or nothing; returns the ids by key, and why a queue took none."""
    if len(requests) == 1:
        return await _put_into_one(store, requests[0]), None
    works = [_put_into_one(store, puts) for puts in requests]
    ids: dict[str, int] = {}
    refusal: BaseException | None = None
    for answer in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(answer, BaseException):
            refusal = refusal or answer
        else:
            ids.update(answer)
    return ids, refusal


async def _put_into_one(store: Store, puts: Sequence[Put]) -> dict[str, int]:
    """Put into one queue, all or nothing."""
    answers: Any
    if len(puts) == 1:
        answers = await store.put(puts)
        if isinstance(answers[0], LeasedKeyQError):
            raise answers[0]
    else:
        # A request is of one type only. An edit makes several of them one step.
        answers = await store.edit(puts[0].queue, lambda _: puts, keys=[puts[0].items[0][0]])
    ids: dict[str, int] = {}
    for put, numbers in zip(puts, cast("list[tuple[int, ...]]", answers), strict=True):
        ids.update(zip([key for key, _ in put.items], numbers, strict=True))
    return ids
