"""What a Redis server has on its disk and what only the system has, seen from outside (Linux).

A server with ``appendfsync everysec`` syncs in a thread of its own. That thread is watched in
``/proc``: it sleeps on a futex while it has nothing to do. What was in the file when it was last
seen asleep before a sync is on the disk once it sleeps again. So the size found here is never too
large; it is too small by what was written between two looks.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from tests.servers.valkey import Server

THREAD = "bio_aof"
FUTEX = {"x86_64": "202", "aarch64": "98"}
CALM = 2
"""Looks in a row that must find the thread asleep: it may also wait for a lock before a sync."""
INTERVAL = 0.001


@dataclass
class Look:
    """What one look found."""

    at: float
    size: int
    asleep: bool
    switches: int


class SyncWatch:
    """Watches a server sync its append-only file.

    Attributes:
        size: So much of the file is on the disk for certain.
        begun: When the last sync that has ended began, at the earliest (`time.monotonic`).
        longest: Of all syncs that were seen, in seconds.
        gaps: Seconds from the beginning of one sync to that of the next.
        looked_at: When it looked last.
        stalled: The longest time between two looks: the machine may be busy with something else.
    """

    def __init__(self, server: Server) -> None:
        folder = Path("/proc") / str(server.pid) / "task"
        names = {task: (task / "comm").read_text().strip() for task in folder.iterdir()}
        found = [task for task, name in names.items() if name.startswith(THREAD)]
        assert len(found) == 1, f"threads of the server: {sorted(names.values())}"
        self._thread = found[0]
        (self.file,) = sorted((server.folder / "appendonlydir").glob("*.incr.aof"))
        self._futex = FUTEX[os.uname().machine]
        self._calm = 0
        self._before = self._look()
        """The last look before the thread woke up."""
        self.size = 0
        self.begun = self._before.at
        self.longest = 0.0
        self.gaps: list[float] = []
        self.stalled = 0.0
        self.looked_at = self._before.at

    def _look(self) -> Look:
        at = time.monotonic()
        size = self.file.stat().st_size
        call = (self._thread / "syscall").read_text().split()[0]
        status = (self._thread / "status").read_text()
        switches = int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
        return Look(at, size, call == self._futex, switches)

    def look(self) -> None:
        """Look once."""
        found = self._look()
        self.stalled = max(self.stalled, found.at - self.looked_at)
        self.looked_at = found.at
        before = self._before
        if not found.asleep:
            self._calm = 0
            return
        if found.switches == before.switches:
            self._before = found
            return
        self._calm += 1
        if self._calm < CALM:
            return
        self._calm = 0
        self.longest = max(self.longest, found.at - before.at)
        if self.size:
            self.gaps.append(before.at - self.begun)
        self.size, self.begun = before.size, before.at
        self._before = found

    def until(self, moment: float) -> None:
        """Watch until then (`time.monotonic`)."""
        while time.monotonic() < moment:
            self.look()
            time.sleep(INTERVAL)
