"""`LocalStorage`: commands in a file, with calls to look at what is in it."""

import os
from pathlib import Path
from typing import Any

import msgspec

from leasedkeyq.lanes.control import CONTROL
from leasedkeyq.lanes.dead_letters import DeadLetter
from leasedkeyq.lanes.envelope import read_payload, seal_payload
from leasedkeyq.lanes.store_letters import bury_letter, read_letter
from leasedkeyq.stores.contract import Cancel, Purge, Put, StoredItem, StoredState
from leasedkeyq.stores.sqlite import SqliteStore

FILE = "commands.db"
LIVE: tuple[StoredState, ...] = ("available", "scheduled", "in_flight", "buffered")


class StoredCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command that waits or runs, as it is stored."""

    id: str = ""
    lane: str
    command_type: str
    key: str = ""
    payload: Any = None
    """Its arguments."""
    state: str = "available"
    """``"available"``, ``"scheduled"``, ``"in_flight"`` or ``"buffered"``."""
    priority: int = 0
    """Lower goes first, as in `QueueManager.submit`."""
    attempts: int = 0
    submitted_at: float = 0.0


class LocalStorage:
    """Commands in a SQLite file, for `QueueManagerBuilder.with_storage`.

    Args:
        path: The file, or a folder in which to keep it. A folder is created if need be.
        options: As those of `SqliteStore`, such as ``durability=``.

    Attributes:
        store: The store.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        place = Path(path)
        if place.is_dir() or not place.suffix:
            place.mkdir(parents=True, exist_ok=True)
            place /= FILE
        self.path = place
        self.store = SqliteStore(place, **options)

    async def save_command(self, command: StoredCommand) -> str:
        """Store a command for whoever runs its lane; returns its id."""
        key = command.key or os.urandom(8).hex()
        limits = self.store.limits
        value = seal_payload(
            command.payload, command.submitted_at, command.command_type, key, limits
        )
        put = Put(
            command.lane, ((key, value),), priority=-command.priority, kind=command.command_type
        )
        answer = (await self.store.put([put]))[0]
        if isinstance(answer, Exception):
            raise answer
        return str(answer[0])

    async def load_commands(self, lane: str | None = None) -> list[StoredCommand]:
        """All commands that wait or run, oldest first; nothing is taken."""
        found = [
            _command(queue, item)
            for queue in await self._queues(lane)
            for item in await self._items(queue, LIVE)
        ]
        return sorted(found, key=lambda command: int(command.id))

    async def remove_command(self, id: str) -> bool:  # noqa: A002  # the name of the seed
        """Remove a command, whatever its state; returns whether it was there."""
        for queue in await self._queues(None):
            for item in await self._items(queue, LIVE):
                if str(item.id) == id:
                    return bool((await self.store.settle([Cancel(queue, item.key)]))[0])
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
        """Let go of the file."""
        await self.store.close()

    async def _purge(self, part: Any) -> int:
        purges = [Purge(queue, part) for queue in await self._queues(None)]
        answers = await self.store.settle(purges) if purges else []
        return sum(answer for answer in answers if isinstance(answer, int))

    async def _queues(self, lane: str | None) -> list[str]:
        queues = sorted(name for name in await self.store.count() if name != CONTROL)
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


def _command(queue: str, item: StoredItem) -> StoredCommand:
    payload, submitted_at = read_payload(item)
    return StoredCommand(
        id=str(item.id),
        lane=queue.partition("#")[0],
        command_type=item.kind,
        key=item.key,
        payload=payload,
        state=item.state,
        priority=-item.priority,
        attempts=item.attempt,
        submitted_at=submitted_at,
    )
