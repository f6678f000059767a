"""Calls of commands in this process, and a store to call them on."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from leasedkeyq import connect
from leasedkeyq.__main__ import main
from leasedkeyq.stores import Bury, Claim, Put, Store

T = TypeVar("T")


class Done(NamedTuple):
    """What a command has done."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Shell:
    """Calls commands on one store."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self._capsys = capsys

    def __call__(self, command: str, *words: str) -> Done:
        return self.bare(command, self.url, *words)

    def bare(self, *arguments: str) -> Done:
        """Without the store as the first word."""
        self._capsys.readouterr()
        code = main(arguments)
        out, err = self._capsys.readouterr()
        assert "Traceback (most recent call last)\n  File" not in err
        return Done(code, out, err)

    def on_store(self, work: Callable[[Store], Awaitable[T]]) -> T:
        """Do something with the store itself."""

        async def run() -> T:
            async with connect(self.url) as store:
                return await work(store)

        return asyncio.run(run())

    def put(self, queue: str, *keys: str, **how: Any) -> None:
        items = tuple((key, json.dumps({"to": key}).encode()) for key in keys)

        async def work(store: Store) -> None:
            [answer] = await store.put([Put(queue, items, **how)])
            assert isinstance(answer, tuple)

        self.on_store(work)

    def claim(self, queue: str, key: str, lease_time: float | None = 600.0) -> None:
        """Lease an item, for as long as that or for ever."""

        async def work(store: Store) -> None:
            [[_]] = await store.claim([Claim(((queue, 1),), 1, key, lease_time)])

        self.on_store(work)

    def bury(self, queue: str, key: str, error: str, kind: str = "") -> None:
        async def work(store: Store) -> None:
            await store.put([Put(queue, ((key, b'{"n": 1}'),), kind=kind)])
            [[claimed]] = await store.claim([Claim(((queue, 1),), key=key)])
            await store.settle([Bury(queue, key, claimed.token, error)])

        self.on_store(work)


def sqlite_shell(folder: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    """A shell on a new SQLite store, which need not survive a loss of power."""
    shell = Shell(f"sqlite:///{folder}/jobs.db", capsys)

    async def make(store: Store) -> None:
        await store.count()

    shell.on_store(make)
    return shell
