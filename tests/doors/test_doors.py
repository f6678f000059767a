"""One meaning at every door: the same script leaves the same trace, errors included."""

import asyncio
import difflib
import inspect
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import LeasedKeyQueue
from leasedkeyq.stores.queue.store_queue import StoreQueue
from tests.doors.differences import DIFFERENCES
from tests.doors.doors import STORES, address, local_door, open_store, store_door
from tests.doors.line_scenarios import SCENARIOS
from tests.doors.trace import Trace

TORTURE = os.environ.get("TORTURE") == "1"

ROOT = Path(__file__).resolve().parent.parent.parent
TIME_LIMIT = 45.0
"""Seconds for a scenario, at any pace; a quiet machine takes two."""
PACES = (1.0, 2.0, 5.0)
"""How often what differs is tried again, more slowly: a busy machine is no difference."""


async def traces(
    make: Callable[..., Any], names: Iterable[str] = SCENARIOS, pace: float = 1.0
) -> dict[str, list[str]]:
    """Run scenarios at a time, each with queues of its own."""

    async def run(name: str) -> list[str]:
        trace = Trace(pace)
        try:
            async with asyncio.timeout(TIME_LIMIT):
                await SCENARIOS[name](trace, make)
        except BaseException as error:
            trace.note(f"ended by {error!r}")
            if not isinstance(error, Exception):
                raise
        return trace.lines

    names = list(names)
    found = await asyncio.gather(*map(run, names))
    return dict(zip(names, found, strict=True))


def expected_on_stores(traces: dict[str, list[str]]) -> dict[str, list[str]]:
    """The traces of a local queue, with the differences that are meant."""
    expected = {name: list(trace) for name, trace in traces.items()}
    for difference in DIFFERENCES:
        for name, local, store in difference.lines:
            if name in expected:
                expected[name][expected[name].index(local)] = store
    return expected


def differences(
    expected: dict[str, list[str]], found: dict[str, list[str]]
) -> dict[str, list[str]]:
    """By scenario, the lines that differ."""
    return {
        name: list(difflib.unified_diff(trace, found[name], "LeasedKeyQueue", "store", n=1))
        for name, trace in expected.items()
        if trace != found[name]
    }


async def compare(url: str) -> dict[str, list[str]]:
    """What differs, also when a store that was too slow for a scenario is given more time."""
    differing: dict[str, list[str]] = {name: [] for name in SCENARIOS}
    store = open_store(url)
    try:
        make = store_door(store)
        for pace in PACES:
            if differing:
                expected = expected_on_stores(await traces(local_door(), differing, pace))
                differing = differences(expected, await traces(make, differing, pace))
    finally:
        await store.close()
    return differing


def test_every_scenario_comes_to_its_end() -> None:
    for name, trace in asyncio.run(traces(local_door())).items():
        assert trace, name
        assert not [line for line in trace if line.startswith(("ended by", "hangs"))], name


@pytest.mark.parametrize("kind", [kind for kind in STORES if TORTURE or kind != "json"])
def test_a_queue_on_a_store_does_what_a_local_queue_does(kind: str, tmp_path: Path) -> None:
    with address(kind, tmp_path) as url:
        found = asyncio.run(compare(url))
    assert not found, "\n".join(line for lines in found.values() for line in lines)


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
