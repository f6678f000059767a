"""A place of its own for every case: a file, or a database of the servers that all share."""

import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
from urllib.parse import urlsplit

from benchmarks.timing import own_folder

SQLITE = "sqlite"
SYNCED_REDIS = "redis that syncs every change"


def new_place(server: str) -> str:
    """Empty the database of this case on a server, or name a new file, and return its URL.

    Redis is told how often to sync: what other cases want of it does not last.
    """
    if server == SQLITE:
        return f"sqlite:///{own_folder()}/{secrets.token_hex(4)}.db"
    if server == "postgres":
        return _new_postgres()
    return _new_redis("always" if server == SYNCED_REDIS else "everysec")


def _number() -> int:
    """Of this case: no other that runs now has it."""
    return int(os.environ["BENCH_NUMBER"])


def _new_postgres() -> str:
    server = os.environ["BENCH_POSTGRES"]
    name = f"case_{_number()}"
    command = [os.environ["BENCH_PSQL"], "-q", f"{server}postgres"]
    # What a case before this one has left is written to the disk now, and not while we measure.
    for statement in (
        "SET client_min_messages = warning",
        f"DROP DATABASE IF EXISTS {name} WITH (FORCE)",
        f"CREATE DATABASE {name}",
        "CHECKPOINT",
    ):
        command += ["-c", statement]
    subprocess.run(command, check=True)
    return f"{server}{name}"


def _new_redis(sync: str) -> str:
    server = os.environ["BENCH_REDIS"]
    address = urlsplit(server)
    lines = (f"CONFIG SET appendfsync {sync}", f"SELECT {_number()}", "FLUSHDB")
    assert address.hostname is not None
    with socket.create_connection((address.hostname, address.port or 6379)) as connection:
        connection.sendall("".join(f"{line}\r\n" for line in lines).encode())
        replies = connection.makefile("rb")
        for _ in lines:
            assert replies.readline() == b"+OK\r\n"
    return f"{server}{_number()}"


def end_with_parent() -> None:
    """Ask Linux to end this process when its parent ends, however that comes about."""
    if sys.platform == "linux":
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGINT)
