"""Middleware: what runs around each attempt of a command, in the event loop of the worker."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

from leasedkeyq.errors import describe
from leasedkeyq.lanes.running.job import RunningCommand

CallNext: TypeAlias = Callable[[], Awaitable[Any]]
"""Runs the rest of an attempt: the middleware further in, and the command. Returns its result."""
Middleware: TypeAlias = Callable[[RunningCommand, CallNext], Awaitable[Any]]
"""Runs around an attempt of a command; what it returns or raises is what the attempt does."""


def checked_middleware(middleware: Any) -> Middleware:
    """The same, if it can run around commands.

    Raises:
        TypeError: It is not async, or does not take a command and a function.
    """
    name = getattr(middleware, "__qualname__", None) or describe(middleware)
    call = getattr(middleware, "__call__", None)  # noqa: B004  # an object whose call is async
    if not callable(middleware) or not (
        inspect.iscoroutinefunction(middleware) or inspect.iscoroutinefunction(call)
    ):
        raise TypeError(
            f"middleware {name}: it must be an async function, as in "
            "async def middleware(command, call_next): return await call_next()"
        )
    try:
        inspect.signature(middleware).bind(None, None)
    except TypeError as error:
        raise TypeError(
            f"middleware {name}: it is called with the command and with call_next: {error}"
        ) from error
    return cast("Middleware", middleware)


def surrounded(
    middleware: Sequence[Middleware], command: RunningCommand, body: CallNext
) -> Awaitable[Any]:
    """Run a command within its middleware: the first one is the outermost."""
    call = body
    for one in reversed(middleware):
        call = partial(one, command, call)
    return call()
