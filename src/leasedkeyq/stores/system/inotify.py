"""What happens to a file or in a folder, as the kernel of Linux tells it (inotify)."""

import ctypes
import os
import select
import sys
from typing import Final

LINUX: Final = sys.platform.startswith("linux")
ATTRIBUTES: Final = 0x4
"""The attributes of a file have changed, such as its times."""
CLOSE_WRITE: Final = 0x8
"""A file that was open for writing was closed."""
MOVED_TO: Final = 0x80
"""A file has got its name in this folder."""


class Bell:
    """Tells a thread of events; another thread may interrupt its waiting."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._interrupt = os.eventfd(0)
        # Not select: that knows no file numbers above 1023.
        self._poll = select.poll()
        self._poll.register(handle, select.POLLIN)
        self._poll.register(self._interrupt, select.POLLIN)

    @classmethod
    def of(cls, path: str | os.PathLike[str], events: int) -> "Bell | None":
        """For this file or folder; None where that cannot be had."""
        if not LINUX:
            return None
        try:
            library = ctypes.CDLL(None, use_errno=True)
            handle: int = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if handle < 0:
                return None
            if library.inotify_add_watch(handle, os.fsencode(path), events) < 0:
                os.close(handle)
                return None
        except (OSError, AttributeError):
            return None
        return cls(handle)

    def wait(self, seconds: float) -> bytes:
        """Wait until something happens, unless it has happened since the last time.

        Returns the records of the kernel; none after `seconds`, or if it was interrupted.
        """
        events = self._heard()
        if not events:
            self._poll.poll(seconds * 1000)
            events = self._heard()
        return events

    def _heard(self) -> bytes:
        try:
            return os.read(self._handle, 65536)
        except BlockingIOError:
            return b""

    def interrupt(self) -> None:
        """Let `wait` return at once, now and ever after."""
        os.eventfd_write(self._interrupt, 1)

    def close(self) -> None:
        """Stop listening."""
        os.close(self._handle)
        os.close(self._interrupt)
