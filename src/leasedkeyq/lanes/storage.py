"""Storages: the stored commands of a store, to look at, and the protocol for storages of others."""

import os
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec

from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.lanes.dead_letters import DeadLetter
from leasedkeyq.lanes.durable.dead_letters import bury_letter, read_letter
from leasedkeyq.lanes.durable.envelope import (
    Envelope,
    decode_envelope,
    encode_envelope,
    plain_payload,
    read_payload,
)
from leasedkeyq.lanes.durable.workflow import GATHERS_QUEUE
from leasedkeyq.lanes.errors import CommandPayloadError
from leasedkeyq.lanes.presence.records import OWN_QUEUES
from leasedkeyq.lanes.running.command_id import command_id, number_of
from leasedkeyq.lanes.workflow.note import plain_note, read_note
from leasedkeyq.model.requests import Cancel, Limits, Purge, Put, StoredItem, StoredState
from leasedkeyq.stores.store import LIVE_STATES, Store

FILE = "commands.db"


class StoredCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command that waits or runs, as it is stored."""

    id: str = ""
    """As `Handle.id`."""
    lane: str
    command_type: str
    key: str = ""
    payload: Any = None
    """Its arguments."""
    state: str = "available"
    """``"available"``, ``"scheduled"``, ``"in_flight"``, ``"in_line"`` or ``"buffered"``."""
    priority: int = 0
    """Lower goes first, as in `QueueManager.submit`."""
    attempts: int = 0
    submitted_at: float = 0.0
    due: float | None = None
    """When it may start, as Unix time, where its time has not come."""
    deadline: float | None = None
    """By when it should be started, as Unix time, if that was said."""
    timeout: float | None = None
    """How long it may run; None: as its lane says; 0: as long as it likes."""
    unique_for: float = 0.0
    """As in `QueueManager.submit`."""
    workflow: Any = None
    """Its part in a chain or a gather, if it has one: plain values, to be kept as they are."""


StoredDeadLetter: TypeAlias = DeadLetter
"""A dead letter, as it is stored."""


class Storage(Protocol):
    """Where a manager can keep its commands: any object with these seven methods.

    Give it to `QueueManagerBuilder.with_storage`. The commands then run from memory, in one process
    at a time, and the storage has what is not done: it is told of each command before `submit`
    returns, and loaded when a manager first needs to know. What was not removed is run again then.
    A `leasedkeyq.stores.Store` does more: it is shared by any number of workers.

    What a storage returns from methods that save, remove or clear is ignored. What it raises at
    `save_command` is raised by `submit`, as a `StoreError`; the rest is logged and tried again.
    """

    def save_command(self, command: StoredCommand) -> Awaitable[object]:
        """Keep a command; one with the same id takes the place of the one before."""
        ...

    def load_commands(self) -> Awaitable[Iterable[StoredCommand]]:
        """All commands that were saved and not removed, oldest first."""
        ...

    def remove_command(self, id: str, /) -> Awaitable[object]:  # noqa: A002  # as in the seed
        """Forget a command: it is done, cancelled or given up. Fine if it is not there."""
        ...

    def save_dead_letter(self, letter: StoredDeadLetter) -> Awaitable[object]:
        """Keep a command that was given up."""
        ...

    def load_dead_letters(self) -> Awaitable[Iterable[StoredDeadLetter]]:
        """All dead letters."""
        ...

    def clear_dead_letters(self) -> Awaitable[object]:
        """Forget all dead letters. Those that are still wanted are saved again."""
        ...

    def clear_all(self) -> Awaitable[object]:
        """Forget everything. No manager calls it."""
        ...


METHODS = tuple(name for name in vars(Storage) if not name.startswith("_"))


def missing_methods(storage: object) -> list[str]:
    """The methods of a `Storage` that an object does not have."""
    return [name for name in METHODS if not callable(getattr(storage, name, None))]


class CommandStorage:
    """The commands and dead letters of any store, to be looked at and changed by hand.

    Args:
        store: An open store, the same that `QueueManagerBuilder.with_storage` was given.

    Attributes:
        store: The store.
    """

    def __init__(self, store: Store) -> None:
        if not isinstance(store, Store):
            raise TypeError(f"store must be an open Store, got {type(store).__name__}")
        self.store = store

    async def save_command(self, command: StoredCommand) -> str:
        """Store a command for whoever runs its lane, behind others of its key; returns its id."""
        item = encoded_command(command, self.store.limits)
        kind, priority = command.command_type, -command.priority
        put = Put(command.lane, (item,), "append", priority, kind=kind)
        [answer] = await self.store.put([put])
        if isinstance(answer, LeasedKeyQError):
            raise answer
        return command_id(answer[0].id, command.lane, item[0])

    async def load_commands(self, lane: str | None = None) -> list[StoredCommand]:
        """All commands that wait or run, oldest first; nothing is taken."""
        found = [
            stored_command(queue, item)
            for queue in await self._queues(lane)
            for item in await self._items(queue, LIVE_STATES)
        ]
        return sorted(found, key=lambda command: number_of(command.id) or 0)

    async def remove_command(self, id: str) -> bool:  # noqa: A002  # the name of the seed
        """Remove a command, whatever its state; returns whether it was there."""
        number = number_of(id)
        for queue in await self._queues(None):
            for item in await self._items(queue, LIVE_STATES):
                if item.id == number:
                    cancel = Cancel(queue, item.key, id=item.id)
                    return bool((await self.store.settle([cancel]))[0])
        return False

    async def save_dead_letter(self, letter: DeadLetter) -> None:
        """Store a dead letter."""
        await bury_letter(self.store, letter.lane, letter)

    async def load_dead_letters(self, lane: str | None = None) -> list[DeadLetter]:
        """All dead letters, oldest first."""
        letters = [
            read_letter(queue.partition("#")[0], item)
            for queue in await self._queues(lane)
            for item in await self._items(queue, ("buried",))
        ]
        return sorted(letters, key=lambda letter: letter.failed_at)

    async def clear_dead_letters(self) -> int:
        """Forget all dead letters; returns how many there were."""
        return await self._purge("buried")

    async def clear_all(self) -> int:
        """Forget everything: commands, dead letters and results; returns how much it was."""
        return await self._purge("all")

    async def close(self) -> None:
        """Close the store."""
        await self.store.close()

    async def _purge(self, part: Any) -> int:
        gathers = [name for name in await self.store.count() if name.startswith(GATHERS_QUEUE)]
        everything = [*await self._queues(None), *gathers]
        purges = [Purge(queue, part) for queue in everything]
        answers = await self.store.settle(purges) if purges else []
        return sum(answer for answer in answers if isinstance(answer, int))

    async def _queues(self, lane: str | None) -> list[str]:
        queues = sorted(
            name for name in await self.store.count() if not name.startswith(OWN_QUEUES)
        )
        return [queue for queue in queues if lane in (None, queue, queue.partition("#")[0])]

    async def _items(self, queue: str, states: tuple[StoredState, ...]) -> list[StoredItem]:
        found: list[StoredItem] = []
        cursor: str | None = None
        while True:
            page = await self.store.browse(queue, states=states, cursor=cursor, limit=1000)
            found += page.items
            cursor = page.cursor
            if cursor is None:
                return found


class LocalStorage(CommandStorage):
    """Commands in a SQLite file, for `QueueManagerBuilder.with_storage`.

    Args:
        path: The file, or a folder in which to keep it. A folder is created if need be.
        options: As those of `SqliteStore`, such as ``durability=``.

    Attributes:
        path: The file.
        store: The store.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        place = Path(path)
        if place.is_dir() or not place.suffix:
            place.mkdir(parents=True, exist_ok=True)
            place /= FILE
        self.path = place
        super().__init__(SqliteStore(place, **options))


