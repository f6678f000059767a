"""The conformance suite on Valkey, on an old Redis and on a cluster."""

from collections.abc import Callable
from functools import partial

from leasedkeyq.stores import Store, connect
from leasedkeyq.testing import Place, StoreConformance
from tests.servers.valkey import shared_cluster, shared_server, shared_url


class Timed(StoreConformance, accepts=("clock", "limits")):
    """A clock for tests takes the place of the server's.

    Hypothesis searches on one of the servers; the random comparison runs on all.
    """


class TestValkey(Timed):
    def opener(self, place: Place) -> Callable[..., Store]:
        return partial(connect, shared_url(), prefix=place.name)


class TestRedis6(Timed, without=("hypothesis",)):
    def opener(self, place: Place) -> Callable[..., Store]:
        return partial(connect, shared_server("redis6").url, prefix=place.name)


class TestCluster(Timed, without=("hypothesis",)):
    def opener(self, place: Place) -> Callable[..., Store]:
        return partial(connect, shared_cluster().url, prefix=place.name)
