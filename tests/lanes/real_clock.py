"""For tests of lanes with threads and processes, which virtual time would run away from."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

PATIENCE = 60.0
"""Seconds after which something is taken not to happen."""


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run on the real clock."""

    async def in_time() -> None:
        async with asyncio.timeout(3 * PATIENCE):
            await work

    asyncio.run(in_time())


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


def lives(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has looked after does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] not in {"Z", "X"}
