"""Lanes on real clocks, on every kind of store: a selection of what `make torture` runs in full."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lanes.real_time.scenarios import SCENARIOS, Rate, check_rate
from tests.servers.urls import KINDS, empty_store

RATES = {
    "memory": [Rate(100, 1)],
    "sqlite": [Rate(100, busy=3, seconds=1.0), Rate(30, 10, workers=3)],
    "postgresql": [Rate(100, 1), Rate(30, workers=3, seconds=1.0)],
    "redis": [Rate(1000, 10), Rate(30, 10, workers=3, seconds=1.0)],
}


@pytest.fixture
def url(kind: str, tmp_path: Path) -> Iterator[str | None]:
    if kind == "memory":
        yield None
    else:
        with empty_store(kind, tmp_path) as found:
            yield found


@pytest.mark.parametrize(
    "kind, rate", [(kind, rate) for kind, rates in RATES.items() for rate in rates], ids=str
)
def test_a_rate_limit_is_kept_and_used(url: str | None, rate: Rate) -> None:
    check_rate(rate, url)


@pytest.mark.parametrize("kind", ["memory", *KINDS])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_lanes_keep_their_promises(
    scenario: Callable[[str | None], Coroutine[Any, Any, None]], url: str | None
) -> None:
    asyncio.run(scenario(url))
