"""Dead letters: the commands that were given up, to be looked at and tried again."""

import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from leasedkeyq import checks
from leasedkeyq.lanes.errors import LaneError


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A command that was given up."""

    id: str = ""
    """The id that the command had."""
    lane: str
    command_type: str
    key: str = ""
    payload: Any = None
    """Its arguments: a mapping where the type is registered, else the command itself."""
    error: str = ""
    """Why it was given up, in a line."""
    traceback: str = ""
    """Where the last attempt failed, as text."""
    attempts: int = 0
    """How often it was tried."""
    priority: int = 0
    """Lower goes first, as in `QueueManager.submit`."""
    timeout: float | None = None
    """Its time-out in seconds, where it is in memory and had one of its own."""
    submitted_at: float = 0.0
    """When it was submitted, as Unix time."""
    failed_at: float = msgspec.field(default_factory=time.time)
    """When it was given up, as Unix time."""
    command: Any = None
    """The command itself, where it is in memory."""
    workflow: Any = None
    """Its part in a chain or a gather, if it has one: a step that is requeued goes on with it."""
    holds: bool = False
    """Whether the commands of its key wait until it is requeued or dropped: see `LaneConfig`."""


MAX_SIZE = 1000
"""How many letters a queue in memory holds where nobody said how many."""

Resubmit = Callable[[DeadLetter], Awaitable[bool]]
"""Puts a letter back into its lane."""
LetGo = Callable[[DeadLetter], None]
"""Lets the commands of a key go on behind a letter that is gone."""


class DeadLetterQueue:
    """Dead letters in memory. When it is full, the oldest letter is dropped.

    Its methods are awaited, as those of dead letters in a store are: ``await dlq.len()``.

    Args:
        max_size: How many letters it holds.

    Attributes:
        dropped: How many letters were dropped because it was full.
    """

    def __init__(self, max_size: int = MAX_SIZE) -> None:
        self.max_size = checks.whole("max_size", max_size, 1)
        self.dropped = 0
        self._letters: deque[DeadLetter] = deque()
        self._resubmit: Resubmit | None = None
        self._let_go: LetGo | None = None

    def attach(self, resubmit: Resubmit, let_go: LetGo | None = None) -> None:
        """Let `requeue` put letters back, and tell of letters that are dropped."""
        self._resubmit = resubmit
        self._let_go = let_go

    def add(self, letter: DeadLetter) -> None:
        """Add a letter without waiting."""
        if len(self._letters) >= self.max_size:
            self._drop_oldest()
            self.dropped += 1
        self._letters.append(letter)

    def _drop_oldest(self) -> DeadLetter:
        letter = self._letters.popleft()
        if letter.holds and self._let_go is not None:
            self._let_go(letter)
        return letter

    def stop_holding(self, lane: str, id: str) -> None:  # noqa: A002  # as in `DeadLetter`
        """The letter of that id holds its key no more; it stays."""
        for position, letter in enumerate(self._letters):
            if letter.id == id and letter.lane == lane:
                self._letters[position] = msgspec.structs.replace(letter, holds=False)

    async def push(self, letter: DeadLetter) -> None:
        """Add a letter."""
        if not isinstance(letter, DeadLetter):
            raise TypeError(f"letter must be a DeadLetter, got {type(letter).__name__}")
        self.add(letter)

    async def pop(self) -> DeadLetter | None:
        """Remove and return the oldest letter, or None."""
        return self._drop_oldest() if self._letters else None

    async def list(self, lane: str | None = None) -> "list[DeadLetter]":
        """All letters, or those of a lane, oldest first."""
        return [letter for letter in self._letters if lane is None or letter.lane == lane]

    async def clear(self) -> int:
        """Forget all letters; returns how many there were."""
        count = len(self._letters)
        while self._letters:
            self._drop_oldest()
        return count

    async def len(self) -> int:
        """How many letters there are."""
        return len(self._letters)

    def __len__(self) -> int:
        """Refused: dead letters may be in a store, which has to be asked.

        Raises:
            TypeError: Always. It names `len`.
        """
        raise TypeError("len(dlq) cannot wait for a store; use await dlq.len()")

    def __bool__(self) -> bool:
        """It is there, whether it has letters or not."""
        return True

    async def requeue(self, letter: DeadLetter) -> bool:
        """Put a letter back into its lane, where it starts anew.

        Returns whether it was still here.

        Raises:
            UnknownLaneError: Its lane is not there any more. The letter stays.
            ShuttingDownError: The manager takes no more commands. The letter stays.
        """
        if self._resubmit is None:
            raise LaneError("this dead letter queue belongs to no manager; there is no lane")
        for position, mine in enumerate(self._letters):
            if mine is letter or (letter.id and mine.id == letter.id and mine.lane == letter.lane):
                del self._letters[position]
                try:
                    return await self._resubmit(mine)
                except BaseException:
                    self._letters.insert(min(position, len(self._letters)), mine)
                    raise
        return False

    async def requeue_all(self, wanted: Callable[[DeadLetter], bool] | None = None) -> int:
        """Put back all letters, or those for which `wanted` is true; returns how many."""
        count = 0
        for letter in await self.list():
            if wanted is None or wanted(letter):
                count += await self.requeue(letter)
        return count
