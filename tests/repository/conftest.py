"""Repositories on every kind of store, with a clock that stands still."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from leasedkeyq.repository import QueueRepository
from tests.repository.support import KINDS, World


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = World(request.param, tmp_path)
    yield world
    world.close()


@pytest.fixture
def repository(world: World) -> QueueRepository:
    return world.open()
