"""One meaning at every door: the same script leaves the same trace, errors included."""

import asyncio
import difflib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import LeasedKeyQueue
from leasedkeyq.stores.queue import StoreQueue
from tests.doors.differences import DIFFERENCES
from tests.doors.doors import STORES, address, local_door, open_store, store_door
from tests.doors.scenarios import SCENARIOS
from tests.doors.trace import Trace

ROOT = Path(__file__).resolve().parent.parent.parent
TIME_LIMIT = 30.0
"""Seconds for a scenario, on a busy machine; a quiet one takes three."""


async def traces(make: Callable[..., Any]) -> dict[str, list[str]]:
    """Run all scenarios at a time, each with queues of its own."""

    async def run(name: str) -> list[str]:
        trace = Trace()
        try:
            async with asyncio.timeout(TIME_LIMIT):
                await SCENARIOS[name](trace, make)
        except BaseException as error:
            trace.note(f"ended by {error!r}")
            if not isinstance(error, Exception):
                raise
        return trace.lines

    found = await asyncio.gather(*map(run, SCENARIOS))
    return dict(zip(SCENARIOS, found, strict=True))


def expected_on_stores(traces: dict[str, list[str]]) -> dict[str, list[str]]:
    """The traces of a local queue, with the differences that are meant."""
    expected = {name: list(trace) for name, trace in traces.items()}
    for difference in DIFFERENCES:
        for name, local, store in difference.lines:
            expected[name][expected[name].index(local)] = store
    return expected


def differences(expected: dict[str, list[str]], found: dict[str, list[str]]) -> list[str]:
    lines: list[str] = []
    for name, trace in expected.items():
        if trace != found[name]:
            lines.append(f"{name}:")
            lines += difflib.unified_diff(trace, found[name], "LeasedKeyQueue", "store", n=1)
    return lines


async def on_store(url: str) -> dict[str, list[str]]:
    store = open_store(url)
    try:
        return await traces(store_door(store))
    finally:
        await store.close()


def test_every_scenario_comes_to_its_end() -> None:
    for name, trace in asyncio.run(traces(local_door())).items():
        assert trace, name
        assert not [line for line in trace if line.startswith(("ended by", "hangs"))], name


@pytest.mark.parametrize("kind", STORES)
def test_a_queue_on_a_store_does_what_a_local_queue_does(kind: str, tmp_path: Path) -> None:
    expected = expected_on_stores(asyncio.run(traces(local_door())))
    with address(kind, tmp_path) as url:
        found = asyncio.run(on_store(url))
    assert differences(expected, found) == []


def public_names(queue: type) -> set[str]:
    return {name for name in dir(queue) if not name.startswith("_")}


def test_a_queue_on_a_store_has_the_methods_of_a_local_queue() -> None:
    missing = public_names(LeasedKeyQueue) - public_names(StoreQueue)
    assert missing == set[str]().union(*(each.names for each in DIFFERENCES))
    assert public_names(StoreQueue) - public_names(LeasedKeyQueue) == set()
    for name in public_names(LeasedKeyQueue) & public_names(StoreQueue):
        local, store = getattr(LeasedKeyQueue, name), getattr(StoreQueue, name)
        if callable(local):
            assert parameters(local) == parameters(store), name


def parameters(method: Any) -> list[tuple[str, object, object]]:
    found = inspect.signature(method).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]


def test_the_docs_show_the_differences() -> None:
    page = (ROOT / "docs/reference/differences.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")][2:]
    meant = [f"| {d.what} | {d.local} | {d.store} | {d.reason} |" for d in DIFFERENCES]
    assert rows == meant
