"""The way to a Redis or Valkey server: its URL, its client, and calls that survive a lost link."""

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from importlib import import_module
from importlib.resources import files
from inspect import signature
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

import msgspec

from leasedkeyq.engines.redis.errors import (
    PROBE_TIME,
    RedisTrouble,
    farewell,
    speaks_plainly,
    speaks_tls,
    trouble_of,
)
from leasedkeyq.errors import StoreError, StoreUnavailableError, store_closed

logger = logging.getLogger("leasedkeyq")

T = TypeVar("T")


class AskServer(msgspec.Struct, frozen=True):
    """Have the script apply a batch, and another command follow on the same connection.

    `keys` say which server of a cluster has it, `changes` whether it may change something. Answer:
    the answers to both.
    """

    keys: Sequence[str]
    batch: bytes
    more: tuple[Any, ...] | None = None
    changes: bool = True


ServerStep: TypeAlias = AskServer | tuple[Any, ...] | float | Callable[[], Any]
"""What is to be done: apply a batch; a command that may be done twice; a pause, whose answer is
whether to give up; work that is not ours, and may take its time."""
Steps: TypeAlias = Generator[ServerStep, Any, T]

NORMAL_OPTIONS: Final[Mapping[str, Any]] = {"socket_timeout": 10.0, "socket_connect_timeout": 5.0}
BACKOFF: Final = (0.01, 0.5)
"""Seconds until a lost link is tried again: at first, and at most."""
FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
"""Options that name files."""
SCRIPT_PARTS: Final = (
    "input",  # the batch, the layout of keys and records, the writes that all have in common
    "lone_request",  # a put, claim or ack that is alone ends here
    "queues",  # opens the queues, answers what was answered before, finds out what is needed
    "writes",  # records, numbers, and writes that are gathered or noted
    "lease_counts",  # how many leases match the pattern of a cap
    "items",  # how items go from one state to the next
    "put",
    "settle",  # ack, release, extend, bury, cancel, requeue, discard, purge
    "caps",  # what caps leave room for
    "claim",
    "urgency",  # claims that take turns between queues, or go by deadlines
    "inspect",  # sweep, count, look, browse, results; locks of edits
    "repair",
    "parked_claims",
    "run",  # applies the requests, keeps the answer
)
"""The files of the script, in the order in which they are joined: each uses those before it."""


class ServerFullError(StoreError):
    """The server has no memory for what needs some. Nothing was changed."""


class ScriptError(StoreError):
    """The script failed, as it does if keys of the store are damaged."""


def import_redis() -> Any:
    """The client library, or an error that says how to get it."""
    try:
        return import_module("redis")
    except ModuleNotFoundError as error:
        if error.name != "redis":
            raise
        raise ModuleNotFoundError(
            'the Redis store needs redis-py: pip install "leasedkeyq[redis]"', name=error.name
        ) from error


class Script:
    """The Lua files of this package, joined."""

    def __init__(self) -> None:
        folder = files("leasedkeyq.engines.redis").joinpath("lua")
        parts = [folder.joinpath(f"{name}.lua") for name in SCRIPT_PARTS]
        self.text = "\n".join(part.read_text("utf-8") for part in parts)
        self.digest = ""


