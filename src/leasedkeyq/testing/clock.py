"""A clock for tests."""


class ManualClock:
    """Unix time that stands still until it is moved. For the ``clock=`` of a store.

    Args:
        now: The time at the beginning.

    Attributes:
        now: The time. It must not be set back.
    """

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """The time."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self.now += seconds
