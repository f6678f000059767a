"""Which calls to the disk fail, how, and until when."""

import errno
from dataclasses import dataclass
from random import Random
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal[
    "open", "read", "write", "sync", "close", "rename", "link", "unlink", "truncate", "lock"
]
How: TypeAlias = Literal["before", "after", "short"]
FILE_KINDS: Final[tuple[Kind, ...]] = (
    "open",
    "read",
    "write",
    "sync",
    "close",
    "rename",
    "link",
    "unlink",
    "lock",
)
SQLITE_KINDS: Final[tuple[Kind, ...]] = ("open", "read", "write", "sync", "truncate", "unlink")
ERRORS: Final[dict[Kind, tuple[int, ...]]] = {
    "open": (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE),
    "read": (errno.EIO,),
    "write": (errno.EIO, errno.ENOSPC, errno.EDQUOT),
    "sync": (errno.EIO, errno.ENOSPC, errno.EDQUOT),
    "close": (errno.EIO, errno.EDQUOT),
    # The other calls are repeated by Python itself when a signal comes; this one is not Python's.
    "rename": (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EINTR),
    "link": (errno.EIO, errno.ENOSPC, errno.EDQUOT),
    "unlink": (errno.EIO,),
    "truncate": (errno.EIO,),
    "lock": (errno.ENOLCK, errno.EIO),
}
FOR_GOOD: Final = 1_000_000


@dataclass
class FaultPlan:
    """Lets some calls of one kind fail, from the n-th on, until the disk works again."""

    kind: Kind
    error: int
    how: How
    skipped: int
    """So many calls of the kind work before the first one fails."""
    count: int
    """So many fail."""
    armed: bool = False
    hit: int = 0

    def fails(self, kind: Kind) -> bool:
        """Whether this call is to fail."""
        if not self.armed or kind != self.kind:
            return False
        if self.skipped:
            self.skipped -= 1
            return False
        if not self.count:
            return False
        self.count -= 1
        self.hit += 1
        return True

    def __str__(self) -> str:
        return f"{self.kind} fails {self.how} with {errno.errorcode[self.error]}"


def draw_plan(kinds: tuple[Kind, ...], dice: Random) -> FaultPlan:
    kind = dice.choice(kinds)
    ways: tuple[How, ...] = ("before", "after")
    if kind == "write":
        ways = ("before", "short")
    elif kind in ("open", "read", "lock"):
        ways = ("before",)
    elif kind == "close":
        ways = ("after",)
    return FaultPlan(
        kind,
        dice.choice(ERRORS[kind]),
        dice.choice(ways),
        skipped=dice.choice((0, 0, 1, 2, 3, dice.randrange(12))),
        count=dice.choice((1, 1, 2, FOR_GOOD)),
    )
