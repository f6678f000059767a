"""`SubmitTerms`: how a command was submitted, from the manager down to the engines."""

from math import inf
from typing import NamedTuple, cast

from leasedkeyq import checks
from leasedkeyq.lanes.commands.command_options import CommandOptions
from leasedkeyq.lanes.config import time_limit
from leasedkeyq.types import Duration, PresentPolicy, PutPolicy


class SubmitTerms(NamedTuple):
    """What was said when commands were submitted; the arguments of `QueueManager.submit`, checked.

    Attributes:
        policy: What to do when a command of the key is there.
        priority: Within the lane, lower goes first; None: as before, or 0.
        delay: Seconds before the command may start; None: as before, or none.
        deadline: Seconds within which the command should be started.
        timeout: Seconds for which the command may run; infinity: no limit; None: as its lane says.
        unique_for: Seconds after its end for which a command of the key counts as there.
    """

    policy: PutPolicy = "append"
    priority: int | None = None
    delay: float | None = None
    deadline: float | None = None
    timeout: float | None = None
    unique_for: float = 0.0

    @classmethod
    def checked(
        cls,
        if_present: PresentPolicy | None,
        priority: int | None,
        delay: Duration | None,
        deadline: Duration | None,
        timeout: Duration | None,
        *,
        unique_for: Duration | None = None,
    ) -> "SubmitTerms":
        """The terms that these arguments of `submit` mean.

        Raises:
            TypeError: One is not of its type.
            ValueError: One has a value that makes no sense.
        """
        if if_present is None and priority is delay is deadline is timeout is unique_for is None:
            return PLAIN
        policy = checks.put_policy(None, if_present, default="append")
        wait = checks.put_options(priority, delay)
        due = None if deadline is None else checks.delay_time("deadline", deadline)
        limit = None if timeout is None else time_limit("timeout", timeout) or inf
        unique = 0.0 if unique_for is None else checks.delay_time("unique_for", unique_for)
        if unique_for is not None and policy != "skip":
            raise ValueError('unique_for needs if_present="skip", which says what it is for')
        return cls(policy, priority, wait, due, limit, unique)

    def with_defaults(self, options: CommandOptions) -> "SubmitTerms":
        """The same, with the priority and the time-out of the type of the command, if it has any.

        What was said when the command was submitted goes before that.
        """
        priority = options.priority if self.priority is None else self.priority
        timeout = cast("float | None", options.timeout) if self.timeout is None else self.timeout
        return self._replace(priority=priority, timeout=timeout)

    @property
    def coalesces(self) -> bool:
        """Whether the newest command stands for all that it has replaced."""
        return self.policy == "buffer"

    def time_limit(self, lane_timeout: float | None) -> float | None:
        """How long a command may run, in a lane with this time-out; None: as long as it likes."""
        if self.timeout is None:
            return lane_timeout
        return None if self.timeout == inf else self.timeout


PLAIN = SubmitTerms()
