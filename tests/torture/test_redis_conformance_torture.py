"""The whole conformance suite in three ways, under ``TORTURE=1``.

On an old Redis, on a cluster, and by the parts of the script that large batches use.
"""

import os

from tests.stores.redis.test_redis_conformance import InFull, OnCluster, OnRedis6

if os.environ.get("TORTURE") == "1":

    class TestRedis6(OnRedis6):
        """All of it."""

    class TestCluster(OnCluster):
        """All of it."""

    class TestInFull(InFull):
        """All of it."""
