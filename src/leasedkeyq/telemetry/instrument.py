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


class SubmittedCommand(msgspec.Struct, frozen=True):
    """A command that was submitted, as an `Instrument` is told of it."""

    lane: str
    kind: str
    """The type of the command."""
    command_id: str


class AttemptStart(msgspec.Struct, frozen=True):
    """One attempt at a command that starts, as an `Instrument` is told of it."""

    lane: str
    kind: str
    """The type of the command."""
    command_id: str
    attempt: int
    """Its number; the first is 1."""
    waited: float
    """Seconds since the command could have started."""


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


class DeadLetteredCommand(msgspec.Struct, frozen=True):
    """A command that went to the dead letters, as an `Instrument` is told of it."""

    lane: str
    kind: str
    """The type of the command."""
    command_id: str


StoreVerb: TypeAlias = Literal[
    "put",
    "claim",
    "settle",
    "edit",
    "sweep",
    "count",
    "heads",
    "look",
    "line",
    "browse",
    "results",
]
"""The verbs of a store that are measured."""

ItemOutcome: TypeAlias = Literal[
    "put",
    "claimed",
    "acknowledged",
    "released",
    "extended",
    "buried",
    "cancelled",
    "amended",
    "requeued",
    "purged",
    "discarded",
    "refused",
]
"""What a call has done to an item. ``"refused"``: nothing, as the store said no: a lease that does
not hold its key any more, a queue that is full, a value beyond the limits."""


class StoreCall(msgspec.Struct, frozen=True):
    """One call of a verb of a store that has ended, as a `StoreInstrument` is told of it."""

    verb: StoreVerb
    queues: tuple[str, ...]
    """The queues that it named, each once. None: it was for all of them."""
    requests: int
    """Requests, keys, ids or queues in the call: the size of the batch."""
    items: Mapping[str, Mapping[ItemOutcome, int]]
    """By queue: to how many items it has done what."""
    seconds: float
    """How long the caller has waited for it."""
    error: BaseException | None = None
    """What it raised."""
    given: bool = False
    """No call: an item came to a claim that had ended with nothing and stayed with the store.

    That claim was told before, so only the item counts.
    """


class StoreInstrument(Protocol):
    """Told of every call of a store, in the event loop of the caller, when the call has ended.

    The method must be quick, and safe for threads if the store is used in several. What it raises
    is logged and harms nobody.
    """

    def called(self, call: StoreCall) -> None:
        """A call has ended."""
        ...


class StoreTracing(Protocol):
    """Surrounds the calls of a store with spans."""

    def calling(
        self, verb: StoreVerb, queues: tuple[str, ...], requests: int
    ) -> AbstractContextManager[None]:
        """Around a call, as in `StoreCall`. Exceptions pass through."""
        ...


class Instrument(Protocol):
    """Told of every command, in the event loop, while the command is handled.

    Each event is one struct, so that a later version can tell more of it. The structs are made only
    for a manager that has an instrument. The methods must be quick. What they raise is logged and
    harms no command.
    """

    def submitted(self, command: SubmittedCommand) -> None:
        """A command was submitted."""
        ...

    def started(self, start: AttemptStart) -> None:
        """An attempt starts."""
        ...

    def ended(self, end: AttemptEnd) -> None:
        """An attempt ended."""
        ...

    def dead_lettered(self, command: DeadLetteredCommand) -> None:
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
