"""How often somebody may try to log in."""

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

MOST_CLIENTS: Final = 10_000


class LoginLimit:
    """Counts failed attempts by client; bounded, however many clients there are.

    Args:
        attempts: How many may fail in a row, and how many more in each `span`.
        span: Seconds in which so many attempts are forgiven.
        clock: Tells seconds that only grow.
    """

    def __init__(
        self, attempts: int = 5, span: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._attempts = attempts
        self._rate = attempts / span
        self._clock = clock
        self._failures: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str) -> float:
        """For how many seconds this client may not try; 0.0 if it may."""
        over = self._count(_network(client)) + 1 - self._attempts
        return max(0.0, over / self._rate)

    def failed(self, client: str) -> None:
        """Another attempt has failed. Called before it is known, so that many at once count."""
        client = _network(client)
        self._failures[client] = (self._count(client) + 1, self._clock())
        self._failures.move_to_end(client)
        while len(self._failures) > MOST_CLIENTS:
            self._failures.popitem(last=False)

    def succeeded(self, client: str) -> None:
        """The last attempt was right, and does not count; those before it do.

        Otherwise somebody with a password could go on guessing that of somebody else.
        """
        client = _network(client)
        left = self._count(client) - 1
        if left > 0:
            self._failures[client] = (left, self._clock())
        else:
            self._failures.pop(client, None)

    def _count(self, client: str) -> float:
        count, at = self._failures.get(client, (0.0, 0.0))
        return max(0.0, count - (self._clock() - at) * self._rate)


def _network(client: str) -> str:
    """What counts as one client: of IPv6, a whole network of 2^64 addresses belongs to one."""
    try:
        address = ipaddress.IPv6Address(client)
    except ValueError:
        return client
    return str(address.ipv4_mapped or ipaddress.IPv6Network((address, 64), strict=False))
