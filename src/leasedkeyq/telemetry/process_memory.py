"""How much memory this process uses."""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def resident_memory() -> int:
    """The bytes of memory that this process uses; where that is not known, what it used at most.

    0 where neither is known.
    """
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        try:
            resource: Any = import_module("resource")
        except ImportError:
            return 0
        most: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")
