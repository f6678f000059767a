"""The whole conformance suite in four ways, under ``TORTURE=1``.

On older servers, on a cluster, by the parts of the script for large batches, and in small steps.
"""

import os

from tests.engines.redis.test_conformance import (
    InFull,
    InSmallSteps,
    OnCluster,
    conformance_on,
)
from tests.servers.valkey import older_makes

if os.environ.get("TORTURE") == "1":
    for _make in older_makes():
        globals()[f"Test{_make.capitalize().replace('.', '_')}"] = conformance_on(_make)

    class TestCluster(OnCluster):
        """All of it."""

    class TestInFull(InFull):
        """All of it."""

    class TestInSmallSteps(InSmallSteps):
        """All of it."""
