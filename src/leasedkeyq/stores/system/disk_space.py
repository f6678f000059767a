"""Whether the disk of a store has room, for stores that are files."""

import os
import shutil
from pathlib import Path
from typing import Final

from leasedkeyq.model.findings import Finding

SCARCE: Final = 1024**3
SCARCE_SHARE: Final = 0.05
"""A disk is full soon with fewer free bytes than this, if that is also less than this share."""
FULL: Final = 32 * 1024**2
"""With fewer free bytes than this, it is full."""


def disk_findings(path: Path) -> list[Finding]:
    """What is to be said about the disk that a file is on, and the rights to write it.

    Args:
        path: The file.
    """
    found: list[Finding] = []
    refused = [place for place in (path, path.parent) if not os.access(place, os.W_OK)]
    if refused:
        found.append(
            Finding(
                code="rights-missing",
                severity="error",
                what=f"this user may not write {' and '.join(map(str, refused))}",
                where=str(path),
                advice="give the user of the workers the right to write the file and its folder",
            )
        )
    try:
        usage = shutil.disk_usage(path.parent)
    except OSError:
        return found  # a file system that does not tell
    if usage.free < SCARCE and usage.free < SCARCE_SHARE * usage.total:
        full = usage.free < FULL
        found.append(
            Finding(
                code="disk-full" if full else "disk-full-soon",
                severity="error" if full else "warning",
                what=f"{usage.free / 1024**2:,.0f} MiB of {usage.total / 1024**2:,.0f} MiB are "
                "free on the disk",
                where=str(path),
                advice="make room, or move the store to another disk: a full disk refuses puts",
            )
        )
    return found
