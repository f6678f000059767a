"""The Redis store: queues on a Redis or Valkey server, or on a cluster of them."""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from math import inf
from typing import Any, Final
from weakref import WeakKeyDictionary

from leasedkeyq import checks
from leasedkeyq.engines.redis.diagnosis import diagnose
from leasedkeyq.engines.redis.engine import (
    REPLY_LIFETIME,
    QueueNames,
    RedisEngine,
    Repair,
)
from leasedkeyq.engines.redis.link import NORMAL_OPTIONS, RedisLink
from leasedkeyq.engines.redis.loop_link import LoopLink
from leasedkeyq.engines.redis.parked_claims import ParkedClaimer
from leasedkeyq.engines.redis.server import LEVELS, check_format, examine, format_state, look_again
from leasedkeyq.engines.redis.subscriber import Subscribers
from leasedkeyq.engines.redis.wire import EXACT, Read, counts, shown
from leasedkeyq.errors import LeasedKeyQError, StoreError
from leasedkeyq.model.admission import check_names
from leasedkeyq.model.findings import Finding, SchemaState
from leasedkeyq.model.requests import (
    STATES,
    Capabilities,
    Claimed,
    Counts,
    Durability,
    Limits,
    Placed,
    Put,
    RepairReport,
    StoredItem,
    StoredState,
)
from leasedkeyq.stores.batched_store import BatchedStore
from leasedkeyq.stores.batching import LoopBatcher, ThreadBatcher, undo_claim
from leasedkeyq.stores.closable import outdated
from leasedkeyq.stores.store import Claimer

logger = logging.getLogger("leasedkeyq")

PAGE: Final = 1000
"""Queues that are counted at a time."""
LOOK_EVERY: Final = 60.0
"""Seconds between two looks at the settings of the server."""
CHECK_EVERY: Final = 10.0
"""Seconds between two sweeps of a queue that see whether its keys fit together."""
MANY_CHECKED: Final = 10_000
"""Queues of which that is remembered."""
MARGIN: Final = 1.0
"""Seconds by which a parked claim outlives the poll, at which it is renewed."""


