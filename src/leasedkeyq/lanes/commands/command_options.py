"""`CommandOptions`: what a type of command says about how it is submitted and run."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import Any, Literal, TypeAlias, TypedDict, cast, get_args

from leasedkeyq import checks
from leasedkeyq.errors import describe
from leasedkeyq.lanes.config import time_limit
from leasedkeyq.lanes.errors import ScheduleError
from leasedkeyq.lanes.policies.retry import RetryDecider
from leasedkeyq.lanes.timetable import Cron, Every, Timetable, check_missed
from leasedkeyq.types import Duration

RunIn: TypeAlias = Literal["loop", "thread", "process"]
"""Where the function of a command runs."""


class CommandKeywords(TypedDict, total=False):
    """The keyword arguments of ``@manager.command``: the fields of `CommandOptions`."""

    lane: str | None
    retry_policy: RetryDecider | None
    timeout: Duration | None
    key: Callable[..., str] | None
    priority: int | None
    run_in: RunIn | None
    schedule: str | timedelta | Cron | Every | None


@dataclass(frozen=True, kw_only=True)
class CommandOptions:
    """What a type of command says for all its commands. None: it says nothing.

    The arguments of `QueueManager.submit` go before it, and it goes before the lane. `lane`, `key`
    and `priority` are taken when a command is submitted, from the process that submits it.
    `retry_policy`, `timeout` and `run_in` are taken when it runs, from the worker: nothing of
    them is written to a store, so that a worker with other ones decides otherwise.

    Args:
        lane: The lane to which its commands are submitted where none is given.
        retry_policy: What happens after a failure, in place of what the lane says. The
            `max_attempts` of the lane stay the limit.
        timeout: How long a command may run, in place of what the lane says; infinity: as long as
            it likes.
        key: The key of a command: a function that is called with the arguments of the command, or
            with the command itself where its type is a class, and returns a str.
        priority: The place of its commands in their lane: lower goes first.
        run_in: Where its function runs. By default an async function runs in the event loop and a
            plain one in a thread. ``"process"``: in a process of the worker, for work that
            computes; there a time-out or a cancellation really ends it. The function must be one
            that another process can import, at the top of its module, and arguments and results
            go over as JSON.
        schedule: When it is submitted by itself, without arguments, to its lane: a cron
            expression, a `timedelta`, a `Cron` or an `Every`. A manager that starts declares a
            schedule of the name of the type, as `QueueManager.schedule` does.

    Raises:
        TypeError: One of them is not of its type.
        ValueError: One of them has a value that makes no sense.
    """

    lane: str | None = None
    retry_policy: RetryDecider | None = None
    timeout: Duration | None = None
    key: Callable[..., str] | None = None
    priority: int | None = None
    run_in: RunIn | None = None
    schedule: str | timedelta | Cron | Every | None = None

    def __post_init__(self) -> None:
        if self.lane is not None and (not isinstance(self.lane, str) or not self.lane):
            raise TypeError(f"lane must be the name of a lane, got {describe(self.lane)}")
        policy = self.retry_policy
        if policy is not None and not callable(getattr(policy, "delay", None)):
            kind = type(policy).__name__
            raise TypeError(f"retry_policy must have a method delay(attempt, error), got {kind}")
        if self.timeout is not None:
            object.__setattr__(self, "timeout", time_limit("timeout", self.timeout) or inf)
        checks.put_options(self.priority, None)
        if self.run_in is not None and self.run_in not in get_args(RunIn):
            places = ", ".join(map(repr, get_args(RunIn)))
            raise ValueError(f"run_in must be one of {places}, got {describe(self.run_in)}")
        self._check_key()
        if isinstance(self.schedule, str):
            object.__setattr__(self, "schedule", Cron(self.schedule))
        elif isinstance(self.schedule, timedelta):
            object.__setattr__(self, "schedule", Every(self.schedule))
        elif not isinstance(self.schedule, Cron | Every | None):
            raise TypeError(
                "schedule must be a cron expression such as '0 3 * * *', a timedelta, a Cron or "
                f"an Every, got {describe(self.schedule)}"
            )

    @property
    def timing(self) -> Cron | Every | None:
        """When commands of the type are submitted by themselves."""
        return cast("Cron | Every | None", self.schedule)

    def check_timing(self, command_type: str) -> None:
        """Refuse a schedule that makes no sense.

        Raises:
            ScheduleError: It does not, or there is no lane for it. The message names the command.
            ModuleNotFoundError: It is a cron expression, and cronsim is not installed.
        """
        timing = self.timing
        if timing is None:
            return
        if self.lane is None:
            raise ScheduleError(
                f"schedule {command_type!r}: its command has no lane; write "
                f"@manager.command({command_type!r}, lane=..., schedule=...)",
                schedule=command_type,
            )
        if isinstance(timing, Cron):
            Timetable(command_type, timing.expression, None, timing.tz)
        else:
            Timetable(command_type, None, timing.interval)
        check_missed(command_type, timing.missed)
        if timing.jitter is not None:
            checks.delay_time("jitter", timing.jitter)

    def _check_key(self) -> None:
        # A str might be meant as a key, or as the name of a parameter: so it is refused.
        if self.key is not None and not callable(self.key):
            raise TypeError(
                "key must be a function of the arguments of the command that returns a str, such "
                f"as key=lambda month: f'report-{{month}}'; got {describe(self.key)}"
            )
        if inspect.iscoroutinefunction(self.key):
            raise TypeError("key must be a plain function: it is called when a command is made")

    @classmethod
    def of(cls, command_type: str, keywords: CommandKeywords) -> "CommandOptions":
        """The options that these keyword arguments of ``@manager.command`` mean.

        Raises:
            TypeError: There is no such option, or one is not of its type. The message names the
                command.
            ValueError: One has a value that makes no sense.
        """
        if not keywords:
            return NO_OPTIONS
        unknown = sorted(keywords.keys() - cls.__dataclass_fields__.keys())
        if unknown:
            known = ", ".join(cls.__dataclass_fields__)
            raise TypeError(
                f"command {command_type!r}: there is no option {unknown[0]!r}; the options are: "
                f"{known}"
            )
        try:
            options = cls(**keywords)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"command {command_type!r}: {error}") from error
        options.check_timing(command_type)
        return options

    def time_limit(self, lane_timeout: float | None) -> float | None:
        """How long a command may run, in a lane with this time-out; None: as long as it likes."""
        if self.timeout is None:
            return lane_timeout
        return None if self.timeout == inf else cast("float", self.timeout)


NO_OPTIONS = CommandOptions()
"""The options of a type of command that says nothing."""


def check_key_function(
    command_type: str, key: Callable[..., str], *args: Any, **named: Any
) -> None:
    """Refuse a key function that cannot be called with the arguments of its command.

    Raises:
        TypeError: It has other parameters.
    """
    try:
        signature = inspect.signature(key)
    except ValueError:
        return  # one that is written in C need not tell
    try:
        signature.bind(*args, **named)
    except TypeError as error:
        raise TypeError(
            f"command {command_type!r}: its key function is called with the arguments of the "
            f"command, and does not take them: {error}"
        ) from error
