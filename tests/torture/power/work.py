"""What callers ask of a store until its power goes, and what they were told by then."""

from collections.abc import Sequence
from random import Random
from typing import Any, Literal, NamedTuple, TypeAlias

from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Cancel,
    Change,
    Claim,
    Claimed,
    Extend,
    Purge,
    Put,
    Release,
    Request,
    Requeue,
)

Verdict: TypeAlias = Literal["kept", "unclaimed", "lost", "half", "damaged", "repeated"]
"""All is there; but for the last claims and extensions; something else is lost; something is there
in part; nothing can be read; or a fence is given out a second time."""

KEYS = 60


class Told(NamedTuple):
    """Callers were told what is stored now, after so many steps."""

    steps: int
    content: Any
    certain: bool = True
    """Whether that has to survive a loss of power: there was more than claims and extensions."""
    fence: int = 0
    """The greatest fence that was given out so far."""


def told_by(told: Sequence[Told], point: int) -> int:
    """The number of what callers were told last, after so many steps."""
    return max(number for number, each in enumerate(told) if each.steps <= point)


def compare(told: Sequence[Told], last: int, found: Any, fence: int) -> set[Verdict]:
    """What was told last must be there; what is told next may be there already.

    What callers were told since the last certain thing may be lost. `fence` is the next one that
    the store gives out.
    """
    contents = [each.content for each in told]
    certain = max(number for number in range(last + 1) if told[number].certain)
    verdicts: set[Verdict]
    if found in contents[last : last + 2]:
        verdicts = {"kept"}
    elif found in contents[certain:last]:
        verdicts = {"unclaimed"}
    else:
        verdicts = {"lost"} if found in contents[:last] else {"half"}
    if fence <= told[last].fence:
        verdicts.add("repeated")
    return verdicts


def greatest_fence(requests: Sequence[Any], answers: Sequence[Any], fence: int) -> int:
    """The greatest fence so far, after these requests; each must be greater than those before."""
    for request, answer in zip(requests, answers, strict=True):
        if isinstance(request, Claim):
            assert all(item.fence > fence for item in answer), "a fence did not grow"
            fence = max((fence, *(item.fence for item in answer)))
    return fence


class RandomWork:
    """Requests of every kind, on a few keys."""

    def __init__(self, dice: Random, queues: Sequence[str] = "ab", *, longest: int = 3000) -> None:
        self._dice = dice
        self._longest = longest
        self._queues = queues
        self.held: list[Claimed] = []
        self._buried: list[int] = []

    def puts(self) -> list[Put]:
        dice = self._dice
        return [
            Put(
                dice.choice(self._queues),
                tuple(
                    (self._key(), dice.randbytes(dice.choice((5, 50, self._longest))))
                    for _ in range(dice.randint(1, 6))
                ),
                policy=dice.choice(("update", "buffer")),
                priority=dice.choice((None, 1)),
                delay=dice.choice((None, None, 500.0)),
            )
            for _ in range(dice.randint(1, 3))
        ]

    def claims(self) -> list[Claim]:
        queues = tuple((queue, 2) for queue in self._queues)
        claim = Claim(queues, 2, lease_time=self._dice.choice((None, 1000.0)))
        return [claim, claim]

    def extension(self) -> Extend:
        """Some lease that is held made longer."""
        item = self._dice.choice(self.held)
        return Extend(item.queue, item.key, item.token, lease_time=3000.0)

    def changes(self) -> list[Change]:
        """Some of the leases that are held settled, and more."""
        dice = self._dice
        changes: list[Change] = [Cancel(dice.choice(self._queues), self._key())]
        for _ in range(dice.randint(0, len(self.held))):
            item = self.held.pop(dice.randrange(len(self.held)))
            held = (item.queue, item.key, item.token)
            changes.append(
                dice.choice(
                    (
                        Ack(*held),
                        Ack(*held, result=b"done", keep=500.0),
                        Release(*held, front=True, error="again"),
                        Release(*held, delay=500.0),
                        Bury(*held, error="no"),
                        Extend(*held, lease_time=2000.0),
                    )
                )
            )
        if self._buried and dice.random() < 0.5:
            changes.append(Requeue(dice.choice(self._queues), self._buried.pop()))
        if dice.random() < 0.1:
            changes.append(Purge(self._queues[-1], "results"))
        return changes

    def batch(self) -> Sequence[Request]:
        """Any of them, as many callers may have asked for it together."""
        dice = self._dice
        kind = dice.random()
        if kind < 0.5:
            return self.puts()
        if kind < 0.7:
            return self.claims()
        if kind < 0.75 and self.held:
            return [self.extension()]
        return self.changes()

    def note(self, requests: Sequence[Any], answers: Sequence[Any]) -> None:
        """Remember what later requests are about."""
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(request, Claim):
                self.held += answer
            elif isinstance(request, Bury) and isinstance(answer, int):
                self._buried.append(answer)

    def _key(self) -> str:
        return f"k{self._dice.randrange(KEYS)}"
