"""A store on a `Storage`: commands run from memory, and each change is written to the storage.

It is no engine of its own, but the memory store with something to write to: so it is a subclass of
that one, and has its meaning without a line of the state machine.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgspec

from leasedkeyq.engines.memory import MemoryStore
from leasedkeyq.errors import LeasedKeyQError, StoreError
from leasedkeyq.lanes.dead_letters import DeadLetter
from leasedkeyq.lanes.durable.dead_letters import letter_error, letter_value, read_letter
from leasedkeyq.lanes.presence.catalog_records import CATALOG_QUEUE
from leasedkeyq.lanes.presence.records import WORKERS_QUEUE
from leasedkeyq.lanes.running.command_id import command_id, number_of
from leasedkeyq.lanes.storage import Storage, StoredCommand, encoded_command, stored_command
from leasedkeyq.model.edit import Edit
from leasedkeyq.model.requests import (
    Ack,
    Amend,
    Answer,
    Bury,
    Cancel,
    Capabilities,
    Change,
    Claim,
    Claimed,
    Counts,
    Discard,
    Limits,
    Placed,
    Purge,
    Put,
    Release,
    Requeue,
    StoredItem,
    StoredState,
)

logger = logging.getLogger("leasedkeyq")

LARGEST_ID = 2**53
QueueKey: TypeAlias = tuple[str, str]
"""A queue and a key in it."""


class StorageStore(MemoryStore):
    """A store in memory that keeps what is in it in a `Storage`, for one process at a time.

    All that the storage has is loaded by the first call. A put is saved before it is answered, and
    before anybody can claim it; if that fails, it is not put. What ends a command removes it; if
    that fails, it is logged, and tried again with the next call. Leases, results and the pauses of
    lanes are not kept: what ran when the process died runs again when the storage is loaded.

    A storage can forget dead letters only all at once. So when one is requeued or dropped because
    of `QueueManagerBuilder.with_dlq`, all others are saved again. Those that are dropped because of
    the limit ``buried`` are forgotten many at a time.
    """

    # What survives is up to the storage, so nothing is promised.
    capabilities: Capabilities = Capabilities(
        durability="none",
        cross_process=False,
        joint_edits=True,
        extends_apart=True,
        minute_series=False,
    )

    def __init__(
        self,
        storage: Storage,
        *,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(limits=limits, clock=clock)
        self._storage = storage
        self._lock = asyncio.Lock()
        self._loaded = False
        self._names: dict[int, str] = {}
        """How the storage calls items, where that is not their id."""
        self._saved: dict[QueueKey, dict[int, StoredCommand]] = {}
        """What the storage has of each key."""
        self._behind: set[QueueKey] = set()
        """What the storage does not know yet, as it failed."""
        self._letters_behind = False
        """Whether its dead letters are to be written anew."""
        self._dropped = 0
        """Dead letters that the storage still has, and that have made room for others."""
        self._given_up: set[int] = set()
        """Buried items that the storage has not heard of yet."""

    # Loading

    async def _load(self) -> None:
        """Take what the storage has, once, and try again what it failed to do."""
        if not self._loaded:
            try:
                letters = [*await self._storage.load_dead_letters()]
                commands = [*await self._storage.load_commands()]
            except Exception as error:
                raise StoreError(f"the storage cannot be loaded: {error}") from error
            now = self._now()
            letters.sort(key=lambda letter: letter.failed_at)
            holding = {(letter.lane, letter.key): letter for letter in letters if letter.holds}
            for letter in letters:
                if holding.get((letter.lane, letter.key)) is not letter:
                    self._take_letter(letter, min(letter.failed_at, now))
            for letter in holding.values():
                self._take_letter(letter, min(letter.failed_at, now), hold=True)
            for command in commands:
                self._take_command(command, now)
            self._loaded = True
        if self._behind or self._letters_behind:
            await self._catch_up(())

    def _take_letter(self, letter: DeadLetter, now: float, *, hold: bool = False) -> None:
        model, queue = self._model, letter.lane
        key, value = letter_value(letter, self.limits)
        put = Put(queue, ((key, value),), priority=-letter.priority, kind=letter.command_type)
        model.put(put, now)
        [claimed] = model.claim(Claim(((queue, 1),), 1, key), now)
        model.queues[queue].state.items[key].attempt = max(letter.attempts, 1)
        model.settle(Bury(queue, key, claimed.token, letter_error(letter), hold), now)

    def _take_command(self, command: StoredCommand, now: float) -> None:
        """Put a command that was saved, behind those of its key that were saved before it.

        One that was buffered takes the place of the one that ran before it, and its attempts: its
        run was ended with the process.
        """
        model = self._model
        key, value = encoded_command(command, self.limits)
        number = number_of(command.id) or 0
        if model.last_id < number < LARGEST_ID:
            model.last_id = number - 1  # so that it gets its own id
        delay = None if command.due is None else max(0.0, command.due - now)
        left = None if command.deadline is None else max(0.0, command.deadline - now)
        put = Put(
            command.lane,
            ((key, value),),
            "update" if command.state == "buffered" else "append",
            priority=-command.priority,
            delay=delay,
            kind=command.command_type,
            deadline=left,
        )
        [(taken, outcome)] = cast("tuple[Placed, ...]", model.put(put, now))
        if outcome == "added":
            model.queues[command.lane].state.items[key].attempt = command.attempts
        saved = self._saved.setdefault((command.lane, key), {})
        if taken in saved:
            # It has taken the place of an older one, and is saved in its place.
            self._behind.add((command.lane, key))
            taken = model.last_id = model.last_id + 1
        saved[taken] = command
        if command_id(taken, command.lane, key) != command.id:
            self._names[taken] = command.id

    # Saving

    async def _catch_up(self, places: Iterable[QueueKey]) -> Exception | None:
        """Let the storage have what has changed; returns why it does not have all of it."""
        failure: Exception | None = None
        for place in dict.fromkeys([*self._behind, *places]):
            try:
                await self._save(place)
            except Exception as error:
                failure = error
                self._behind.add(place)
            else:
                self._behind.discard(place)
        if self._letters_behind:
            try:
                await self._storage.clear_dead_letters()
                for item in self._buried():
                    await self._storage.save_dead_letter(_letter(item))
            except Exception as error:
                failure = error
            else:
                self._letters_behind = False
        if failure is not None:
            logger.error("the storage failed, and is asked again with the next call: %s", failure)
        return failure

    async def _save(self, place: QueueKey) -> None:
        queue, key = place
        if queue in (WORKERS_QUEUE, CATALOG_QUEUE):
            return
        saved = self._saved.setdefault(place, {})
        alive: set[int] = set()
        for item in self._model.line(queue, key, self._now()):
            alive.add(item.id)
            command = msgspec.structs.replace(stored_command(queue, item), lane=queue)
            if item.id in self._names:
                command = msgspec.structs.replace(command, id=self._names[item.id])
            if saved.get(item.id) != command:
                await self._storage.save_command(command)
                saved[item.id] = command
        for number in [number for number in saved if number not in alive]:
            if number in self._given_up:
                buried = self._buried_item(queue, number)
                if buried is not None and not self._letters_behind:
                    await self._storage.save_dead_letter(_letter(buried))
                self._given_up.discard(number)
            await self._storage.remove_command(saved[number].id)
            del saved[number]
            self._names.pop(number, None)
        if not saved:
            del self._saved[place]

    def _buried(self) -> list[StoredItem]:
        now, model = self._now(), self._model
        queues = [*model.queues]
        return [item for name in queues for item in model.browse(name, ("buried",), "", now)]

    def _buried_item(self, queue: str, number: int) -> StoredItem | None:
        after = number - 1
        found = self._model.browse(queue, ("buried",), "", self._now(), after=after, limit=1)
        return found[0] if found and found[0].id == number else None

    def _report_dropped(self) -> None:
        self._dropped += len(self._model.dropped)
        if self._dropped > self.limits.buried:
            self._dropped = 0
            self._letters_behind = True
        super()._report_dropped()

    # The verbs that change something

    async def do_put(self, requests: Sequence[Put]) -> list[tuple[Placed, ...] | LeasedKeyQError]:
        """As `Store.do_put`."""
        async with self._lock:
            await self._load()
            answers = await super().do_put(requests)
            places = [(put.queue, key) for put in requests for key, _ in put.items]
            known = {number for place in places for number in self._saved.get(place, {})}
            failure = await self._catch_up(places)
            if failure is not None:
                await self._take_back(requests, answers, known)
                raise StoreError(f"the storage cannot save: {failure}") from failure
            return answers

    async def _take_back(
        self, requests: Sequence[Put], answers: Sequence[Any], known: set[int]
    ) -> None:
        """What is new, and could not be saved, was not put."""
        for put, answer in zip(requests, answers, strict=True):
            if not isinstance(answer, LeasedKeyQError):
                for (key, _), placed in zip(put.items, answer, strict=True):
                    if placed.id not in known:
                        await super().do_settle([Cancel(put.queue, key, id=placed.id)])

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        """As `Store.do_claim`."""
        async with self._lock:
            await self._load()
            return await super().do_claim(requests)

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        """As `Store.do_settle`."""
        async with self._lock:
            await self._load()
            places = self._places_of(requests)
            answers = await super().do_settle(requests)
            self._note_buried(requests, answers)
            await self._catch_up(places)
            return answers

    async def do_edit(self, edit: Edit) -> list[Answer]:
        """As `Store.do_edit`."""
        places: list[QueueKey] = []
        changes: list[Put | Change] = []
        work = edit.work

        def noted(items: Sequence[StoredItem]) -> Sequence[Put | Change]:
            changes.extend(work(items))
            places.extend(self._places_of(changes))
            return changes

        edit.work = noted
        async with self._lock:
            await self._load()
            answers = await super().do_edit(edit)
            self._note_buried(changes, answers)
            await self._catch_up(places)
            return answers

    def _note_buried(self, changes: Sequence[Put | Change], answers: Sequence[Answer]) -> None:
        for change, answer in zip(changes, answers, strict=True):
            if isinstance(change, Bury) and isinstance(answer, int):
                self._given_up.add(answer)

    def _places_of(self, changes: Sequence[Put | Change]) -> list[QueueKey]:
        """What these changes are about, as long as they are not applied."""
        places: list[QueueKey] = []
        for change in changes:
            match change:
                case Put():
                    places += [(change.queue, key) for key, _ in change.items]
                case Requeue() | Discard():
                    buried = self._buried_item(change.queue, change.id)
                    if buried is not None:
                        places.append((change.queue, buried.key))
                        self._letters_behind = True
                case Purge():
                    self._letters_behind = self._letters_behind or change.part != "results"
                    if change.part == "all":
                        places += [place for place in self._saved if place[0] == change.queue]
                case Ack() | Release() | Bury() | Cancel() | Amend():
                    places.append((change.queue, change.key))
                    if isinstance(change, Cancel) and self._is_held(change.queue, change.key):
                        self._letters_behind = True  # one of them may hold its key no more
                case _:
                    pass
        return places

    def _is_held(self, queue: str, key: str) -> bool:
        queue_model = self._model.queues.get(queue)
        return queue_model is not None and key in queue_model.state.held

    # Those that look

    async def do_sweep(self, queues: Sequence[str]) -> list[float | None]:
        """As `Store.do_sweep`."""
        await self._know()
        return await super().do_sweep(queues)

    async def do_count(self, queues: Sequence[str] | None) -> Mapping[str, Counts]:
        """As `Store.do_count`."""
        await self._know()
        return await super().do_count(queues)

    async def do_heads(self, queues: Sequence[str]) -> list[StoredItem | None]:
        """As `Store.do_heads`."""
        await self._know()
        return await super().do_heads(queues)

    async def do_look(self, queue: str, keys: Sequence[str]) -> list[tuple[StoredItem, ...]]:
        """As `Store.do_look`."""
        await self._know()
        return await super().do_look(queue, keys)

    async def do_line(
        self, queue: str, key: str, after: int, limit: int, /
    ) -> Sequence[StoredItem]:
        """As `Store.do_line`."""
        await self._know()
        return await super().do_line(queue, key, after, limit)

    async def do_browse(
        self,
        queue: str,
        states: Sequence[StoredState],
        prefix: str,
        after: int,
        limit: int,
        /,
        *,
        newest_first: bool,
    ) -> list[StoredItem]:
        """As `Store.do_browse`."""
        await self._know()
        return await super().do_browse(
            queue, states, prefix, after, limit, newest_first=newest_first
        )

    async def _know(self) -> None:
        if not self._loaded:
            async with self._lock:
                await self._load()


def _letter(item: StoredItem) -> DeadLetter:
    return read_letter(item.queue, item)
