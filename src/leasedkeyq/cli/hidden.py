"""`HiddenSecrets`: passwords of stores, left out of all that is printed."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast
from urllib.parse import unquote, unquote_plus, urlsplit

STARS = "***"
SHORTEST = 4
"""Characters. A shorter password is left out of URLs only: it may be a part of any word."""
_SECRET_NAME = re.compile(r"pass|secret|token|credential|api_?key", re.IGNORECASE)
_QUERY = re.compile(r"[?&;]([^=&;#]*)=([^&;#]*)")
_USER_INFO = re.compile(r"(//[^/?#@:]*):(.*)@")


def shown_url(url: str) -> str:
    """A URL without the passwords in it, in its user part and in its query."""
    shown = _USER_INFO.sub(rf"\1:{STARS}@", url, count=1)
    return _QUERY.sub(_without_secret, shown)


def _without_secret(found: re.Match[str]) -> str:
    if not _SECRET_NAME.search(unquote(found[1])):
        return found[0]
    return f"{found[0][: -len(found[2])] if found[2] else found[0]}{STARS}"


class HiddenSecrets:
    """Knows the passwords of stores, and leaves them out of texts."""

    def __init__(self) -> None:
        self._urls: dict[str, str] = {}
        self._secrets: set[str] = set()

    def add(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        """Learn the passwords of a URL and of the options of its store."""
        self._urls[url] = shown_url(url)
        found = _USER_INFO.search(url)
        secrets = [] if found is None else [found[2]]
        try:
            password = urlsplit(url).password
        except ValueError:
            password = None
        if password is not None:
            secrets.append(password)
        secrets += [text for name, text in _QUERY.findall(url) if _SECRET_NAME.search(name)]
        secrets += _secret_values(options or {})
        for secret in secrets:
            self._secrets.update(_spellings(secret))

    def hide(self, text: str) -> str:
        """A text without the passwords."""
        for url, shown in self._urls.items():
            text = text.replace(url, shown)
        for secret in sorted(self._secrets, key=len, reverse=True):
            if len(secret) >= SHORTEST:
                text = text.replace(secret, STARS)
            elif secret:
                text = text.replace(f":{secret}@", f":{STARS}@")
        return text


def _secret_values(options: Mapping[str, Any]) -> Iterable[str]:
    """The secrets of options, also of those that have options in them, such as client_options."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _secret_values(cast("Mapping[str, Any]", value))
        elif _SECRET_NAME.search(name):
            yield str(value)


def _spellings(secret: str) -> Iterable[str]:
    """A secret as it was written, and as a driver reads it, or writes it in quotes."""
    for spelling in (secret, unquote(secret), unquote_plus(secret)):
        yield spelling
        yield repr(spelling)[1:-1]
