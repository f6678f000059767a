"""The whole conformance suite on an old Redis and on a cluster, under ``TORTURE=1``."""

import os

from tests.stores.redis.test_redis_conformance import OnCluster, OnRedis6

if os.environ.get("TORTURE") == "1":

    class TestRedis6(OnRedis6):
        """All of it."""

    class TestCluster(OnCluster):
        """All of it."""
