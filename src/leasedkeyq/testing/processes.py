"""Other processes that have opened the store of a check, and do what they are told."""

import asyncio
import multiprocessing
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import Any, NamedTuple

from leasedkeyq.model.requests import Ack, Change, Claim, Claimed, Counts, Put, Release
from leasedkeyq.stores.store import Store

Say = Callable[[Any], None]

if "forkserver" in multiprocessing.get_all_start_methods():
    # A fork of a server that does nothing else starts in some milliseconds, if the server has
    # imported what the process needs: `multiprocessing.set_forkserver_preload`.
    context: ForkServerContext | SpawnContext = multiprocessing.get_context("forkserver")
else:
    context = multiprocessing.get_context("spawn")


class ProcessEndedError(AssertionError):
    """The other process is gone, and was not killed by us."""


class Worker:
    """A process that has opened a store. It does one command at a time.

    It is no fork of this process, and shares nothing with it. `opener` is pickled to get there.
    """

    def __init__(self, opener: Callable[..., Store]) -> None:
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(opener, theirs), daemon=True)
        try:
            self._process.start()
        except Exception as error:
            self._connection.close()
            raise TypeError(
                f"{opener!r} cannot be given to another process ({error}); use a URL, a function "
                "at the top of a module, or a functools.partial of one"
            ) from error
        finally:
            theirs.close()

    def tell(self, command: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Give it a command: a function of this module, and its arguments after the first two."""
        self._connection.send((command.__name__, arguments))

    async def hear(self) -> Any:
        """The next thing that it says about its command; the last one is the answer.

        Raises:
            ProcessEndedError: The process or its command failed.
        """
        try:
            fine, said = await asyncio.to_thread(self._connection.recv)
        except (EOFError, OSError) as error:
            raise ProcessEndedError("the other process ended") from error
        if not fine:
            raise ProcessEndedError(f"in the other process:\n{said}")
        return said

    async def ask(self, command: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Give it a command that says nothing on its way, and return the answer."""
        self.tell(command, *arguments)
        return await self.hear()

    async def hear_after_kill(self) -> list[Any]:
        """Kill it, and return what it had said that was not heard."""
        self._process.kill()
        heard: list[Any] = []
        try:
            while True:
                heard.append(await self.hear())
        except ProcessEndedError:
            return heard

    def kill(self) -> None:
        """End it without a warning (SIGKILL), if it still runs."""
        # The connection is left to those who may be listening: they hear of the end.
        self._process.kill()
        self._process.join()


# In the other process


def serve(opener: Callable[..., Store], connection: "Connection[Any, Any]") -> None:
    """Do commands until there are no more."""
    asyncio.run(_serve(opener, connection))


async def _serve(opener: Callable[..., Store], connection: "Connection[Any, Any]") -> None:
    def say(what: Any) -> None:
        connection.send((True, what))

    store: Store | None = None
    while True:
        try:
            name, arguments = await asyncio.to_thread(connection.recv)
        except EOFError:
            return
        try:
            store = store or opener()
            say(await globals()[name](store, say, *arguments))
        except Exception:
            connection.send((False, traceback.format_exc()))


async def put(store: Store, _: Say, requests: Sequence[Put]) -> Any:
    """Put."""
    return await store.put(requests)


async def claim(store: Store, _: Say, request: Claim) -> tuple[Claimed, ...]:
    """Claim once."""
    return (await store.claim([request]))[0]


async def settle(store: Store, _: Say, requests: Sequence[Change]) -> Any:
    """Settle."""
    return await store.settle(requests)


async def claim_when_woken(store: Store, say: Say, request: Claim) -> tuple[Claimed, ...]:
    """Ask, find nothing, say so, and then ask only when the store says that it is worth it."""
    woken = asyncio.Event()
    stop = store.watch(request.queues[0][0], woken.set)
    try:
        [claimed] = await store.claim([request])
        assert not claimed
        say("waiting")
        while not claimed:
            await woken.wait()
            woken.clear()
            [claimed] = await store.claim([request])
        return claimed
    finally:
        stop()


async def produce(store: Store, say: Say, prefix: str, most: int) -> None:
    """Put one item after the other; name each that the store has taken; wait to be killed."""
    for number in range(most):
        key = f"{prefix}{number}"
        await store.put([Put("q", ((key, b"1"),))])
        say(key)
    await asyncio.Event().wait()


async def finish(store: Store, say: Say, most: int) -> None:
    """Acknowledge one item after the other; name each that has gone; wait to be killed."""
    for _ in range(most):
        [[item]] = await store.claim([Claim((("q", 1),), 1, None, 60.0)])
        await store.settle([Ack("q", item.key, item.token)])
        say(item.key)
    await asyncio.Event().wait()


class Held(NamedTuple):
    """One lease of one process, and two moments between which it was held for sure."""

    item: Claimed
    since: float
    until: float
    end: str


async def share_work(
    store: Store, _: Say, name: str, puts: Sequence[Put], processes: int
) -> tuple[set[int], list[Held]]:
    """Put one after the other, and work until the items of all `processes` are done.

    Some leases are given back, so that the item is leased again, maybe elsewhere.
    Returns the ids of what was put, and the leases.
    """
    ids: set[int] = set()
    leases: list[Held] = []
    left = [*puts, Put("ended", ((name, b"1"),))]
    while True:
        [claimed] = await store.claim([Claim((("q", 2),), 2, None, 60.0)])
        since = time.monotonic()
        if left:
            # While something is held: its newer value has to wait.
            request = left.pop(0)
            [answer] = await store.put([request])
            if isinstance(answer, Exception):
                raise answer
            ids.update([placed.id for placed in answer] if request.queue == "q" else ())
        await asyncio.sleep(0.002)
        for item in claimed:
            until = time.monotonic()
            names = (item.queue, item.key, item.token)
            back = item.key.startswith("cold") and item.attempt == 1 and item.id % 3 == 0
            [refusal] = await store.settle([Release(*names) if back else Ack(*names)])
            end = "released" if back else "acknowledged"
            leases.append(Held(item, since, until, "refused" if refusal else end))
        if not claimed and not left:
            counts = await store.count(["q", "ended"])
            ended = counts.get("ended", Counts()).available
            if ended == processes and counts.get("q", Counts()) == Counts():
                return ids, leases


async def share_lines(
    store: Store, _: Say, name: str, processes: int
) -> tuple[list[tuple[str, int]], list[Held]]:
    """Append to the same lines as others do, and work until the values of all are done.

    Some leases are given back, so that the value is leased again, maybe elsewhere, before the next
    of its line. Returns keys and ids of what was put, in order, and the leases.
    """
    mine: list[tuple[str, int]] = []
    leases: list[Held] = []
    left = [("q", (f"line{number % 3}", b"1")) for number in range(30)]
    left.append(("ended", (name, b"1")))
    while True:
        [claimed] = await store.claim([Claim((("q", 2),), 2, None, 60.0)])
        since = time.monotonic()
        if left:
            queue, item = left.pop(0)
            [answer] = await store.put([Put(queue, (item,), "append")])
            if isinstance(answer, Exception):
                raise answer
            mine += [(item[0], placed.id) for placed in answer if queue == "q"]
        await asyncio.sleep(0.002)
        for held in claimed:
            until = time.monotonic()
            names = (held.queue, held.key, held.token)
            back = held.attempt == 1 and held.id % 3 == 0
            [refusal] = await store.settle([Release(*names) if back else Ack(*names)])
            end = "released" if back else "acknowledged"
            leases.append(Held(held, since, until, "refused" if refusal else end))
        if not claimed and not left:
            counts = await store.count(["q", "ended"])
            ended = counts.get("ended", Counts()).available
            if ended == processes and counts.get("q", Counts()) == Counts():
                return mine, leases
