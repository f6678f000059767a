"""Taking back claims whose consumers have gone: the items are where they were before.

A store that cannot take a claim back is asked again until it does or is closed. A queue asks in
the background (`UnwantedClaims`); a `Batcher`, which belongs to no event loop, with its next call.
Only where the lease has an expiry, and the work is over anyway, one try is enough.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeGuard

from leasedkeyq.errors import StoreClosedError, StoreError, describe
from leasedkeyq.model.requests import Claimed, Release, StoredItem

logger = logging.getLogger("leasedkeyq")

PAUSES: Final = (0.1, 5.0)
"""The shortest and the longest pause between two tries to have claims taken back, in seconds."""


def take_back(claimed: Iterable[Claimed | StoredItem]) -> list[Release]:
    """The requests that take back claims: an item keeps its place, and its attempt is not counted.

    A lease that has ended otherwise is refused, and nothing changes.
    """
    return [undo_lease(item.queue, item.key, item.token) for item in claimed]


def undo_lease(queue: str, key: str, token: str) -> Release:
    """The request that takes back one claim, as `take_back` does."""
    return Release(queue, key, token, undo=True)


def is_still_leased(answer: object) -> TypeGuard[StoreError]:
    """Whether this answer to a request of `take_back` says that it has to be tried again.

    A lease that the store does not know any more has ended otherwise: that is as good.
    """
    return isinstance(answer, StoreError)


class UnwantedClaims:
    """Claims that nobody wants, until the store has taken them back.

    If the store cannot, it is asked again in the background until it does or is closed: a lease
    without an expiry would be ended by nobody else.

    Args:
        settle: As `Store.settle`.
    """

    def __init__(self, settle: Callable[[Sequence[Release]], Awaitable[Sequence[Any]]]) -> None:
        self._settle = settle
        self._unwanted: dict[str, Claimed] = {}
        """By token."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._retrying = False
        """Whether a task tries again and again."""

    def add(self, claimed: Iterable[Claimed]) -> None:
        """Have claims taken back by the next `take_back` or `flush`."""
        self._unwanted.update((item.token, item) for item in claimed)

    def take_back(self, claimed: Iterable[Claimed]) -> "asyncio.Task[None]":
        """Have claims taken back; the task is over when this was tried once."""
        self.add(claimed)
        return self._in_background(self._try_once())

    async def flush(self) -> None:
        """Have all claims taken back that could not be so far.

        Raises:
            StoreError: The store still cannot.
        """
        unwanted = list(self._unwanted.values())
        if not unwanted:
            return
        failures: list[StoreError] = []
        for item, answer in zip(unwanted, await self._settle(take_back(unwanted)), strict=True):
            if is_still_leased(answer):
                failures.append(answer)
            else:
                self._unwanted.pop(item.token, None)
        if failures:
            raise failures[0]

    async def _try_once(self) -> None:
        unwanted = list(self._unwanted.values())
        try:
            await self.flush()
        except StoreClosedError as error:
            _report(unwanted, error, "they stay leased until their leases expire")
            self._unwanted.clear()
        except Exception as error:
            _report(unwanted, error, "this is tried again until the store is closed")
            if not self._retrying:
                self._retrying = True
                _ = self._in_background(self._try_until_done())

    async def _try_until_done(self) -> None:
        pause, longest = PAUSES
        while self._unwanted:
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
            try:
                await self.flush()
            except StoreClosedError:
                self._unwanted.clear()
            except Exception as error:
                logger.debug("leases cannot be taken back: %s", error)
        self._retrying = False

    def _in_background(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _report(unwanted: Sequence[Claimed], error: Exception, then: str) -> None:
    first = unwanted[0]
    text = "queue %r: the leases of %d keys that nobody wants, the first is %s, cannot be taken"
    logger.warning(
        f"{text} back: %s; {then}", first.queue, len(unwanted), describe(first.key), error
    )
