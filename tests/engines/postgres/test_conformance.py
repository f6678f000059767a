"""The PostgreSQL store is a store."""

from collections.abc import Callable
from functools import partial

from leasedkeyq import connect
from leasedkeyq.stores import Store
from leasedkeyq.testing import Place, StoreConformance
from tests.servers.postgres import schemas


class TestPostgres(StoreConformance, accepts=("clock", "limits")):
    def opener(self, place: Place) -> Callable[..., Store]:
        return partial(connect, schemas().url, schema=schemas().borrow(place))
