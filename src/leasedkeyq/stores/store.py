"""The store contract: what every store does, and nothing about how.

A store holds any number of queues, each with the meaning of `leasedkeyq.model.state`. Its verbs
take batches and answer request by request, in order:

- `Store.put` adds and updates items,
- `Store.claim` leases them,
- `Store.settle` ends leases and changes what is stored,
- `Store.edit` changes a queue after looking at it,
- `Store.sweep` deals with what has come due,
- `Store.watch` tells when it is worth asking again,
- `Store.count`, `heads`, `look`, `line`, `browse` and `results` show what is there,
- `Store.diagnose` and `schema_state` tell how the store itself is.

Each verb is written twice. The verb itself is here, and final: it refuses what a closed store or
its limits do not allow, and turns failures into the errors of the contract: what an engine raises
that is no `LeasedKeyQError`, such as an `OSError` or an error of its driver, becomes the cause of a
`StoreError`. The inner verb of the same name, `Store.do_put` and so on, is what an engine
implements: it stores, and checks nothing.

**Atomic** is a request: all of it happens or none, also across a crash. A batch is not atomic; its
requests are applied one after the other, and a request that is refused does nothing to the
others. A refusal is an answer (an exception object in its place), not a raise. What a verb raises
concerns the whole batch: the store is closed, broken or out of reach. An edit is the exception:
all that it does is one atomic change, and a refusal in it is raised and ends it.

**Order**: calls of one event loop act in the order in which they were made, also if nobody waits
for one before making the next. A claim may besides find what a later call of that moment freed, and
the next of a line that an `Ack` frees may have its place before what was put in the same moment.

**Retrying** a batch whose outcome is unknown is safe for `settle` (a second settling is refused,
as the lease has ended) and for `put` with the policies ``"update"``, ``"reject"`` and ``"skip"``
(the same value is put again). With ``"append"`` a second value is appended. A claim whose answer
was lost leaves items leased until their leases expire. An edit sees when it looks again what the
first one did.

**Time** is the store's. Requests carry durations, answers carry moments as Unix time.
"""

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from inspect import Parameter, signature
from typing import Any, Final, NoReturn, ParamSpec, Self, TypeVar, final

from leasedkeyq.errors import LeasedKeyQError, StoreError, UnstorableError
from leasedkeyq.model.admission import (
    admit,
    check_claims,
    check_ids,
    check_names,
    with_refusals,
)
from leasedkeyq.model.edit import Edit, EditStoppedError
from leasedkeyq.model.findings import Finding, SchemaState
from leasedkeyq.model.requests import (
    Answer,
    Capabilities,
    Change,
    Claim,
    Claimed,
    Counts,
    EditWork,
    Extend,
    Limits,
    Page,
    Placed,
    Put,
    StoredItem,
    StoredState,
)
from leasedkeyq.stores.closable import Closable
from leasedkeyq.stores.observation import VERBS, StoreObservation
from leasedkeyq.stores.paging import check_browse, page_of
from leasedkeyq.stores.queue.store_queue import StoreQueue
from leasedkeyq.stores.watchers import Watchers
from leasedkeyq.telemetry.instrument import StoreInstrument, StoreTracing, StoreVerb
from leasedkeyq.types import Duration, QueueObserver

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

logger = logging.getLogger("leasedkeyq")

WALKED_AT_ONCE: Final = 500
"""Items that are read at a time from a store that cannot list backwards, to find the newest."""
NO_ITEMS: Final = Counts()
LIVE_STATES: Final[tuple[StoredState, ...]] = (
    "available",
    "scheduled",
    "in_flight",
    "buffered",
    "in_line",
)
"""The states of the values of a key."""


