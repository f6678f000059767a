"""Processes of two releases on one store, which an older version may have left behind."""

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

from leasedkeyq.testing import Place
from tests.engines.kill_facts import LifeName
from tests.engines.kill_judge import FAILED, Complaint
from tests.engines.kill_rounds import (
    Arena,
    DiskGround,
    Ground,
    Kind,
    Life,
    Nursery,
    PostgresGround,
    RedisGround,
)
from tests.engines.kill_worker import Status
from tests.servers.postgres import run_sql, shared_server
from tests.servers.valkey import Server
from tests.torture.releases import older_stores
from tests.torture.releases.older_stores import Items


class OwnSchemaGround(PostgresGround):
    """A schema for each store that was never used."""

    def store(self, place: Place) -> tuple[str, dict[str, Any]]:
        url = shared_server().url
        place.at_end(partial(run_sql, url, f'DROP SCHEMA IF EXISTS "{place.name}" CASCADE'))
        return f"{url}?application_name={place.name}", {"schema": place.name}


class OwnServerGround(RedisGround):
    """As that of kills, with its server for those who look at keys."""

    @property
    def server(self) -> Server:
        return self._server


def ground_of(kind: Kind) -> Ground:
    if kind == "postgres":
        return OwnSchemaGround()
    return OwnServerGround() if kind == "redis" else DiskGround(kind)


class TwoReleases(Arena):
    """An arena whose processes are of this release, or of the other one.

    Those that die at a named point are of this one: another release has other points.
    """

    def __init__(self, kind: Kind, seed: int, ground: Ground, own: Nursery, other: Nursery) -> None:
        super().__init__(kind, seed, ground=ground, nursery=own)
        self._own = own
        self._other = other
        self._other_said = other.errors.stat().st_size
        self._nurseries: dict[int, Nursery] = {}

    def start(self, life: LifeName, *, own: bool = False, **plan: Any) -> Life:
        self._nursery = self._own if own or plan.get("point") else self._other
        started = super().start(life, **plan)
        self._nurseries[started.process] = self._nursery
        return started

    def wait(self, life: Life) -> Status:
        self._nursery = self._nurseries[life.process]
        return super().wait(life)

    def said_by_other(self) -> str:
        """What processes of the other release have said since this was asked last."""
        said = self._other.errors.read_bytes()
        new, self._other_said = said[self._other_said :], len(said)
        return new.decode(errors="replace")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._nursery = self._own
        super().__exit__(kind, error, traceback)
        if said := self.said_by_other():
            self.complaints.append(Complaint(FAILED, f"the other release: {said}"))

    def put_older(self, version: int) -> Items:
        """Make the store one that this version has left behind."""
        if self.kind == "postgres":
            return older_stores.put_postgres(shared_server().url, self.place.name, version)
        if self.kind == "redis":
            assert isinstance(self._ground, OwnServerGround)
            return older_stores.put_redis(self._ground.server, self.place.name, version)
        if self.kind.startswith("sqlite"):
            return older_stores.put_sqlite(self.path, version)
        return older_stores.put_document(self.path, version)

    def make_newer(self) -> Callable[[], object]:
        """Make the store one of a later version; return what tells whether it has changed."""
        if self.kind == "postgres":
            return older_stores.make_postgres_newer(shared_server().url, self.place.name)
        if self.kind == "redis":
            assert isinstance(self._ground, OwnServerGround)
            return older_stores.make_redis_newer(self._ground.server, self.place.name)
        if self.kind.startswith("sqlite"):
            return older_stores.make_sqlite_newer(self.path)
        return older_stores.make_document_newer(self.path)
