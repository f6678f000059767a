"""`Store`: the contract, and queues on it."""

from typing import Any

from leasedkeyq.stores.contract import StoreContract
from leasedkeyq.stores.queue import StoreQueue
from leasedkeyq.types import Duration


class Store(StoreContract):
    """Queues on some engine. Made by `leasedkeyq.stores.connect`, or directly.

    An engine implements the verbs of `StoreContract`; queues come with them.
    """

    calls_at_a_time: int = 1
    """How many large calls a worker should have under way, so that neither waits for the other."""

    def is_idle(self) -> bool:
        """Whether this process has asked it for nothing at present; False if that is unknown."""
        return False

    def queue(
        self,
        name: str,
        *,
        value_type: Any = Any,
        default_lease_timeout: Duration | None = None,
        maxsize: int = 0,
    ) -> StoreQueue[Any]:
        """A queue of this store, with the awaitable methods of `LeasedKeyQueue`.

        Args:
            name: Which queue. It need not exist: a queue is there as long as it holds something.
            value_type: What values are decoded to and checked against: anything that msgspec knows.
            default_lease_timeout: How long a lease lasts where the call does not say.
            maxsize: How many items may wait, as in `LeasedKeyQueue`.
        """
        return StoreQueue(
            self,
            name,
            value_type=value_type,
            default_lease_timeout=default_lease_timeout,
            maxsize=maxsize,
        )
