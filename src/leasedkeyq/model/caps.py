"""What a `Cap` means, for engines in Python: patterns, buckets of tokens, and who has room."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import NamedTuple, TypeVar

from leasedkeyq.model.requests import Cap, Claim

T = TypeVar("T")
EVERY_KEY = "*"


@lru_cache(1024)
def matcher(pattern: str) -> Callable[[str], bool]:
    """Tells whether a key matches the pattern of a `Cap`, in time that is linear in the key."""
    if not pattern.strip("*"):
        return _always
    first, *rest = (re.escape(part) for part in pattern.split("*"))
    # A part between two stars is best where it fits first: the group does not try other places.
    parts = [first, *(f"(?>.*?{part})" for part in rest[:-1]), *(f".*{part}" for part in rest[-1:])]
    match = re.compile("".join(parts), re.DOTALL).fullmatch
    return lambda key: match(key) is not None


def _always(_: str) -> bool:
    return True


class BucketName(NamedTuple):
    """Which bucket of a queue."""

    pattern: str
    each: bool
    key: str
    """Empty where all keys share it."""

    @classmethod
    def of(cls, cap: Cap, key: str) -> "BucketName":
        """The bucket of a cap for a key."""
        return cls(cap.pattern, cap.each, key if cap.each else "")


class Bucket(NamedTuple):
    """A bucket as the last lease has left it; the fields are explained at `Cap`."""

    level: float
    at: float
    next_at: float
    full_at: float

    def has_token(self, rate: float, now: float) -> bool:
        """Whether it has a token, or is full and forgotten."""
        return self.full_at <= now or self.at + (1 - self.level) / rate <= now

    @classmethod
    def after(cls, before: "Bucket | None", rate: float, burst: float, now: float) -> "Bucket":
        """The bucket when a token has been taken; None stands for a full one."""
        level = burst
        if before is not None and before.full_at > now:
            level = min(burst, before.level + (now - before.at) * rate)
        level = max(level - 1, 0.0)
        return cls(level, now, now + (1 - level) / rate, now + (burst - level) / rate)


class Buckets:
    """The buckets of one queue that are not full."""

    __slots__ = ("_coming", "_filling", "all")

    def __init__(self) -> None:
        self.all: dict[BucketName, Bucket] = {}
        self._coming: list[tuple[float, BucketName]] = []
        """When tokens come; those of buckets that have changed since are passed over."""
        self._filling: list[tuple[float, BucketName]] = []
        """For each bucket a moment at which to look whether it is full."""

    def __bool__(self) -> bool:
        return bool(self.all)

    def keep(self, name: BucketName, bucket: Bucket) -> None:
        """Keep a bucket as it is now."""
        if name not in self.all:
            heappush(self._filling, (bucket.full_at, name))
        self.all[name] = bucket
        if bucket.next_at > bucket.at:
            heappush(self._coming, (bucket.next_at, name))
            if len(self._coming) > 2 * len(self.all) + 8:
                # Claims with other rates have left many that mean nothing any more.
                self._coming = [(b.next_at, n) for n, b in self.all.items() if b.next_at > b.at]
                heapify(self._coming)

    def forget(self, now: float) -> None:
        """Forget buckets that are full."""
        filling, coming = self._filling, self._coming
        while filling and filling[0][0] <= now:
            _, name = heappop(filling)
            full_at = self.all[name].full_at
            if full_at <= now:
                del self.all[name]
            else:
                heappush(filling, (full_at, name))
        while coming and coming[0][0] <= now:
            heappop(coming)

    def earliest(self, now: float) -> float | None:
        """When the next token comes to a bucket that has none; None if all have one."""
        self.forget(now)
        coming = self._coming
        while coming:
            moment, name = coming[0]
            bucket = self.all.get(name)
            if bucket is not None and bucket.next_at == moment:
                return moment
            heappop(coming)
        return None


class Rooms:
    """What the caps of a claim leave room for in one queue, while it leases items.

    Args:
        caps: Those of the queue.
        in_flight: How many keys are leased that match a pattern, before the claim. From a number
            on it may stop counting.
        bucket: The bucket of that name as it is stored, before the claim.
        now: The time.
    """

    def __init__(
        self,
        caps: Sequence[Cap],
        in_flight: Callable[[str, int], int],
        bucket: Callable[[BucketName], Bucket | None],
        now: float,
    ) -> None:
        self._caps = [(cap, matcher(cap.pattern)) for cap in caps]
        self._count = in_flight
        self._enough: dict[str, int] = {}
        for cap in caps:
            if cap.in_flight is not None:
                self._enough[cap.pattern] = max(self._enough.get(cap.pattern, 0), cap.in_flight)
        self._bucket = bucket
        self._now = now
        self._in_flight: dict[str, int] = {}
        self._seen: dict[BucketName, Bucket | None] = {}
        self.taken: dict[BucketName, Bucket] = {}
        """The buckets that have changed."""
        self.closed = False
        """Nothing at all has room any more."""

    def among(self, items: Iterable[T], key: Callable[[T], str], limit: int) -> Iterator[T]:
        """Those that have room, up to `limit`; each takes it when the next one is asked for."""
        if limit <= 0:
            return
        for item in items:
            if self.fits(key(item)):
                yield item
                self.take(key(item))
                limit -= 1
                if not limit:
                    return
            elif self.closed:
                return

    def fits(self, key: str) -> bool:
        """Whether a key has room."""
        for cap in self._caps_of(key):
            if not self._has_room(cap, key):
                self.closed = self.closed or (cap.pattern == EVERY_KEY and not cap.each)
                return False
        return True

    def _caps_of(self, key: str) -> list[Cap]:
        return [cap for cap, matches in self._caps if matches(key)]

    def take(self, key: str) -> None:
        """Take room for the lease of a key that fits."""
        caps = self._caps_of(key)
        for pattern in {cap.pattern for cap in caps if cap.in_flight is not None}:
            self._in_flight[pattern] += 1
        for cap in caps:
            if cap.rate is not None:
                name = BucketName.of(cap, key)
                bucket = Bucket.after(self._seen[name], cap.rate, cap.burst, self._now)
                self._seen[name] = self.taken[name] = bucket

    def _has_room(self, cap: Cap, key: str) -> bool:
        if cap.in_flight is not None:
            leased = self._in_flight.get(cap.pattern)
            if leased is None:
                leased = self._in_flight[cap.pattern] = self._count(
                    cap.pattern, self._enough[cap.pattern]
                )
            if leased >= cap.in_flight:
                return False
        if cap.rate is None:
            return True
        name = BucketName.of(cap, key)
        if name not in self._seen:
            self._seen[name] = self._bucket(name)
        bucket = self._seen[name]
        return bucket is None or bucket.has_token(cap.rate, self._now)


def caps_of(claim: Claim, queue: str) -> tuple[Cap, ...]:
    """The caps of a claim that are about a queue."""
    return tuple(cap for cap in claim.caps if cap.queue == queue)
