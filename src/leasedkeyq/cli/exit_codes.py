"""The exit codes of the commands. `leasedkeyq worker` has some of its own."""

from typing import Final

DONE: Final = 0
"""What was asked for was done, or is shown."""
NOT_FOUND: Final = 1
"""There is no such item, queue or schedule, or nothing matched."""
MISUSED: Final = 2
"""The command makes no sense, needs ``--yes``, or needs an extra that is not installed."""
NO_STORE: Final = 3
"""The store is out of reach, broken, or not there."""
REFUSED: Final = 4
"""The store or a check refused it, or some of several items could not be dealt with."""
WARNINGS_FOUND: Final = 4
"""The worst that ``doctor`` has found is a warning."""
ERRORS_FOUND: Final = 5
"""``doctor`` has found an error."""
BUG: Final = 70
"""Something went wrong that is no fault of the caller: ``EX_SOFTWARE``."""
INTERRUPTED: Final = 130
"""It was ended by Ctrl-C."""
CLOSED_PIPE: Final = 141
"""Nobody reads what it prints any more, as with ``| head``."""
