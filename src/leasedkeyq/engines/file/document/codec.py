"""The text of a document, in YAML or JSON, of every form, with a checksum in its last line.

Where the checksum fits, the text is what we wrote. Where it does not, a person edited it, or it was
damaged; the file store finds out which.
"""

import codecs
import hashlib
import re
from collections.abc import Sequence

import msgspec

from leasedkeyq.engines.file.document import plain_json
from leasedkeyq.engines.file.document.document import (
    Cache,
    Document,
    Form,
    NotPlainYamlError,
    form_of,
)
from leasedkeyq.engines.file.document.handwritten_yaml import parse_handwritten, read_item
from leasedkeyq.engines.file.document.json_fields import (
    NonsenseError,
    check_names,
    check_names_once,
)
from leasedkeyq.engines.file.document.plain_yaml import printable_comments

SUM_NOTE = "of the text above; delete this line if you change single characters"

_YAML_SUM = re.compile(rb"# sum: ([0-9a-f]{32}) %s\n\Z" % SUM_NOTE.encode())
_OLD_SUM = re.compile(rb"^# sum: [0-9a-f]{32} %s\r?(?:\n|\Z)" % SUM_NOTE.encode(), re.MULTILINE)
_JSON_SUM = re.compile(rb'"sum": "([0-9a-f]{32})"\n\}\n\Z')


class DocumentCodec:
    """Reads and writes documents; the first of `forms` is the one of a new document."""

    def __init__(self, forms: Sequence[Form], *, yaml: bool) -> None:
        self.forms = forms
        self.yaml = yaml
        self._cache: Cache = {}

    def start(self) -> Document:
        """A new document."""
        return self.forms[0].start()

    def render(self, document: Document) -> bytes:
        """The text of a document, without its checksum."""
        form = document.form
        text = form.render_yaml(document) if self.yaml else form.render_json(document)
        return text.encode()

    def parse(self, text: bytes) -> Document:
        """Read a text that a person, or another program, may have written.

        Raises:
            NonsenseError: It is not a document.
            StoreError: Reading it takes ruamel.yaml, which is not installed.
        """
        # Some editors begin each text with this.
        text = text.removeprefix(codecs.BOM_UTF8)
        if self.yaml:
            document = self._parse_yaml(text)
            _check_names(document)
            return document
        check_names(text)
        return self._parse_json(text)

    def parse_ours(self, body: bytes) -> Document:
        """Read a text that we wrote, without its checksum; raises as `parse` does."""
        # JSON is open at its end, for the checksum.
        return self._parse_yaml(body) if self.yaml else self._parse_json(body.rstrip()[:-1] + b"}")

    def _parse_json(self, text: bytes) -> Document:
        try:
            top = plain_json.read_top(text)
            top.pop("sum", None)
            return form_of(set(top), self.forms).parse_json(top)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise NonsenseError(f"not a queue document in JSON: {error}") from error

    def _parse_yaml(self, body: bytes) -> Document:
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            raise NonsenseError(f"not UTF-8 text: {error}") from error
        text, signs = printable_comments(text)
        document = self._read_yaml(text)
        if signs:
            _check_signs(document, signs)
        return document

    def _read_yaml(self, text: str) -> Document:
        for form in self.forms:
            try:
                return form.parse_yaml(text, self._cache, read_item)
            except NotPlainYamlError:
                continue
        return parse_handwritten(text, self.forms)


def _check_names(document: Document) -> None:
    """See that no name is there twice in values that were taken over as JSON."""
    for section in document.sections.values():
        for entry in section.entries:
            for json in entry.fields.values():
                if json[0] in "{[":
                    check_names_once(json)


def _check_signs(document: Document, signs: set[str]) -> None:
    """See that the signs for control characters stand in comments only."""
    for name, section in document.sections.items():
        for entry in (document.head, section.head, *section.entries):
            texts = (name, *entry.fields, *entry.fields.values(), entry.record)
            if any(sign in text for text in texts for sign in signs):
                raise NonsenseError("not YAML: there is a control character in a value")


# The checksum


def checksum(body: bytes) -> bytes:
    """128 bits over the text above the last line."""
    return hashlib.blake2b(body, digest_size=16).hexdigest().encode()


def add_checksum(body: bytes, *, yaml: bool) -> bytes:
    """The text of the file: `body` and the line with its checksum."""
    if yaml:
        return b"%s# sum: %s %s\n" % (body, checksum(body), SUM_NOTE.encode())
    return b'%s"sum": "%s"\n}\n' % (body, checksum(body))


def split_checksum(text: bytes, *, yaml: bool) -> tuple[bytes, bool | None]:
    """The body of a file, and whether its checksum fits; None where there is no checksum."""
    found = (_YAML_SUM if yaml else _JSON_SUM).search(text)
    if found is None:
        return text, None
    body = text[: found.start()]
    return body, checksum(body) == found[1]


def without_sums(text: bytes) -> bytes:
    """YAML without lines with a checksum, wherever an editor left them and however it ends them."""
    return _OLD_SUM.sub(b"", text)
