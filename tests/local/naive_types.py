"""What the naive model of a queue is made of."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from leasedkeyq.types import PutPolicy

Shown = tuple[str, int, str, int, int, float | None]
"""One line of a snapshot: key, value, state, priority, attempt, due."""

End = Literal["acknowledged", "released", "expired", "removed", "buried", "closed"]


@dataclass(eq=False)
class NaiveLease:
    """One handing out of an item."""

    number: int
    key: str
    attempt: int
    expires_at: float | None
    ended: End | None = None


class Claim(NamedTuple):
    """What a consumer gets."""

    key: str
    value: int
    lease: NaiveLease


@dataclass(eq=False)
class NaiveValue:
    """A value in the line of a key; a buffered one `replaces` a head that is given back."""

    number: int
    value: int
    priority: int
    not_before: float | None
    replaces: bool = False


@dataclass(eq=False)
class NaiveItem:
    """The head of a key: leased, scheduled (it has a time), held, or else available."""

    key: str
    value: int
    priority: int
    attempt: int = 0
    lease: NaiveLease | None = None
    due: float | None = None
    scheduling: int = 0
    line: list[NaiveValue] = field(default_factory=list["NaiveValue"])
    holder: "NaiveBuried | None" = None
    not_before: float | None = None
    since: float = 0.0

    @property
    def available(self) -> bool:
        return self.lease is None and self.due is None and self.holder is None

    @property
    def scheduled(self) -> bool:
        return self.due is not None


@dataclass(eq=False)
class NaiveBuried:
    """An item that was given up."""

    key: str
    value: int
    priority: int
    attempt: int
    error: str
    buried_at: float
    holds: bool = False


@dataclass(eq=False)
class Consumer:
    """A get (any key) or a take (one key) that waits."""

    key: str | None
    lease_time: float | None
    deadline: float | None
    state: Literal["waiting", "handed", "timed out", "closed"] = "waiting"
    claim: Claim | None = None
    cancelled: bool = False

    @property
    def waits(self) -> bool:
        return self.state == "waiting" and not self.cancelled


@dataclass(eq=False)
class Producer:
    """A put, put_many or requeue, waiting or not."""

    items: list[tuple[str, int]]
    policy: PutPolicy = "update"
    priority: int | None = None
    delay: float | None = None
    buried: NaiveBuried | None = None
    holds: bool = False
    """Whether what it requeues held its key when it came."""
    cancelled: bool = False

    @property
    def keys(self) -> list[str]:
        return list(dict.fromkeys(key for key, _ in self.items))

    @property
    def most(self) -> int:
        """How many values it may add."""
        return len(self.items) if self.policy == "append" else len(self.keys)


@dataclass(eq=False)
class Joiner:
    """A join that waits."""

    state: Literal["waiting", "done", "closed"] = "waiting"
    cancelled: bool = False


Event = tuple[str, str, int, float]
"""What an observer is told: what, key, attempt, duration."""
