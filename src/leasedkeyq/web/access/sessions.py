"""Sessions of the web page: signed cookies that say who has logged in, and until when."""

import base64
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

MOST_ENDED: Final = 10_000
"""How many sessions that were logged out are remembered until they expire by themselves."""


class LoginSession(msgspec.Struct, frozen=True, array_like=True):
    """What a cookie says.

    Attributes:
        nonce: Unguessable, and different for each session: form tokens are made from it.
        user: Who has logged in; "" for a browser that has not.
        credential: A fingerprint of the password or token, so that a changed one ends the session.
        expires: When it ends, as Unix time.
    """

    nonce: str
    user: str
    credential: str
    expires: float


class Sessions:
    """Makes cookies and reads them again.

    Nothing is kept but which sessions were logged out: a cookie is good where the secret is the
    same, so that several processes can share it.

    Args:
        secret: What cookies are signed with.
        lifetime: How many seconds a session lasts.
        clock: Tells the Unix time.
    """

    def __init__(
        self, secret: bytes, lifetime: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._secret = secret
        self._ended: OrderedDict[str, float] = OrderedDict()
        self._clock = clock
        self.lifetime = lifetime

    def new(self, user: str = "", credential: str = "") -> LoginSession:
        """A session that begins now."""
        expires = self._clock() + self.lifetime
        return LoginSession(secrets.token_urlsafe(24), user, credential, expires)

    def cookie(self, session: LoginSession) -> str:
        """The value of the cookie of a session."""
        return self.sign("session", msgspec.json.encode(session))

    def read(self, cookie: str) -> LoginSession | None:
        """The session of a cookie; None if it is not ours, has expired or was logged out."""
        signed = self.verified("session", cookie)
        if signed is None:
            return None
        try:
            session = msgspec.json.decode(signed, type=LoginSession)
        except msgspec.MsgspecError:
            return None
        return session if self.is_live(session) else None

    def is_live(self, session: LoginSession) -> bool:
        """Whether a session has neither expired nor been logged out."""
        return session.expires > self._clock() and session.nonce not in self._ended

    def end(self, session: LoginSession) -> None:
        """Log a session out: its cookie is refused from now on, in this process."""
        self._ended[session.nonce] = session.expires
        now = self._clock()
        while self._ended and (
            len(self._ended) > MOST_ENDED or next(iter(self._ended.values())) < now
        ):
            self._ended.popitem(last=False)

    def form_token(self, session: LoginSession) -> str:
        """What a form of this session carries, and no other site can know."""
        return self._signature("form", session.nonce.encode())

    def form_token_matches(self, session: LoginSession, token: str) -> bool:
        """Whether a form comes from a page of this session."""
        return hmac.compare_digest(
            self.form_token(session).encode(), token.encode("utf-8", "surrogatepass")
        )

    def fingerprint(self, credential: str) -> str:
        """What a session remembers of a password hash or a token."""
        return self._signature("credential", credential.encode("utf-8", "surrogatepass"))[:16]

    def sign(self, purpose: str, payload: bytes) -> str:
        """A payload as text that only this secret can make."""
        body = base64.urlsafe_b64encode(payload).decode("ascii").rstrip("=")
        return f"{body}.{self._signature(purpose, payload)}"

    def verified(self, purpose: str, signed: str) -> bytes | None:
        """The payload of `sign`; None if it was not signed by this secret for this purpose."""
        body, _, signature = signed.partition(".")
        try:
            payload = base64.urlsafe_b64decode(body.encode("ascii") + b"=" * (-len(body) % 4))
        except ValueError:
            return None
        expected = self._signature(purpose, payload)
        good = hmac.compare_digest(expected.encode(), signature.encode("utf-8", "surrogatepass"))
        return payload if good else None

    def _signature(self, purpose: str, payload: bytes) -> str:
        message = purpose.encode() + b"\x00" + payload
        made = hmac.new(self._secret, message, hashlib.sha256).digest()
        return base64.urlsafe_b64encode(made).decode("ascii").rstrip("=")
