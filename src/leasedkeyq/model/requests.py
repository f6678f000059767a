"""The requests of the store contract and their answers: the words that doors and engines share.

`leasedkeyq.stores.store` says what a store does with them, `leasedkeyq.model.store_model` does
it in memory, as the reference for every engine. They are plain data: frozen structs that check
what can be checked without a store.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from leasedkeyq import checks
from leasedkeyq.errors import LeasedKeyQError, LeaseEnd, describe
from leasedkeyq.types import PutOutcome, PutPolicy

Durability: TypeAlias = Literal["none", "process", "system", "power"]
"""What an acknowledged put survives.

``"none"``: nothing. ``"process"``: the end of the process, kill -9 included. ``"system"``: also a
crash of the operating system that keeps the disk. ``"power"``: also loss of power.
"""


ResultOutcome: TypeAlias = Literal["completed", "failed", "cancelled"]
"""How the item of a kept result ended."""
OUTCOMES: Final[tuple[ResultOutcome, ...]] = ("completed", "failed", "cancelled")
"""Every outcome of a result. Engines that store numbers store the place in here."""

LONGEST_FILLING: Final = 1e9
"""The most seconds that the bucket of a `Cap` may take to fill."""
MOST_URGENT: Final = 2**52
"""How far the numbers of an `Urgency` may go; engines that count in doubles know them exactly."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a store offers beyond the common meaning, for programs and for the docs."""

    durability: Durability
    cross_process: bool
    """Whether several processes can use the same store at a time."""
    joint_edits: bool = False
    """Whether an edit can change several queues in one step: the `others` of `Store.edit`."""
    extends_apart: bool = False
    """Whether leases can be renewed while the event loop of their holder is blocked.

    See `Store.extend_apart`. Workers of lanes need it for commands that do not give way.
    """
    minute_series: bool = True
    """Whether workers of lanes keep a value of each minute in it for two days, for charts.

    Not for a store that writes all it holds with each change: that would slow every change down.
    """


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much a store takes. A request beyond it is refused before anything is stored."""

    key_length: int = 512
    """Characters in a key, in a kind, and in the name of a queue."""
    value_size: int = 1024 * 1024
    """Bytes in an encoded value, result or progress."""
    batch_size: int = 10_000
    """Items in one request."""
    buried: int = 10_000
    """Buried items per queue; beyond it the oldest is dropped, with a warning."""
    history: int = 20
    """Past attempts that an item remembers."""

    def __post_init__(self) -> None:
        for name in ("key_length", "value_size", "batch_size"):
            checks.whole(name, getattr(self, name), 1)
        for name in ("buried", "history"):
            checks.whole(name, getattr(self, name), 0)


# Requests


class Put(msgspec.Struct, frozen=True):
    """Put items into a queue, one after the other, all of them or none.

    `policy` says what happens where a key is there already: waiting, scheduled, in flight, or held
    by a buried item.

    - ``"update"``, ``"reject"`` and ``"buffer"`` replace the newest value of the key that waits:
      the last of its line, or a head that is not leased. They differ where the head is leased.
      ``"reject"`` is refused then, line or not. Where there is no line, ``"update"`` replaces the
      value of the leased head, and ``"buffer"`` leaves a buffered value behind it. Behind a buried
      item that holds its key the first value is appended.
    - ``"append"`` adds a value to the end of the line, with a priority (0 if None), a schedule, a
      kind and a deadline of its own.
    - ``"skip"`` puts nothing. With `unique_for`, it does so too where the key is absent, but has a
      kept result of the outcome ``"completed"`` whose item ended at most so many seconds ago.
    - ``"only_new"`` is refused.

    `delay` is None to keep the schedule of a value that is replaced, 0 for now. `max_items` is the
    most that may wait in the queue afterwards (available, scheduled and in lines), 0 for no limit.
    `kind` says what sort of work it is, for claims of some kinds only; an update sets it anew.
    `deadline` says within how many seconds an item should be leased, for claims that go by urgency;
    None for no such time. An update sets it anew, too. It stays what it is when a lease ends and
    the item comes back, and is forgotten when the item is buried.

    Answer: for each item where it is now, as a `Placed`.

    Raises:
        ValueError: `unique_for` is given with another policy than ``"skip"``.
    """

    queue: str
    items: tuple[tuple[str, bytes], ...]
    policy: PutPolicy = "update"
    priority: int | None = None
    delay: float | None = None
    max_items: int = 0
    kind: str = ""
    deadline: float | None = None
    unique_for: float = 0.0

    def __post_init__(self) -> None:
        if self.unique_for and self.policy != "skip":
            raise ValueError("unique_for goes with the policy 'skip'")


class Placed(NamedTuple):
    """Where a put has left its value.

    An update answers the id of the value that it replaced, which is the id of the new one, too. A
    put that was skipped answers the id of the newest value of the key, or of its last result.
    """

    id: int
    outcome: PutOutcome


class Cap(msgspec.Struct, frozen=True):
    """A limit on a queue that holds over everybody who claims with it, in any process.

    It is for the keys that match `pattern` as a whole: ``*`` stands for any characters, also none
    and also line ends, everything else for itself. An item has room under a cap if

    - with `in_flight`: fewer keys of the queue that match are leased. All of them count, whoever
      leased them, with this cap or without; leases that have come due before do not.
    - with `rate`: its bucket has a token, see below. With `each`, every key has a bucket of its
      own; otherwise all keys that match share one.

    A lease that is claimed with the cap takes one token out of the bucket. A claim that is undone
    gives none back, nor does `Purge`: tokens come with time alone.

    **Buckets.** A bucket belongs to the queue, the pattern, `each` and, with `each`, the key, and
    to nothing else. It begins full, with `burst` tokens. After a lease at `now` by a cap with
    `rate` and `burst` a store keeps `level`, the tokens that are left, and

    - ``at = now``,
    - ``next_at = now + (1 - level) / rate``, when it has a token again (in the past if it has),
    - ``full_at = now + (burst - level) / rate``, when it is forgotten: it is full again.

    A claim goes on from there, with its own `rate` and `burst`, which may be others. A bucket
    whose ``full_at`` is not after `now` does not exist. One that exists has a token if
    ``at + (1 - level) / rate`` is not after `now`: in these words, so that rounding cannot make
    it differ from ``next_at``. Taking it leaves
    ``max(min(burst, level + (now - at) * rate) - 1, 0)``.

    Raises:
        ValueError: Such a limit means nothing: neither `in_flight` nor `rate`, an empty pattern or
            one that is no text, `each` with `in_flight`, `in_flight` below 0, `rate` not above 0,
            `burst` below 1, a number that is not finite, or a bucket that takes more than 10**9
            seconds to fill.
        TypeError: It is of another type.
    """

    queue: str
    pattern: str = "*"
    in_flight: int | None = None
    rate: float | None = None
    """Tokens per second."""
    burst: float = 1.0
    """How many tokens a full bucket has."""
    each: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str):
            raise TypeError(f"pattern must be a str, got {type(self.pattern).__name__}")
        if not self.pattern or "\x00" in self.pattern or not checks.is_text(self.pattern):
            raise ValueError(
                f"pattern must be text that is not empty and has no NUL, "
                f"got {describe(self.pattern)}"
            )
        if self.in_flight is None and self.rate is None:
            raise ValueError("a cap needs in_flight or rate")
        if self.in_flight is not None:
            checks.whole("in_flight", self.in_flight, 0)
            if self.each:
                raise ValueError("each is for rate: a key is never in flight more than once")
        if self.rate is not None:
            rate = checks.number("rate", self.rate, above=0)
            burst = checks.number("burst", self.burst, least=1)
            if burst / LONGEST_FILLING > rate:
                raise ValueError(
                    f"burst / rate must be at most {LONGEST_FILLING:g} seconds, "
                    f"got {burst:g} / {rate:g}"
                )


class Urgency(msgspec.Struct, frozen=True):
    """How urgent the items of a queue are beside those of the other queues of a claim.

    The effective priority of an item is `priority`, less the levels that it is up as its deadline
    comes near; the lower is the more urgent. With ``due`` as its own deadline, or `deadline` after
    it was put where it has none of its own:

    - Past its deadline (``due <= now``, or ``due <= put_at``) it is more urgent than all that are
      not. Among such items, `priority` alone counts.
    - Otherwise ``(due - now) / (due - put_at)`` is the share of the time that remains. Of all
      `steps` whose share is not below it, the highest number of levels counts.

    Without any deadline, or where there is neither `deadline` nor `steps`, it is up no levels.

    **Within the queue.** The next item of a queue is its first one, by priority and place. But of
    the items with a deadline of their own, the one whose deadline is the nearest (of two that are
    alike, the one with the lower id) goes before it, if it is up more levels, or is past its
    deadline while the first one is not. Items that a claim passes over are neither the first nor
    the nearest to it. `deadline` is for all items alike, and so brings none of them forward.

    Raises:
        ValueError: `deadline` is not above 0 or not finite, a share is not above 0 or is above 1,
            levels are below 0, or a whole number is beyond 2**52.
        TypeError: It is of another type.
    """

    priority: int = 0
    """Lower goes first. It has nothing to do with the priorities of items within their queue."""
    deadline: float | None = None
    """Seconds after it was put, for items that have no deadline of their own."""
    steps: tuple[tuple[float, int], ...] = ()
    """Pairs of the share of the time that remains, and the levels up from there on."""

    def __post_init__(self) -> None:
        most = MOST_URGENT
        checks.whole("priority", self.priority, -most, most)
        if self.deadline is not None:
            checks.number("deadline", self.deadline, above=0)
        for remaining, levels in self.steps:
            checks.number("remaining", remaining, above=0, most=1)
            checks.whole("levels", levels, 0, most)

    @property
    def lifts(self) -> bool:
        """Whether a deadline can make an item more urgent at all."""
        return self.deadline is not None or bool(self.steps)


class Claim(msgspec.Struct, frozen=True):
    """Lease up to `limit` available items from several queues, or the one item of a key.

    The queues are served in the order given, each up to a limit of its own. With `urgencies`, one
    for each queue, they take turns instead: it is always the turn of the queue whose own next item
    is the most urgent; of two that are alike, the one that was put first, by `put_at` and then by
    id. With `in_order` they are served in the order given all the same, and urgencies count within
    each queue: see `Urgency`. With `lease_times`, one for each queue, each has its own instead of
    `lease_time`.

    With `key`, only the item of that key is leased. With `kinds`, only items of these kinds are, in
    the same order; others are passed over and stay where they are. So is an item that has no room
    under one of `caps`: it must have room under every cap of its queue whose pattern matches its
    key, at its turn, when the items before it have been leased. Items behind it may have room.
    Each item that is leased takes a token of every such cap with a rate. What is passed over takes
    none, but costs time, unless nothing can have room at all. Caps of queues that the claim does
    not name mean nothing. Answer: what was leased, in this order; maybe nothing.

    `holder` says who takes the leases, for people: `StoredItem.holder` shows it as long as each of
    them lasts. It is text of up to 200 characters, such as ``"web-1:4242"``, and decides nothing.
    The queues, lanes and repositories of leasedkeyq say the host and the process.

    Raises:
        ValueError: Two of `caps` have a rate for the same bucket, there is not one of `urgencies`
            or of `lease_times` for each queue, or a queue with an urgency is there twice.
        TypeError: `in_order` is no bool.
    """

    queues: tuple[tuple[str, int], ...]
    limit: int = 1
    key: str | None = None
    lease_time: float | None = None
    kinds: tuple[str, ...] | None = None
    caps: tuple[Cap, ...] = ()
    urgencies: tuple[Urgency, ...] = ()
    lease_times: tuple[float | None, ...] = ()
    in_order: bool = False
    holder: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.in_order, bool):
            raise TypeError(f"in_order must be a bool, got {type(self.in_order).__name__}")
        if self.caps:
            buckets = [(c.queue, c.pattern, c.each) for c in self.caps if c.rate is not None]
            if len(set(buckets)) < len(buckets):
                raise ValueError("two caps of a claim have a rate for the same bucket")
        if self.urgencies:
            names = {queue for queue, _ in self.queues}
            if not len(self.urgencies) == len(self.queues) == len(names):
                raise ValueError("urgencies are one for each queue, and each queue is there once")
        if self.lease_times and len(self.lease_times) != len(self.queues):
            raise ValueError("lease_times are one for each queue")

    @property
    def by_turns(self) -> bool:
        """Whether it is the urgency of their next items by which the queues are served."""
        return bool(self.urgencies) and not self.in_order

    def lifts(self, number: int) -> bool:
        """Whether a deadline can bring an item of the queue with that number forward."""
        return bool(self.urgencies) and self.key is None and self.urgencies[number].lifts

    def lease_time_of(self, number: int) -> float | None:
        """How long items of the queue with that number are leased."""
        return self.lease_times[number] if self.lease_times else self.lease_time


class Ack(msgspec.Struct, frozen=True, tag=True):
    """The work is done. With `keep` seconds, the result can be read for that long.

    `outcome` is what the kept result counts as; see `Counts`.
    """

    queue: str
    key: str
    token: str
    result: bytes | None = None
    keep: float = 0.0
    outcome: ResultOutcome = "completed"


class Release(msgspec.Struct, frozen=True, tag=True):
    """Give the item back: to the back, to the front, or for `delay` seconds later.

    `error` is remembered in the item's history. `undo` means that the item never reached a
    consumer: it goes back where it was, or for `delay` seconds later, and the attempt does not
    count.
    """

    queue: str
    key: str
    token: str
    front: bool = False
    delay: float = 0.0
    error: str = ""
    undo: bool = False


class Extend(msgspec.Struct, frozen=True, tag=True):
    """Let the lease last `lease_time` seconds from now, or for ever. Answer: its new expiry.

    `progress` says how far the work has come. It is kept with the item in place of what was said
    before; None leaves that as it is. It stays when the lease ends and the item comes back, until a
    later attempt says more, and goes wherever the history of the item goes: to a buffered value
    that takes the place of the item, to the kept result, to the buried item. An item that is
    requeued starts without, and so does one that waits when it is moved to another store.
    `StoredItem.progress` shows it. It may be as large as a value.
    """

    queue: str
    key: str
    token: str
    lease_time: float | None = None
    progress: bytes | None = None


class Bury(msgspec.Struct, frozen=True, tag=True):
    """Give the item up and keep it aside. Answer: its id.

    The first of its line is the head then. With `hold`, the key is held instead: its line waits,
    and nothing of the key is leased, until the buried item is requeued, and is the head again, or
    is forgotten.
    """

    queue: str
    key: str
    token: str
    error: str = ""
    hold: bool = False


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Make a key absent, whatever its state; a lease on it ends. Answer: how many values that were.

    Its line goes, too. A buried item that holds the key stays buried, and holds it no more.

    With `id`, only the value of that id goes, if it is one of the key: the head, and the first of
    its line takes its place as after an `Ack`; or one of its line, and the head and its lease
    stay. With `only_line`, all values behind the head go, and the head and its lease stay.

    With `keep` seconds, the result can be read for that long, under the id of each value that goes.
    `outcome` is what each of these results counts as; see `Counts`.

    Raises:
        ValueError: Both `id` and `only_line` are given.
    """

    queue: str
    key: str
    result: bytes | None = None
    keep: float = 0.0
    id: int | None = None
    outcome: ResultOutcome = "cancelled"
    only_line: bool = False

    def __post_init__(self) -> None:
        if self.only_line and self.id is not None:
            raise ValueError("id and only_line exclude each other: one value, or all of the line")