class RedisLink:
    """A client of a server, a Sentinel's primary or a cluster. One thread at a time may use it.

    Args:
        url: As `RedisStore` takes it.
        options: For redis-py, such as ``ssl_ca_certs``.
        patience: Seconds for which a lost link is tried again.

    Attributes:
        client: The client of redis-py.
        clustered: Whether the keys are shared out over several servers.
        sentinel: Whether Sentinels say which server is the primary.
    """

    def __init__(self, url: str, options: Mapping[str, Any], patience: float) -> None:
        self._redis = import_redis()
        self.address = _without_password(url)
        self.clustered = False
        self.patience = patience
        self._stop = threading.Event()
        self._threads = ThreadPoolExecutor(thread_name_prefix="leasedkeyq Redis")
        self._script = Script()
        self._lost: list[Callable[[], None]] = []
        errors = self._redis.exceptions
        self._transient: tuple[Any, ...] = (
            errors.ConnectionError,
            errors.TimeoutError,
            errors.ReadOnlyError,
            errors.TryAgainError,
            errors.ClusterError,
            errors.RedisClusterException,
            OSError,
        )
        self.failures: tuple[type[Exception], ...] = (
            errors.RedisError,
            errors.RedisClusterException,
            OSError,
        )
        self.refused: type[Exception] = errors.ResponseError
        self._options = {**NORMAL_OPTIONS, **options, "decode_responses": False}
        self.lost_since: float | None = None
        """Since when calls fail; None: the last one was answered."""
        self._failure: Exception | None = None
        self.sentinel = False
        self._place: tuple[str, int] | None = None
        """Host and port of a server, or its socket and 0, for a look at how it speaks."""
        self._secure = False
        try:
            self.client: Any = self.patiently(lambda: self._open(url), self._check_tls)
            self._try_tls()
            self._script.digest = self.patiently(self._load, self._check_tls)
        except TypeError as error:
            if "unexpected keyword" not in str(error):
                raise
            raise self._unknown_option(error) from error

    # Outages

    @property
    def outage(self) -> StoreUnavailableError | None:
        """Why the server does not answer now, if a call has failed since the last that did not."""
        since, failure = self.lost_since, self._failure
        if since is None or failure is None:
            return None
        return StoreUnavailableError(
            f"{self.address}: the server has been away for {time.monotonic() - since:.1f} s: "
            f"{_sentence(trouble_of(failure), failure)}"
        )

    def lost(self, error: Exception) -> None:
        """A call has failed, and is tried again."""
        self._failure = error
        if self.lost_since is None:
            self.lost_since = time.monotonic()
            logger.warning(
                "%s: the server is away: %s; trying again for %g s",
                self.address,
                _sentence(trouble_of(error), error),
                self.patience,
            )

    def found(self) -> None:
        """A call was answered."""
        if self.lost_since is not None:
            seconds = time.monotonic() - self.lost_since
            self.lost_since = self._failure = None
            logger.info("%s: the server answers again after %.1f s", self.address, seconds)

    def when_lost(self, function: Callable[[], None]) -> None:
        """Call `function` when the link was lost: what is known about the server may be wrong."""
        self._lost.append(function)

    def close(self) -> None:
        """Let go of the connections, and of the threads that made them."""
        self.client.close()
        self._threads.shutdown(wait=False)

    @property
    def stopped(self) -> bool:
        """Whether `stop_trying` was called."""
        return self._stop.is_set()

    @property
    def call_timeout(self) -> float | None:
        """Seconds after which a server that does not answer counts as lost."""
        seconds: float | None = self.client.connection_pool.connection_kwargs["socket_timeout"]
        return seconds

    @property
    def in_loop(self) -> bool:
        """Whether event loops make the calls themselves: to all servers but clusters.

        Which server of a cluster has a queue, and where it moves to, is known to the cluster
        client of redis-py, which blocks.
        """
        return not self.clustered

    def in_background(self, work: Callable[[], None]) -> None:
        """Have work done in a thread that no caller waits for."""
        with suppress(RuntimeError):  # the threads have ended
            self._threads.submit(work)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Have work done that blocks, in a thread.

        Not in the threads of `asyncio.to_thread`: they may all wait for the store.

        Raises:
            StoreClosedError: `close` was called.
        """
        loop = asyncio.get_running_loop()
        try:
            doing = loop.run_in_executor(self._threads, copy_context().run, work)
        except RuntimeError as error:  # the threads have ended
            raise store_closed(f"Redis store {self.address}") from error
        return await doing

    def new_connection(self) -> Any:
        """Another connection, ready for use; to any server of a cluster. Blocks."""
        client = self.client
        if self.clustered:
            client = client.get_redis_connection(random.choice(client.get_primaries()))
        # Not made by the pool, which would count it for ever.
        pool = client.connection_pool
        connection = pool.connection_class(**pool.connection_kwargs)
        connection.connect()
        return connection

    def stop_trying(self) -> None:
        """Give up calls that wait for the server to come back; for use by any thread."""
        self._stop.set()

    # Calls

    def drive(self, steps: Steps[T]) -> T:
        """Do what `steps` ask for, in this thread, until they return."""
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            answer, error = None, None
            try:
                answer = self._do(step)
            except BaseException as failure:
                error = failure

    def _do(self, step: ServerStep) -> Any:
        if isinstance(step, AskServer):
            return self.patiently(lambda: self._ask_once(step), changes=step.changes)
        if isinstance(step, tuple):
            return self.command(*step)
        return step() if callable(step) else self._stop.wait(step)

    def _ask_once(self, ask: AskServer) -> list[Any]:
        command, *more = self.commands(ask)
        try:
            return self._send(command, ask.keys[0], more)
        except self._redis.exceptions.NoScriptError:
            return self._send(self.in_full(command), ask.keys[0], more)

    def commands(self, ask: AskServer) -> list[tuple[Any, ...]]:
        """What is to be sent on one connection."""
        command = ("EVALSHA", self._script.digest, len(ask.keys), *ask.keys, ask.batch)
        return [command] if ask.more is None else [command, ask.more]

    def in_full(self, command: tuple[Any, ...]) -> tuple[Any, ...]:
        """The same for a server that does not know the script."""
        return ("EVAL", self._script.text, *command[2:])

    def forgot_the_script(self, error: Exception) -> bool:
        """Whether the server wants the script in full."""
        return isinstance(error, self._redis.exceptions.NoScriptError)

    def _send(
        self, command: tuple[Any, ...], key: str, more: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        if not more:
            return [self.client.execute_command(*command)]
        client = self.client
        if self.clustered:
            # Not a pipeline of the cluster: it sends a command without a key to any server.
            client = client.get_redis_connection(client.get_node_from_key(key))
        pipeline = client.pipeline(transaction=False)
        pipeline.execute_command(*command)
        for one in more:
            pipeline.execute_command(*one)
        try:
            answers: list[Any] = pipeline.execute()
        except self._transient:
            if self.clustered:
                self.client.nodes_manager.initialize()
            raise
        return answers

    def command(self, *parts: Any) -> Any:
        """Another command, which does no harm if it is done twice."""
        return self.patiently(lambda: self.client.execute_command(*parts))

    def patiently(
        self,
        call: Callable[[], T],
        at_first: Callable[[Exception], None] | None = None,
        *,
        changes: bool = False,
    ) -> T:
        """Call until the server answers, for as long as we have patience.

        Args:
            call: May be called several times.
            at_first: Looks at the first failure, and may raise what is wrong.
            changes: Whether the call changes something: a failure says whether it may have.

        Raises:
            StoreError: The server refuses, or stays away.
        """
        patience: Patience | None = None
        while True:
            try:
                answer = call()
            except self.failures as failure:
                error = self._last_words(failure)
                if patience is None and at_first is not None:
                    at_first(error)
                patience = patience or Patience(self, changes)
                # A connection that could not be made has carried nothing.
                pause = patience.after(error, sent="connecting to" not in str(error))
                if not self.clustered and self._is_replica(error):
                    # The name in the URL may lead to another server by now.
                    self.client.connection_pool.disconnect(inuse_connections=False)
                for function in self._lost:
                    function()
            else:
                self.found()
                return answer
            self._stop.wait(pause)

    def _last_words(self, error: Exception) -> Exception:
        """What a server has said to a connection that it closed, if that did not get through."""
        if trouble_of(error) is not None or self._place is None or self._secure:
            return error
        said = farewell(*self._place)
        return self._redis.exceptions.ConnectionError(said) if said else error

    def passes(self, error: Exception) -> bool:
        """Whether the same call may succeed a little later."""
        trouble = trouble_of(error)
        return isinstance(error, self._transient) if trouble is None else trouble.passes

    def answered(self, error: Exception) -> bool:
        """Whether an error is the answer of a server, which has then done nothing."""
        trouble = trouble_of(error)
        if trouble is None:
            return isinstance(error, self.refused)
        return trouble.reached

    def is_forbidden(self, error: StoreError) -> bool:
        """Whether the user lacks a right."""
        return isinstance(error.__cause__, self._redis.exceptions.NoPermissionError)

    def replica_error(self) -> Exception:
        """What a replica says to a client that wants to change something."""
        error: Exception = self._redis.exceptions.ReadOnlyError("the server is a replica")
        return error

    def _is_replica(self, error: Exception) -> bool:
        return isinstance(error, self._redis.exceptions.ReadOnlyError) or "-READONLY" in str(error)

    def explain(self, error: Exception, what_of_it: str = "") -> StoreError:
        """What happened, and what to do."""
        trouble = trouble_of(error)
        sentence = f"{_sentence(trouble, error)}{what_of_it}"
        if trouble is not None and trouble.full:
            return ServerFullError(f"{self.address}: {sentence}")
        if trouble is not None and trouble.damage:
            # It may have failed half-way: the engine knows the request, and says what became of it.
            return ScriptError(f"{self.address}: {_sentence(trouble, error)}")
        if not self.passes(error):
            return StoreError(f"{self.address}: {sentence}")
        verb = "used" if self.answered(error) else "reached"
        return StoreUnavailableError(
            f"{self.address}: the server could not be {verb} for {self.patience:g} s: {sentence}"
        )

    # TLS, where one side does not expect it

    def _try_tls(self) -> None:
        """A server that speaks no TLS waits for the end of our greeting: do not wait for long."""
        if not self._secure or self.clustered or self.sentinel:
            return
        pool = self.client.connection_pool
        options = {**pool.connection_kwargs, "socket_timeout": PROBE_TIME}
        connection = pool.connection_class(**options)
        try:
            connection.connect()
        except self.failures as error:
            self._check_tls(error)
        finally:
            connection.disconnect()

    def _check_tls(self, error: Exception) -> None:
        """Whether a failure comes of TLS that the other side does not speak, or wants.

        Raises:
            StoreError: It does.
        """
        trouble = trouble_of(error)
        if self._place is None or not self._place[1] or (trouble is not None and trouble.reached):
            return
        advice = ""
        if self._secure and speaks_plainly(*self._place):
            advice = "the server speaks no TLS at this port: write redis:// in place of rediss://"
        elif not self._secure and "connecting to" not in str(error) and speaks_tls(*self._place):
            advice = "the server speaks TLS at this port: write rediss:// in place of redis://"
        if advice:
            raise StoreError(f"{self.address}: {advice}, or name another port: {error}") from error

    def _check_files(self, query: Mapping[str, str]) -> None:
        for name in FILES:
            path = query.get(name) or self._options.get(name)
            if isinstance(path, str) and not Path(path).is_file():
                raise StoreError(f"{self.address}: {name} names a file that is not there: {path!r}")

    def _load(self) -> str:
        digest = self.client.script_load(self._script.text)
        return digest if isinstance(digest, str) else bytes(digest).decode()

    # Opening

    def _open(self, url: str) -> Any:
        """A client, as redis-py makes it for its own users, that never repeats by itself."""
        parts = urlsplit(url)
        scheme, _, way = parts.scheme.partition("+")
        query = dict(parse_qsl(parts.query))
        clustered = query.pop("cluster", "").lower() in ("1", "true", "yes")
        secure = scheme in ("rediss", "valkeys")
        self._secure = secure
        self._check_files(query)
        plain = parts._replace(query=urlencode(query))
        if scheme != "unix":
            plain = plain._replace(scheme="rediss" if secure else "redis")
        if way == "sentinel":
            return self._open_sentinel(plain, secure)
        if scheme == "unix":
            self._place = (unquote(plain.path), 0)
        else:
            self._place = _host(plain.netloc.rpartition("@")[2].split(",")[0], 6379)
        if way == "cluster" or clustered:
            return self._open_cluster(plain)
        return self._redis.Redis.from_url(_joined(plain), **self._options, **self._no_retry())

    def _no_retry(self) -> dict[str, Any]:
        retry = import_module("redis.retry")
        backoff = import_module("redis.backoff")
        return {"retry": retry.Retry(backoff.NoBackoff(), 0), "retry_on_timeout": False}

    def _unknown_option(self, what: object) -> ValueError:
        return ValueError(
            f"{self.address}: redis-py does not know an option of the URL or of client_options: "
            f"{what}; options of the store are passed to connect by name"
        )

    def _open_cluster(self, parts: SplitResult) -> Any:
        """Any of the named servers tells of the others; redis-py follows moved slots by itself."""
        self.clustered = True
        user, _, hosts = parts.netloc.rpartition("@")
        first, *others = hosts.split(",")
        cluster = import_module("redis.cluster")
        nodes = [cluster.ClusterNode(*_host(host, 6379)) for host in [first, *others]]
        netloc = f"{user}@{first}" if user else first
        parser = import_module("redis.connection").parse_url
        options = {**self._options, **parser(_joined(parts._replace(netloc=netloc, path="")))}
        for name in ("host", "port", "db", "connection_class"):
            options.pop(name, None)
        if parts.scheme == "rediss":
            options["ssl"] = True
        known = {*signature(cluster.RedisCluster).parameters, *cluster.REDIS_ALLOWED_KEYS}
        if unknown := sorted(options.keys() - known):
            raise self._unknown_option(", ".join(unknown))
        self._transient += (self._redis.exceptions.AskError,)
        return cluster.RedisCluster(startup_nodes=nodes, **options)

    def _open_sentinel(self, parts: SplitResult, secure: bool) -> Any:
        """``redis+sentinel://user:password@host:port,host:port/service/db``."""
        self.sentinel = True
        user, _, hosts = parts.netloc.rpartition("@")
        service, _, database = parts.path.strip("/").partition("/")
        if not service:
            raise ValueError(f"{self.address}: name the service: redis+sentinel://host:port/name")
        sentinels = [_host(host, 26379) for host in hosts.split(",")]
        parser = import_module("redis.connection").parse_url
        netloc = f"{user}@localhost" if user else "localhost"
        named = parser(_joined(parts._replace(netloc=netloc, path=database)))
        options: dict[str, Any] = {**self._options, **named}
        for name in ("host", "connection_class"):
            options.pop(name, None)
        if secure:
            options["ssl"] = True
        own = options.pop("sentinel_kwargs", {}) | {
            name.removeprefix("sentinel_"): options.pop(name)
            for name in list(options)
            if name.startswith("sentinel_")
        }
        timeouts = {name: options[name] for name in NORMAL_OPTIONS}
        sentinel = import_module("redis.sentinel").Sentinel(
            sentinels, sentinel_kwargs={**timeouts, **own}, **options, **self._no_retry()
        )
        return sentinel.master_for(service)


