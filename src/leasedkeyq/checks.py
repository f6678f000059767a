"""Arguments, checked where they come in. Every error names its argument."""

from collections.abc import Hashable, Iterable, Mapping
from datetime import datetime, timedelta
from math import inf, isfinite, isnan
from typing import Final, TypeVar, cast

from leasedkeyq.errors import describe
from leasedkeyq.lease import Lease
from leasedkeyq.types import (
    BuriedItem,
    Duration,
    InFlightPolicy,
    PresentPolicy,
    PutPolicy,
    QueueObserver,
)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Observer = TypeVar("Observer")

IN_FLIGHT_POLICIES: Final = frozenset(("update", "reject", "buffer"))
PRESENT_POLICIES: Final[dict[PresentPolicy, PutPolicy]] = {
    "append": "append",
    "update": "buffer",
    "skip": "skip",
    "reject": "only_new",
}
"""What stores are told for each."""


def seconds(name: str, value: Duration) -> float:
    """A duration as seconds, zero or more; infinity is allowed."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    elif isinstance(value, bool) or not isinstance(value, int | float):
        kind = type(value).__name__
        raise TypeError(f"{name} must be seconds (int or float) or a timedelta, got {kind}")
    try:
        value = float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large to be a number of seconds") from None
    if isnan(value) or value < 0:
        raise ValueError(f"{name} must not be negative or NaN, got {value!r}")
    return value


def wait_time(name: str, value: Duration | None) -> float | None:
    """How long to wait at most: None and infinity both mean for ever."""
    if value is None:
        return None
    value = seconds(name, value)
    return None if value == inf else value


def lease_time(name: str, value: Duration | None) -> float | None:
    """How long a lease lasts: more than nothing; None and infinity both mean for ever."""
    value = wait_time(name, value)
    if value == 0:
        raise ValueError(f"{name} must be greater than 0; None means that leases do not expire")
    return value


def delay_time(name: str, value: Duration) -> float:
    """How long an item stays back: finite, so that it is not lost."""
    value = seconds(name, value)
    if value == inf:
        raise ValueError(f"{name} must be finite")
    return value


def moment(name: str, value: datetime) -> float:
    """A moment, as Unix time: a datetime that says in which time zone it is."""
    if not isinstance(value, datetime):
        raise TypeError(f"{name} must be a datetime, got {type(value).__name__}")
    if value.utcoffset() is None:
        parts = ", ".join(str(part) for part in value.timetuple()[:5])
        raise ValueError(
            f"{name} must have a time zone, got {value!r}, which is another moment on each "
            f"machine; write datetime({parts}, tzinfo=UTC), or "
            f'datetime({parts}, tzinfo=ZoneInfo("Europe/Berlin"))'
        )
    return value.timestamp()


def whole(name: str, value: int, least: int, most: int | None = None) -> int:
    """A whole number that is not below `least` and not above `most`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {describe(value)}")
    if most is not None and value > most:
        raise ValueError(f"{name} must be at most {most}, got {describe(value)}")
    return value


def number(
    name: str,
    value: float,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
) -> float:
    """A finite number, above `above`, not below `least` and not above `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    try:
        checked = float(value)
    except OverflowError:
        checked = inf
    if (
        not isfinite(checked)
        or (above is not None and checked <= above)
        or (least is not None and checked < least)
        or (most is not None and checked > most)
    ):
        limits = {"above": above, "at least": least, "at most": most}
        said = [f"{words} {limit:g}" for words, limit in limits.items() if limit is not None]
        raise ValueError(f"{name} must be {' and '.join([*said, 'finite'])}, got {describe(value)}")
    return checked


def hashable(key: Hashable) -> None:
    """A key can be anything that can be hashed."""
    try:
        hash(key)
    except TypeError as error:
        raise TypeError(f"key must be hashable, got {type(key).__name__} ({error})") from None


def put_policy(
    if_in_flight: InFlightPolicy | None,
    if_present: PresentPolicy | None,
    default: PutPolicy = "update",
) -> PutPolicy:
    """What a put does where its key is there; `default` where neither argument is given."""
    if if_present is None:
        if if_in_flight is None:
            return default
        if not isinstance(if_in_flight, str) or if_in_flight not in IN_FLIGHT_POLICIES:
            raise ValueError(
                f"if_in_flight must be 'update', 'reject' or 'buffer', got {describe(if_in_flight)}"
            )
        return if_in_flight
    if not isinstance(if_present, str) or if_present not in PRESENT_POLICIES:
        raise ValueError(
            f"if_present must be 'append', 'update', 'skip' or 'reject', got {describe(if_present)}"
        )
    if if_in_flight is not None:
        raise ValueError(
            "if_present and if_in_flight exclude each other: if_present also says what happens to "
            "a key that is in flight"
        )
    return PRESENT_POLICIES[if_present]


def requeue_policy(
    if_in_flight: InFlightPolicy | None, if_present: PresentPolicy | None
) -> PutPolicy:
    """The same for a buried item that is put back: it must not be lost, nor replace a newer one."""
    policy = put_policy(if_in_flight, if_present, default="append")
    if policy == "skip":
        raise ValueError("if_present must not be 'skip' here: the buried item would be lost")
    return policy


def is_flag(name: str, value: object) -> None:
    """True or False, and nothing that only counts as such."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {describe(value)}")


