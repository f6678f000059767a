"""Engines of the file store, and what is done to their documents."""

import asyncio
import json
import string
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from leasedkeyq.engines.file.store import FileEngine, FileStore
from leasedkeyq.model.requests import Claim, Claimed, Put

SUFFIXES = pytest.mark.parametrize("suffix", ["yaml", "json"])


def run(work: Callable[[FileStore], Awaitable[Any]], path: Path, **options: Any) -> Any:
    async def main() -> Any:
        store = FileStore(path, **options)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(main())


def put(engine: FileEngine, *keys: str, queue: str = "jobs", **options: Any) -> Any:
    """Put keys, each as its own value; returns their ids, or the refusal."""
    items = tuple((key, json.dumps(key).encode()) for key in keys)
    return ids(engine.apply([Put(queue, items, **options)])[0])


def ids(answer: Any) -> Any:
    """The ids in the answer to a put, or the refusal that it is."""
    return tuple(placed.id for placed in answer) if isinstance(answer, tuple) else answer


def claim(engine: FileEngine, count: int = 1, queue: str = "jobs", **options: Any) -> list[Claimed]:
    answer: Any = engine.apply([Claim(((queue, count),), count, **options)])[0]
    return list(answer)


def edit(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path.write_text(text)


def keys(engine: FileEngine, queue: str = "jobs") -> list[str]:
    """In the order in which they would be handed out."""
    return engine.read(
        lambda model, now: (
            [item.key for item in model.queues[queue].state.ready] if queue in model.queues else []
        )
    )


def opened(path: Path, **options: Any) -> FileEngine:
    engine = FileEngine(path, **options)
    engine.file.settled = 0.0
    return engine


def misspelled(text: str, data: st.DataObject) -> str:
    """The text with a few characters changed, as Hypothesis draws them."""
    body = list(text)
    letters = st.sampled_from(string.printable[:95] + "\n\n  ##::--'\"")
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(letters)
    return "".join(body)
