"""What a command in a store knows of the workflow that it is a part of.

The note is in the envelope of the command. So it is with the command wherever that goes: to another
worker, to the dead letters and back, to another store.
"""

import secrets
from typing import Any, Final

import msgspec

CHAIN: Final = "chain-"
GATHER: Final = "gather-"
"""How the keys of commands of workflows begin."""


class NextStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command of a chain that has not been submitted: it lacks the result of the one before."""

    type: str
    """Its command type."""
    lane: str
    into: str
    """The name of the parameter that takes the result of the step before."""
    given: msgspec.Raw = msgspec.Raw(b"{}")
    """Its other arguments, as a JSON object."""
    priority: int | None = None
    """Lower goes first, as in `QueueManager.submit`."""


class Membership(msgspec.Struct, frozen=True):
    """The command is a member of a gather: its outcome is recorded there."""

    gather: str
    """The key of the gather, which is that of the command that gets the outcomes, too."""
    number: int
    """Which member it is, from 0."""


class Gathered(msgspec.Struct, frozen=True, omit_defaults=True):
    """The command gets the outcomes of a gather: they are read when it starts."""

    gather: str
    size: int
    """How many members the gather has."""
    into: str = ""
    """The parameter that takes the outcomes; none where the outcomes themselves are the result."""


class WorkflowNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a command in its workflow."""

    chain: str = ""
    """How the keys of the steps of its chain begin."""
    position: int = 0
    """Which step of its chain it is, from 0."""
    steps: tuple[NextStep, ...] = ()
    """The steps behind it."""
    member: Membership | None = None
    gathered: Gathered | None = None

    @property
    def collects(self) -> bool:
        """Whether the result of the command is the outcomes of its gather."""
        return self.gathered is not None and not self.gathered.into

    def following(self) -> "WorkflowNote":
        """The note of the next step."""
        return msgspec.structs.replace(self, position=self.position + 1, steps=self.steps[1:])


def new_chain() -> str:
    """How the keys of the steps of a new chain begin."""
    return CHAIN + secrets.token_hex(8)


def new_gather() -> str:
    """The key of a new gather."""
    return GATHER + secrets.token_hex(8)


def part_key(workflow: str, number: int) -> str:
    """The key of a step of a chain, or of a member of a gather."""
    return f"{workflow}.{number}"


def may_have_note(key: str) -> bool:
    """Whether a command of this key may be a part of a workflow; no other command is."""
    return key.startswith((CHAIN, GATHER))


def plain_note(note: WorkflowNote | None) -> Any:
    """A note as plain values, for what is not kept as JSON."""
    return None if note is None else msgspec.json.decode(_encoder.encode(note))


def read_note(plain: Any) -> WorkflowNote | None:
    """The note that was given away as plain values."""
    return None if plain is None else _decoder.decode(_encoder.encode(plain))


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(WorkflowNote)
