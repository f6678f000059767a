"""What a command in memory knows of the workflow that it is a part of."""

from typing import Any

from leasedkeyq.lanes.running.job import Job
from leasedkeyq.lanes.workflow.outcome import GatherOutcome
from leasedkeyq.lanes.workflow.steps import WorkflowStep


class Gathering:
    """A gather in memory: the outcomes so far, and the command that gets them."""

    __slots__ = ("jobs", "left", "outcomes", "step", "then")

    def __init__(self, size: int, step: WorkflowStep | None) -> None:
        self.step = step
        self.left = size
        self.outcomes: list[GatherOutcome[Any] | None] = [None] * size
        self.jobs: list[Job] = []
        """The members, in order."""
        self.then: Job | None = None
        """The command that gets the outcomes."""

    def record(self, number: int, outcome: GatherOutcome[Any]) -> bool:
        """Note what became of a member, if that is not known; returns whether it was the last."""
        if self.outcomes[number] is not None:
            return False
        self.outcomes[number] = outcome
        self.left -= 1
        return not self.left


class LocalPart:
    """The part of a command in its workflow."""

    __slots__ = ("chain", "gathered", "gathering", "number", "position", "steps")

    def __init__(
        self,
        *,
        chain: str = "",
        position: int = 0,
        steps: tuple[WorkflowStep, ...] = (),
        gathering: Gathering | None = None,
        number: int = 0,
        gathered: Gathering | None = None,
    ) -> None:
        self.chain = chain
        self.position = position
        self.steps = steps
        self.gathering = gathering
        """The gather of which it is member `number`."""
        self.number = number
        self.gathered = gathered
        """The gather whose outcomes it gets."""


class MisfitCommand:
    """Stands for a step whose arguments do not fit: it fails with the error that says so."""

    __slots__ = ("_error", "command_type")

    def __init__(self, command_type: str, error: Exception) -> None:
        self.command_type = command_type
        self._error = error

    async def execute(self) -> None:
        """Fail.

        Raises:
            CommandPayloadError: Always.
        """
        raise self._error
