"""How the observer of a queue is told something, in `LeasedKeyQueue` and in queues on stores."""

import asyncio
from collections.abc import Callable
from typing import Any


def tell(loop: asyncio.AbstractEventLoop, notice: Callable[..., None], *arguments: Any) -> None:
    """Call a method of an observer; what it raises is the event loop's business, not the caller's.

    Queues ask before whether they have an observer at all: without one, nothing is spent on this.
    """
    try:
        notice(*arguments)
    except Exception as error:
        context = {"message": "the observer of a queue failed", "exception": error}
        loop.call_exception_handler(context)
