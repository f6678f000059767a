"""Coroutine tests run in virtual time: no test sleeps, and a lost wake-up is a `DeadlockError`."""

import asyncio
import gc
import inspect
import os
import signal
import time
import warnings
from contextlib import suppress
from importlib import import_module

import pytest

from leasedkeyq.testing import VirtualTimeLoop
from tests.forks import fork_server

# Times without a zone are local ones. Tests of that change the zone, the others rely on this one.
os.environ["TZ"] = "UTC"
time.tzset()

# A shell ignores Ctrl-C for what it runs in the background, and the programs that tests interrupt
# would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

fork_server()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Share the work of rewriting assertions between the workers of pytest-xdist.

    Each worker imports every test file. The first import of a file writes its rewritten code into
    `__pycache__`, which takes longer than all other work of an import. So each worker begins with
    files of its own, and finds those of the others written when it comes to them.
    """
    config = session.config
    worker = getattr(config, "workerinput", None)
    if worker is None or config.args != config.getini("testpaths"):
        return
    files = sorted((config.rootpath / "tests").glob("**/test_*.py"))
    number = int(worker["workerid"].removeprefix("gw"))
    for file in files[number :: worker["workercount"]]:
        name = ".".join(file.relative_to(config.rootpath).with_suffix("").parts)
        # A file that cannot be imported is imported again, and reported, when it is collected.
        with suppress(Exception), warnings.catch_warnings(action="error"):
            import_module(name)


def pytest_collection_finish() -> None:
    # All test functions stay to the end. Each full garbage collection would go through them.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True
