"""Every store, one suite."""

from leasedkeyq.stores import MemoryStore, Store
from leasedkeyq.testing.conformance import StoreConformance


class TestMemory(StoreConformance):
    def open_store(self) -> Store:
        return MemoryStore()
