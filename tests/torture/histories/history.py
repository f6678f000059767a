"""What clients asked of a queue, when, and what they were told: the record that is judged.

A history is a list of calls. Each has a beginning and, if it was answered, an end: numbers of one
counter that goes up with each event, so that two events are never at the same place, and moments by
the clock of the store. A call that was cancelled, or whose connection was lost, has no end: it may
have had its effect at any time after its beginning, or never.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple, TypeAlias

Verb: TypeAlias = Literal["put", "claim", "ack", "release", "extend", "remove", "look", "line"]
LOOKING: Final[frozenset[Verb]] = frozenset({"look", "line"})
SETTLING: Final[frozenset[Verb]] = frozenset({"ack", "release", "extend"})


@dataclass(frozen=True, slots=True)
class Leased:
    """The answer to a claim that leased something."""

    value: str
    fence: int
    attempt: int
    expires_at: float | None


class Seen(NamedTuple):
    """One value of a key, as a look shows it."""

    state: str
    value: str
    attempt: int
    due: float | None = None


Answer: TypeAlias = str | float | Leased | tuple[Seen, ...]
"""What a call was told.

- `put`: what it did, as ``"added"``, or ``"refused"``.
- `claim`: a `Leased`, or ``"empty"``.
- `ack`, `release`: ``"done"`` or ``"refused"``.
- `extend`: the new expiry, ``"done"`` if it has none, or ``"refused"``.
- `remove`: ``"done"``, or ``"absent"``.
- `look`: the head of the key and the first of its line; `line`: all of its values.
"""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one client.

    Attributes:
        number: Its name in its history.
        key: None for a `get` that takes any key, until its answer says which.
        begun: Where it began among all events.
        ended: Where its answer came; None: never.
        lease: For a call that settles, the number of the claim whose lease it speaks of.
        waits: Whether a claim may wait: its store may lease an item after it has given up, and take
            the lease back.
        repeated: Whether the store repeats a claim whose answer it has not got, if the lease that
            this claim gave has ended by the time it asks.
    """

    number: int
    client: int
    verb: Verb
    key: str | None
    begun: int
    invoked: float
    ended: int | None = None
    returned: float = math.inf
    answer: Answer | None = None
    value: str = ""
    policy: str = "update"
    lease: int = -1
    lease_time: float | None = None
    waits: bool = False
    repeated: bool = False

    def unanswered(self) -> "Call":
        """The same call, as if its answer had been lost."""
        return replace(self, ended=None, returned=math.inf, answer=None)

    def seen(self) -> Iterator[str]:
        """The values that its answer shows."""
        if isinstance(self.answer, Leased):
            yield self.answer.value
        elif isinstance(self.answer, tuple):
            yield from (one.value for one in self.answer)

    def __str__(self) -> str:
        what = {
            "put": f"put({self.key}, {self.value}, {self.policy})",
            "claim": f"get({_seconds(self.lease_time)})"
            if self.key is None
            else f"take({self.key}, {_seconds(self.lease_time)})",
            "remove": f"remove({self.key})",
            "look": f"look({self.key})",
            "line": f"line({self.key})",
            "extend": f"extend(lease of #{self.lease}, {_seconds(self.lease_time)})",
        }.get(self.verb, f"{self.verb}(lease of #{self.lease})")
        until = "never" if self.ended is None else f"{self.returned:.6f}"
        told = "no answer" if self.ended is None else _words(self.answer)
        return f"#{self.number} client {self.client} {self.invoked:.6f}-{until} {what}: {told}"


def _seconds(seconds: float | None) -> str:
    return "for ever" if seconds is None else f"{seconds:g} s"


def _words(answer: Answer | None) -> str:
    if isinstance(answer, Leased):
        until = "for ever" if answer.expires_at is None else f"until {answer.expires_at:.6f}"
        return f"{answer.value}, fence {answer.fence}, attempt {answer.attempt}, {until}"
    if isinstance(answer, tuple):
        return ", ".join(f"{one.value} {one.state} ({one.attempt})" for one in answer) or "nothing"
    if isinstance(answer, float):
        return f"until {answer:.6f}"
    return str(answer)


@dataclass
class Recorder:
    """Writes a history down while it happens, in one event loop.

    Args:
        clock: The clock of the store, or one that shows the same.
    """

    clock: Callable[[], float]
    calls: dict[int, Call] = field(default_factory=dict[int, Call])
    _events: "itertools.count[int]" = field(default_factory=itertools.count)

    def begin(
        self,
        client: int,
        verb: Verb,
        key: str | None,
        *,
        value: str = "",
        policy: str = "update",
        lease: int = -1,
        lease_time: float | None = None,
        waits: bool = False,
        repeated: bool = False,
    ) -> int:
        """A call begins; returns its number."""
        number = len(self.calls) + 1
        self.calls[number] = Call(
            number,
            client,
            verb,
            key,
            next(self._events),
            self.clock(),
            value=value,
            policy=policy,
            lease=lease,
            lease_time=lease_time,
            waits=waits,
            repeated=repeated,
        )
        return number

    def end(self, number: int, answer: Answer, key: str | None = None) -> None:
        """A call was answered; a `get` says with which key."""
        call = self.calls[number]
        self.calls[number] = replace(
            call,
            ended=next(self._events),
            returned=self.clock(),
            answer=answer,
            key=call.key if key is None else key,
        )


def by_key(
    calls: Iterable[Call], keys: Sequence[str], *, passes_over: bool = False
) -> dict[str, list[Call]]:
    """The calls of each key, in the order of their beginnings.

    A queue is explained if each of its keys is: what a key does depends on no other key, apart from
    one thing. A `get` takes the first of all keys that are available, and here it only says what it
    took. So this gives up the order between keys, and with it two things about one `get`: that it
    took one key and no other, if it had no answer, and that all keys were busy at the same moment,
    if it found nothing. Each key has to be busy at some moment of it.

    A claim that may wait and found nothing is two calls: one that found nothing, and one without an
    answer, as the lease that came too late is taken back later. So is one that may be repeated.

    Args:
        passes_over: Whether claims of the engine pass over an item that another call is changing,
            such as one of any key that ends an expired lease. Then a claim that found nothing
            while another call was under way says nothing, and is left out.
    """
    parts: dict[str, list[Call]] = {key: [] for key in keys}
    ordered = sorted(calls, key=lambda one: one.begun)
    for call in ordered:
        if call.verb in LOOKING and call.ended is None:
            continue
        says_nothing = passes_over and call.answer == "empty" and _beside_another(call, ordered)
        for key in keys if call.key is None else (call.key,):
            if not says_nothing:
                parts[key].append(replace(call, key=key))
            if (call.answer == "empty" and call.waits) or (call.repeated and call.ended):
                parts[key].append(replace(call.unanswered(), key=key))
    return parts


def _beside_another(call: Call, calls: Sequence[Call]) -> bool:
    """Whether another call was under way at some moment of this one."""
    return any(
        other.begun < (call.ended or other.begun) and (other.ended or call.begun + 1) > call.begun
        for other in calls
        if other.number != call.number
    )
