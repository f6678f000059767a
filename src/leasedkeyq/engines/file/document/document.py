"""The file store's document: entries of fields, with what a person wrote around them.

An item is an `Entry`: its fields by name, each as one line of JSON, in the order in which a person
reads them. Entries remember what a person added: fields we do not know, and comments.

How a document looks is the matter of its `Form`: which fields an item has and what they mean, and
how entries become text and text becomes entries. `model_mapping` makes a model of a document, and
brings a document up to date with a model; it sees items as `ItemFacts`, whatever the form.

Leased items stay where they are, so that a claim that is undone finds its place. A place is
written down where there are several priorities, and is forgotten when a person edits the document:
then the order of the document counts.

The values in the line of a key are entries, too: they follow the entry of their head, in order, and
are marked as `Entry.in_line`.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from leasedkeyq.engines.file.document.json_fields import (
    LARGEST,
    NonsenseError,
    check_text,
    decode_mapping,
    decode_moment,
    decode_text,
    decode_whole,
    encode,
    encode_mapping,
    encode_time,
)
from leasedkeyq.model.queue_model import Payload
from leasedkeyq.model.requests import (
    ResultOutcome,
    StoredState,
)

VERSION = 2
"""In version 1 no key had a line: at most one buffered value, in the entry of its head."""
COUNTERS = ("version", "revision", "last_id", "last_fence")
LINE = "line"
"""The name above the values in the line of a key."""
IN_LINE: Final[frozenset[StoredState]] = frozenset(("buffered", "in_line"))
BUCKETS = "buckets"
"""The field of the head with the buckets of all queues: readers that do not know it let it be."""


Signature = tuple[object, ...]
"""The state of an item that an entry describes; it differs when the item has changed."""


class Entry:
    """Named fields with what a person wrote around them: one item, or the head of a part.

    Attributes:
        fields: The fields as JSON, by name.
        record: What else is known of the item, as JSON, in forms that keep that apart.
        lead: The comment lines before it, each with its line end.
        notes: Comments by field: the lines before it, and what follows on its line.
        text: The entry as it stands in the file, or "" while that has to be made anew.
        signature: The state that `fields` describe, to see a change without writing it down.
        id: The id of the item.
        key: Its key.
        in_line: Whether it is a value in the line of the entry before it.
        written_id: The id that stood in the document; 0 if there was none. It is another than
            `id` where a person has changed the order of a line, or the item is new.
    """

    __slots__ = (
        "fields",
        "id",
        "in_line",
        "key",
        "lead",
        "notes",
        "record",
        "signature",
        "text",
        "written_id",
    )

    def __init__(self, fields: dict[str, str] | None = None) -> None:
        self.fields: dict[str, str] = {} if fields is None else fields
        self.record: str = ""
        self.lead: str = ""
        self.notes: dict[str, tuple[str, str]] = {}
        self.text: str = ""
        self.signature: Signature = ()
        self.id: int = 0
        self.key: str = ""
        self.in_line: bool = False
        self.written_id: int = 0

    @property
    def new(self) -> bool:
        """Whether it had no id when it was read."""
        return not self.written_id

    def update(self, known: dict[str, str], ours: tuple[str, ...]) -> bool:
        """Take over the fields that are ours; fields of others and all comments stay."""
        old = self.fields
        fields = {name: known[name] for name in ours if name in known}
        fields.update((name, text) for name, text in old.items() if name not in ours)
        for name in [name for name in self.notes if name not in fields and name != LINE]:
            self.drop_note(name)
        if fields == old:
            return False
        self.fields = fields
        self.text = ""
        return True

    def add_lead(self, lines: str) -> None:
        """Add comment lines before it."""
        self.lead += lines

    def add_line_note(self, lines: str) -> None:
        """Add comment lines before the values in its line."""
        before, after = self.notes.get(LINE, ("", ""))
        self.notes[LINE] = (before + lines, after)

    def drop_note(self, name: str) -> None:
        """Something of it is gone: the comments on that are on the entry now."""
        before, after = self.notes.pop(name)
        self.lead += before + (f"{after}\n" if after else "")
        self.text = ""


class Section:
    """One queue in the document: its items in order, other fields, and comments."""

    __slots__ = ("entries", "head", "tail")

    def __init__(self) -> None:
        self.head: Entry = Entry()
        self.entries: list[Entry] = []
        self.tail: str = ""

    def add_tail(self, lines: str) -> None:
        """Add comment lines at its end."""
        self.tail += lines

    def __bool__(self) -> bool:
        return bool(self.entries or self.head.fields or self.head.lead.strip() or self.tail.strip())


class RepositorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a queue that has a document of its own."""

    name: str
    max_size: int | None = None
    """How many items may be pending; None or 0 for no limit. The store itself does not mind."""
    default_max_retries: int = 3
    """`max_retries` of items that come without."""

    def __post_init__(self) -> None:
        """Refuse what no queue can have."""
        check_text(self.name, "the name of a queue")
        for name in ("max_size", "default_max_retries"):
            number = getattr(self, name)
            if number is not None and not 0 <= number <= LARGEST:
                raise NonsenseError(f"{name} is out of range: {number}")


