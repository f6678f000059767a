"""Repositories on every kind of store, with a clock that stands still."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasedkeyq.engines.file.document import repository_fields
from leasedkeyq.repository import QueueRepository
from tests.repository.support import KINDS, LocalTime, World


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = World(request.param, tmp_path)
    yield world
    world.close()


@pytest.fixture
def repository(world: World) -> QueueRepository:
    return world.open()


@pytest.fixture
def local_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalTime]:
    """Changes the time zone of the process."""

    def change(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        repository_fields._aware.cache_clear()

    yield change
    monkeypatch.undo()
    time.tzset()
    repository_fields._aware.cache_clear()
