"""Coroutine tests run in virtual time: no test sleeps, and a lost wake-up is a `DeadlockError`."""

import asyncio
import inspect
import os
import signal
import time

import pytest

from leasedkeyq.testing import VirtualTimeLoop

# Times without a zone are local ones. Tests of that change the zone, the others rely on this one.
os.environ["TZ"] = "UTC"
time.tzset()

# A shell ignores Ctrl-C for what it runs in the background, and the programs that tests interrupt
# would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True
