"""A folder for files that need not last."""

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

MEMORY = "/dev/shm"


@contextmanager
def scratch_folder(otherwise: Path) -> Generator[Path]:
    """A folder in memory, where the system has that, and a folder in `otherwise` elsewhere.

    For rounds that record what a store does to its disk, or stand for the disk themselves: there
    a real sync only takes time.
    """
    parent = MEMORY if os.access(MEMORY, os.W_OK | os.X_OK) else otherwise
    with tempfile.TemporaryDirectory(dir=parent) as name:
        yield Path(name)
