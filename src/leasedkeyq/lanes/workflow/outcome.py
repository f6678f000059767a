"""`GatherOutcome`: what became of one command of a gather."""

from collections.abc import Sequence
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec

R = TypeVar("R")

GATHER_WITHIN: Final = 7 * 86400.0
"""Seconds that the commands of a gather have where nothing else was said."""

GatherStatus: TypeAlias = Literal["completed", "failed", "timed_out", "cancelled", "lost"]
"""How a command of a gather ended. ``"lost"``: nothing was heard of it in time."""


class GatherOutcome(msgspec.Struct, Generic[R], frozen=True, omit_defaults=True):
    """What became of one command of `QueueManager.gather`: its result, or why it has none.

    On a store, the result is read as the annotation of the command that gets it says:
    ``outcomes: list[GatherOutcome[Page]]``. Without an annotation it is a plain JSON value.
    """

    status: GatherStatus = "completed"
    """How the command ended. What failed is told after its last attempt."""
    result: R | None = None
    """What it returned, if it was completed."""
    error: str = ""
    """Why it was not completed, in a line."""
    error_type: str = ""
    """The name of the class of the exception, if there was one."""

    @property
    def ok(self) -> bool:
        """Whether the command was completed."""
        return self.status == "completed"


LOST: Final[GatherOutcome[Any]] = GatherOutcome(
    "lost",
    error="nothing was heard of it in time: it still waits or runs, or was removed from its lane",
)
"""The outcome of a command that had not ended when the time of its gather was up."""


class GatheredOutcomes:
    """A command whose result is the outcomes of its gather."""

    __slots__ = ("_outcomes", "command_type")

    def __init__(self, command_type: str, outcomes: Sequence[GatherOutcome[Any]] = ()) -> None:
        self.command_type = command_type
        self._outcomes = list(outcomes)

    async def execute(self) -> list[GatherOutcome[Any]]:
        """The outcomes."""
        return self._outcomes


def failed_outcome(status: GatherStatus, error: BaseException, line: str) -> GatherOutcome[Any]:
    """The outcome of a command that ended with `error`, which is `line` in a line."""
    return GatherOutcome(status, error=line, error_type=type(error).__name__)


_decoder = msgspec.json.Decoder(GatherOutcome[Any])


def read_outcomes(raw: Sequence[bytes], returns: Any) -> list[GatherOutcome[Any]]:
    """Outcomes that a store kept; their results as `returns` says, as far as they are like that."""
    try:
        typed = msgspec.json.Decoder(GatherOutcome[returns])
    except TypeError:  # the annotation is beyond msgspec
        typed = _decoder
    outcomes: list[GatherOutcome[Any]] = []
    for one in raw:
        try:
            outcomes.append(typed.decode(one))
        except msgspec.ValidationError:  # a command of another type
            outcomes.append(_decoder.decode(one))
    return outcomes
