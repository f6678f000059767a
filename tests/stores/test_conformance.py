"""Every store, one suite."""

from collections.abc import Callable

from leasedkeyq.stores import MemoryStore, Store
from leasedkeyq.testing import Place, StoreConformance


class Ours(StoreConformance, accepts=("clock", "limits")):
    """Our stores take both options."""


class TestMemory(Ours, without=("durability", "cross_process")):
    def opener(self, place: Place) -> Callable[..., Store]:
        return MemoryStore


class TestYaml(Ours):
    def opener(self, place: Place) -> str:
        return f"file://{place.folder}/queue.yaml"


class TestJson(Ours):
    def opener(self, place: Place) -> str:
        return f"file://{place.folder}/queue.json"


class TestSqlite(Ours):
    def opener(self, place: Place) -> str:
        return f"sqlite://{place.folder}/jobs.db"


class TestSqliteByItsOwnClock(StoreConformance):
    """As a server is: its clock cannot be moved, and its limits are what they are."""

    def opener(self, place: Place) -> str:
        return f"sqlite://{place.folder}/jobs.db"
