"""The differences between the doors that are meant. docs/reference/differences.md shows them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """Something that is not the same on a `LeasedKeyQueue` and on a queue of a store.

    Attributes:
        what: What it is about.
        local: How it is on a `LeasedKeyQueue`.
        store: How it is on a queue of a store.
        reason: Why it is not the same.
        names: Public names that only a `LeasedKeyQueue` has.
        lines: By scenario, a line of its trace on a `LeasedKeyQueue`, and the one on a store.
    """

    what: str
    local: str
    store: str
    reason: str
    names: frozenset[str] = frozenset()
    lines: tuple[tuple[str, str, str], ...] = ()


DIFFERENCES = (
    Difference(
        "`put_nowait`, `get_nowait`, `take_nowait`",
        "there",
        "missing; `get(timeout=0)` and `take(key, timeout=0)` ask once and do not wait for an item",
        "a store has to be asked, and that takes an `await`",
        names=frozenset({"put_nowait", "get_nowait", "take_nowait"}),
    ),
    Difference(
        "keys and values",
        "any hashable, any object",
        "keys are strings; values are what JSON can hold, or what `value_type` says",
        "they are written down",
    ),
    Difference(
        "sizes",
        "no limits",
        "the `Limits` of the store: `LimitExceededError`; priorities have 64 bits, on Redis whole "
        "numbers up to 2**53, up and down; "
        "`get_many` returns at most `batch_size` items",
        "one caller must not be able to fill or to block a store that others share",
    ),
    Difference(
        "moments: `Lease.expires_at`, `BuriedItem.buried_at`, `ItemSnapshot.due`",
        "on the clock of the event loop",
        "Unix time, on the clock of the store",
        "processes and machines share no other clock",
    ),
    Difference(
        "a cancelled `put`, `put_many`, `requeue` or `remove`",
        "has changed nothing",
        "may or may not have been stored, if it was not waiting for room",
        "the store may have done it when the cancellation comes",
    ),
    Difference(
        "`close`",
        "closes the queue; all leases end",
        "closes this queue object; the leases that it handed out end, and what is stored stays in "
        "use by others. If the store fails it raises `StoreError`, and can be called again",
        "the queue belongs to all who share the store",
    ),
    Difference(
        "a full queue, and a consumer that waits",
        "what a waiting consumer takes at once needs no room",
        "only if that consumer waits in the same queue object",
        "a store does not know who waits elsewhere",
    ),
    Difference(
        "a full queue with waiting producers, and a put on a key that a buried item holds and that "
        "has no line",
        '`if_present="skip"` and `if_present="reject"` end at once',
        "they end when it is their turn",
        "looking at such a key shows no value",
    ),
    Difference(
        "`line` while the line changes",
        "as it was when it was asked for",
        "read page by page; values that end or are appended meanwhile may be missed",
        "a long line does not fit into one answer",
    ),
    Difference(
        "`reason` of an `InvalidLeaseError`",
        '`"removed"`: the key was removed',
        '`"removed"`: the key was removed or, through another queue object, the lease settled',
        "a store does not remember leases that have ended",
    ),
    Difference(
        "`snapshot` of items that were leased in one moment",
        "in the order in which they were leased",
        "in the order in which they were put",
        "a store notes the moment of a lease, and many have the same one",
        lines=(("leased_by_one_call", "leased [b, c, a]", "leased [a, b, c]"),),
    ),
    Difference(
        "`max_buried`",
        "1000 if nothing is said",
        "the limit `buried` of the store if nothing is said; with it, `bury` drops the oldest that "
        "this queue object knows of",
        "buried items belong to the stored queue, which has a limit of its own",
    ),
    Difference(
        "`observer`",
        "told of all that happens in the queue",
        "told of what is done through this queue object; `waited` counts from the put; "
        "of an expiry it is told when the store has confirmed it",
        "what others do is not told to everybody",
    ),
)