class Amend(msgspec.Struct, frozen=True, tag=True):
    """Change one value that waits, by its id, where it is. Answer: whether it was there and waits.

    It waits if it is a head that is available or scheduled, or in a line: also behind a leased
    head or behind a buried item that holds the key. Otherwise nothing changes: a value that is
    leased, buried, done or gone is left alone.

    What is None stays as it is. Another `value` or `kind` leaves the item in its place. Another
    `priority` moves it to the back of that, and `delay` schedules it anew, 0 for now; a value in a
    line gets both for its turn. Its id, age, attempts, history, deadline and progress stay.

    It may be asked again if its outcome is unknown: the same change is made again. Only the
    seconds of `delay` begin anew then.
    """

    queue: str
    key: str
    id: int
    value: bytes | None = None
    priority: int | None = None
    delay: float | None = None
    kind: str | None = None


class Requeue(msgspec.Struct, frozen=True, tag=True):
    """Put a buried item back by the rules of put; it starts anew. Answer: whether it was there.

    A buried item that holds its key is the head of that again, whatever the policy, at the back of
    its priority and with the id that it had.

    Raises:
        ValueError: `policy` is ``"skip"``.
    """

    queue: str
    id: int
    policy: PutPolicy = "append"
    max_items: int = 0

    def __post_init__(self) -> None:
        if self.policy == "skip":
            raise ValueError("a buried item cannot be requeued with the policy 'skip'")


