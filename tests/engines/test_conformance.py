"""Every store, one suite.

tests/torture runs what takes long in a JSON file, and on SQLite by its own clock.
"""

from collections.abc import Callable

from leasedkeyq import MemoryStore
from leasedkeyq.stores import Store
from leasedkeyq.testing import Place, StoreConformance
from leasedkeyq.testing.suite import checks_of


class Ours(StoreConformance, accepts=("clock", "limits")):
    """Our stores take both options."""


class TestMemory(Ours, without=("durability", "cross_process")):
    def opener(self, place: Place) -> Callable[..., Store]:
        return MemoryStore


class TestYaml(Ours):
    def opener(self, place: Place) -> str:
        return f"file://{place.folder}/queue.yaml"


class Json(Ours):
    """The engine of YAML files, with documents in another form."""

    def opener(self, place: Place) -> str:
        return f"file://{place.folder}/queue.json"


class TestJson(Json):
    """Without what takes long."""


class TestSqlite(Ours):
    def opener(self, place: Place) -> str:
        return f"sqlite:///{place.folder}/jobs.db"


class SqliteByItsOwnClock(StoreConformance):
    """As a server is: its clock cannot be moved, and its limits are what they are."""

    def opener(self, place: Place) -> str:
        return f"sqlite:///{place.folder}/jobs.db"


class TestSqliteByItsOwnClock(SqliteByItsOwnClock):
    """Without what takes long."""


LONG = {"test_several_store_objects_answer_as_one_machine_does"}
for whole, shorter in ((Json, TestJson), (SqliteByItsOwnClock, TestSqliteByItsOwnClock)):
    for found in list(checks_of(whole)):
        if found.needs in {"cross_process", "durability", "hypothesis"} or found.name in LONG:
            setattr(shorter, found.name, None)
