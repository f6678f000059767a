"""The store contract: what every engine does, and nothing about how.

A store holds any number of queues, each with the meaning of `leasedkeyq.model.state`. Its verbs
take batches and answer request by request, in order:

- `StoreContract.put` adds and updates items,
- `StoreContract.claim` leases them,
- `StoreContract.settle` ends leases and changes what is stored,
- `StoreContract.edit` changes a queue after looking at it,
- `StoreContract.sweep` deals with what has come due,
- `StoreContract.watch` tells when it is worth asking again,
- `StoreContract.count`, `heads`, `look`, `browse` and `results` show what is there.

**Atomic** is a request: all of it happens or none, also across a crash. A batch is not atomic; its
requests are applied one after the other, and a request that is refused does nothing to the
others. A refusal is an answer (an exception object in its place), not a raise. What a verb raises
concerns the whole batch: the store is closed, broken or out of reach. An edit is the exception:
all that it does is one atomic change, and a refusal in it is raised and ends it.

**Order**: calls of one event loop act in the order in which they were made, also if nobody waits
for one before making the next. A claim may besides find what a later call of that moment freed, and
a buffered value that an `Ack` frees may have its place before what was put in the same moment.

**Retrying** a batch whose outcome is unknown is safe for `settle` (a second settling is refused,
as the lease has ended) and for `put` with the policies ``"update"`` and ``"reject"`` (the same
value is put again). A claim whose answer was lost leaves items leased until their leases expire.
An edit sees when it looks again what the first one did.

**Time** is the store's. Requests carry durations, answers carry moments as Unix time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from leasedkeyq.errors import LeasedKeyQError, StoreError
from leasedkeyq.model.requests import (
    Answer,
    Capabilities,
    Change,
    Claim,
    Claimed,
    Counts,
    EditWork,
    Limits,
    Page,
    Put,
    StoredItem,
    StoredState,
)


class StoreContract(ABC):
    """Queues on some engine. Made by `leasedkeyq.connect`, or directly."""

    capabilities: Capabilities
    limits: Limits

    @property
    def outage(self) -> StoreError | None:
        """Why the store cannot answer now; None while it can, as far as it knows.

        A store that tries again by itself says here what it meets, so that whoever cannot wait
        for the end of it can tell an outage from an empty queue. A new error for each that asks.
        """
        return None

    @abstractmethod
    async def put(self, requests: Sequence[Put]) -> list[tuple[int, ...] | LeasedKeyQError]:
        """Put; each request is all or nothing.

        Refusals: `KeyAlreadyInFlightError` (policy ``"reject"``), `QueueFullError` (`max_items`),
        `LimitExceededError` for what is beyond `limits`, and `UnstorableError` for what no store
        can keep: a key, a kind or a name of a queue that is empty (a kind may be) or is not text
        without NUL characters, a priority of more than 64 bits, or a delay or a deadline without
        end. Both come before anything is stored; `leasedkeyq.model.admission` has them for every
        engine. A put of no items does nothing.
        Durable on return, at the level that `capabilities` says.
        """

    @abstractmethod
    async def claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        """Lease what is available; never waits and is never refused.

        What was leased reaches its caller: if a store fails at some of the requests, those are
        answered with nothing, and the error is raised only if no request has leased anything.

        Two claims never lease one key at a time, wherever they come from.
        """

    @abstractmethod
    async def settle(self, requests: Sequence[Change]) -> list[Answer]:
        """End leases and change what is stored; see the requests for their answers.

        Refusals: `Refusal` where a token does not hold its key, those of `put` for `Requeue`,
        `LimitExceededError` for a result that is beyond `limits`, and `UnstorableError` for an
        outcome that is none.
        """

    @abstractmethod
    async def edit(
        self, queue: str, work: EditWork, *, keys: Sequence[str] | None = None
    ) -> list[Answer]:
        """Change a queue after looking at it, all or nothing, while nobody else can change it.

        `work` is called once with the items of the queue in every state, by id, or with those of
        `keys`. Items in flight show their `StoredItem.token`. What it returns is applied in order,
        as of the moment at which it was called: `Put`, `Ack`, `Release`, `Extend`, `Bury`,
        `Cancel`, `Requeue`, `Purge` and `Discard` of this queue. Returns their answers; all is
        then durable.

        What `work` raises is raised, and so is the first refusal (as in `put` and `settle`), or a
        `ValueError` for what is no such request. Then nothing has changed. `work` is never called
        twice: if the store is closed or cannot begin, it is not called at all, and if the store
        fails after it was called, that is raised. A caller that is cancelled meanwhile leaves an
        edit that happens in full or not at all.

        `work` may be called in another thread. It must not use the store, and should be quick:
        everybody else, in any process, waits for it.
        """

    @abstractmethod
    async def sweep(self, queues: Sequence[str]) -> list[float | None]:
        """Expire leases, free scheduled items, forget old results and full buckets of `queues`.

        All as of now; other verbs see due changes without it. Returns, for each queue, the seconds
        until something comes due next in it, or None; 0 if there is more to do than a store does
        at once. The ``next_at`` of a bucket (see `Cap`) counts while it is to come, its ``full_at``
        does not. Whoever watches is woken if a lease has expired or an item is free.

        A token that is there again wakes nobody, and a sweep does not tell of one that came before
        it. So a worker that claims with caps asks again at that time; and as a token may come, or
        be taken by another worker, between its claim and its sweep, it also asks again by itself
        as long as items are available that it could not lease.
        """

    @abstractmethod
    def watch(self, queue: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` in the event loop whenever asking `queue` again may be worth it.

        That is after every change by anybody, in any process, that makes an item of the queue
        available, makes room in it, or ends an item or a lease. A change that only time makes
        counts from the verb that first deals with it. Calls without need are allowed; a missing
        call is a lost wake-up. Returns a function that ends the watch.
        """

    @abstractmethod
    async def count(self, queues: Sequence[str] | None = None) -> Mapping[str, Counts]:
        """How many items there are by queue and state; None: of all queues that hold any."""

    @abstractmethod
    async def heads(self, queues: Sequence[str]) -> list[StoredItem | None]:
        """Of each queue the item that a plain claim would lease next; None if none would.

        A plain claim is one without kinds, caps and urgencies. As of now: what has come due counts,
        though nothing is leased by it. Somebody else may lease the item before a claim that follows
        does.
        """

    @abstractmethod
    async def look(self, queue: str, keys: Sequence[str]) -> list[tuple[StoredItem, ...]]:
        """The live items of each key: none, one, or the leased one and the buffered one."""

    @abstractmethod
    async def browse(
        self,
        queue: str,
        *,
        states: Sequence[StoredState] = ("available", "scheduled", "in_flight", "buffered"),
        prefix: str = "",
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page:
        """List items in the given states whose key starts with `prefix`, in the order of their ids.

        A cursor is the id behind which a page begins, as text: that of the last item of the page
        before, or any other. A page costs the same wherever it begins, and however many items are
        in other states while those in the given ones are a few thousand. A `prefix` is searched
        for.

        Items that are added or change state between two calls may be missed, none is told twice.
        A `limit` below 1, an unknown state or a cursor that is none raise a `ValueError`.
        """

    @abstractmethod
    async def results(self, queue: str, ids: Sequence[int]) -> list[StoredItem | None]:
        """The kept results of acknowledged items (state ``"done"``); None where there is none."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of what the store holds. Leases stay, and expire in their time.

        Whoever watches is woken once more: who asks then hears that the store is closed.
        """