class Purge(msgspec.Struct, frozen=True, tag=True):
    """Forget a part of a queue, or all of it. Answer: how many items that were."""

    queue: str
    part: Literal["buried", "results", "all"] = "all"


class Discard(msgspec.Struct, frozen=True, tag=True):
    """Forget one buried item, or one result. Answer: whether it was there."""

    queue: str
    id: int


Change: TypeAlias = Ack | Release | Extend | Bury | Cancel | Amend | Requeue | Purge | Discard
Request: TypeAlias = Put | Claim | Change

# Answers


class Refusal(LeasedKeyQError):  # noqa: N818  # an answer, not something to raise
    """The lease in a request does not hold its key.

    `at` is the store's time of the refusal, where the engine tells it. A store does not remember
    leases that have ended; who knows when this one was to expire can tell by `at` whether it did.
    """

    def __init__(self, key: str, at: float | None = None) -> None:
        super().__init__(f"no such lease on key {describe(key)}")
        self.key = key
        self.at = at


class Claimed(msgspec.Struct, frozen=True):
    """A leased item."""

    queue: str
    key: str
    value: bytes
    id: int
    token: str
    fence: int
    attempt: int
    priority: int
    expires_at: float | None
    put_at: float
    kind: str = ""
    deadline: float | None = None
    """By when it should have been leased, if that was said."""


