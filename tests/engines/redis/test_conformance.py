"""The conformance suite on Valkey, and its quick checks on older servers and on a cluster.

tests/torture runs all of it on these.
"""

import atexit
from collections.abc import Callable
from functools import cache, partial
from importlib.resources import files
from typing import Any

import pytest

from leasedkeyq import connect
from leasedkeyq.stores import Store
from leasedkeyq.testing import Place, StoreConformance
from leasedkeyq.testing.suite import checks_of
from tests.engines.redis.support import SMALL_STEPS, change_script, use_small_steps
from tests.servers.valkey import (
    Make,
    Server,
    older_makes,
    shared_cluster,
    shared_server,
    shared_url,
)

SLOW = {"cross_process", "durability", "hypothesis"}


class Timed(StoreConformance, accepts=("clock", "limits")):
    """A clock for tests takes the place of the server's."""


def conformance_on(make: Make) -> type[Timed]:
    """The checks on a server of this make."""

    class OnServer(Timed):
        def opener(self, place: Place) -> Callable[..., Store]:
            return partial(connect, shared_server(make).url, prefix=place.name)

    return OnServer


class OnCluster(Timed, without=("joint_edits",)):
    """Its queues are on several servers: who claims by urgency looks first, and claims then.

    So what several processes claim at a time is not always the most urgent, as the guide says.
    """

    # A name that is None is no test.
    test_the_most_urgent_go_first_over_processes: Any = None

    def opener(self, place: Place) -> Callable[..., Store]:
        return partial(connect, shared_cluster().url, prefix=place.name)


class TestValkey(Timed):
    def opener(self, place: Place) -> Callable[..., Store]:
        return partial(connect, shared_url(), prefix=place.name)


class TestCluster(OnCluster):
    """Without what takes long."""


class InFull(TestValkey):
    """As in a batch: the script does without its part for a request that is alone."""

    @pytest.fixture(autouse=True)
    def leave_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lone = (
            files("leasedkeyq.engines.redis").joinpath("lua", "lone_request.lua").read_text("utf-8")
        )
        change_script(monkeypatch, lone, "")


@cache
def server_for_small_steps() -> Server:
    server = Server("--appendonly", "yes", *SMALL_STEPS)
    atexit.register(server.close)
    return server


class InSmallSteps(Timed):
    """What is cut into steps takes many, and others have a turn between them."""

    @pytest.fixture(autouse=True)
    def cut(self, monkeypatch: pytest.MonkeyPatch) -> None:
        use_small_steps(monkeypatch)

    def opener(self, place: Place) -> Callable[..., Store]:
        return partial(connect, server_for_small_steps().url, prefix=place.name)


class TestInFull(InFull):
    """The random requests."""


class TestInSmallSteps(InSmallSteps):
    """The random requests."""


OLDER = {
    f"Test{make.capitalize().replace('.', '_')}": conformance_on(make) for make in older_makes()
}
globals().update(OLDER)  # without what takes long

for found in list(checks_of(Timed)):
    if "random" not in found.name or found.needs in SLOW:
        setattr(TestInFull, found.name, None)
        setattr(TestInSmallSteps, found.name, None)
    if found.needs in SLOW or "random" in found.name:
        for older in OLDER.values():
            setattr(older, found.name, None)
        setattr(TestCluster, found.name, None)
