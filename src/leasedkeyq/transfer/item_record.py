"""What `move` knows of an item: enough to put it elsewhere, and to recognise it there."""

from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from leasedkeyq.model.requests import ResultOutcome


class ItemRecord(msgspec.Struct):
    """An item of the source, or one that was found in the target.

    `delay` is what is left of its schedule, or of its lifetime, and `deadline` of the time within
    which it should be leased. `outcome` is that of a result. `lined` says of the head of a key that
    it has a line, and `holds` of a buried item that it holds its key. `signature` differs when a
    value in the source has changed. `progress` is that of a buried item or a result.
    """

    key: str
    value: bytes
    kind: str
    priority: int
    error: str = ""
    id: int = 0
    delay: float | None = None
    deadline: float | None = None
    outcome: ResultOutcome | None = None
    lined: bool = False
    holds: bool = False
    signature: int = 0
    progress: bytes | None = None

    def digest(self) -> int:
        """A number that stands for the key, kind, value, error and outcome of the item."""
        texts = (self.key, self.kind, self.error, self.outcome or "")
        parts = (self.value, *(text.encode() for text in texts))
        sizes = ",".join(str(len(part)) for part in parts)
        return int.from_bytes(blake2b(b"".join((sizes.encode(), *parts)), digest_size=16).digest())


class Tally:
    """How many items there were, and a checksum over them, in whatever order they came."""

    def __init__(self) -> None:
        self.count = 0
        self.checksum = 0

    def add(self, digests: Iterable[int]) -> None:
        """There are some more, with these digests."""
        for digest in digests:
            self.count += 1
            self.checksum = (self.checksum + digest) % 2**128
