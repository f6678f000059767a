"""`Outbox`: changes that settle ended commands, sent to the store in batches until it has them."""

import asyncio
import logging
from collections.abc import Callable

from leasedkeyq.errors import LeasedKeyQError, StoreClosedError
from leasedkeyq.lanes.running.tracing import GuardedTracing
from leasedkeyq.model.requests import Answer, Change
from leasedkeyq.stores.store import Store

logger = logging.getLogger("leasedkeyq")

FIRST_PAUSE = 0.05
MANY = 32
"""Commands: fewer are not worth a second call of the store while one is under way."""
LONGEST_PAUSE = 5.0
"""Seconds before something is tried again that the store could not do: more each time."""


class Outbox:
    """Changes on their way to the store.

    Attributes:
        empty: Set while there are none.
    """

    def __init__(self, store: Store, tracing: GuardedTracing | None) -> None:
        self.empty = asyncio.Event()
        self.empty.set()
        self._store = store
        self._tracing = tracing
        self._waiting: list[tuple[Change, Callable[[Answer], None]]] = []
        self._sending = 0
        self._wanted = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting) + self._sending

    def add(self, change: Change, told: Callable[[Answer], None]) -> None:
        """Send `change` with the next batch, and pass the answer to `told`."""
        self._waiting.append((change, told))
        self.empty.clear()
        self._wanted.set()

    async def run(self) -> None:
        """Send what there is, all at once; what the store cannot take now is tried again.

        May be called more than once, to have as many batches under way at a time.
        """
        pause = FIRST_PAUSE
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            batch = self._next()
            while batch:
                try:
                    answers = await self._settle([change for change, _ in batch])
                except StoreClosedError:
                    logger.error("the store was closed; %d commands are not settled", len(batch))  # noqa: TRY400
                    self._sending -= len(batch)
                    batch = self._next()
                    continue
                except Exception as error:
                    report("commands could not be settled", error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
                    continue
                pause = FIRST_PAUSE
                for (change, told), answer in zip(batch, answers, strict=True):
                    try:
                        told(answer)
                    except Exception:
                        # The other commands of the batch are settled, and are told so all the same.
                        kind = type(change).__name__
                        logger.exception(
                            "queue %r: the callback of a settled %s failed", change.queue, kind
                        )
                self._sending -= len(batch)
                batch = self._next()
            if not len(self):
                self.empty.set()

    def _next(self) -> list[tuple[Change, Callable[[Answer], None]]]:
        if self._sending and len(self._waiting) < MANY:
            return []  # the task that sends now sends them next
        batch, self._waiting = self._waiting, []
        self._sending += len(batch)
        return batch

    async def _settle(self, changes: list[Change]) -> list[Answer]:
        if self._tracing is None:
            return await self._store.settle(changes)
        with self._tracing.settling(changes[0].queue, len(changes)):
            return await self._store.settle(changes)


def report(what: str, error: Exception) -> None:
    """Log that something did not work and will be tried again."""
    unforeseen = None if isinstance(error, LeasedKeyQError) else error
    logger.warning("%s, trying again: %s", what, error, exc_info=unforeseen)
