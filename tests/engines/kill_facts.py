"""What processes that may be killed note down, and the plans by which they live."""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec

TICK = 1e-5
"""Seconds that rounding may take from a moment or give to it."""
QUEUE = "q"
KEPT = 1e6
"""Seconds for which results are kept: longer than any test."""


def clock() -> float:
    """The time for stores on a disk, and for notes: the same in all processes, never put back."""
    return round(time.monotonic(), 6)


def server_clock() -> float:
    """The time for notes where the clock of a server on this machine decides."""
    return round(time.time(), 6)


LifeName = Literal["requests", "queue", "holder", "renewer"]


class Plan(msgspec.Struct, kw_only=True):
    """How a process lives and dies."""

    url: str
    journal: str
    name: str
    life: LifeName
    seed: int = 0
    options: dict[str, Any] = {}
    """For `connect`."""
    point: str = ""
    """Where it gets its signal, or "" for nowhere."""
    count: int = 1
    """At which of its visits there."""
    signal: int = 0
    checkpoint: int = 1000
    lease_time: float = 0.0
    key: str = ""
    """Which a holder claims; "" for any."""
    change: str = ""
    """How a holder settles."""
    door: bool = False
    """Whether a holder uses a queue of the store, and not the store itself."""
    until: str = ""
    """A file: until it is there, a holder blocks its event loop."""
    stuck_clock: bool = False
    """A fault to be found: on a disk, no time passes for this process."""
    feed: int = 0
    """How many keys a renewer puts."""


class PutAsked(msgspec.Struct, tag=True):
    call: int
    at: float
    key: str
    value: str
    buffered: bool = False


class PutDone(msgspec.Struct, tag=True):
    call: int
    at: float
    item: str


class ClaimAsked(msgspec.Struct, tag=True):
    call: int
    at: float
    most: int


class Leased(msgspec.Struct):
    item: str
    key: str
    value: str
    fence: int
    attempt: int
    began_at: float
    expires_at: float


class ClaimDone(msgspec.Struct, tag=True):
    call: int
    at: float
    leases: list[Leased]


How = Literal["ack", "keep", "release", "extend", "bury"]


class SettleAsked(msgspec.Struct, tag=True):
    call: int
    at: float
    how: How
    fence: int


class SettleDone(msgspec.Struct, tag=True):
    call: int
    at: float
    accepted: bool
    expires_at: float | None = None


class Arrived(msgspec.Struct, tag=True):
    """The last words at a named point."""

    point: str


Fact = PutAsked | PutDone | ClaimAsked | ClaimDone | SettleAsked | SettleDone | Arrived

_decoder: msgspec.json.Decoder[Fact] = msgspec.json.Decoder(Fact)


class Journal:
    """Facts in a file, one write for each: what was noted is there, whatever comes next."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._calls = 0

    def call(self) -> int:
        self._calls += 1
        return self._calls

    def note(self, fact: Fact) -> None:
        os.write(self._file, msgspec.json.encode(fact) + b"\n")


def read_journal(path: Path) -> list[Fact]:
    # A line without its end was being written when the process died: its call had not begun.
    lines: Iterable[bytes] = path.read_bytes().split(b"\n")[:-1] if path.exists() else ()
    return [_decoder.decode(line) for line in lines]
