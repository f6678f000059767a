"""What the scheduler tells the instruments that measure it."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Literal, Protocol, TypeAlias

import msgspec

from leasedkeyq.telemetry.stats import QueueStats

Outcome: TypeAlias = Literal["completed", "failed", "retry", "timeout", "cancelled", "lost"]
"""How an attempt ended.

- ``"completed"``: the command is done.
- ``"failed"``: it raised, and is given up.
- ``"timeout"``: it ran out of time, and is given up.
- ``"retry"``: it raised or ran out of time, and will be tried again.
- ``"cancelled"``: somebody cancelled it.
- ``"lost"``: its lease was lost; it runs again elsewhere.
"""

Carrier: TypeAlias = dict[str, str]
"""A trace context in the form of the W3C (``traceparent``, ``tracestate``), for storing."""


class AttemptEnd(msgspec.Struct, frozen=True):
    """One attempt at a command that has ended, as an `Instrument` is told of it."""

    lane: str
    kind: str
    """The type of the command."""
    command_id: str
    attempt: int
    """Its number; the first is 1."""
    outcome: Outcome
    ran: float
    """Seconds since the attempt started."""
    total: float
    """Seconds since the command was submitted."""
    error: BaseException | None = None
    """What it raised, where it failed."""


class Instrument(Protocol):
    """Told of every command, in the event loop, while the command is handled.

    The methods must be quick. What they raise is logged and harms nobody.
    """

    def submitted(self, lane: str, kind: str, command_id: str) -> None:
        """A command of the type `kind` was submitted."""
        ...

    def started(self, lane: str, kind: str, command_id: str, attempt: int, waited: float) -> None:
        """An attempt starts, `waited` seconds after the command could have started."""
        ...

    def ended(self, end: AttemptEnd) -> None:
        """An attempt ended."""
        ...

    def dead_lettered(self, lane: str, kind: str, command_id: str) -> None:
        """A command went to the dead letters."""
        ...

    def gauges(self, stats: QueueStats) -> None:
        """Somebody has asked for the statistics, and this is how things stand."""
        ...


class Tracing(Protocol):
    """Surrounds the steps of a command with spans.

    The trace context of a command is stored with it, so that the process that runs it can go on
    with the trace of the one that submitted it.
    """

    def submitting(self, lane: str, kind: str, command_id: str) -> AbstractContextManager[Carrier]:
        """Around the submission; gives the carrier to be stored with the command."""
        ...

    def submitting_many(self, lane: str, count: int) -> AbstractContextManager[Carrier]:
        """Around the submission of `count` commands at once; they all store the one carrier."""
        ...

    def claimed(self, lane: str, count: int) -> None:
        """`count` commands were claimed from the store at once."""
        ...

    def processing(
        self, lane: str, kind: str, command_id: str, attempt: int, carrier: Mapping[str, str]
    ) -> AbstractContextManager[None]:
        """Around one attempt; `carrier` is what was stored. Exceptions pass through."""
        ...

    def settling(self, lane: str, count: int) -> AbstractContextManager[None]:
        """Around the settling of `count` commands in the store at once."""
        ...