class Document:
    """Everything in the file.

    Attributes:
        form: How it looks.
        settings: The settings of its queue, where it has but one.
        head: The counters.
        sections: The queues.
        label: The name of the list of items, where there is one.
        lead: Comments between the head and the queues or items.
        tail: Comments at the end.
        touched: Whether something was changed that is not in the model.
    """

    def __init__(self, form: "Form") -> None:
        self.form: Form = form
        self.settings: RepositorySettings | None = None
        self.head: Entry = Entry()
        self.sections: dict[str, Section] = {}
        self.label: str = "items"
        self.lead: str = ""
        self.tail: str = ""
        self.touched: bool = False

    def add_lead(self, lines: str) -> None:
        """Add comment lines before the queues or items."""
        self.lead += lines

    @property
    def revision(self) -> int:
        """How often it was written."""
        return decode_whole(self.head.fields, "revision", "the document")


# What an entry says


class LeaseFacts(msgspec.Struct):
    """A lease."""

    token: str
    fence: int
    """0 for a lease that is to be given one."""
    expires_at: float | None
    leased_at: float | None

    def encode(self) -> str:
        """The lease as JSON."""
        parts = {"token": encode(self.token), "fence": str(self.fence)}
        if self.expires_at is not None:
            parts["expires_at"] = encode_time(self.expires_at)
        if self.leased_at is not None:
            parts["leased_at"] = encode_time(self.leased_at)
        return encode_mapping(parts)

    @classmethod
    def decode(cls, text: str, where: str) -> "LeaseFacts":
        """The lease that `encode` wrote."""
        parts = decode_mapping(text, "lease", where)
        return cls(
            decode_text(parts, "token", where),
            decode_whole(parts, "fence", where, least=1, needed=True),
            decode_moment(parts, "expires_at", where),
            decode_moment(parts, "leased_at", where),
        )


class ItemFacts(msgspec.Struct, kw_only=True):
    """An item, whatever the form of the document. A payload without an id belongs to a new one."""

    key: str
    """Empty for a value in line that does not tell: it has the key of its head."""
    state: StoredState
    payload: Payload
    priority: int = 0
    attempt: int = 0
    due: float | None = None
    """When it becomes available, may come back from its lease at the earliest, or is forgotten."""
    lease: LeaseFacts | None = None
    place: int | None = None
    error: str = ""
    buried_at: float = 0.0
    holds: bool = False
    """Whether it is buried and holds its key."""
    outcome: ResultOutcome = "completed"
    """How it ended, if it is done."""
    ended_at: float | None = None
    """When, if that is known."""
    name: str = ""
    """What the document calls it, if that is not its key."""
    joins: bool = False
    """Whether a person has let it join the values of its key."""


class ReadValue(NamedTuple):
    """An entry as it was read."""

    facts: ItemFacts
    entry: Entry
    where: str
    """What errors call it."""


# Forms


class NotPlainYamlError(Exception):
    """The YAML is not in the form in which we write it."""


Note = Callable[[str], None]
"""Takes comment lines."""


