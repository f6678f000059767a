"""A whole store as one text: it comes back as it was, or not at all."""

import asyncio

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.engines.file.document.codec import add_checksum
from leasedkeyq.engines.file.snapshot import dump, load
from leasedkeyq.errors import StoreError
from leasedkeyq.model.store_model import StoreModel
from leasedkeyq.testing import ManualClock
from leasedkeyq.testing.differential import Differential
from leasedkeyq.testing.site import SMALL_LIMITS


@pytest.mark.parametrize("seed", range(4))
def test_a_store_goes_on_from_its_text(seed: int) -> None:
    async def main() -> None:
        clock = ManualClock()
        store = MemoryStore(limits=SMALL_LIMITS, clock=clock)
        differential = Differential([store], clock, seed)
        for _ in range(20):
            await differential.run(20)
            store._model = load(dump(store._model), SMALL_LIMITS, clock.now)

    asyncio.run(main())


@pytest.mark.parametrize("text", [b"", b"{}", dump(StoreModel())[:-20], b"x" + dump(StoreModel())])
def test_damage_is_an_error(text: bytes) -> None:
    with pytest.raises(StoreError, match="not complete, or was changed: restore it from a backup"):
        load(text, SMALL_LIMITS, 0.0)


def test_a_newer_version_is_an_error() -> None:
    text = add_checksum(b'{\n"version": 99,\n"queues": {},\n', yaml=False)
    with pytest.raises(StoreError, match=r"version is 99, .*; upgrade leasedkeyq"):
        load(text, SMALL_LIMITS, 0.0)
