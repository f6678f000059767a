"""Ports for servers that go away and come back."""

import random
import socket
from typing import Final

LOWEST, HIGHEST = 10_000, 32_000
"""Below the ports that a system gives to the outgoing end of connections."""
TRIES: Final = 100
_dice: Final = random.SystemRandom()


def lasting_port() -> int:
    """A port that nobody uses now, and that no connection takes while its server is away.

    A client that tries again and again to reach a port at which nobody listens may be given just
    that port for its own end, and be connected with itself. Then the server cannot come back.
    """
    for _ in range(TRIES):
        port = _dice.randint(LOWEST, HIGHEST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no free port from {LOWEST} to {HIGHEST}")
