"""Where histories happen: the store objects that clients of an engine share, and its troubles."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

from leasedkeyq import connect
from leasedkeyq.stores.store import Store
from tests.servers.proxy import Direction, Judge, Proxy, Verdict

Trouble = Callable[[Random], Awaitable[None]]
"""Disturbs the stores while a history happens."""


async def no_trouble(_: Random) -> None:
    """Nothing happens but what the clients do."""


@dataclass(frozen=True)
class Site:
    """Store objects of one engine, as separate programs would have them.

    Attributes:
        stores: The clients take turns with them.
        trouble: What happens to them beside the calls.
        unit: Seconds that are short for them.
        slack: Seconds by which their clock may differ from that of the histories.
        clock: The clock of the histories.
        passes_over: Whether their claims and looks pass over an item that another call is changing:
            a claim may find nothing then, and a look may show a lease that has just expired.
        repeating: The stores, by their places, that repeat a claim whose answer was lost with the
            connection, if its leases have ended by then.
    """

    stores: tuple[Store, ...]
    trouble: Trouble
    unit: float
    slack: float = 0.0
    clock: Callable[[], float] = time.time
    passes_over: bool = False
    repeating: frozenset[int] = frozenset()


@asynccontextmanager
async def opened(engine: str, url: str) -> AsyncGenerator[Site]:
    """The store objects on an empty store of an engine."""
    async with AsyncExitStack() as stack:
        if engine == "sqlite":
            path = Path(url.removeprefix("sqlite:///"))
            # The last of them gives up soon where another program writes.
            waits = (10.0, 10.0, 0.02)
            stores = tuple([connect(url, busy_timeout=wait) for wait in waits])
            site = Site(stores, lambda dice: lock(path, dice), 0.002)
        elif engine == "file":
            site = Site((connect(url), connect(url)), no_trouble, 0.005)
        else:
            proxy = stack.enter_context(Proxy(urlsplit(url).port or 0))
            cut = connect(_at_port(url, proxy.port))
            site = Site(
                (connect(url), connect(url), cut),
                lambda dice: cut_off(proxy, dice),
                0.002,
                slack=0.0001,  # both clocks are this machine's; servers count its microseconds
                passes_over=engine == "postgres",  # FOR UPDATE SKIP LOCKED
                repeating=frozenset({2} if engine == "postgres" else ()),
            )
        for store in site.stores:
            await stack.enter_async_context(store)
        yield site


async def lock(path: Path, dice: Random) -> None:
    """Another program writes to a database for some milliseconds, in one of three histories."""
    if dice.random() < 0.67:
        return
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
        for _ in range(3):
            await asyncio.sleep(dice.random() * 0.02)
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                continue  # a store writes at this moment
            await asyncio.sleep(dice.random() * 0.006)
            other.execute("ROLLBACK")


async def cut_off(proxy: Proxy, dice: Random) -> None:
    """A connection is lost at one of its next requests or answers, in one of three histories."""
    if dice.random() < 0.67:
        return
    await asyncio.sleep(dice.random() * 0.02)
    proxy.begin(_cut_once(dice.choice(("request", "reply")), dice.randrange(1, 6)))


def _cut_once(direction: Direction, number: int) -> Judge:
    done = False

    def judge(which: Direction, count: int, _: bytes) -> Verdict:
        nonlocal done
        if done or which != direction or count < number:
            return "pass"
        done = True
        return "cut"

    return judge


def _at_port(url: str, port: int) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.replace(f":{parts.port}", f":{port}")).geturl()
