"""Asking a worker where a command is that it runs: its stack, through the store.

A question is an item for one worker, in the queue in which workers tell each other things. The
worker answers it by a kept result in its place. A question is nothing but the id of a command, and
an answer has names, files, lines and lines of code, and no values.
"""

import asyncio
import secrets
from contextlib import suppress

import msgspec

from leasedkeyq.errors import LeasedKeyQError, StoreError, describe
from leasedkeyq.lanes.errors import UnknownCommandError
from leasedkeyq.lanes.presence.directory import WorkerRecord, read_workers
from leasedkeyq.lanes.presence.records import ASK, WORKERS_QUEUE
from leasedkeyq.lanes.running.command_id import CommandName, parse_command_id
from leasedkeyq.lanes.running.execution.stacks import StackFrame
from leasedkeyq.model.requests import Cancel, Put, StoredItem
from leasedkeyq.stores.codec import UNREADABLE
from leasedkeyq.stores.store import Store

ANSWER_KEPT = 30.0
"""Seconds for which an answer can be read."""
MOST_ASKED = 20
"""Workers that are asked for one command, if none has told that it runs it."""
LOOK_AGAIN = 0.25
"""Seconds after which it is looked for an answer, if nothing was heard."""


class StackAsk(msgspec.Struct, frozen=True):
    """A question: where is this command?"""

    queue: str
    id: int


class StackAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of a worker.

    Attributes:
        found: Whether it runs the command.
        where: ``"task"``, ``"thread"`` or ``"process"``.
        frames: The stack, the outermost frame first.
        unchanged_for: For how many seconds the innermost frames have been the same, as far as the
            worker has looked; None: it was asked for the first time.
        running_for: For how many seconds the command has run.
        memory: Resident bytes of the process that runs it.
        note: What else is to be said.
        worker: The id of the worker. It is not written down.
        at: When it answered, by the clock of the store. It is not written down.
    """

    found: bool
    where: str = ""
    frames: tuple[StackFrame, ...] = ()
    unchanged_for: float | None = None
    running_for: float = 0.0
    memory: int = 0
    note: str = ""
    worker: str = ""
    at: float = 0.0


async def ask_stack(store: Store, command_id: str, timeout: float = 5.0) -> StackAnswer:
    """Ask the worker that runs a command where it is.

    A call that is cancelled, or times out, leaves no question behind.

    Args:
        store: The store of the command.
        command_id: Its id, as `Handle.id` tells it.
        timeout: Seconds to wait for an answer.

    Raises:
        UnknownCommandError: The text is no id of a command, or no worker runs the command.
        TimeoutError: The worker that runs it, or may run it, has not answered.
        StoreError: The store cannot be asked.
    """
    name = parse_command_id(command_id)
    workers = await _who_may_run(store, name)
    if not workers:
        raise UnknownCommandError(
            f"command {describe(command_id)} is not running: no living worker runs its lane",
            key=name.key,
        )
    value = msgspec.json.encode(StackAsk(name.queue, name.number))
    nonce = secrets.token_hex(6)
    asked = {worker: f"{ASK}{worker}:{nonce}" for worker in workers}
    puts = [Put(WORKERS_QUEUE, ((key, value),)) for key in asked.values()]
    news = asyncio.Event()
    unwatch = store.watch(WORKERS_QUEUE, news.set)
    open_asks: dict[int, str] = {}
    try:
        for worker, placed in zip(asked, await store.put(puts), strict=True):
            if isinstance(placed, LeasedKeyQError):
                raise placed
            open_asks[placed[0].id] = worker
        async with asyncio.timeout(timeout):
            while open_asks:
                news.clear()
                for item in await store.results(WORKERS_QUEUE, [*open_asks]):
                    if item is not None:
                        answer = _answer(item, open_asks.pop(item.id))
                        if answer is not None and answer.found:
                            return answer
                if open_asks:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_AGAIN):
                            await news.wait()
    except TimeoutError:
        raise TimeoutError(
            f"{_workers(len(open_asks))} not answered within {timeout:g} s where command "
            f"{describe(command_id)} is; a worker of an older version does not answer, and one "
            "that is stuck in code that is not Python's cannot"
        ) from None
    finally:
        unwatch()
        if open_asks:
            with suppress(StoreError):
                await store.settle(
                    [Cancel(WORKERS_QUEUE, asked[worker]) for worker in open_asks.values()]
                )
    raise UnknownCommandError(
        f"command {describe(command_id)} is not running: its worker does not run it any more",
        key=name.key,
    )


async def _who_may_run(store: Store, name: CommandName) -> list[str]:
    """The ids of the workers to ask: the one that has told so, or all that run the lane."""
    living = [record for record in await read_workers(store) if record.alive]
    for record in living:
        if any((one.queue, one.id) == (name.queue, name.number) for one in record.presence.running):
            return [record.id]
    lane, _, part = name.queue.partition("#")
    return [record.id for record in living if _serves(record, lane, part)][:MOST_ASKED]


def _serves(record: WorkerRecord, lane: str, part: str) -> bool:
    if all(served.lane != lane for served in record.member.serves):
        return False
    load = record.presence.loads.get(lane)
    if load is None or load.partitions is None or not part.isdigit():
        return True
    return int(part) in load.partitions


def _answer(item: StoredItem, worker: str) -> StackAnswer | None:
    try:
        answer = msgspec.json.decode(item.value, type=StackAnswer)
    except UNREADABLE:
        return None  # somebody has removed the question
    at = item.put_at if item.ended_at is None else item.ended_at
    return msgspec.structs.replace(answer, worker=worker, at=at)


def _workers(number: int) -> str:
    return "the worker has" if number == 1 else f"{number} workers have"
