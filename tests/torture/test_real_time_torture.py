"""Lanes on real clocks and a busy machine, with every rate limit, burst and number of workers."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lanes.real_time.scenarios import SCENARIOS, Rate, busy_machine, check_rate
from tests.servers.urls import KINDS, empty_store

TORTURE = bool(os.environ.get("TORTURE"))
ALL = [
    (kind, Rate(rate, burst, workers, seconds=4.0, busy=busy))
    for kind in ("memory", *KINDS)
    for rate in (10, 30, 100, 1000)
    for burst in (1, 10, None)
    for workers in ((1,) if kind == "memory" else (1, 3))
    for busy in (0, 3)
]
"""Some minutes' worth; otherwise, tests/lanes/real_time/test_real_time.py has a selection."""


@pytest.fixture
def url(kind: str, tmp_path: Path) -> Iterator[str | None]:
    if kind == "memory":
        yield None
    else:
        with empty_store(kind, tmp_path) as found:
            yield found


@pytest.mark.parametrize("kind, rate", ALL if TORTURE else ALL[:1], ids=str)
def test_a_rate_limit_is_kept_and_used(url: str | None, rate: Rate) -> None:
    check_rate(rate, url)


@pytest.mark.parametrize("kind", ["memory", *KINDS] if TORTURE else ["memory"])
@pytest.mark.parametrize(
    "scenario", SCENARIOS if TORTURE else SCENARIOS[:1], ids=lambda scenario: scenario.__name__
)
def test_lanes_keep_their_promises_on_a_busy_machine(
    scenario: Callable[[str | None], Coroutine[Any, Any, None]], url: str | None
) -> None:
    with busy_machine(3 if TORTURE else 0):
        asyncio.run(scenario(url))
