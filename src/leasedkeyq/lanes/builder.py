"""`QueueManagerBuilder`: lanes, storage and the rest, step by step."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self, cast

from leasedkeyq import checks
from leasedkeyq.connect import absolute_url, connect
from leasedkeyq.lanes.commands.command import CommandRegistry
from leasedkeyq.lanes.commands.resources import Lifespan, NamedLifespan
from leasedkeyq.lanes.config import LaneConfig, time_limit
from leasedkeyq.lanes.errors import LaneConfigError, UnknownLaneError
from leasedkeyq.lanes.events import EventEmitter
from leasedkeyq.lanes.manager import QueueManager
from leasedkeyq.lanes.monitor import MonitorConfig, QueueMonitor
from leasedkeyq.lanes.policies.alerts import AlertCallback, AlertManager, AlertRule
from leasedkeyq.lanes.queue import CommandQueue
from leasedkeyq.lanes.running.execution.loop_watch import MAX_STALL
from leasedkeyq.lanes.running.middleware import Middleware, checked_middleware
from leasedkeyq.lanes.storage import CommandStorage, LocalStorage, Storage, missing_methods
from leasedkeyq.lanes.storage_store import StorageStore
from leasedkeyq.stores.store import Store
from leasedkeyq.telemetry.instrument import Instrument, Tracing
from leasedkeyq.telemetry.metrics import LaneMetrics
from leasedkeyq.types import Duration

DEFAULT_LANES: tuple[tuple[str, int, int], ...] = (
    ("system", 0, 5),
    ("control", 1, 3),
    ("query", 2, 10),
    ("session", 3, 5),
    ("skill", 4, 3),
    ("prompt", 5, 2),
)
"""The lanes of `QueueManagerBuilder.with_default_lanes`: name, priority, maximum concurrency."""


class QueueManagerBuilder:
    """Builds a `QueueManager`. Every method returns the builder.

    Args:
        emitter: Told of what happens; a new one by default.
        clock: Unix time, for tests.
    """

    def __init__(
        self, emitter: EventEmitter | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        if emitter is not None and not isinstance(emitter, EventEmitter):
            raise TypeError(f"emitter must be an EventEmitter, got {type(emitter).__name__}")
        self._emitter = emitter or EventEmitter()
        self._lanes: dict[str, tuple[LaneConfig, int, Sequence[int] | None]] = {}
        self._storage: Store | CommandStorage | Storage | str | os.PathLike[str] | None = None
        self._named: str | os.PathLike[str] | None = None
        """The storage, as it can be opened again after a change of the working directory."""
        self._options: dict[str, Any] = {}
        self._dlq_size: int | None = None
        self._capacity: int | None = None
        self._processes: int | None = None
        self._metrics: LaneMetrics | None = None
        self._instruments: list[Instrument] = []
        self._tracing: Tracing | None = None
        self._alerts: AlertManager | None = None
        self._monitor_config: MonitorConfig | None = None
        self._registry = CommandRegistry()
        self._middleware: list[Middleware] = []
        self._lifespans: list[NamedLifespan] = []
        self._drain_timeout: float | None = 30.0
        self._max_stall: float | None = MAX_STALL
        self._only: frozenset[str] | None = None
        self._sharing: bool | None = None

    @property
    def storage(self) -> Store | CommandStorage | Storage | str | os.PathLike[str] | None:
        """What `with_storage` was given; None: commands are kept in memory."""
        return self._storage

    def with_lane(
        self,
        id: str,  # noqa: A002  # the name of the seed
        config: LaneConfig,
        priority: int,
        *,
        owned_partitions: Sequence[int] | None = None,
    ) -> Self:
        """Add a lane; a lower `priority` goes first.

        Args:
            id: Its name.
            config: Its policy.
            priority: Its place among the lanes.
            owned_partitions: Which of its partitions this process runs; all by default.

        Raises:
            LaneConfigError: There is a lane of this name already.
        """
        if id in self._lanes:
            raise LaneConfigError(f"there are two lanes of the name {id!r}", lane=id)
        self._lanes[id] = (config, priority, owned_partitions)
        return self

    def with_default_lanes(self) -> Self:
        """Add the six lanes system, control, query, session, skill and prompt."""
        for name, priority, most in DEFAULT_LANES:
            self.with_lane(name, LaneConfig(1, most), priority)
        return self

    def with_storage(
        self,
        storage: Store | CommandStorage | Storage | str | os.PathLike[str],
        **options: Any,
    ) -> Self:
        """Keep commands in a store: an open one, a URL for `connect`, a path, or a `LocalStorage`.

        Any object with the seven methods of `Storage` will do, too, for one process at a time.
        A store that the manager opened is closed with it; one that was given stays open.
        `options` are for `connect`, or for the `LocalStorage` of a path.

        Raises:
            TypeError: It is none of these. The message says which methods a storage lacks.
        """
        opened = isinstance(storage, str | os.PathLike)
        if not opened and not isinstance(storage, Store | CommandStorage):
            missing = missing_methods(storage)
            if missing:
                raise TypeError(
                    "storage must be a Store, a URL, a path or an object with the methods of "
                    f"Storage; {type(storage).__name__} lacks {', '.join(missing)}"
                )
        if options and not opened:
            raise TypeError("options go with a URL or a path; an open store has its own")
        self._storage = storage
        self._named = _absolute(storage)
        self._options = options
        return self

    def with_dlq(self, max_size: int) -> Self:
        """Keep at most `max_size` dead letters; beyond that the oldest is dropped."""
        self._dlq_size = checks.whole("max_size", max_size, 1)
        return self

    def with_capacity(self, total: int) -> Self:
        """Let at most `total` commands run at a time, in all lanes together."""
        self._capacity = checks.whole("total", total, 1)
        return self

    def with_processes(self, most: int) -> Self:
        """Let at most `most` processes of the worker run commands with ``run_in="process"``.

        By default there are as many as such commands run at a time, which the lanes limit. A
        command that has a slot, and no process yet, waits for one; that is not part of the time
        that it may run.
        """
        self._processes = checks.whole("most", most, 1)
        return self

    def with_metrics(self, *instruments: Instrument, metrics: LaneMetrics | None = None) -> Self:
        """Measure: in memory, for `QueueManager.metrics`, and with any further instruments."""
        self._metrics = metrics or self._metrics or LaneMetrics()
        self._instruments += instruments
        return self

    def with_tracing(self, tracing: Tracing) -> Self:
        """Surround every command with spans, such as those of `OtelInstrument`."""
        self._tracing = tracing
        return self

    def with_alerts(
        self,
        rules: Iterable[AlertRule] | AlertManager,
        *callbacks: AlertCallback,
        monitor: MonitorConfig | None = None,
    ) -> Self:
        """Check rules from time to time while the manager runs, and call back when one is met.

        Args:
            rules: The rules, or an `AlertManager`, whose own callbacks are told, too.
            callbacks: Whom to tell.
            monitor: How often to look.
        """
        if isinstance(rules, AlertManager):
            rules.add_callbacks(*callbacks)
            self._alerts = rules
        else:
            self._alerts = AlertManager(rules, callbacks)
        self._monitor_config = monitor
        return self

    def with_commands(self, registry: CommandRegistry) -> Self:
        """Take the types of commands from a registry, which several managers may share."""
        self._registry = registry
        return self

    def with_middleware(self, *middleware: Middleware) -> Self:
        """Run async functions around each attempt of each command; see `QueueManager.middleware`.

        Raises:
            TypeError: One is not async, or does not take a command and a function.
        """
        self._middleware += [checked_middleware(one) for one in middleware]
        return self

    def with_lifespan(self, *lifespans: Lifespan) -> Self:
        """Open resources once for each worker; see `QueueManager.lifespan`.

        Raises:
            TypeError: One is no lifespan. The message says what to write.
        """
        self._lifespans += [NamedLifespan(one) for one in lifespans]
        return self

    def with_drain_timeout(self, timeout: Duration | None) -> Self:
        """How long leaving ``async with manager`` waits for commands that are not done."""
        self._drain_timeout = checks.wait_time("timeout", timeout)
        return self

    def with_max_stall(self, max_stall: Duration | None) -> Self:
        """How long a command on a store may block the event loop before its worker is stuck.

        A command that blocks is named in the log, and all leases of the worker are renewed
        meanwhile, by another thread. When it has blocked for `max_stall` beyond its time-out, or
        something else for `max_stall`, leases are not renewed any more: other workers take the
        commands over when the leases have expired. ``leasedkeyq worker`` then ends its process with
        an exit code of its own; in a program of yours that is logged as an error, and nothing
        else happens.

        Args:
            max_stall: Seconds or a `datetime.timedelta`, 60 s by default. None: for ever, as for a
                session in a debugger.
        """
        self._max_stall = time_limit("max_stall", max_stall)
        return self

    def with_partition_sharing(self, sharing: bool = True) -> Self:
        """Whether the workers of a store share out the partitions of lanes among them.

        Each partition is then run by one worker at a time. The partitions of a worker that ends
        or dies go to the others: at once, or when its lease of `LaneConfig.lease_time` is over.
        Workers share with those that know the same types of commands. By default they do where
        several processes can use the store. A lane whose `owned_partitions` are given, is not
        shared.
        """
        self._sharing = sharing
        return self

    def run_only(self, *lanes: str) -> Self:
        """Run the commands of these lanes only; to the others, this process can still submit."""
        self._only = frozenset(lanes)
        return self

    def build(self) -> QueueManager:
        """Build the manager. It runs nothing until it is started.

        Raises:
            LaneConfigError: There is no lane, or the minima of the lanes exceed the capacity, or
                leave nothing of it to a lane without a minimum.
            UnknownLaneError: `run_only` named a lane that there is not.
        """
        queue, opened = self._build_queue()
        manager = QueueManager(
            queue,
            metrics=self._metrics,
            store_to_close=opened,
            drain_timeout=self._drain_timeout,
            builder=self,
            middleware=self._middleware,
            lifespans=self._lifespans,
        )
        if self._alerts is not None:
            manager.attach(QueueMonitor(manager, self._monitor_config, alerts=self._alerts))
        return manager

    async def rebuild(self, manager: QueueManager) -> None:
        """Give a manager that this builder has built the lanes and the storage as they are now.

        For a worker that is to use another store, or fewer lanes: modules know the manager by
        name, and their commands may submit to it, so it stays the same object.

        Args:
            manager: The manager. It has not been started.

        Raises:
            LaneConfigError: As `build`, or the manager has been started.
            UnknownLaneError: As `build`.
        """
        if manager.queue().started:
            raise LaneConfigError("the manager has been started, and keeps its lanes and storage")
        queue, opened = self._build_queue()
        await manager._replace_queue(queue, opened)

    def build_apart(self) -> tuple[CommandQueue, Store]:
        """The same lanes on another connection to the store, for another event loop.

        For `QueueManager.sync`. They have an emitter of their own, and count in no `LaneMetrics`,
        which belong to one event loop.

        Raises:
            LaneConfigError: As `build`, or the storage was not named by a URL or a path.
        """
        if self._named is None:
            raise LaneConfigError("only a storage that was named by a URL or a path opens twice")
        store = self._opened(self._named)
        instruments = [one for one in self._instruments if not isinstance(one, LaneMetrics)]
        return self._lanes_on(store, EventEmitter(), instruments), store

    def _build_queue(self) -> tuple[CommandQueue, Store | None]:
        """The lanes on their store, and the store if it was opened for them."""
        self._check()
        store: Store | None = None
        opened = False
        if isinstance(self._storage, str | os.PathLike):
            store, opened = self._opened(self._storage), True
        elif isinstance(self._storage, CommandStorage):
            store = self._storage.store
        elif isinstance(self._storage, Store):
            store = self._storage
        elif self._storage is not None:
            store, opened = StorageStore(self._storage, clock=self._clock), True
        instruments = [*self._instruments]
        if self._metrics is not None:
            instruments.insert(0, self._metrics)
        queue = self._lanes_on(store, self._emitter, instruments)
        return queue, store if opened else None

    def _check(self) -> None:
        if not self._lanes:
            raise LaneConfigError("a manager needs at least one lane: call with_lane first")
        for name in sorted((self._only or frozenset()) - frozenset(self._lanes)):
            known = ", ".join(sorted(self._lanes))
            message = f"there is no lane {name!r}; the lanes are: {known}"
            raise UnknownLaneError(message, lane=name)

    def _opened(self, storage: str | os.PathLike[str]) -> Store:
        if isinstance(storage, str):
            return connect(storage, **self._options)
        return LocalStorage(storage, **self._options).store

    def _lanes_on(
        self, store: Store | None, emitter: EventEmitter, instruments: Sequence[Instrument]
    ) -> CommandQueue:
        queue = CommandQueue(
            emitter,
            capacity=self._capacity,
            store=store,
            registry=self._registry,
            max_dead_letters=self._dlq_size,
            instruments=instruments,
            tracing=self._tracing,
            max_stall=self._max_stall,
            clock=self._clock,
        )
        for name, (config, priority, partitions) in self._lanes.items():
            mine = self._only is None or name in self._only
            owned = partitions if mine else ()
            shared = self._sharing if owned is None else False
            queue.add_lane(name, config, priority, owned=owned, shared=shared)
        if self._processes is not None:
            queue.limit_processes(self._processes)
        queue.check_lanes()
        return queue


def _absolute(storage: object) -> str | os.PathLike[str] | None:
    """A storage that is named by a URL or a path, whatever the working directory is later."""
    if isinstance(storage, os.PathLike):
        return Path(cast("os.PathLike[str]", storage)).absolute()
    if not isinstance(storage, str):
        return None
    try:
        return absolute_url(storage)
    except ValueError:
        return storage  # `build` says what is wrong with it
