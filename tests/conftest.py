"""Coroutine tests run in virtual time: no test sleeps, and a lost wake-up is a `DeadlockError`."""

import asyncio
import inspect

import pytest

from leasedkeyq.testing import VirtualTimeLoop


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True
