"""The texts of documents, in YAML or JSON, of every form."""

import codecs
from collections.abc import Sequence

import msgspec

from leasedkeyq.engines.file.document import plain_json
from leasedkeyq.engines.file.document.document import Cache, Document, Form, FreeFormError, form_of
from leasedkeyq.engines.file.document.fields import NonsenseError, check_names, check_names_once
from leasedkeyq.engines.file.document.freeform import parse_freeform, read_item
from leasedkeyq.engines.file.document.plain_yaml import printable_comments


class Texts:
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
        """Read what somebody wrote.

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
        """Read what we wrote, without its checksum; raises as `parse` does."""
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
            except FreeFormError:
                continue
        return parse_freeform(text, self.forms)


def _check_names(document: Document) -> None:
    """See that no name is there twice in values that were taken over as JSON."""
    for section in document.sections.values():
        for entry in section.entries:
            for json in entry.fields.values():
                if json[0] in "{[":
                    check_names_once(json)


def _check_signs(document: Document, signs: set[str]) -> None:
    """See that what was taken for a comment was one."""
    for name, section in document.sections.items():
        for entry in (document.head, section.head, *section.entries):
            texts = (name, *entry.fields, *entry.fields.values(), entry.record)
            if any(sign in text for text in texts for sign in signs):
                raise NonsenseError("not YAML: there is a control character in a value")
