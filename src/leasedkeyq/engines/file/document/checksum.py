"""The last line of the file store's document: a checksum of the text above it.

Where it fits, the text is what we wrote. Where it does not, somebody edited or damaged it, and the
file store finds out which.
"""

import hashlib
import re

SUM_NOTE = "of the text above; delete this line if you change single characters"

_YAML_SUM = re.compile(rb"# sum: ([0-9a-f]{32}) %s\n\Z" % SUM_NOTE.encode())
_OLD_SUM = re.compile(rb"^# sum: [0-9a-f]{32} %s\r?(?:\n|\Z)" % SUM_NOTE.encode(), re.MULTILINE)
_JSON_SUM = re.compile(rb'"sum": "([0-9a-f]{32})"\n\}\n\Z')


def checksum(body: bytes) -> bytes:
    """128 bits over the text above the last line."""
    return hashlib.blake2b(body, digest_size=16).hexdigest().encode()


def seal(body: bytes, *, yaml: bool) -> bytes:
    """The text of the file: `body` and the line with its checksum."""
    if yaml:
        return b"%s# sum: %s %s\n" % (body, checksum(body), SUM_NOTE.encode())
    return b'%s"sum": "%s"\n}\n' % (body, checksum(body))


def unseal(text: bytes, *, yaml: bool) -> tuple[bytes, bool | None]:
    """The body of a file, and whether its checksum fits; None where there is no checksum."""
    found = (_YAML_SUM if yaml else _JSON_SUM).search(text)
    if found is None:
        return text, None
    body = text[: found.start()]
    return body, checksum(body) == found[1]


def without_sums(text: bytes) -> bytes:
    """YAML without lines with a checksum, wherever an editor left them and however it ends them."""
    return _OLD_SUM.sub(b"", text)
