"""Dead letters in a store: its buried items."""

import asyncio
import builtins
import logging
import secrets
from asyncio import AbstractEventLoop, Task
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from leasedkeyq.checks import storable
from leasedkeyq.errors import KeyAlreadyPresentError, LeasedKeyQError
from leasedkeyq.lanes.dead_letters import DeadLetter, DeadLetterQueue
from leasedkeyq.lanes.durable.envelope import (
    PARKED,
    Envelope,
    decode_envelope,
    encode_envelope,
    plain_payload,
    read_payload,
)
from leasedkeyq.lanes.errors import CommandPayloadError, ShuttingDownError, UnknownLaneError
from leasedkeyq.lanes.running.command_id import command_id, number_of
from leasedkeyq.lanes.running.lane import Lane, Partition
from leasedkeyq.lanes.running.remote_errors import split
from leasedkeyq.lanes.workflow.note import plain_note, read_note
from leasedkeyq.model.requests import (
    Bury,
    Cancel,
    Change,
    Claim,
    Discard,
    Limits,
    Purge,
    Put,
    Requeue,
    StoredItem,
)
from leasedkeyq.stores.store import Store
from leasedkeyq.stores.system.holder import this_process

logger = logging.getLogger("leasedkeyq")


class StoreDeadLetterQueue(DeadLetterQueue):
    """The buried commands of all lanes on a store.

    With a limit, whoever looks at it through this object sees no more letters than that: the oldest
    are dropped first, those of other processes included.

    Args:
        store: Where they are.
        lanes: The lanes by name.
        max_size: How many letters it holds; None: as many as the store keeps of each queue.
        closed: Tells whether no more commands are taken.
    """

    def __init__(
        self,
        store: Store,
        lanes: Mapping[str, Lane],
        max_size: int | None,
        *,
        closed: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(max_size or store.limits.buried)
        self._store = store
        self._lanes = lanes
        self._limited = max_size is not None
        self._closed = closed
        self._trimming: Task[None] | None = None
        self._untrimmed = False
        """Whether letters have come since those that are being dropped were counted."""

    def add(self, letter: DeadLetter) -> None:
        """A store cannot be written to without waiting."""
        raise TypeError(f"a letter of lane {letter.lane!r} is added to a store with push")

    async def push(self, letter: DeadLetter) -> None:
        """Add a letter."""
        await bury_letter(self._store, self._partition(letter).queue, letter)
        self.trim(asyncio.get_running_loop())

    async def pop(self) -> DeadLetter | None:
        """Remove and return the oldest letter, or None."""
        while letters := await self.list():
            letter = letters[0]
            if await self._discard(letter):
                return letter
        return None

    async def list(self, lane: str | None = None) -> "list[DeadLetter]":
        """All letters, or those of a lane, oldest first."""
        await self.settled()
        return await self._all(lane)

    async def _all(self, lane: str | None = None) -> "builtins.list[DeadLetter]":
        letters = [
            read_letter(partition.lane.id, item)
            for partition in self._partitions()
            if lane is None or partition.lane.id == lane
            for item in await self._buried(partition)
        ]
        return sorted(letters, key=lambda letter: letter.failed_at)

    async def clear(self) -> int:
        """Forget all letters; returns how many there were."""
        purges = [Purge(partition.queue, "buried") for partition in self._partitions()]
        answers = await self._store.settle(purges) if purges else []
        return sum(answer for answer in answers if isinstance(answer, int))

    async def len(self) -> int:
        """How many letters there are."""
        await self.settled()
        return await self._count()

    async def _count(self) -> int:
        counts = await self._store.count([partition.queue for partition in self._partitions()])
        return sum(count.buried for count in counts.values())

    async def requeue(self, letter: DeadLetter) -> bool:
        """Put a letter back into its lane, where it starts anew.

        Returns whether it was still here.

        Raises:
            UnknownLaneError: Its lane is not there any more. The letter stays.
            ShuttingDownError: The manager takes no more commands. The letter stays.
        """
        partition = self._partition(letter)
        if self._closed():
            raise ShuttingDownError(
                f"lane {letter.lane!r}: the manager is shutting down and takes no more commands",
                lane=letter.lane,
            )
        answer = (await self._store.settle([Requeue(partition.queue, _number(letter))]))[0]
        _raise([answer])
        return bool(answer)

    def trim(self, loop: AbstractEventLoop) -> None:
        """Drop the oldest letters in the background if there are too many."""
        if not self._limited:
            return
        self._untrimmed = True
        if self._trimming is None or self._trimming.done():
            self._trimming = loop.create_task(self._trim())

    async def _trim(self) -> None:
        try:
            while self._untrimmed:
                self._untrimmed = False
                if await self._count() > self.max_size:
                    await self._drop()
        except LeasedKeyQError as error:
            logger.warning("the dead letters could not be trimmed: %s", error)
        except Exception:
            logger.exception("the dead letters could not be trimmed")

    async def _drop(self) -> None:
        """Drop the oldest letters; another process may be dropping them at the same time."""
        for letter in (await self._all())[: -self.max_size]:
            if await self._discard(letter):
                self.dropped += 1
                logger.warning(
                    "lane %r: dropped the oldest dead letter, key %r: the limit is %d",
                    letter.lane,
                    letter.key,
                    self.max_size,
                )

    async def settled(self) -> None:
        """Wait until the oldest letters are dropped, if there are too many."""
        if self._trimming is not None and not self._trimming.done():
            await asyncio.wait([self._trimming])

    async def _discard(self, letter: DeadLetter) -> bool:
        partition = self._partition(letter)
        return bool((await self._store.settle([Discard(partition.queue, _number(letter))]))[0])

    def _partitions(self) -> Sequence[Partition]:
        return [partition for lane in self._lanes.values() for partition in lane.partitions]

    def _partition(self, letter: DeadLetter) -> Partition:
        lane = self._lanes.get(letter.lane)
        if lane is None:
            known = ", ".join(sorted(self._lanes))
            message = f"there is no lane {letter.lane!r}; the lanes are: {known}"
            raise UnknownLaneError(message, lane=letter.lane)
        return lane.partition_of(letter.key)

    async def _buried(self, partition: Partition) -> Sequence[StoredItem]:
        found: Sequence[StoredItem] = ()
        cursor: str | None = None
        while True:
            page = await self._store.browse(
                partition.queue, states=("buried",), cursor=cursor, limit=1000
            )
            found = (*found, *page.items)
            cursor = page.cursor
            if cursor is None:
                return found


async def bury_letter(store: Store, queue: str, letter: DeadLetter) -> None:
    """Add a letter to the buried items of a queue."""
    key, value = letter_value(letter, store.limits)
    own = key
    while not await _bury_under(store, queue, letter, (own, value)):
        own = f"{key}-{secrets.token_hex(8)}"  # the key has a command of its own


async def _bury_under(
    store: Store, queue: str, letter: DeadLetter, item: tuple[str, bytes]
) -> bool:
    """Bury the item of a letter; returns whether its key was free."""
    key, _ = item
    # Until it is buried, it must not be of its type: a worker would run it.
    [answer] = await store.put([Put(queue, (item,), "only_new", -letter.priority, kind=PARKED)])
    if isinstance(answer, KeyAlreadyPresentError):
        return False
    _raise([answer])
    [claimed] = await store.claim([Claim(((queue, 1),), 1, key, 60.0, holder=this_process())])
    if not claimed:
        return False
    token = claimed[0].token
    buried = False

    def bury(items: Sequence[StoredItem]) -> list[Put | Change]:
        nonlocal buried
        live = [item for item in items if item.state not in ("done", "buried")]
        if len(live) > 1:
            # A command was submitted behind it meanwhile. A put would replace that one.
            return [Cancel(queue, key, id=live[0].id)]
        buried = True
        named = Put(queue, (item,), kind=letter.command_type)
        return [named, Bury(queue, key, token, letter_error(letter))]

    await store.edit(queue, bury, keys=[key])
    return buried


def letter_value(letter: DeadLetter, limits: Limits) -> tuple[str, bytes]:
    """The key and the value of the item of a letter."""
    key, kind = letter.key or secrets.token_hex(8), letter.command_type
    envelope = Envelope(plain_payload(letter.payload, kind, key), letter.submitted_at)
    workflow: Any = letter.workflow
    if isinstance(letter.workflow, dict):  # it was on a store
        envelope.workflow = read_note(workflow)
    return key, encode_envelope(envelope, kind, key, limits)


def letter_error(letter: DeadLetter) -> str:
    """Why the item of a letter is buried."""
    text = f"{letter.error}\n{letter.traceback}" if letter.traceback else letter.error
    return storable(text)


def read_letter(lane: str, item: StoredItem) -> DeadLetter:
    """A buried item as a letter; one that cannot be read is shown as it is stored."""
    line, trace, _ = split(item.error)
    payload, submitted_at = read_payload(item)
    workflow: Any = None
    with suppress(CommandPayloadError):
        workflow = plain_note(decode_envelope(item.value).workflow)
    return DeadLetter(
        id=command_id(item.id, item.queue, item.key),
        lane=lane,
        command_type=item.kind,
        key=item.key,
        payload=payload,
        error=line,
        traceback=trace,
        attempts=item.attempt,
        priority=-item.priority,
        submitted_at=submitted_at,
        failed_at=item.history[-1].ended_at if item.history else item.put_at,
        workflow=workflow,
        holds=item.holds,
    )


def _number(letter: DeadLetter) -> int:
    """The id of the item of a letter; 0 for a letter that was in no store, which none is."""
    return number_of(letter.id) or 0


def _raise(answers: Any) -> None:
    for answer in answers:
        if isinstance(answer, LeasedKeyQError):
            raise answer
