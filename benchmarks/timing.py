"""How a worker measures: what one turn is, and the clock and the collector that all turns share."""

import gc
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter as wall_clock
from time import process_time as clock
from typing import TypeAlias

__all__ = [
    "FACTS",
    "Turn",
    "Workload",
    "busy_seconds",
    "clock",
    "names",
    "own_folder",
    "quiet",
    "resident_bytes",
    "shared_folder",
    "wall_clock",
]

FACTS: dict[str, str] = {}
"""What a workload wants the page to say about how it ran."""

Turn: TypeAlias = Callable[[], Awaitable[float]]
"""Measures once: seconds per operation, or bytes per item. May be called again and again."""

Workload: TypeAlias = Callable[..., Awaitable[Turn]]
"""Prepares what a turn needs. Its parameters are the options of a case."""


def quiet() -> None:
    """Right before the timed part: no garbage is left, and what lives now is not looked at again.

    The collector stays on, so that whoever makes garbage in the timed part pays for it.
    """
    gc.collect()
    gc.freeze()


def own_folder() -> Path:
    """A folder for the files of this worker, on the disk that holds this project."""
    return Path(os.environ["BENCH_FOLDER"])


def shared_folder() -> Path:
    """A folder for what workers of one run can use again."""
    return Path(os.environ["BENCH_SHARED"])


def names(count: int) -> list[str]:
    """Keys, made before the clock starts."""
    return [f"key-{number}" for number in range(count)]


def busy_seconds() -> float:
    """Seconds that the cores of this machine have worked since it started, all together.

    Where the system does not tell it in Linux' way, none.
    """
    try:
        line = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    except OSError:
        return 0.0
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts = map(int, line.split()[1:8])
    return (user + nice + system + interrupts + soft_interrupts) / os.sysconf("SC_CLK_TCK")


def resident_bytes() -> int | None:
    """The memory of this process that is in use, where the system tells it in Linux' way."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
