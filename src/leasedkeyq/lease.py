"""Leases: the right to work on a key, for one holder at a time."""

import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from leasedkeyq.errors import LeaseEnd

K = TypeVar("K")
V = TypeVar("V")


MOST_ENDED: Final = 10_000
"""Of so many leases a queue remembers how they ended, for whoever has a copy of one."""


class LeaseIssuer:
    """Who has handed out leases: it remembers how the last of them ended.

    A lease that comes back from another process is a copy. Its queue knows it by its token, also
    after it has ended: a second acknowledgement is told as one. Leases whose tokens nobody has
    seen have no copies, and are not remembered.

    Args:
        most: How many ended leases are remembered.
    """

    __slots__ = ("_ended", "_most")

    def __init__(self, most: int = MOST_ENDED) -> None:
        self._ended: OrderedDict[str, tuple[Any, LeaseEnd | None]] = OrderedDict()
        self._most = most

    def remember(self, token: str, key: object, how: LeaseEnd | None) -> None:
        """A lease has ended; None where nobody knows how."""
        if self._most:
            self._ended[token] = key, how
            if len(self._ended) > self._most:
                self._ended.popitem(last=False)

    def knows(self, lease: "Lease[Any]") -> bool:
        """Whether this is a lease that was issued here, or a copy of one that has ended."""
        return lease._issuer is self or self._ended.get(lease._token, (self,))[0] == lease._key

    def ended(self, lease: "Lease[Any]") -> LeaseEnd | None:
        """How a lease ended that was issued here, or whose copy was; None where it is not known."""
        if lease._issuer is self and lease._ended is not None:
            return lease._ended
        key, how = self._ended.get(lease._token, (self, None))
        return how if key == lease._key else None


class Lease(Generic[K]):
    """The exclusive right to work on one key, until it is settled or expires.

    Queues make leases; `get` and `take` hand them out. A lease cannot be changed by its holder,
    and two leases are equal when their tokens are. Hand it back to the queue that issued it:
    ``ack``, ``release``, ``extend`` or ``bury``.
    """

    __match_args__ = ("token", "key")
    __slots__ = ("_attempt", "_ended", "_expires_at", "_fence", "_issuer", "_key", "_token")

    def __init__(
        self,
        token: str,
        key: K,
        fence: int = 0,
        attempt: int = 0,
        expires_at: float | None = None,
        _issuer: LeaseIssuer | None = None,
    ) -> None:
        # An empty token stands for one that is drawn when somebody first asks: in one process a
        # lease is known by its identity, and random bytes cost more than the rest of a claim.
        self._token = token
        self._key = key
        self._fence = fence
        self._attempt = attempt
        self._expires_at = expires_at
        self._issuer = _issuer
        self._ended: LeaseEnd | None = None

    @classmethod
    def create(cls, key: V) -> "Lease[V]":
        """Make a lease with a token of its own. No queue knows it; meant for tests."""
        return Lease("", key)

    @property
    def token(self) -> str:
        """The unguessable name of the lease: a random UUID, or what a store made up.

        On a store it may end with an "@" and the holder of the lease; see `Claim.holder`.
        """
        if not self._token:
            self._token = str(uuid.uuid4())
            if self._ended is not None and self._issuer is not None:
                self._issuer.remember(self._token, self._key, self._ended)
        return self._token

    @property
    def key(self) -> K:
        """The key that the lease holds."""
        return self._key

    @property
    def fence(self) -> int:
        """A number that grows with every lease of a queue.

        Pass it along to whatever the work changes and refuse lower numbers there, and a holder
        that overslept its lease can do no harm.
        """
        return self._fence

    @property
    def attempt(self) -> int:
        """How often the item has been handed out, this time included: 1 for the first."""
        return self._attempt

    @property
    def expires_at(self) -> float | None:
        """When the lease expires; None for never. `extend` moves it.

        Of a `LeasedKeyQueue` it is a time of its event loop (`loop.time()`), of a queue on a store
        it is Unix time by the store's clock.
        """
        return self._expires_at

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Lease) and self.token == other.token

    def __hash__(self) -> int:
        return hash(self.token)

    def __reduce__(self) -> tuple[object, ...]:
        return (Lease, (self.token, self._key, self._fence, self._attempt, self._expires_at))

    def __copy__(self) -> "Lease[K]":
        return self

    def __deepcopy__(self, memo: object) -> "Lease[K]":
        return self

    def __repr__(self) -> str:
        return (
            f"Lease(token={self.token!r}, key={self._key!r}, fence={self._fence}, "
            f"attempt={self._attempt}, expires_at={self._expires_at})"
        )


class LeasedItem(NamedTuple, Generic[K, V]):
    """What a consumer gets: a key, its value, and the lease on it. Unpacks as a triple."""

    key: K
    value: V
    lease: Lease[K]


@dataclass
class LeaseRecord(Generic[K, V]):
    """What leasedkeyq 0.0.7 kept for a lease. Stays importable; nothing here uses it."""

    lease: Lease[K]
    key: K
    value: V
    acknowledged: bool = False
    created_at: float = 0.0
    timeout: float | None = None

    def __post_init__(self) -> None:
        """Stamp the record with the present when no time is given."""
        if self.created_at == 0.0:
            self.created_at = time.monotonic()

    def is_expired(self, now: float) -> bool:
        """Whether the lease has run out at `now`."""
        return self.timeout is not None and now - self.created_at >= self.timeout
