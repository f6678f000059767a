"""A server that restarts, or goes away, under a repository. In real time, in another process."""

import json
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from leasedkeyq import StoreUnavailableError, connect
from leasedkeyq.repository import QueueRepository
from tests.repository.support import WAIT, item, program
from tests.servers.postgres import PostgresServer
from tests.servers.valkey import Server

AWAY = 3.0
"""Seconds that a server takes to come back."""


class Mortal(NamedTuple):
    """A server of our own."""

    url: str
    kill: Callable[[], None]
    start: Callable[[], None]


@contextmanager
def postgres() -> Generator[Mortal]:
    server = PostgresServer()
    try:
        yield Mortal(server.url, server.kill, server.start)
    finally:
        server.remove()


@contextmanager
def valkey() -> Generator[Mortal]:
    with Server("--appendonly", "yes", "--appendfsync", "always") as server:
        yield Mortal(server.url, server.kill, server.start)


SERVERS = pytest.mark.parametrize("serve", [postgres, valkey])


@contextmanager
def running(name: str, *arguments: str) -> "Generator[subprocess.Popen[str]]":
    """A program that has said that it is ready."""
    process = program(name, *arguments)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip()
        yield process
    finally:
        process.kill()
        process.communicate()


def answer(process: "subprocess.Popen[str]", line: str | None = None) -> Any:
    """What it prints in the end. What it logs of the outage is on its standard error."""
    said, told = process.communicate(line, timeout=WAIT)
    assert process.returncode == 0, told
    return json.loads(said)


@SERVERS
def test_who_waits_outlives_a_restart(serve: Any) -> None:
    with serve() as server, running("wait_long", server.url, "", "50") as process:
        server.kill()
        time.sleep(AWAY)
        assert process.poll() is None
        server.start()
        with QueueRepository(server.url) as repository:
            for name in ("first", "second"):
                repository.enqueue(item(name))
        assert answer(process) == ["first", "second"]


@SERVERS
def test_calls_wait_for_a_restart(serve: Any) -> None:
    with serve() as server, running("go_on", server.url) as process:
        server.kill()
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        time.sleep(AWAY)
        server.start()
        stats = answer(process)
        assert (stats["total"], stats["completed"], stats["pending"]) == (3, 2, 1)


@SERVERS
def test_an_outage_is_no_empty_queue(serve: Any) -> None:
    """A worker whose time is over meanwhile hears of it, and does not end as if all were done."""
    with serve() as server, running("look_for_tasks", server.url) as process:
        server.kill()
        assert answer(process, "go\n") == ["StoreUnavailableError"] * 2


def test_a_fork_during_an_outage() -> None:
    """It waits for what is under way, which has an end."""
    with valkey() as server, running("fork_alone", server.url) as process:
        server.kill()
        assert answer(process, "go\n") == 7


@SERVERS
def test_closing_waits_for_nothing_that_nobody_waits_for(serve: Any) -> None:
    """Neither for the task that listens to the server, nor for a server that is away."""
    with serve() as server:
        for away in (False, True):
            repository = QueueRepository(server.url)
            assert repository.dequeue(timeout=0.1) is None
            if away:
                server.kill()
                with pytest.raises(StoreUnavailableError):
                    repository.dequeue(timeout=0.3)
            began = time.monotonic()
            repository.close()
            assert time.monotonic() - began < AWAY


@SERVERS
def test_closing_leaves_a_store_of_the_caller_open(serve: Any) -> None:
    """It listens in the event loop of the repository, which ends without a word of that."""
    with serve() as server:
        store = connect(server.url)
        for _ in range(2):
            with QueueRepository(store) as repository:
                assert repository.dequeue(timeout=0.1) is None
                repository.enqueue(item("one"))
                taken = repository.dequeue(timeout=WAIT)
                assert taken is not None
                repository.complete(taken.id)