class Patience:
    """How long a call is tried again, and how often.

    Args:
        link: The link.
        changes: Whether the call changes something.
    """

    def __init__(self, link: RedisLink, changes: bool = False) -> None:
        self._link = link
        self._changes = changes
        self._sent = False
        """Whether the call may have reached a server whose answer did not reach us."""
        self._deadline = time.monotonic() + link.patience
        self._pause = BACKOFF[0]

    def after(self, error: Exception, *, sent: bool) -> float:
        """Seconds until the next try.

        Args:
            error: What went wrong.
            sent: Whether the call was on its way by then.

        Raises:
            StoreError: It is not worth trying, or it is too late.
        """
        link = self._link
        self._sent = self._sent or (sent and not link.answered(error))
        late = time.monotonic() >= self._deadline or link.stopped
        if link.passes(error):
            link.lost(error)
        if late or not link.passes(error):
            raise link.explain(error, self._what_of_it()) from error
        pause = self._pause * random.uniform(0.5, 1.0)
        self._pause = min(self._pause * 2, BACKOFF[1])
        return pause

    def _what_of_it(self) -> str:
        if not self._changes:
            return ""
        if self._sent:
            return "; the answer was lost: it is not known whether the change was made"
        return "; nothing was changed"


def _sentence(trouble: RedisTrouble | None, error: Exception) -> str:
    """What to do, and the words of the server or of the system."""
    said = str(error) or type(error).__name__
    return f"{trouble.advice}: {said}" if trouble is not None else said


def _host(text: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    return unquote(parts.hostname or "localhost"), parts.port or port


def _joined(parts: SplitResult) -> str:
    """The URL; that of a socket keeps its slashes, which `urlunsplit` would drop."""
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}{parts.path}{query}"


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2]
    return _joined(parts._replace(netloc=hosts, query=""))
