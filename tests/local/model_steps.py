"""The steps that a queue and its naive model are driven through, as plain data.

A step is an `Op`: a name and its arguments, all small values from the table `ARGUMENTS`, so that a
sequence of steps can be drawn by Hypothesis or by a random number generator, printed and replayed.
Leases, buried items and waiting calls are named by an index into what there is at the moment.
"""

import random
from collections.abc import Callable, Collection, Sequence
from math import inf, nan
from typing import Any, NamedTuple

from leasedkeyq import Lease
from leasedkeyq.types import PutPolicy


class Op(NamedTuple):
    """One step. It prints as it is written."""

    name: str
    args: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return f"Op({self.name!r}, {self.args!r})"


class Config(NamedTuple):
    """How a queue is made."""

    maxsize: int = 0
    lease_time: float | None = None
    max_buried: int = 1000
    observed: bool = False


# What there is to choose from. The first of each is the simplest. Items and leases move at whole
# seconds and waiting calls give up at half seconds, so that no two timers of different kinds ring
# in one moment: in what order the event loop rings those is not for the queue to say.
KEYS = ("a", "b", "c", "d", "e", "f")
POLICIES = (
    "update",
    "append",
    "append",
    "append",
    "buffer",
    "reject",
    "newest",
    "skip",
    "only_new",
)
"""What a put does where its key is there; see `door_options`."""
REQUEUE_POLICIES = ("", "", "update", "buffer", "reject", "newest", "only_new")
PRIORITIES = (None, None, None, 0, 1, -2, 7)
DELAYS = (None, None, None, 0, 1, 2, 5)
TIMEOUTS = (None, 0, 0.5, 2.5)
LEASE_TIMES = (None, None, 1, 2, 6, 1000, inf)
INDEX = tuple(range(8))
GROUPS = (
    (),
    ("a",),
    ("a", "b"),
    ("a", "a"),
    ("b", "a", "d"),
    ("b", "a", "b", "b"),
    ("f", "c", "e", "b"),
    KEYS,
)
LOOKS_OF_A_LEASE = ("own", "own", "own", "own", "copy", "other key", "forged", "foreign")
WAYS_BACK = ((False, None), (True, None), (False, 0), (False, 1), (False, 3), (True, 0))
LEAVINGS = tuple((fails, *way_back) for fails in (False, True) for way_back in WAYS_BACK)
CONFIGS = tuple(
    Config(maxsize, lease_time, max_buried, observed)
    for maxsize in (0, 0, 1, 2, 4)
    for lease_time in (None, 3, 1000)
    for max_buried in (1000, 1, 0)
    for observed in (False, True)
)

PUT = (KEYS, POLICIES, PRIORITIES, DELAYS)
LEASE = (INDEX, LOOKS_OF_A_LEASE)
PRODUCE: dict[str, Sequence[Sequence[Any]]] = {
    "put": PUT,
    "put_nowait": PUT,
    "put_many": (GROUPS, POLICIES, PRIORITIES, DELAYS),
}
CONSUME: dict[str, Sequence[Sequence[Any]]] = {
    "get": (TIMEOUTS, LEASE_TIMES),
    "get_nowait": (LEASE_TIMES,),
    "get_many": ((1, 2, 9), TIMEOUTS, LEASE_TIMES),
    "take": (KEYS, TIMEOUTS, LEASE_TIMES),
    "take_nowait": (KEYS, LEASE_TIMES),
    "iterate": (),
    "lease": ((None, None, *KEYS), TIMEOUTS, LEASE_TIMES, LEAVINGS),
    "join": (),
}
SETTLE: dict[str, Sequence[Sequence[Any]]] = {
    "ack": LEASE,
    "release": (*LEASE, WAYS_BACK),
    "extend": (*LEASE, LEASE_TIMES),
    "bury": (*LEASE, (False, False, True)),
}
KEEP: dict[str, Sequence[Sequence[Any]]] = {
    "requeue": (INDEX, REQUEUE_POLICIES),
    "requeue_foreign": (INDEX,),
    "purge_buried": (),
    "discard": (INDEX,),
    "remove": (KEYS,),
    "remove_one": (KEYS, INDEX),
    "purge_line": (KEYS,),
    "misuse": (tuple(range(30)),),
}
CANCEL: dict[str, Sequence[Sequence[Any]]] = {"cancel": (INDEX,), "cancel_all": ((1, -1),)}
TIME: dict[str, Sequence[Sequence[Any]]] = {
    "turn": (),
    "settle": (),
    "idle": ((1, 2, 4),),
    "jump": ((1, 2, 4),),
}
END: dict[str, Sequence[Sequence[Any]]] = {"close": (), "fresh": (CONFIGS,)}
ARGUMENTS = {**PRODUCE, **CONSUME, **SETTLE, **KEEP, **CANCEL, **TIME, **END}

MAY_WAIT = {"put", "put_many", "get", "get_many", "take", "iterate", "lease", "join", "requeue"}
TURNS_THE_LOOP = {"turn", "settle", "idle", "fresh"}
IN_A_BURST = ARGUMENTS.keys() - TIME.keys() - {"fresh"}


# What a random walk is made of: how often each step comes up.
WEIGHTS = {
    "put": 14,
    "put_nowait": 4,
    "put_many": 3,
    "get": 8,
    "get_nowait": 2,
    "get_many": 2,
    "take": 6,
    "take_nowait": 2,
    "iterate": 1,
    "lease": 3,
    "join": 1,
    "ack": 8,
    "release": 8,
    "extend": 3,
    "bury": 3,
    "requeue": 2,
    "requeue_foreign": 0.3,
    "purge_buried": 0.3,
    "discard": 0.7,
    "remove": 1.5,
    "remove_one": 2,
    "purge_line": 0.7,
    "misuse": 0.5,
    "cancel": 7,
    "cancel_all": 0.7,
    "turn": 3,
    "settle": 8,
    "idle": 5,
    "jump": 3,
    "close": 0.4,
    "fresh": 0.05,
}
NAMES = tuple(WEIGHTS)
CLAIMS = ("get", "get_nowait", "get_many", "take", "take_nowait", "iterate", "lease")


