"""`SubmitTerms`: how a command was submitted, from the manager down to the engines."""

from math import inf
from typing import NamedTuple

from leasedkeyq import checks
from leasedkeyq.lanes.config import time_limit
from leasedkeyq.types import Duration, InFlightPolicy


class SubmitTerms(NamedTuple):
    """What was said when commands were submitted; the arguments of `QueueManager.submit`, checked.

    Attributes:
        policy: What to do when a command of the key runs.
        priority: Within the lane, lower goes first; None: as before, or 0.
        delay: Seconds before the command may start; None: as before, or none.
        deadline: Seconds within which the command should be started.
        timeout: Seconds for which the command may run; infinity: no limit; None: as its lane says.
    """

    policy: InFlightPolicy = "update"
    priority: int | None = None
    delay: float | None = None
    deadline: float | None = None
    timeout: float | None = None

    @classmethod
    def checked(
        cls,
        if_in_flight: InFlightPolicy,
        priority: int | None,
        delay: Duration | None,
        deadline: Duration | None,
        timeout: Duration | None,
    ) -> "SubmitTerms":
        """The terms that these arguments of `submit` mean.

        Raises:
            TypeError: One is not of its type.
            ValueError: One has a value that makes no sense.
        """
        if priority is delay is deadline is timeout is None and if_in_flight == "update":
            return PLAIN
        wait = checks.put_options(if_in_flight, priority, delay)
        due = None if deadline is None else checks.delay_time("deadline", deadline)
        limit = None if timeout is None else time_limit("timeout", timeout) or inf
        return cls(if_in_flight, priority, wait, due, limit)

    def time_limit(self, lane_timeout: float | None) -> float | None:
        """How long a command may run, in a lane with this time-out; None: as long as it likes."""
        if self.timeout is None:
            return lane_timeout
        return None if self.timeout == inf else self.timeout


PLAIN = SubmitTerms()