class HandwrittenReader(Protocol):
    """Gives the parts of a YAML document that a person wrote to entries, with their comments."""

    def field(self, mapping: Any, name: Any, entry: Entry) -> None:
        """Read one field, with its comments."""
        ...

    def items(
        self,
        items: Any,
        section: Section,
        what: str,
        bare: Callable[[object], dict[str, str]] | None = None,
        *,
        lines: bool = False,
    ) -> None:
        """Read a list of items, with their comments; `bare` makes fields of a plain value.

        With `lines`, an item can have values in line below it.
        """
        ...

    def plain(self, value: Any) -> Any:
        """A value as the plain data that JSON has."""
        ...

    def above(self, mapping: Any, name: Any, note: Note) -> None:
        """Pass the comment lines above a name to `note`."""
        ...


Cache = dict[str, tuple[dict[str, str], dict[str, tuple[str, str]]]]
"""Items that were read before: their fields and notes by their text, so as to read them once."""


ReadItem = Callable[[str], Entry]
"""Reads an item that is in the style of a person; raises `NotPlainYamlError` where it cannot."""


class Form(ABC):
    """How a document looks, and what its fields mean.

    Attributes:
        fields: The fields of an item that are ours, in their order.
        nests: Whether values in line stand below the head of their key. Otherwise each is an item
            of the document like the others.
    """

    fields: tuple[str, ...]
    nests: bool

    @abstractmethod
    def start(self) -> Document:
        """A new document without items."""

    @abstractmethod
    def read(self, section: Section, entry: Entry, where: str, now: float) -> ItemFacts:
        """The item that an entry describes; fields that a person left out are filled in.

        Raises:
            NonsenseError: It says what an item cannot be.
        """

    @abstractmethod
    def write(self, section: Section, facts: ItemFacts) -> tuple[dict[str, str], str]:
        """The fields and the record of an item.

        Raises:
            NonsenseError: The item has no place in this form.
        """

    def by_name(self, entries: Sequence[Entry], numbers: AbstractSet[int]) -> dict[str, Entry]:
        """The entries whose ids are not among `numbers`, by the field ``id``, where it is unique.

        Such an item may be there with another id now, and keeps what a person wrote around it.
        """
        del entries, numbers
        return {}

    @abstractmethod
    def upgrade(self, section: Section, where: str) -> None:
        """Bring what documents of version 1 said in another way into today's form.

        Raises:
            NonsenseError: It cannot be read.
        """

    def place(self, entry: Entry, *, in_line: bool) -> None:
        """Let an entry that was the head of its key stand in its line, or the other way round."""
        entry.in_line = in_line

    def arrange_lines(self, found: list[ReadValue]) -> list[ReadValue]:
        """The values of a queue, each as the head of its key or in its line.

        Raises:
            NonsenseError: They contradict each other.
        """
        return found

    def arrange(self, entries: list[Entry]) -> list[Entry]:
        """Entries of a queue, which came together in any order, as they can stand in a document."""
        return entries

    @abstractmethod
    def open_section(self, document: Document, queue: str) -> Section:
        """Begin a queue that is not in the document yet.

        Raises:
            NonsenseError: There can be no such queue.
        """

    @abstractmethod
    def render_yaml(self, document: Document) -> str:
        """The document as YAML, without its checksum."""

    @abstractmethod
    def render_json(self, document: Document) -> str:
        """The document as JSON with an item on each line, open at its end for the checksum."""

    @abstractmethod
    def parse_yaml(self, body: str, cache: Cache, read_item: ReadItem | None = None) -> Document:
        """Read YAML that we wrote, or that looks like it but for single items.

        Raises:
            NotPlainYamlError: It does not. It may be good YAML all the same.
            NonsenseError: It says something twice.
        """

    @abstractmethod
    def is_form_of(self, names: set[str]) -> bool:
        """Whether a document with these names at its top is one of this form."""

    @abstractmethod
    def parse_handwritten(self, top: Any, reader: HandwrittenReader) -> Document:
        """Read YAML that a person wrote.

        Raises:
            NonsenseError: It is not a document of this form.
        """

    @abstractmethod
    def parse_json(self, top: dict[str, msgspec.Raw]) -> Document:
        """Read JSON.

        Raises:
            NonsenseError: It is not a document of this form.
            msgspec.DecodeError: The same.
        """


def by_key(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Entries that were loaded, by their keys."""
    found: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        found[entry.key].append(entry)
    return dict(found)


def form_of(names: set[str], forms: Sequence[Form]) -> Form:
    """The form of a document with these names at its top; the first one where they do not tell."""
    return next((form for form in forms if form.is_form_of(names)), forms[0])