class RedisStore(BatchedStore):
    """Queues on a Redis or Valkey server, which any number of processes and machines may use.

    Whatever many callers ask for at a time goes into one call of a script, which does all of a
    request or nothing. The event loop of the callers talks to the server; to a cluster, a
    thread of the store object does. Opening blocks for some milliseconds. A store object must not
    be carried over a fork.

    Args:
        url: ``redis://user:password@host:port/db``, ``rediss://`` for TLS, ``unix:///path``,
            ``redis+sentinel://host:port,host:port/service/db``, or
            ``redis+cluster://host:port,host:port``. ``valkey`` in place of ``redis`` means the
            same. What redis-py takes behind a question mark is passed to it.
        prefix: Begins the names of all keys on the server. Stores of one prefix are one store.
        limits: How much the store takes.
        require_durability: Refuse a server that keeps less than this.
        wait_aof: Wait until the server says that each batch is synced to its disk (WAITAOF). Needs
            version 7.2. It does not change the declared durability: with ``everysec``, many
            servers say so too early.
        wait_replicas: Wait until so many replicas have each batch (with `wait_aof`: on disk).
        wait_timeout: Seconds to wait for that.
        retry_for: Seconds for which a lost server is tried again before a call fails.
        edit_time: Seconds that the work of an edit may take. Then others go on, and it fails.
        migrate: With False nothing is made or changed by opening, and a store whose keys are of an
            older version, or not there yet, refuses all but `schema_state` and `diagnose`.
        poll: Seconds after which a waiting `get` asks again though nothing woke it: a safety net.
        client_options: For redis-py, such as ``{"ssl_ca_certs": "ca.pem"}``.
        clock: Unix time, for tests; None: the server's.

    Attributes:
        warnings: What the owner of this store should know, in plain sentences. Settings of the
            server that are changed later are noticed within a minute, while the store is used.
    """

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        *,
        prefix: str = "leasedkeyq",
        limits: Limits | None = None,
        require_durability: Durability | None = None,
        wait_aof: bool = False,
        wait_replicas: int = 0,
        wait_timeout: float = 5.0,
        retry_for: float = 15.0,
        edit_time: float = 30.0,
        migrate: bool = True,
        poll: float = 5.0,
        client_options: Mapping[str, Any] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if not prefix or not checks.is_text(prefix) or set(prefix) & set("{}\x00"):
            raise ValueError(f"prefix must be text without braces that is not empty: {prefix!r}")
        if require_durability is not None and require_durability not in LEVELS:
            raise ValueError(f"require_durability must be among {', '.join(LEVELS)}")
        checks.whole("wait_replicas", wait_replicas, 0)
        checks.number("retry_for", retry_for, least=0)
        for name, seconds in {
            "wait_timeout": wait_timeout,
            "edit_time": edit_time,
            "poll": poll,
        }.items():
            checks.number(name, seconds, above=0)
        options = dict(client_options or {})
        if wait_aof or wait_replicas:
            options.setdefault("socket_timeout", NORMAL_OPTIONS["socket_timeout"] + wait_timeout)
        self._link = RedisLink(url, options, retry_for)
        super().__init__(f"Redis store {self._link.address}", limits)
        try:
            found = examine(self._link, wait_aof=wait_aof, required=require_durability)
            if migrate:
                check_format(self._link, prefix)
            else:
                state = format_state(self._link, prefix)
                if state.outdated:
                    self._outdated = outdated(self._name, state.version, state.wanted)
        except BaseException:
            self._link.close()
            raise
        self.capabilities: Capabilities = Capabilities(
            durability=found.durability,
            cross_process=True,
            # The queues of a cluster are on several servers, and a script runs on one of them.
            joint_edits=not self._link.clustered,
            extends_apart=True,
        )
        self.warnings: list[str] = found.warnings
        for warning in self.warnings:
            logger.warning("%s: %s", self._link.address, warning)
        self._prefix = prefix
        self._required: Durability | None = require_durability
        me = secrets.token_hex(8)
        numbers = count()

        def new_engine() -> RedisEngine:
            return RedisEngine(
                self._link,
                prefix=prefix,
                me=me,
                name=f"{me}.{next(numbers)}",
                limits=self.limits,
                edit_time=edit_time,
                durable=_durable(wait_aof, wait_replicas, wait_timeout),
                clock=clock,
                wake=self._watchers.wake,
            )

        self._engine = new_engine()
        self._poll = poll
        self._waits = wait_aof or bool(wait_replicas)
        self._workers = count()
        self._claimers: WeakKeyDictionary[ParkedClaimer, asyncio.AbstractEventLoop] = (
            WeakKeyDictionary()
        )
        self._checked: dict[str, float] = {}
        self._looked_at = time.monotonic()
        self._subscribers = Subscribers(
            partial(self._link.in_thread, self._link.new_connection),
            channel=self._engine.channel,
            me=self._engine.me,
            watchers=self._watchers,
            poll=poll,
        )
        if self._link.in_loop:
            self._batcher = LoopBatcher(
                lambda: LoopLink(self._link, new_engine()),
                name=self._name,
                undo=undo_claim,
            )
        else:
            self._link.when_lost(self._engine.forget)
            self._batcher = ThreadBatcher(self._apply, name=self._name, undo=undo_claim)

    # The contract

    @property
    def outage(self) -> StoreError | None:
        """As `Store.outage`."""
        return self._link.outage

    def do_put(
        self, requests: Sequence[Put]
    ) -> Awaitable[list[tuple[Placed, ...] | LeasedKeyQError]]:
        """As `Store.do_put`."""
        if time.monotonic() - self._looked_at >= LOOK_EVERY:
            self._look_again()
        return super().do_put(requests)

    def claimer(self, take: Callable[[Claimed], None]) -> Claimer:
        """As `Store.claimer`. Claims are parked on the server, but for a cluster."""
        # What a claim was given must be there still when the worker asks for it.
        asks_rarely = self._poll > REPLY_LIFETIME / 1000 / 2
        if not self._link.in_loop or self._waits or asks_rarely:
            return super().claimer(take)
        worker = f"{self._engine.me}.{next(self._workers)}"
        channel = self._engine.worker_channel(worker)
        listen = partial(self._subscribers.pass_on, channel)
        lifetime = self._poll + MARGIN
        claimer = ParkedClaimer(
            self, self._batcher, worker=worker, lifetime=lifetime, listen=listen, take=take
        )
        self._claimers[claimer] = asyncio.get_running_loop()
        return claimer

    async def do_sweep(self, queues: Sequence[str]) -> list[float | None]:
        """As `Store.do_sweep`."""
        if time.monotonic() - self._looked_at >= LOOK_EVERY:
            self._look_again()
        found = await self._each("sweep", queues, self._to_check(queues))
        return [float(seconds) if seconds else None for seconds in found]

    def do_watch(self, queue: str, wake: Callable[[], None]) -> Callable[[], None]:
        """As `Store.do_watch`."""
        stop_waking = super().do_watch(queue, wake)
        stop_listening = self._subscribers.add(queue)

        def stop() -> None:
            stop_waking()
            stop_listening()

        return stop

    async def do_count(self, queues: Sequence[str] | None) -> Mapping[str, Counts]:
        """As `Store.do_count`."""
        if queues is not None:
            return dict(zip(queues, await self._counts(queues), strict=True))
        found: dict[str, Counts] = {}
        [names] = await self._batcher.submit_many((QueueNames(),), alone=True)
        for first in range(0, len(names), PAGE):
            some = names[first : first + PAGE]
            found.update(zip(some, await self._counts(some), strict=True))
        empty = tuple(name for name, here in found.items() if here == Counts())
        if empty:
            await self._batcher.submit_many((QueueNames(empty[:PAGE]),), alone=True)
        return found

    async def _counts(self, queues: Sequence[str]) -> list[Counts]:
        return [counts(each) for each in await self._each("count", queues)]

    async def do_heads(self, queues: Sequence[str]) -> list[StoredItem | None]:
        """As `Store.do_heads`."""
        found = await self._each("heads", queues)
        return [
            None if head is None else shown(queue, head)
            for queue, head in zip(queues, found, strict=True)
        ]

    async def do_look(self, queue: str, keys: Sequence[str]) -> list[tuple[StoredItem, ...]]:
        """As `Store.do_look`."""
        found = await self._read("look", queue, list(keys))
        return [tuple(shown(queue, item) for item in items) for items in found]

    async def do_line(
        self, queue: str, key: str, after: int, limit: int, /
    ) -> Sequence[StoredItem]:
        """As `Store.do_line`."""
        items: list[StoredItem] = []
        while len(items) < limit:
            asked = (key, min(after, EXACT), limit - len(items))
            behind, found = await self._read("line", queue, *asked)
            items += [shown(queue, item) for item in found]
            if not behind:
                break
            after = int(float(behind))
        return items[:limit]

    async def do_browse(
        self,
        queue: str,
        states: Sequence[StoredState],
        prefix: str,
        after: int,
        limit: int,
        /,
        *,
        newest_first: bool,
    ) -> list[StoredItem]:
        """As `Store.do_browse`."""
        codes = [STATES.index(state) for state in dict.fromkeys(states)]
        items: list[StoredItem] = []
        while len(items) < limit:
            asked = (codes, prefix, min(after, EXACT), limit - len(items), newest_first)
            behind, found = await self._read("browse", queue, *asked)
            items += [shown(queue, item) for item in found]
            if not behind:
                break
            after = int(float(behind))
        return items

    async def do_results(self, queue: str, ids: Sequence[int]) -> list[StoredItem | None]:
        """As `Store.do_results`."""
        found = await self._read("results", queue, [str(number) for number in ids])
        return [None if result is None else shown(queue, result) for result in found]

    async def do_diagnose(self) -> list[Finding]:
        """As `Store.do_diagnose`."""
        look = partial(
            diagnose,
            self._link,
            prefix=self._prefix,
            channel=self._engine.channel("doctor"),
            required=self._required,
        )
        return await self._link.in_thread(look)

    async def do_schema_state(self) -> SchemaState:
        """As `Store.do_schema_state`."""
        return await self._link.in_thread(partial(format_state, self._link, self._prefix))

    async def do_close(self) -> None:
        """As `Store.do_close`."""
        self._link.stop_trying()
        here = asyncio.get_running_loop()
        for claimer, loop in list(self._claimers.items()):
            if loop is here:
                with suppress(LeasedKeyQError):  # then it is parked until its time is over
                    await claimer.retire()
        listening = self._subscribers.close()
        try:
            await self._batcher.close()
        finally:
            self._link.close()
            await listening

    def _apply(self, requests: list[Any]) -> list[Any]:
        return self._link.drive(self._engine.apply(requests))

    async def _read(self, verb: str, queue: str, *arguments: Any) -> Any:
        return await self._answered(Read(verb, (queue, *arguments), (queue,)))

    def _look_again(self) -> None:
        """See whether the settings of the server have changed; no call waits for that."""
        self._looked_at = time.monotonic()
        self._link.in_background(self._warn_again)

    def _warn_again(self) -> None:
        with suppress(Exception):  # Should it be away, others say so.
            said = look_again(self._link)
            for warning in said:
                if warning not in self.warnings:
                    logger.warning("%s: %s", self._link.address, warning)
            self.warnings[:] = said

    def _to_check(self, queues: Sequence[str]) -> list[str]:
        """Those of which it is time to see whether their keys fit together."""
        now = time.monotonic()
        if len(self._checked) > MANY_CHECKED:
            self._checked.clear()
        due = [name for name in queues if now - self._checked.get(name, -inf) >= CHECK_EVERY]
        self._checked.update(dict.fromkeys(due, now))
        return due

    async def repair(self, queue: str) -> RepairReport:
        """Make a damaged queue usable again with what is left of it.

        For a queue whose calls raise `StoreDamagedError`, as somebody else has deleted, overwritten
        or evicted one of its keys. What belongs together is put together again, from the records
        of items, leases, values in line, buried items and results. What cannot be read is set
        aside on the server, under names that the report has. An item whose lease is gone is
        available again, and a line whose head is gone goes on with its first value. A queue that is
        not damaged stays as it is. Others wait meanwhile.

        Instruments are not told of it: they measure what every store does, and it is rare.

        Args:
            queue: The name of the queue.

        Returns:
            What was kept, and the keys whose values are lost.
        """
        self._check_usable()
        check_names("queue", [queue])
        answer = await self._ask("repair", self._batcher.submit, Repair(queue), alone=True)
        assert isinstance(answer, RepairReport)
        self._checked.pop(queue, None)
        return answer

    async def _each(self, verb: str, queues: Sequence[str], *more: list[str]) -> list[Any]:
        """One answer for each queue; those of a cluster are on several servers."""
        if self._link.clustered:
            asked = [
                Read(
                    verb, ([queue], *([queue] if queue in some else [] for some in more)), (queue,)
                )
                for queue in queues
            ]
            answers = await self._batcher.submit_many(asked)
            for answer in answers:
                if isinstance(answer, StoreError):
                    raise answer
            return [answer[0] for answer in answers]
        request = Read(verb, (list(queues), *more), tuple(queues))
        found: list[Any] = await self._answered(request)
        return found

    async def _answered(self, request: Read) -> Any:
        answer = await self._batcher.submit(request)
        if isinstance(answer, StoreError):
            raise answer
        return answer


def _durable(wait_aof: bool, replicas: int, timeout: float) -> tuple[Any, ...] | None:
    """The command that waits until a batch is kept."""
    milliseconds = int(timeout * 1000)
    if wait_aof:
        return ("WAITAOF", 1, replicas, milliseconds)
    return ("WAIT", replicas, milliseconds) if replicas else None