class Claimer:
    """Claims for one worker.

    Args:
        store: Where it claims.
    """

    parks: bool = False
    """Whether a claim that has found nothing can stay with the store; see `claim`."""

    def __init__(self, store: "Store") -> None:
        self._store = store

    async def claim(self, requests: Sequence[Claim], *, idle: bool) -> list[tuple[Claimed, ...]]:
        """As `Store.claim`, one call at a time.

        Args:
            requests: The claims. Empty: only a parked claim is taken back.
            idle: The worker does nothing else, and takes at once what comes later: a store that
                can parks the claim if it finds nothing.
        """
        del idle
        return await self._store.claim(requests) if requests else []

    def observe_given(self, item: Claimed) -> None:
        """Tell instruments of an item that came without a call, to a claim that was parked."""
        if self._store._observation is not None:
            self._store._observation.tell_given(item)

    async def close(self) -> None:
        """Leave no claim parked. What it was given meanwhile is taken before this returns."""
        self.abandon()

    def abandon(self) -> None:
        """Take nothing more, at once."""


class Store(Closable, ABC):
    """Queues on some engine. Made by `leasedkeyq.connect`, or directly.

    An engine implements the inner verbs, whose names begin with ``do_``. The verbs around them are
    final, so that every store checks the same and fails in the same way.

    Args:
        name: What errors call the store, such as ``"SQLite store /srv/jobs.db"``.
        limits: How much the store takes.
    """

    capabilities: Capabilities
    calls_at_a_time: int = 1
    """How many large calls a worker should have under way, so that neither waits for the other."""

    def __init__(self, name: str, limits: Limits | None = None) -> None:
        super().__init__(name)
        self.limits: Limits = limits or Limits()
        self._watchers = Watchers()
        self._observation: StoreObservation | None = None

    async def __aenter__(self) -> Self:
        """``async with connect(url) as store:`` closes the store at its end."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """As `close`, whatever happened in between."""
        await self.close()

    @property
    def name(self) -> str:
        """What errors call the store, such as ``"SQLite store /srv/jobs.db"``; no passwords."""
        return self._name

    @property
    def outage(self) -> StoreError | None:
        """Why the store cannot answer now; None while it can, as far as it knows.

        A store that tries again by itself says here what it meets, so that whoever cannot wait
        for the end of it can tell an outage from an empty queue. A new error for each that asks.
        """
        return None

    def claimer(self, take: Callable[[Claimed], None]) -> Claimer:
        """Claims for a worker, in this event loop.

        Args:
            take: Is given items that were put after a claim had found nothing, one at a time, and
                no more of them than there were such claims.
        """
        del take
        return Claimer(self)

    def instrument(
        self, *instruments: StoreInstrument, tracing: StoreTracing | None = None
    ) -> None:
        """Measure the calls of this store object from now on; the last such call counts.

        Queues, lanes, repositories and moves on it are measured by it, too. A store that nobody
        measures pays nothing for this: the verbs that tell of their calls stand before the plain
        ones of this object only.

        Args:
            instruments: Told the numbers: a `StoreMetrics`, a `PrometheusInstrument`, an
                `OtelInstrument`, or your own.
            tracing: Makes a span of each call, as an `OtelInstrument` does.
        """
        self._observation = observation = StoreObservation(instruments, tracing)
        for verb in VERBS:
            plain = getattr(type(self), verb).__get__(self)
            setattr(self, verb, observation.observed(verb, plain))

    def queue(
        self,
        name: str,
        *,
        value_type: Any = Any,
        default_lease_timeout: Duration | None = None,
        maxsize: int = 0,
        max_buried: int | None = None,
        observer: QueueObserver[str] | None = None,
        holder: str = "",
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
            holder: Who takes the leases, as `StoredItem.holder` shows it to people: up to 200
                characters. Without it, it is the host and the process, as ``"web-1:4242"``.
        """
        return StoreQueue(
            self,
            name,
            value_type=value_type,
            default_lease_timeout=default_lease_timeout,
            maxsize=maxsize,
            max_buried=max_buried,
            observer=observer,
            holder=holder,
        )

    # The verbs

    @final
    async def put(self, requests: Sequence[Put]) -> list[tuple[Placed, ...] | LeasedKeyQError]:
        """Put; each request is all or nothing.

        Refusals: `KeyAlreadyInFlightError` (policy ``"reject"``), `KeyAlreadyPresentError` (policy
        ``"only_new"``), `QueueFullError` (`max_items`),
        `LimitExceededError` for what is beyond `limits`, and `UnstorableError` for what no store
        can keep: a key, a kind or a name of a queue that is empty (a kind may be) or is not text
        without NUL characters, a priority of more than 64 bits, or a delay or a deadline without
        end. Both come before anything is stored. A put of no items does nothing.
        Durable on return, at the level that `capabilities` says.
        """
        self._check_usable()
        admitted, refusals = admit(requests, self.limits)
        try:
            answers = _unless_failed(await self.do_put(admitted))
        except Exception as error:
            self._fail("put", error)
        return with_refusals(refusals, answers) if refusals else answers

    async def put_within(
        self, connection: Any, requests: Sequence[Put]
    ) -> list[tuple[Placed, ...] | LeasedKeyQError]:
        """As `put`, in the transaction that is open on a connection of the caller.

        The items can be seen when that is committed, and never were if it is rolled back. No other
        caller waits for such a transaction. What is there already is decided by this call.

        Raises:
            StoreError: This store has no transactions of callers, or none is open.
        """
        del connection, requests
        raise StoreError(
            f"the {self._name} cannot put in a transaction of its caller; only a store on "
            "PostgreSQL can, in the same database"
        )

    @final
    async def claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        """Lease what is available; never waits and is never refused.

        What was leased reaches its caller: if a store fails at some of the requests, those are
        answered with nothing, and the error is raised only if no request has leased anything.

        Two claims never lease one key at a time, wherever they come from. As it never waits, a
        claim may pass over an item that another call is changing at that moment: those of
        PostgreSQL do, and so may find nothing beside such a call, although an item waits.

        A claim of names that no store can have, or by a holder that none can keep, raises
        `UnstorableError`, before anything is leased.
        """
        self._check_usable()
        check_claims(requests)
        try:
            answers = await self.do_claim(requests)
        except Exception as error:
            self._fail("claim", error)
        return claims_of(answers)

    @final
    async def settle(self, requests: Sequence[Change]) -> list[Answer]:
        """End leases and change what is stored; see the requests for their answers.

        Refusals: `Refusal` where a token does not hold its key, those of `put` for `Requeue`,
        `LimitExceededError` for a result, a progress or an amended value or kind that is beyond
        `limits`, and `UnstorableError` for an outcome that is none, for names that no store can
        have, and for what an `Amend` says that no `put` could say.
        """
        self._check_usable()
        admitted, refusals = admit(requests, self.limits)
        try:
            answers = _unless_failed(await self.do_settle(admitted))
        except Exception as error:
            self._fail("settle", error)
        return with_refusals(refusals, answers) if refusals else answers

    async def extend_apart(self, requests: Sequence[Extend]) -> list[Answer]:
        """Renew leases from another thread, while the event loop that holds them is blocked.

        Called in an event loop of that other thread. As `settle` otherwise, with these
        differences: a store may answer before it has renewed anything, if no call can find the
        lease expired meanwhile; and instruments are not told, as they belong to the blocked loop.

        A store whose verbs can be called from the event loops of several threads at a time needs
        no more than to say so, by ``extends_apart`` in its `capabilities`.

        Raises:
            StoreError: As `settle`, or this store cannot (`Capabilities.extends_apart`).
        """
        if not self.capabilities.extends_apart:
            raise StoreError(
                f"the {self._name} cannot renew leases from another thread: its capabilities do "
                "not have extends_apart"
            )
        return await Store.settle(self, requests)

    @property
    def serves_other_loops(self) -> bool:
        """Whether its verbs can be called from the event loops of several threads at a time.

        A store with ``extends_apart`` in its `capabilities` can, unless it has an `extend_apart` of
        its own. A worker of lanes whose event loop is blocked then answers what it is asked.
        """
        return self.capabilities.extends_apart and type(self).extend_apart is Store.extend_apart

    @final
    async def edit(
        self,
        queue: str,
        work: EditWork,
        *,
        keys: Sequence[str] | None = None,
        heads_only: bool = False,
        others: Sequence[str] = (),
    ) -> list[Answer]:
        """Change a queue after looking at it, all or nothing, while nobody else can change it.

        `work` is called once with the items of the queue in every state, by id, or with those of
        `keys`; with `heads_only` without the values in lines, which may be long. Items in flight
        show their `StoredItem.token`. What it returns is applied in order, as of the moment at
        which it was called: `Put`, `Ack`, `Release`, `Extend`, `Bury`, `Cancel`, `Amend`,
        `Requeue`, `Purge` and `Discard` of this queue. Returns their answers; all is then durable.

        With `others`, it may change these queues in the same step, too, without a look at them:
        what is true of its own queue is decided by `work`, and what happens in the others follows
        from that, all or nothing. A store that has `Capabilities.joint_edits` can do that, others
        refuse it with a `StoreError`.

        What `work` raises is raised, and so is the first refusal (as in `put` and `settle`), or a
        `ValueError` for what is no such request. Then nothing has changed. `work` is never called
        twice: if the store is closed or cannot begin, it is not called at all, and if the store
        fails after it was called, that is raised. A caller that is cancelled meanwhile leaves an
        edit that happens in full or not at all.

        `work` may be called in another thread. It must not use the store, and should be quick:
        everybody else, in any process, waits for it.
        """
        self._check_usable()
        check_names("queue", [queue])
        check_names("keys", keys or ())
        check_names("others", others)
        edit = Edit(queue, work, keys, self.limits, heads_only=heads_only, others=others)
        if edit.others and not self.capabilities.joint_edits:
            raise StoreError(
                f"the {self._name} cannot change several queues in one step "
                "(capabilities.joint_edits); edit them one after the other"
            )
        try:
            return await self._ask("edit", self.do_edit, edit)
        except EditStoppedError as stopped:
            error = stopped.error
        raise error

    @final
    async def sweep(self, queues: Sequence[str]) -> list[float | None]:
        """Expire leases, free scheduled items, forget old results and full buckets of `queues`.

        All as of now; other verbs see due changes without it. Returns, for each queue, the seconds
        until something comes due next in it, or None; 0 if there is more to do than a store does
        at once. The ``next_at`` of a bucket (see `Cap`) counts while it is to come, its ``full_at``
        does not. Whoever watches is woken if a lease has expired or an item is free.

        A new token of a rate limit does not trigger `watch`, and `sweep` tells of the next token
        only if it lies ahead. So a worker that claims with caps asks again at that time. It also
        asks again by itself while items are available that it could not lease: a token may come,
        or be taken by another worker, between its claim and its sweep.
        """
        self._check_usable()
        check_names("queues", queues)
        return await self._ask("sweep", self.do_sweep, queues)

    @final
    def watch(self, queue: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` in the event loop whenever asking `queue` again may be worth it.

        That is after every change by anybody, in any process, that makes an item of the queue
        available, makes room in it, or ends an item or a lease. A change that only time makes
        counts from the verb that first deals with it. Calls without need are allowed; a missing
        call is a lost wake-up. Returns a function that ends the watch.
        """
        self._check_usable()
        check_names("queue", [queue])
        try:
            return self.do_watch(queue, wake)
        except Exception as error:
            self._fail("watch", error)

    @final
    async def count(self, queues: Sequence[str] | None = None) -> Mapping[str, Counts]:
        """How many items there are by queue and state; None: of all queues that hold any.

        It costs the same however many items there are. Only kept results that have expired, and
        are not forgotten yet, are read one by one on SQLite and PostgreSQL, in the order of an
        index: 100,000 of them take about 20 ms. Some hundred are forgotten by each call that
        changes their queue, and by each `sweep`.
        """
        self._check_usable()
        check_names("queues", queues or ())
        counts = await self._ask("count", self.do_count, queues)
        if queues is None:
            return {queue: found for queue, found in counts.items() if found != NO_ITEMS}
        return counts

    @final
    async def heads(self, queues: Sequence[str]) -> list[StoredItem | None]:
        """Of each queue the item that a plain claim would lease next; None if none would.

        A plain claim is one without kinds, caps and urgencies. As of now: what has come due counts,
        though nothing is leased by it. Somebody else may lease the item before a claim that follows
        does.
        """
        self._check_usable()
        check_names("queues", queues)
        return await self._ask("heads", self.do_heads, queues)

    @final
    async def look(self, queue: str, keys: Sequence[str]) -> list[tuple[StoredItem, ...]]:
        """Of each key its head and the first of its line: none, one or two items.

        A buried item that holds its key is not its head: only the first of its line is shown.
        """
        self._check_usable()
        check_names("queue", [queue])
        check_names("keys", keys)
        return await self._ask("look", self.do_look, queue, keys)

    @final
    async def line(
        self, queue: str, key: str, *, cursor: str | None = None, limit: int = 100
    ) -> Page:
        """The head of a key and its line, in order, page by page.

        That is the order of their ids. A cursor is as in `browse`. A page costs the same wherever
        it begins, and however long the line is.
        """
        self._check_usable()
        check_names("queue", [queue])
        check_names("key", [key])
        after = check_browse((), "", cursor, limit)
        found = await self._ask("line", self.do_line, queue, key, after, limit + 1)
        return page_of(found, limit)

    @final
    async def browse(
        self,
        queue: str,
        *,
        states: Sequence[StoredState] = LIVE_STATES,
        prefix: str = "",
        cursor: str | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> Page:
        """List items in the given states whose key starts with `prefix`, in the order of their ids.

        With `newest_first`, that is from the highest id down, at the same cost. A cursor is the id
        after which a page begins in this order, as text: that of the last item of the page before,
        or any other. So the items of a page have ids above its cursor, or with `newest_first`
        below it. A page costs the same wherever it begins, and however many items are in other
        states while those in the given ones are a few thousand. A `prefix` is searched for; but on
        SQLite and PostgreSQL one that at most some thousand keys have costs no more than these.

        Items that are added or change state between two calls may be missed, none is told twice.
        A `limit` below 1, an unknown state or a cursor that is none raise a `ValueError`.
        """
        self._check_usable()
        check_names("queue", [queue])
        after = check_browse(states, prefix, cursor, limit, newest_first=newest_first)
        # One more than the page has tells whether another page follows.
        listing = (queue, states, prefix, after, limit + 1)
        if _lists_backwards(type(self)):
            found = await self._ask("browse", self.do_browse, *listing, newest_first=newest_first)
        else:
            found = await self._walk(*listing, newest_first=newest_first)
        return page_of(found, limit)

    async def _walk(
        self,
        queue: str,
        states: Sequence[StoredState],
        prefix: str,
        after: int,
        limit: int,
        *,
        newest_first: bool,
    ) -> Sequence[StoredItem]:
        """As `do_browse`, of a store that only lists by ascending ids: the rest is passed over."""
        do_browse: Callable[..., Awaitable[Sequence[StoredItem] | StoreError]] = self.do_browse
        if not newest_first:
            return await self._ask("browse", do_browse, queue, states, prefix, after, limit)
        newest: deque[StoredItem] = deque(maxlen=limit)
        last = 0
        while True:
            asked = (queue, states, prefix, last, WALKED_AT_ONCE)
            found = await self._ask("browse", do_browse, *asked)
            newest.extend(item for item in found if item.id < after)
            if len(found) < WALKED_AT_ONCE or found[-1].id >= after:
                return [*reversed(newest)]
            last = found[-1].id

    @final
    async def results(self, queue: str, ids: Sequence[int]) -> list[StoredItem | None]:
        """The kept results of acknowledged items (state ``"done"``); None where there is none."""
        self._check_usable()
        check_names("queue", [queue])
        check_ids(ids)
        return await self._ask("results", self.do_results, queue, ids)

    @final
    async def diagnose(self) -> list[Finding]:
        """What is wrong with the store itself, as far as it can tell, as of now.

        That is about the server, the file, the disk, rights and settings, not about items. It
        changes nothing, and may take a while: a second or so where there is much to look at. It
        can also be asked of a store that was opened with ``migrate=False``. Instruments are not
        told of it, nor of `schema_state`: they measure the work of a store.
        """
        self._check_open()
        return await self._ask("diagnose", self.do_diagnose)

    @final
    async def schema_state(self) -> SchemaState | None:
        """Which version the schema of the store has, and what a migration would change.

        As of now, and nothing is changed by it. It can also be asked of a store that was opened
        with ``migrate=False``. None: the store has no versions.
        """
        self._check_open()
        return await self._ask("schema_state", self.do_schema_state)

    @final
    async def close(self) -> None:
        """Let go of what the store holds. Leases stay, and expire in their time.

        Whoever watches is woken once more: who asks then hears that the store is closed. Closing
        again does nothing. A store that was carried over a fork holds what is its parent's, and
        leaves that alone.
        """
        self._closed = True
        if self._process != os.getpid():
            return
        try:
            await self.do_close()
        except Exception as error:
            self._fail("close", error)
        finally:
            self._watchers.wake_all()

    async def call_as(
        self,
        verb: StoreVerb,
        do: Callable[[Sequence[R]], Awaitable[T | StoreError]],
        requests: Sequence[R],
    ) -> T:
        """For engines that do the work of a verb by another call: checked and observed as that.

        What requests are refused for (`leasedkeyq.model.admission`) is checked by the caller.

        Args:
            verb: What instruments take the call for.
            do: Makes the call.
            requests: What it is asked for.
        """
        call: Callable[[Sequence[R]], Awaitable[T]] = partial(self._call, verb, do)
        if self._observation is not None:
            call = self._observation.observed(verb, call)
        return await call(requests)

    async def _call(
        self,
        verb: StoreVerb,
        do: Callable[[Sequence[R]], Awaitable[T | StoreError]],
        requests: Sequence[R],
    ) -> T:
        self._check_usable()
        return await self._ask(verb, do, requests)

    async def _ask(
        self,
        verb: str,
        do: Callable[P, Awaitable[T | StoreError]],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> T:
        """Call an inner verb, and raise what went wrong as the contract says."""
        try:
            answer = await do(*arguments, **options)
        except Exception as error:
            self._fail(verb, error)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def _fail(self, verb: str, error: Exception) -> NoReturn:
        """Raise what an engine has raised; what callers cannot know of is the cause of that."""
        if isinstance(error, LeasedKeyQError | EditStoppedError):
            raise error
        message = f"{verb}: the {self._name} failed: {type(error).__name__}: {error}"
        raise StoreError(message) from error

    # The inner verbs, for engines. Each may return a `StoreError` in place of its answer, or of
    # the answer to a request: the verb around it raises that. So it does with what they raise.

    @abstractmethod
    def do_put(
        self, requests: Sequence[Put]
    ) -> Awaitable[list[tuple[Placed, ...] | LeasedKeyQError]]:
        """As `put`, of requests that are within the limits."""

    @abstractmethod
    def do_claim(
        self, requests: Sequence[Claim]
    ) -> Awaitable[Sequence[tuple[Claimed, ...] | StoreError]]:
        """As `claim`."""

    @abstractmethod
    def do_settle(self, requests: Sequence[Change]) -> Awaitable[list[Answer]]:
        """As `settle`, of requests that are within the limits."""

    @abstractmethod
    def do_edit(self, edit: Edit) -> Awaitable[list[Answer] | StoreError]:
        """As `edit`: call `Edit.changes` once, and apply what it returns.

        Raises:
            EditStoppedError: The work has raised it, or a change was refused. Nothing has changed.
        """

    @abstractmethod
    def do_sweep(self, queues: Sequence[str]) -> Awaitable[list[float | None] | StoreError]:
        """As `sweep`."""

    def do_watch(self, queue: str, wake: Callable[[], None]) -> Callable[[], None]:
        """As `watch`. Without more, what this store object wakes by `_watchers` counts."""
        return self._watchers.add(queue, wake, asyncio.get_running_loop())

    @abstractmethod
    def do_count(
        self, queues: Sequence[str] | None
    ) -> Awaitable[Mapping[str, Counts] | StoreError]:
        """As `count`; queues that nobody named may be among them though they hold nothing."""

    @abstractmethod
    def do_heads(self, queues: Sequence[str]) -> Awaitable[list[StoredItem | None] | StoreError]:
        """As `heads`."""

    @abstractmethod
    def do_look(
        self, queue: str, keys: Sequence[str]
    ) -> Awaitable[list[tuple[StoredItem, ...]] | StoreError]:
        """As `look`."""

    @abstractmethod
    def do_line(
        self, queue: str, key: str, after: int, limit: int, /
    ) -> Awaitable[Sequence[StoredItem] | StoreError]:
        """The first values of a key whose ids are above `after`: `limit`, or all there are."""

    @abstractmethod
    def do_browse(
        self,
        queue: str,
        states: Sequence[StoredState],
        prefix: str,
        after: int,
        limit: int,
        /,
        *,
        newest_first: bool,
    ) -> Awaitable[Sequence[StoredItem] | StoreError]:
        """The first items of a listing whose ids are above `after`: `limit`, or all there are.

        With `newest_first`, those whose ids are below `after`, the highest first.
        """

    @abstractmethod
    def do_results(
        self, queue: str, ids: Sequence[int]
    ) -> Awaitable[list[StoredItem | None] | StoreError]:
        """As `results`."""

    async def do_diagnose(self) -> list[Finding] | StoreError:
        """As `diagnose`. A store that knows nothing about itself has nothing to tell."""
        return []

    async def do_schema_state(self) -> SchemaState | StoreError | None:
        """As `schema_state`. A store may have no versions."""
        return None

    async def do_close(self) -> None:  # a store may have nothing to let go of
        """As `close`; may be called again. No other inner verb is called from then on."""


def claims_of(answers: Sequence[tuple[Claimed, ...] | StoreError]) -> list[tuple[Claimed, ...]]:
    """Answers to claims. What was leased reaches its caller, whatever happened to the rest.

    Raises:
        StoreError: Nothing was leased, and something failed.
    """
    claimed: list[tuple[Claimed, ...]] = []
    failure: StoreError | None = None
    for answer in answers:
        if isinstance(answer, StoreError):
            failure = failure or answer
            claimed.append(())
        else:
            claimed.append(answer)
    if failure is not None and not any(claimed):
        raise failure
    return claimed


def report_dropped(dropped: Iterable[tuple[str, str]]) -> None:
    """Log what had to make room: buried items beyond the limit, by queue and key."""
    for queue, key in dropped:
        logger.warning("queue %r: dropped the oldest buried item, key %r", queue, key)


def _unless_failed(answers: list[T]) -> list[T]:
    """Raise what says nothing about a request, only about the store: part of a batch may fail."""
    for answer in answers:
        if isinstance(answer, StoreError) and not isinstance(answer, UnstorableError):
            raise answer
    return answers


@cache
def _lists_backwards(store: type[Store]) -> bool:
    """Whether the engine knows `newest_first`: one that was written before it does not."""
    parameters = signature(store.do_browse).parameters
    others = any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
    return others or "newest_first" in parameters
