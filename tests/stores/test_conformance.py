"""Every store, one suite."""

from pathlib import Path

import pytest

from leasedkeyq.stores import MemoryStore, Store, connect
from leasedkeyq.testing.conformance import StoreConformance


class TestMemory(StoreConformance):
    def open_store(self) -> Store:
        return MemoryStore()


class OnDisk(StoreConformance):
    url: str

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def open_store(self) -> Store:
        return connect(self.url.format(self.folder))


class TestYaml(OnDisk):
    url = "file://{}/queue.yaml"


class TestJson(OnDisk):
    url = "file://{}/queue.json"


class TestSqlite(OnDisk):
    url = "sqlite://{}/jobs.db"
