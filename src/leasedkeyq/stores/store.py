"""`Store`: the contract, and queues on it."""

from collections.abc import Callable, Sequence
from typing import Any, Self

from leasedkeyq.model.requests import Claim, Claimed
from leasedkeyq.stores.contract import StoreContract
from leasedkeyq.stores.queue import StoreQueue
from leasedkeyq.types import Duration, QueueObserver


class Claimer:
    """Claims for one worker.

    Args:
        store: Where it claims.
    """

    parks: bool = False
    """Whether a claim that has found nothing can stay with the store; see `claim`."""

    def __init__(self, store: StoreContract) -> None:
        self._store = store

    async def claim(self, requests: Sequence[Claim], *, idle: bool) -> list[tuple[Claimed, ...]]:
        """As `StoreContract.claim`, one call at a time.

        Args:
            requests: The claims. None: what stands is taken back.
            idle: The worker does nothing else, and takes at once what comes later: a store that
                can parks the claim if it finds nothing.
        """
        del idle
        return await self._store.claim(requests) if requests else []

    async def close(self) -> None:
        """Leave no claim parked. What it was given meanwhile is taken before this returns."""
        self.abandon()

    def abandon(self) -> None:
        """Take nothing more, at once."""


class Store(StoreContract):
    """Queues on some engine. Made by `leasedkeyq.connect`, or directly.

    An engine implements the verbs of `StoreContract`; queues come with them.
    """

    calls_at_a_time: int = 1
    """How many large calls a worker should have under way, so that neither waits for the other."""

    async def __aenter__(self) -> Self:
        """``async with connect(url) as store:`` closes the store at its end."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """As `close`, whatever happened in between."""
        await self.close()

    def claimer(self, take: Callable[[Claimed], None]) -> Claimer:
        """Claims for a worker, in this event loop.

        Args:
            take: Is given items that were put after a claim had found nothing, one at a time, and
                no more of them than there were such claims.
        """
        del take
        return Claimer(self)

    def queue(
        self,
        name: str,
        *,
        value_type: Any = Any,
        default_lease_timeout: Duration | None = None,
        maxsize: int = 0,
        max_buried: int | None = None,
        observer: QueueObserver[str] | None = None,
    ) -> StoreQueue[Any]:
        """A queue of this store, with the awaitable methods of `LeasedKeyQueue`.

        Args:
            name: Which queue. It need not exist: a queue is there as long as it holds something.
            value_type: What values are decoded to and checked against: anything that msgspec knows.
                Without it they are what JSON has: see `StoreQueue.put`.
            default_lease_timeout: How long a lease lasts where the call does not say.
            maxsize: How many items may wait, as in `LeasedKeyQueue`.
            max_buried: How many buried items are kept; beyond it `bury` drops the oldest. None: the
                limit `buried` of the store, which holds in any case.
            observer: Told of what is done through this queue object, as in `LeasedKeyQueue`.
        """
        return StoreQueue(
            self,
            name,
            value_type=value_type,
            default_lease_timeout=default_lease_timeout,
            maxsize=maxsize,
            max_buried=max_buried,
            observer=observer,
        )
