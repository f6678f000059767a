"""The name of this process, as the holder of its leases."""

import os
import socket
from functools import lru_cache
from typing import Final

LONGEST_HOST: Final = 100
"""Characters of the name of a host that are shown."""


def this_process() -> str:
    """The host and the process that calls this, such as ``"web-1:4242"``.

    It is what the doors of leasedkeyq tell as `Claim.holder` where their callers do not say
    another one. After a fork, the child has a name of its own.
    """
    return _name(os.getpid())


@lru_cache(1)
def _name(process: int) -> str:
    host = socket.gethostname().encode(errors="replace").decode().replace("\x00", "?")
    return f"{host[:LONGEST_HOST]}:{process}"
