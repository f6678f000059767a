"""Who is measured, and where each of them lives."""

import platform
import shutil
import subprocess
import sys
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / ".bench"
PUBLISHED_VERSION = "0.0.7"

OURS = "leasedkeyq"
OUR_STORES = "the stores of leasedkeyq"
OUR_LANES = "the lanes of leasedkeyq"
OUR_SERVERS = "leasedkeyq on servers"
PUBLISHED = f"leasedkeyq {PUBLISHED_VERSION}"
STDLIB = "asyncio.Queue"
HUEY = "huey"
HUEY_WORKERS = "workers of huey"
HUEY_ON_SQLITE = "huey on SQLite"
LITEQUEUE = "litequeue"
LITEQUEUE_WORKERS = "workers of litequeue"
PERSISTQUEUE = "persist-queue"
A3S_LANE = "a3s-lane"
PGQUEUER = "pgqueuer"
PROCRASTINATE = "procrastinate"
SAQ = "saq"
BULLMQ = "bullmq"
ARQ = "arq"
STREAQ = "streaq"
TASKIQ = "taskiq-redis"
DRAMATIQ = "dramatiq"
RQ = "rq"
HUEY_ON_REDIS = "huey on Redis"
PYDOCKET = "pydocket"


@dataclass(frozen=True)
class Peer:
    """A queue, the interpreter that has it installed, and the workloads that know how to use it."""

    name: str
    python: Path
    workloads: str


@dataclass(frozen=True)
class Package:
    """A package from PyPI that is compared with, in an environment of its own.

    Attributes:
        also: What it needs besides what it asks for itself.
    """

    name: str
    version: str
    workloads: str
    also: tuple[str, ...] = ()


_SERVERS = "benchmarks.server_workloads"
PACKAGES = {
    PUBLISHED: Package("leasedkeyq", PUBLISHED_VERSION, "benchmarks.leased_workloads"),
    HUEY: Package("huey", "3.5.4", "benchmarks.sqlite_peer_workloads"),
    HUEY_WORKERS: Package("huey", "3.5.4", "benchmarks.huey_workloads"),
    HUEY_ON_SQLITE: Package("huey", "3.5.4", _SERVERS),
    LITEQUEUE: Package("litequeue", "0.9", "benchmarks.sqlite_peer_workloads"),
    LITEQUEUE_WORKERS: Package("litequeue", "0.9", _SERVERS),
    PERSISTQUEUE: Package("persist-queue", "1.1.0", "benchmarks.sqlite_peer_workloads"),
    A3S_LANE: Package("a3s-lane", "0.4.0", "benchmarks.a3s_workloads"),
    PGQUEUER: Package("pgqueuer", "1.6.0", _SERVERS, ("asyncpg",)),
    PROCRASTINATE: Package("procrastinate", "3.10.0", _SERVERS, ("psycopg[binary,pool]",)),
    SAQ: Package("saq", "0.26.4", _SERVERS, ("psycopg[binary,pool]", "redis", "hiredis")),
    BULLMQ: Package("bullmq", "3.4.4", _SERVERS, ("psycopg[binary]", "hiredis")),
    ARQ: Package("arq", "0.28.0", _SERVERS),
    STREAQ: Package("streaq", "7.2.0", _SERVERS),
    TASKIQ: Package("taskiq-redis", "1.2.4", _SERVERS, ("hiredis",)),
    DRAMATIQ: Package("dramatiq", "2.2.1", _SERVERS, ("redis", "hiredis")),
    RQ: Package("rq", "2.12.0", _SERVERS, ("hiredis",)),
    HUEY_ON_REDIS: Package("huey", "3.5.4", _SERVERS, ("redis", "hiredis")),
    PYDOCKET: Package("pydocket", "0.27.0", _SERVERS, ("hiredis",)),
}


class SetUpError(Exception):
    """A peer could not be set up."""


def find_peers(wanted: Collection[str], *, set_up: bool) -> tuple[dict[str, Peer], dict[str, str]]:
    """The wanted peers by name, and those that are left out with the reason.

    Args:
        set_up: Make the environments of packages from PyPI that are missing.
    """
    here = Path(sys.executable)
    peers = {
        OURS: Peer(OURS, here, "benchmarks.leased_workloads"),
        OUR_STORES: Peer(OUR_STORES, here, "benchmarks.store_workloads"),
        OUR_LANES: Peer(OUR_LANES, here, "benchmarks.lane_workloads"),
        OUR_SERVERS: Peer(OUR_SERVERS, here, "benchmarks.server_own_workloads"),
        STDLIB: Peer(STDLIB, here, "benchmarks.asyncio_workloads"),
    }
    left_out: dict[str, str] = {}
    for name, package in PACKAGES.items():
        if name not in wanted:
            continue
        try:
            python = _python_with(package, set_up=set_up)
        except SetUpError as error:
            left_out[name] = str(error)
        else:
            peers[name] = Peer(name, python, package.workloads)
    return peers, left_out


def our_version() -> str:
    """The version of the installed package, which must not be the one that we compare with."""
    version = _version_in(Path(sys.executable), "leasedkeyq")
    if version is None:
        raise SetUpError("leasedkeyq is not installed for this interpreter; use `make bench`")
    if version == PUBLISHED_VERSION:
        raise SetUpError(f"this interpreter has leasedkeyq {version}, the one to compare with")
    return version


def _version_in(python: Path, name: str) -> str | None:
    # -I: what lies in the current directory does not count, only what is installed.
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _python_with(package: Package, *, set_up: bool) -> Path:
    name = f"{package.name}-{package.version}-python-{platform.python_version()}"
    if package.also:
        name += f"-with-{zlib.crc32(' '.join(package.also).encode()):08x}"
    folder = ENVIRONMENTS / name
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if python.exists() and _version_in(python, package.name) == package.version:
        return python
    if not set_up:
        raise SetUpError("not set up; a run without --quick does that")
    print(f"setting up {package.name} {package.version} in {folder.relative_to(ROOT)}", flush=True)
    ENVIRONMENTS.mkdir(exist_ok=True)
    (ENVIRONMENTS / ".gitignore").write_text("*\n", encoding="ascii")
    _run(sys.executable, "-m", "venv", "--clear", str(folder))
    requirement = f"{package.name}=={package.version}"
    try:
        _run(str(python), "-m", "pip", "install", "-qq", requirement, *package.also)
    except SetUpError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return python


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise SetUpError(f"{' '.join(command[1:4])} failed: {lines[-1]}")