def put_options(priority: int | None, delay: Duration | None) -> float | None:
    """The options of a put; returns the delay in seconds."""
    if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
        raise TypeError(f"priority must be an int or None, got {type(priority).__name__}")
    return None if delay is None else delay_time("delay", delay)


def release_options(requeue_front: bool, delay: Duration | None) -> float | None:
    """The options of a release; returns the delay in seconds, or None for at once."""
    if requeue_front not in (True, False):
        raise TypeError(f"requeue_front must be True or False, got {describe(requeue_front)}")
    seconds = None if delay is None else delay_time("delay", delay)
    if seconds and requeue_front:
        raise ValueError(
            "requeue_front and delay exclude each other: a delayed item goes back later"
        )
    return seconds or None


def key_values(
    name: str, items: Mapping[K, V] | Iterable[tuple[K, V]], policy: PutPolicy
) -> list[tuple[K, V]]:
    """Keys and their values from a mapping or from pairs.

    Where a put replaces, the last value of a key counts, at the place of the first.
    """
    if not hasattr(items, "__iter__"):
        got = describe(items)
        raise TypeError(f"{name} must be a mapping or (key, value) pairs, got {got}")
    pairs = cast("Mapping[K, V]", items).items() if isinstance(items, Mapping) else items
    found: list[tuple[K, V]] = []
    for pair in pairs:
        try:
            key, value = _two(pair)
        except (TypeError, ValueError):
            raise TypeError(
                f"{name} must be a mapping or (key, value) pairs, got {describe(pair)} among them"
            ) from None
        hashable(key)
        found.append((key, value))
    return list(dict(found).items()) if policy in IN_FLIGHT_POLICIES else found


def _two(pair: tuple[K, V]) -> tuple[K, V]:
    """A pair; a string of two letters is none."""
    if isinstance(pair, str | bytes):
        raise TypeError
    key, value = pair
    return key, value


def is_lease(value: object) -> None:
    """A lease, and not its token, its key or the triple that it came in."""
    if not isinstance(value, Lease):
        kind = type(value).__name__
        raise TypeError(f"lease must be the Lease that get or take returned, got {kind}")
    hashable(cast("Lease[Hashable]", value).key)


def error_text(value: str) -> None:
    """The reason for a burial is text."""
    if not isinstance(value, str):
        raise TypeError(f"error must be a str, got {type(value).__name__}; str() makes one")


def is_text(value: object) -> bool:
    """Whether this is a string that can be written down: one without lone surrogates."""
    if not isinstance(value, str):
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_storable(value: object) -> bool:
    """Whether every store can keep this as a name: it is text, and without NUL characters."""
    return isinstance(value, str) and "\x00" not in value and (value.isascii() or is_text(value))


def storable(text: str) -> str:
    """A text as every store can keep it: what cannot be written down is replaced."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "\N{REPLACEMENT CHARACTER}")


def is_buried(value: object) -> None:
    """A buried item, as `bury` and `buried` return it."""
    if not isinstance(value, BuriedItem):
        kind = type(value).__name__
        raise TypeError(f"buried must be a BuriedItem, as bury returns it, got {kind}")


def is_observer(value: Observer) -> Observer:
    """None, or an object with all the methods of an observer."""
    if value is not None:
        names = [name for name in vars(QueueObserver) if name.startswith("on_")]
        missing = [name for name in names if not callable(getattr(value, name, None))]
        if missing:
            raise TypeError(
                f"observer must have the methods of QueueObserver; {', '.join(missing)} missing "
                f"in {type(value).__name__}. Subclass QueueObserver to have them all"
            )
    return value
