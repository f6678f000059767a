"""The whole conformance suite in four ways, under ``TORTURE=1``.

On an old Redis, on a cluster, by the parts of the script for large batches, and in small steps.
"""

import os

from tests.stores.redis.test_redis_conformance import InFull, InSmallSteps, OnCluster, OnRedis6

if os.environ.get("TORTURE") == "1":

    class TestRedis6(OnRedis6):
        """All of it."""

    class TestCluster(OnCluster):
        """All of it."""

    class TestInFull(InFull):
        """All of it."""

    class TestInSmallSteps(InSmallSteps):
        """All of it."""
