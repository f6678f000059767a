"""The leases that a queue object of a store handed out, and how the last of them ended."""

from collections.abc import Iterable, Iterator
from typing import Final

from leasedkeyq.errors import LeaseEnd
from leasedkeyq.lease import Lease, LeaseIssuer

MANY_HELD: Final = 100
"""So many leases are held before it is worth asking the store which of them are over."""


class LeaseBook:
    """Leases by key: a key has one at a time.

    A lease that another queue object or another process has ended stays here until the same key
    is leased again, or until `overdue` says that it is time to ask the store about all of them.
    So there are never more than twice as many as are really held, and `MANY_HELD`.
    """

    def __init__(self) -> None:
        self._issuer = LeaseIssuer()
        self._held: dict[str, Lease[str]] = {}
        self._most_held = MANY_HELD

    def __len__(self) -> int:
        """How many leases are held, as far as is known here."""
        return len(self._held)

    def __iter__(self) -> Iterator[Lease[str]]:
        """The leases that are held, as far as is known here."""
        return iter(list(self._held.values()))

    def add(
        self, token: str, key: str, fence: int, attempt: int, expires_at: float | None
    ) -> tuple[Lease[str], Lease[str] | None]:
        """A new lease; also the one before it on this key, which somebody else must have ended."""
        lease = Lease(token, key, fence, attempt, expires_at, self._issuer)
        before = self._held.get(key)
        if before is not None:
            self._issuer.remember(before.token, key, None)
        self._held[key] = lease
        return lease, before

    def of_key(self, key: str) -> Lease[str] | None:
        """The lease that is held on a key."""
        return self._held.get(key)

    def original(self, lease: Lease[str]) -> Lease[str]:
        """The lease that was handed out, if this is a copy of one that is held; or else itself."""
        held = self._held.get(lease.key)
        return held if held is not None and held._token == lease._token else lease

    def is_ours(self, lease: Lease[str]) -> bool:
        """Whether this queue object has handed it out, or a copy of it, as far as it remembers."""
        return self._issuer.knows(lease) or self.original(lease) is not lease

    def ended(self, lease: Lease[str]) -> LeaseEnd | None:
        """How a lease of ours ended; None where that is not known here."""
        return self._issuer.ended(lease)

    def end(self, lease: Lease[str], how: LeaseEnd) -> None:
        """A lease has ended."""
        original = self.original(lease)
        if self._held.get(lease.key) is original:
            del self._held[lease.key]
        original._ended = lease._ended = how
        self._issuer.remember(lease._token, lease.key, how)

    def forget(self, leases: Iterable[Lease[str]]) -> None:
        """These leases have ended, nobody knows how."""
        for lease in leases:
            if self._held.get(lease.key) is lease:
                del self._held[lease.key]
                self._issuer.remember(lease.token, lease.key, None)

    def overdue(self) -> bool:
        """Whether there are so many that the store should be asked which of them are over."""
        return len(self._held) > self._most_held

    def asked(self) -> None:
        """The store was asked: what is held now is really held."""
        self._most_held = 2 * len(self._held) + MANY_HELD
