"""Those who may use the web page: names, roles and hashes of passwords."""

import base64
import hashlib
import hmac
import secrets
from typing import Final, Literal, TypeAlias, get_args

import msgspec

Role: TypeAlias = Literal["viewer", "operator"]
"""A viewer sees everything, an operator changes it, too."""

ROLES: Final[tuple[Role, ...]] = get_args(Role)

SCHEME: Final = "scrypt"
COST: Final = 2**15
BLOCKS: Final = 8
LANES: Final = 1
MEMORY: Final = 128 * 1024 * 1024
"""More than any cost that `hash_password` writes needs."""
LENGTH: Final = 32
LONGEST_PASSWORD: Final = 1024


class User(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who uses the web page.

    Attributes:
        name: What the page and the audit log call them.
        role: What they may do: a ``"viewer"`` only looks.
        password_hash: Made by `hash_password`, or by ``leasedkeyq web --hash-password``; needed for
            users that log in at the page, and not for those whom `authenticate=` tells of.
    """

    name: str
    role: Role = "operator"
    password_hash: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not self.name.isprintable():
            raise ValueError(f"the name of a user must be a line of text, got {self.name!r}")
        if self.role not in ROLES:
            raise ValueError(
                f"the role of user {self.name!r} must be one of {', '.join(ROLES)}, "
                f"got {self.role!r}"
            )
        if self.password_hash:
            _parts(self.password_hash, self.name)

    def __repr__(self) -> str:
        return f"User(name={self.name!r}, role={self.role!r})"


def hash_password(password: str) -> str:
    """A password as it is kept: scrypt with a salt of its own, in one line of text.

    It takes about a tenth of a second, and 32 MiB while it lasts: that is what slows down guessing.

    Raises:
        ValueError: The password is empty, or longer than 1,024 characters.
    """
    if not password or len(password) > LONGEST_PASSWORD:
        raise ValueError("a password has 1 to 1024 characters")
    salt = secrets.token_bytes(16)
    made = _derive(password, salt, COST, BLOCKS, LANES)
    return f"{SCHEME}${COST}${BLOCKS}${LANES}${_text(salt)}${_text(made)}"


def password_matches(password: str, password_hash: str) -> bool:
    """Whether a password is the one of a hash. Takes as long whether it is or not."""
    cost, blocks, lanes, salt, expected = _parts(password_hash, "")
    if len(password) > LONGEST_PASSWORD:
        return False
    return hmac.compare_digest(_derive(password, salt, cost, blocks, lanes), expected)


def _derive(password: str, salt: bytes, cost: int, blocks: int, lanes: int) -> bytes:
    # A lone surrogate, which a form can bring, is no reason to fail.
    secret = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(secret, salt=salt, n=cost, r=blocks, p=lanes, maxmem=MEMORY, dklen=LENGTH)


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _parts(password_hash: str, user: str) -> tuple[int, int, int, bytes, bytes]:
    try:
        scheme, cost, blocks, lanes, salt, made = password_hash.split("$")
        parts = int(cost), int(blocks), int(lanes), _bytes(salt), _bytes(made)
        usable = (
            scheme == SCHEME
            and 128 * parts[0] * parts[1] <= MEMORY // 2
            and len(parts[4]) == LENGTH
        )
    except ValueError:
        usable = False
        parts = 0, 0, 0, b"", b""
    if not usable:
        whose = f" of user {user!r}" if user else ""
        raise ValueError(
            f"the password hash{whose} is none that `leasedkeyq web --hash-password` has written"
        )
    return parts
