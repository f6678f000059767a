"""The errors and warnings of lanes and commands. Each error carries its data."""

import sys
import warnings
from collections.abc import Mapping

from leasedkeyq.errors import LeasedKeyQError


class LaneError(LeasedKeyQError):
    """Root of the errors of the scheduler.

    Attributes:
        lane: The lane it is about, or "".
    """

    def __init__(self, message: str, *, lane: str = "") -> None:
        super().__init__(message)
        self.lane = lane


class LaneConfigError(LaneError, ValueError):
    """The lanes do not fit together: a name twice, a minimum above a maximum or the capacity."""


class UnknownLaneError(LaneError, LookupError):
    """There is no lane of this name. The message lists those that there are."""


class ScheduleError(LaneError, ValueError):
    """A schedule cannot be what it was declared as: the message says what is wrong with it.

    Attributes:
        schedule: Its name.
    """

    def __init__(self, message: str, *, lane: str = "", schedule: str = "") -> None:
        super().__init__(message, lane=lane)
        self.schedule = schedule


class UnknownScheduleError(LaneError, LookupError):
    """There is no schedule of this name: it was never declared here, or was removed.

    Attributes:
        schedule: Its name.
    """

    def __init__(self, message: str, *, schedule: str = "") -> None:
        super().__init__(message)
        self.schedule = schedule


class ShuttingDownError(LaneError):
    """The manager takes no more commands: `shutdown` was called."""


class ManagerClosedError(LaneError):
    """The manager has ended before the command did. The command was not finished here."""


class SubscriptionClosedError(LaneError):
    """No more events come: the subscription or its emitter was closed."""


class CommandError(LaneError):
    """Root of the errors about one command.

    Attributes:
        command_type: Its type.
        key: Its key.
    """

    def __init__(
        self, message: str, *, lane: str = "", command_type: str = "", key: str = ""
    ) -> None:
        super().__init__(message, lane=lane)
        self.command_type = command_type
        self.key = key


class UnregisteredCommandError(CommandError, TypeError):
    """The store outlives the process, and so needs commands that it can write down."""


class CommandPayloadError(CommandError, ValueError):
    """The arguments of a command do not fit its function, or cannot be written down."""


class CommandTimeoutError(CommandError, TimeoutError):
    """The command ran longer than its time-out and was cancelled."""


class CommandCancelledError(CommandError):
    """The command was cancelled before it was done."""


class UnknownCommandError(CommandError, LookupError):
    """No command has this id: it was mistyped, is of another manager, or is forgotten in memory."""


class CommandLostError(CommandError):
    """The command has left the store without a result: purged, replaced, or kept too short."""


class CommandExitError(CommandError):
    """The command raised what is no `Exception`, such as `SystemExit`: see `__cause__`."""


class LifespanError(LaneError):
    """A lifespan failed to open or to close the resources of a worker: see ``__cause__``."""


class ResourceError(LaneError, LookupError):
    """No lifespan provides a resource that is wanted, or several do."""


class CommandProcessError(CommandError):
    """The process in which the command ran has ended, or could not begin it.

    Attributes:
        exit_code: The exit code of the process, or None.
        signal: The name of the signal that has killed it, such as ``"SIGKILL"``, or "".
    """

    def __init__(
        self,
        message: str,
        *,
        lane: str = "",
        command_type: str = "",
        key: str = "",
        exit_code: int | None = None,
        signal: str = "",
    ) -> None:
        super().__init__(message, lane=lane, command_type=command_type, key=key)
        self.exit_code = exit_code
        self.signal = signal


class AnnotationWarning(UserWarning):
    """An annotation of a command cannot be resolved, so something of it goes unchecked."""


class DeadlineWarning(UserWarning):
    """A deadline was given that has no effect where it was given."""


class RemoteCommandError(CommandError):
    """The command failed in another process, with an exception that cannot be had here.

    A command that failed elsewhere raises what it would raise here: a `CommandTimeoutError`, or an
    exception whose class is in `builtins` or can be imported from the module of the command. (So
    import it there by name: ``from httpx import ConnectError``.) It has its arguments and
    attributes, as far as they are plain values, and this error as its ``__cause__``. This error is
    what remains for all others.

    Attributes:
        error_type: The class of its exception, by name.
        traceback: Where it was raised, as text.
    """

    def __init__(
        self,
        message: str,
        *,
        lane: str = "",
        command_type: str = "",
        key: str = "",
        error_type: str = "",
        traceback: str = "",
    ) -> None:
        super().__init__(message, lane=lane, command_type=command_type, key=key)
        self.error_type = error_type
        self.traceback = traceback


class ManagerFailedError(ManagerClosedError):
    """A task of the manager ended that must not, so it runs no more commands: see ``__cause__``.

    The log has the error, too. In a store, its commands stay for other workers.
    """


class DrainTimeoutError(LaneError, TimeoutError):
    """Not all commands were done in time.

    Attributes:
        left: How many commands each lane has left.
    """

    def __init__(self, message: str, *, left: Mapping[str, int]) -> None:
        super().__init__(message)
        self.left = dict(left)


def warn(message: str, category: type[Warning]) -> None:
    """Warn of something in the line, outside of this package, that has led here."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level + 1)


def _is_ours(module: str) -> bool:
    return module == "leasedkeyq" or module.startswith("leasedkeyq.")
