"""What one key of a queue does, one call after the other: a small machine of its own.

It is written from the documents (docs/explanation/states.md) and knows nothing of the package, so
that the two can disagree. `KeyMachine.after` says in which states the key may be after a call that
was answered so; none if such an answer is wrong. It is a set, as two things happen by themselves:

- A lease expires. The call takes place at some moment between its beginning and its end, and not
  before the calls that are in front of it. The lease has ended if that moment may be at or after
  its expiry, and still holds if it may be before.
- A lease that reached nobody (its claim was cancelled, timed out, or was cut off) is taken back, at
  any time or never.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tests.torture.histories.history import LOOKING, Answer, Call, Leased, Seen

States = frozenset["KeyState"]


class HeldLease(NamedTuple):
    """The lease on a key.

    Attributes:
        claim: The number of the call that took it.
        earliest: When it expires, at the earliest.
        latest: When it expires, at the latest. Later only if nobody was told.
        lost: Whether the claim had no answer, so that the lease may be taken back.
    """

    claim: int
    earliest: float
    latest: float
    lost: bool = False


class KeyState(NamedTuple):
    """A key between two calls.

    Attributes:
        values: The head and its line; none if the key is absent.
        buffered: Whether the second value replaces the head if that comes back.
        attempt: How often the head was leased.
        lease: The lease on the head.
        fence: The highest one that a claim was told.
        now: It is not earlier than that, as a lease has expired then.
    """

    values: tuple[str, ...] = ()
    buffered: bool = False
    attempt: int = 0
    lease: HeldLease | None = None
    fence: int = 0
    now: float = -math.inf

    def follow(self) -> "KeyState":
        """The head has gone: the next of the line is a new item."""
        return self._replace(values=self.values[1:], buffered=False, attempt=0, lease=None)

    def come_back(self) -> "KeyState":
        """The lease has ended before the work was done."""
        values = self.values[1:] if self.buffered else self.values
        return self._replace(values=values, buffered=False, lease=None)


ABSENT = KeyState()
NOBODY = -2
"""The claim of a lease that reached nobody."""


class KeyMachine:
    """The states of one key.

    Args:
        slack: Seconds by which the clock of the store may differ from that of the history.
        lingers: Whether a look may show an expired lease that another call has not ended yet.
    """

    def __init__(self, slack: float = 0.0, *, lingers: bool = False) -> None:
        self._slack = slack
        self._lingers = lingers
        self._verbs: dict[str, Callable[[KeyState, Call], Iterator[KeyState]]] = {
            "put": self._put,
            "claim": self._claim,
            "ack": self._ack,
            "release": self._release,
            "extend": self._extend,
            "remove": self._remove,
            "look": self._look,
            "line": self._look,
        }

    def after(self, states: Iterable[KeyState], call: Call, now: float) -> States:
        """The states after a call that takes place at `now` or later, and before it returned."""
        verb = self._verbs[call.verb]
        return frozenset(
            after
            for state in states
            for before in self._by_itself(state, call, now)
            for after in verb(before, call)
        )

    def _by_itself(self, state: KeyState, call: Call, now: float) -> Iterator[KeyState]:
        """What a state may have become by the time of a call."""
        now = max(now, state.now)
        if now > call.returned + self._slack:
            return
        lease = state.lease
        if lease is None:
            yield state
            return
        if now < lease.latest + self._slack or (self._lingers and call.verb in LOOKING):
            yield state
        end = lease.earliest - self._slack
        if end <= call.returned:
            yield state.come_back()._replace(now=max(state.now, end))
        if lease.lost:
            yield state.come_back()._replace(attempt=state.attempt - 1)

    def _put(self, state: KeyState, call: Call) -> Iterator[KeyState]:
        after, did = self._place(state, call.value, call.policy)
        if call.answer in (None, did):
            yield after

    def _place(self, state: KeyState, value: str, policy: str) -> tuple[KeyState, str]:
        """The state after a put, and what the put did."""
        values = state.values
        if not values:
            return state._replace(values=(value,)), "added"
        if policy == "skip":
            return state, "skipped"
        if policy == "only_new" or (policy == "reject" and state.lease is not None):
            return state, "refused"
        if policy == "append":
            return state._replace(values=(*values, value)), "appended"
        if policy == "buffer" and state.lease is not None and len(values) == 1:
            return state._replace(values=(*values, value), buffered=True), "buffered"
        return state._replace(values=(*values[:-1], value)), "updated"

    def _claim(self, state: KeyState, call: Call) -> Iterator[KeyState]:
        available = bool(state.values) and state.lease is None
        answer = call.answer
        if answer == "empty":
            if not available:
                yield state
            return
        if not available:
            return
        if answer is None:
            expiry = math.inf if call.lease_time is None else call.invoked + call.lease_time
            lease = HeldLease(NOBODY, expiry, math.inf, lost=True)
            yield state._replace(lease=lease, attempt=state.attempt + 1)
        elif isinstance(answer, Leased):
            right = (
                answer.value == state.values[0]
                and answer.attempt == state.attempt + 1
                and answer.fence > state.fence
                and self._lasts(call, answer.expires_at)
            )
            if right:
                expiry = math.inf if answer.expires_at is None else answer.expires_at
                lease = HeldLease(call.number, expiry, expiry)
                yield state._replace(lease=lease, attempt=answer.attempt, fence=answer.fence)

    def _lasts(self, call: Call, expires_at: float | None) -> bool:
        """Whether a lease that a call has begun expires when it should."""
        if expires_at is None or call.lease_time is None:
            return expires_at is None and call.lease_time is None
        begun = expires_at - call.lease_time
        # A moment of today has seven digits before the point and six behind it that are right.
        rounding = self._slack + 1e-6
        return call.invoked - rounding <= begun <= call.returned + rounding

    def _settle(
        self, state: KeyState, call: Call, after: Callable[[], KeyState], done: Answer
    ) -> Iterator[KeyState]:
        holds = state.lease is not None and state.lease.claim == call.lease
        if call.answer == "refused":
            if not holds:
                yield state
        elif holds and call.answer in (None, done):
            yield after()

    def _ack(self, state: KeyState, call: Call) -> Iterator[KeyState]:
        return self._settle(state, call, state.follow, "done")

    def _release(self, state: KeyState, call: Call) -> Iterator[KeyState]:
        return self._settle(state, call, state.come_back, "done")

    def _extend(self, state: KeyState, call: Call) -> Iterator[KeyState]:
        lease_time, answer = call.lease_time, call.answer

        def extended() -> KeyState:
            if lease_time is None:
                lease = HeldLease(call.lease, math.inf, math.inf)
            elif isinstance(answer, float):
                lease = HeldLease(call.lease, answer, answer)
            else:
                lease = HeldLease(call.lease, call.invoked + lease_time, math.inf)
            return state._replace(lease=lease)

        if isinstance(answer, float) and not self._lasts(call, answer):
            return iter(())
        done = answer if isinstance(answer, float) else "done"
        return self._settle(state, call, extended, done)

    def _remove(self, state: KeyState, call: Call) -> Iterator[KeyState]:
        if call.answer in (None, "done" if state.values else "absent"):
            yield state._replace(values=(), buffered=False, attempt=0, lease=None)

    def _look(self, state: KeyState, call: Call) -> Iterator[KeyState]:
        answer = call.answer
        assert isinstance(answer, tuple)
        values = list(self._shown(state))
        if call.verb == "look":
            del values[2:]
        if len(answer) == len(values) and all(map(self._shows, answer, values)):
            yield state

    def _shown(self, state: KeyState) -> Iterator[Seen]:
        for place, value in enumerate(state.values):
            if place:
                yield Seen("buffered" if place == 1 and state.buffered else "in_line", value, 0)
            elif state.lease is None:
                yield Seen("available", value, state.attempt)
            else:
                known = state.lease.earliest == state.lease.latest
                due = state.lease.latest if known else None
                yield Seen("in_flight", value, state.attempt, due)

    def _shows(self, seen: Seen, is_there: Seen) -> bool:
        if seen[:3] != is_there[:3]:
            return False
        if is_there.due is None:
            return True
        return seen.due == (None if is_there.due == math.inf else is_there.due)
