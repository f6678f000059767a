"""Where a check finds its store: a place of its own, a clock, and other processes."""

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import Callable, Collection
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from leasedkeyq.connect import connect
from leasedkeyq.model.requests import Limits
from leasedkeyq.stores.store import Store
from leasedkeyq.testing.clock import ManualClock
from leasedkeyq.testing.processes import Worker

Opener: TypeAlias = Callable[..., Store]
"""Opens a store. Called again, it opens the same one, with the same items in it."""
Address: TypeAlias = str | Opener
"""A URL for `connect`, or an opener. To be tested over processes, an opener must be picklable."""

SMALL_LIMITS = Limits(buried=3, history=3)
"""So that a short check reaches them."""


class Place:
    """Room for the store of one check, which begins empty and is thrown away.

    Attributes:
        name: Letters and digits that nobody else uses, for a database or a prefix on a server.
        folder: An empty folder, removed when the check is over.
    """

    def __init__(self) -> None:
        self.name = f"conformance{secrets.token_hex(8)}"
        self.folder = Path(tempfile.mkdtemp(prefix="leasedkeyq-"))
        self._end = ExitStack()
        self._end.callback(shutil.rmtree, self.folder, ignore_errors=True)

    def at_end(self, function: Callable[[], Any]) -> None:
        """Call `function` when the check is over, to throw the store away."""
        self._end.callback(function)

    def close(self) -> None:
        """The check is over."""
        self._end.close()


class Site:
    """The store of one check, and everybody who has it open."""

    def __init__(self, address: Address, accepts: Collection[str], place: Place) -> None:
        self.place = place
        self.opener: Opener = partial(connect, address) if isinstance(address, str) else address
        self._accepts = accepts
        self._stores: list[Store] = []
        self._workers: list[Worker] = []
        self.clock: ManualClock | None = None

    def open(self, **options: Any) -> Store:
        """Open the store, with its own clock."""
        store = self.opener(**options)
        self._stores.append(store)
        return store

    def open_timed(self) -> Store:
        """Open the store with a clock that `pass_time` moves, where it accepts one."""
        options: dict[str, Any] = {}
        if "limits" in self._accepts:
            options["limits"] = SMALL_LIMITS
        if "clock" in self._accepts:
            self.clock = self.clock or ManualClock()
            options["clock"] = self.clock
        return self.open(**options)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, for real if the store has a clock of its own."""
        if self.clock is None:
            await asyncio.sleep(seconds)
        else:
            self.clock.advance(seconds)

    def start_process(self) -> Worker:
        """Have another process open the store, by its own clock."""
        worker = Worker(self.opener)
        self._workers.append(worker)
        return worker

    async def close_stores(self) -> None:
        """Close the store in this process."""
        while self._stores:
            await self._stores.pop().close()

    async def close(self) -> None:
        """End the processes, close the stores and throw all away."""
        try:
            for worker in self._workers:
                worker.kill()
            await self.close_stores()
        finally:
            self.place.close()