def encoded_command(command: StoredCommand, limits: Limits) -> tuple[str, bytes]:
    """The key and the value of the item of a command."""
    key = command.key or os.urandom(8).hex()
    kind, at, timeout = command.command_type, command.submitted_at, command.timeout
    envelope = Envelope(plain_payload(command.payload, kind, key), at, timeout)
    envelope.unique_for = command.unique_for
    envelope.workflow = read_note(command.workflow)
    return key, encode_envelope(envelope, kind, key, limits)


def stored_command(queue: str, item: StoredItem) -> StoredCommand:
    """The command of an item."""
    payload, submitted_at = read_payload(item)
    timeout, unique_for, workflow = None, 0.0, None
    with suppress(CommandPayloadError):
        envelope = decode_envelope(item.value)
        timeout, unique_for = envelope.timeout, envelope.unique_for
        workflow = plain_note(envelope.workflow)
    return StoredCommand(
        id=command_id(item.id, queue, item.key),
        lane=queue.partition("#")[0],
        command_type=item.kind,
        key=item.key,
        payload=payload,
        state=item.state,
        priority=-item.priority,
        attempts=item.attempt,
        submitted_at=submitted_at,
        due=item.due if item.state in ("scheduled", "buffered", "in_line") else None,
        deadline=item.deadline,
        timeout=timeout,
        unique_for=unique_for,
        workflow=workflow,
    )