class Attempt(msgspec.Struct, frozen=True):
    """One past attempt at an item."""

    number: int
    ended_at: float
    how: LeaseEnd
    error: str = ""


StoredState: TypeAlias = Literal[
    "available", "scheduled", "in_flight", "buffered", "buried", "done", "in_line"
]
"""Where a value stands: the head of a key, in the line behind it, given up, or done.

Of a line, the first value may be ``"buffered"``: it takes the place of a head that is released.
"""
STATES: Final[tuple[StoredState, ...]] = get_args(StoredState)
"""All of them. Their places here are their numbers in databases, scripts and functions."""
LINE_STATES: Final[frozenset[StoredState]] = frozenset({"buffered", "in_line"})
"""Those of values in lines."""


class StoredItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item as it is stored, for people and tools."""

    id: int
    queue: str
    key: str
    state: StoredState
    value: bytes
    priority: int = 0
    attempt: int = 0
    put_at: float = 0.0
    place: int = 0
    """Orders the available items of one priority: lower is handed out first. Means nothing else."""
    due: float | None = None
    """When it becomes available, its lease expires, or its result is forgotten."""
    error: str = ""
    """Why it was buried."""
    history: tuple[Attempt, ...] = ()
    kind: str = ""
    leased_at: float | None = None
    """When its lease began, while it is in flight. None where a store of an older version did not
    note it."""
    token: str = ""
    """Its lease, for the work of an `edit`. Otherwise empty: looking gives no lease away."""
    deadline: float | None = None
    """By when it should be leased, if that was said, and it is neither buried nor done."""
    outcome: ResultOutcome | None = None
    """How it ended, if it is done; otherwise None."""
    ended_at: float | None = None
    """When it ended, if it is done. None where a store of an older version did not note it."""
    holds: bool = False
    """Whether it is buried and holds its key: the line of that waits."""
    progress: bytes | None = None
    """How far the newest attempt that told had come; None if none did. See `Extend`."""
    holder: str = ""
    """Who holds its lease, while it is in flight and if the claim said so. See `Claim`."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many items of a queue are in each state."""

    available: int = 0
    """Including values in lines, as `qsize` counts them, but not those behind buried items."""
    scheduled: int = 0
    in_flight: int = 0
    buried: int = 0
    done: int = 0
    """All kept results, whatever their outcome."""
    done_failed: int = 0
    """Those of `done` whose outcome is ``"failed"``."""
    done_cancelled: int = 0
    """Those of `done` whose outcome is ``"cancelled"``."""
    held: int = 0
    """Values in lines behind buried items that hold their keys."""


class RepairReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `RedisStore.repair` has found of a queue.

    Attributes:
        queue: The queue.
        kept: What it holds now.
        lost: Keys of which a value is gone.
        set_aside: Keys of the server with what could not be read. The store does not use them any
            more: look at them, and delete them.
    """

    queue: str
    kept: Counts
    lost: tuple[str, ...] = ()
    set_aside: tuple[str, ...] = ()


class Page(msgspec.Struct, frozen=True):
    """A part of a listing, and where the next part begins."""

    items: tuple[StoredItem, ...]
    cursor: str | None
    """Pass it to the next call; None at the end."""


Answer: TypeAlias = (
    "tuple[Placed, ...] | tuple[Claimed, ...] | float | int | bool | LeasedKeyQError | None"
)

EditWork: TypeAlias = Callable[[Sequence[StoredItem]], Sequence[Put | Change]]
"""Looks at items and returns what is to be done."""
