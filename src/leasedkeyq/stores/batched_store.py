"""A store whose engine applies batches: what callers ask for at a time goes into one."""

from abc import ABC
from collections.abc import Awaitable, Sequence
from typing import Any

from leasedkeyq.errors import LeasedKeyQError, StoreError
from leasedkeyq.model.edit import Edit
from leasedkeyq.model.requests import Answer, Change, Claim, Claimed, Placed, Put
from leasedkeyq.stores.batching.batcher import Batcher
from leasedkeyq.stores.store import Store


class BatchedStore(Store, ABC):
    """The inner verbs that change something, for an engine that has a `Batcher`.

    The engine makes `_batcher`, and closes it in `do_close`.
    """

    _batcher: Batcher[Any, Any]

    def do_put(
        self, requests: Sequence[Put]
    ) -> Awaitable[list[tuple[Placed, ...] | LeasedKeyQError]]:
        """As `Store.do_put`."""
        return self._batcher.submit_many(requests)

    def do_claim(
        self, requests: Sequence[Claim]
    ) -> Awaitable[list[tuple[Claimed, ...] | StoreError]]:
        """As `Store.do_claim`."""
        return self._batcher.submit_many(requests)

    def do_settle(self, requests: Sequence[Change]) -> Awaitable[list[Answer]]:
        """As `Store.do_settle`."""
        return self._batcher.submit_many(requests)

    def do_edit(self, edit: Edit) -> Awaitable[list[Answer] | StoreError]:
        """As `Store.do_edit`."""
        return self._batcher.submit(edit, alone=True)