class Mood:
    """How often each step comes up for a while. `quiet` ones are rare, `busy` ones are common."""

    def __init__(
        self, *, quiet: Collection[str] = (), busy: Collection[str] = (), keys: int = len(KEYS)
    ) -> None:
        self.keys = KEYS[:keys]
        self.weights = [
            weight * (0.15 if name in quiet else 4 if name in busy else 1)
            for name, weight in WEIGHTS.items()
        ]
        pairs = zip(NAMES, self.weights, strict=True)
        self.burst_weights = [weight if name in IN_A_BURST else 0 for name, weight in pairs]

    def op(self, rng: random.Random, *, in_a_burst: bool = False) -> Op:
        weights = self.burst_weights if in_a_burst else self.weights
        name = rng.choices(NAMES, weights)[0]
        return self.op_of(rng, name)

    def op_of(self, rng: random.Random, name: str) -> Op:
        choices = (self.keys if given is KEYS else given for given in ARGUMENTS[name])
        return Op(name, tuple(map(rng.choice, choices)))


MOODS = (
    Mood(),
    Mood(busy=("put", "get", "take", "ack"), keys=2),
    Mood(quiet=PRODUCE, busy=("ack", "remove", "bury", "get_nowait", "join")),  # it runs empty
    Mood(quiet=CLAIMS, busy=("put_many",)),  # it fills
    Mood(quiet=("put", "put_many"), busy=("get", "take", "requeue")),  # consumers wait
    Mood(quiet=("ack", "release", "remove", "get_nowait"), busy=("put", "take"), keys=3),
    Mood(quiet=("turn", "settle", "idle"), busy=("cancel", "cancel_all", "put_nowait")),
    Mood(busy=("jump", "idle", "ack", "extend", "release")),  # much expires
    Mood(busy=("put", "put_many", "get_nowait", "ack", "remove_one"), keys=2),  # long lines
    Mood(busy=("bury", "get_nowait", "requeue", "discard", "put"), keys=3),  # keys are held
)


def door_options(policy: str) -> dict[str, Any]:
    """The arguments by which a queue is told a policy."""
    if policy in ("update", "buffer", "reject"):
        return {"if_in_flight": policy}
    present = {"newest": "update", "only_new": "reject"}.get(policy, policy)
    return {"if_present": present} if present else {}


def naive_policy(policy: str) -> PutPolicy:
    """What that means to the model."""
    policies: dict[str, PutPolicy] = {
        "": "append",
        "newest": "buffer",
        "update": "update",
        "buffer": "buffer",
        "reject": "reject",
        "append": "append",
        "skip": "skip",
        "only_new": "only_new",
    }
    return policies[policy]


def misuses(queue: Any, lease: Lease[str]) -> list[tuple[str, str, Callable[[], Any]]]:
    """Wrong calls: the name of the argument, the error, the call."""
    return [
        ("key", "TypeError", lambda: queue.put([], 1)),
        ("key", "TypeError", lambda: queue.put_nowait({}, 1)),
        ("key", "TypeError", lambda: queue.put_many([([], 1)])),
        ("items", "TypeError", lambda: queue.put_many(["abc"])),
        ("if_in_flight", "ValueError", lambda: queue.put("a", 1, if_in_flight="replace")),
        ("if_in_flight", "ValueError", lambda: queue.put_many({"a": 1}, if_in_flight=0)),
        ("if_present", "ValueError", lambda: queue.put("a", 1, if_present="buffer")),
        ("if_present", "ValueError", lambda: queue.put_nowait("a", 1, if_present=True)),
        (
            "if_present and if_in_flight",
            "ValueError",
            lambda: queue.put("a", 1, if_present="append", if_in_flight="update"),
        ),
        ("priority", "TypeError", lambda: queue.put("a", 1, priority=0.5)),
        ("priority", "TypeError", lambda: queue.put_nowait("a", 1, priority=True)),
        ("delay", "ValueError", lambda: queue.put("a", 1, delay=-1)),
        ("delay", "ValueError", lambda: queue.put("a", 1, delay=nan)),
        ("delay", "ValueError", lambda: queue.put_many({"a": 1}, delay=inf)),
        ("delay", "TypeError", lambda: queue.put_nowait("a", 1, delay="1")),
        ("timeout", "ValueError", lambda: queue.get(-1)),
        ("timeout", "ValueError", lambda: queue.take("a", nan)),
        ("lease_timeout", "ValueError", lambda: queue.get(lease_timeout=0)),
        ("lease_timeout", "ValueError", lambda: queue.take("a", lease_timeout=-1)),
        ("lease_timeout", "TypeError", lambda: queue.get_nowait(lease_timeout="1")),
        ("key", "TypeError", lambda: queue.take([])),
        ("n", "ValueError", lambda: queue.get_many(0)),
        ("lease", "TypeError", lambda: queue.ack("token")),
        ("lease", "TypeError", lambda: queue.release(None)),
        ("delay", "ValueError", lambda: queue.release(lease, requeue_front=True, delay=1)),
        ("timeout", "ValueError", lambda: queue.extend(lease, 0)),
        ("key", "TypeError", lambda: queue.remove([])),
        ("id", "ValueError", lambda: queue.remove("a", id=0)),
        ("key", "TypeError", lambda: queue.purge_line([])),
        ("hold", "TypeError", lambda: queue.bury(lease, hold=1)),
    ]
