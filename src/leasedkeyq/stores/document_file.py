"""The file of the file store: how a document is read, judged, taken up and written.

A new document is written like this:

1. the new text into two files beside the document, both synced,
2. one of them renamed to ``<name>.bak``, then the other to ``<name>``,
3. the folder synced.

So ``.bak`` is a copy, on other disk blocks, of the last version we wrote. With it an edit can be
told from damage. When the checksum in the document does not fit:

- a text that is the beginning of the copy was cut off; one that differs from it in single bits
  was damaged, unless its checksum line was deleted; one that cannot be read, or says what a
  queue cannot be, is nonsense. These are set aside as ``<name>.damaged-<time>``, with a
  ``.reason`` beside, and the copy is put in their place. Nothing that was acknowledged is lost.
- a text that was made from an older version than the copy (an editor that was open while the
  queue went on) is set aside, too; the items that it adds are taken up.
- everything else is an edit, and is taken up.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias, TypedDict

from leasedkeyq.errors import StoreError
from leasedkeyq.stores.contract import Limits
from leasedkeyq.stores.document import Document, Entry, Form, RepositorySettings, Section
from leasedkeyq.stores.fields import NonsenseError
from leasedkeyq.stores.fileops import FileOps, Stamp
from leasedkeyq.stores.loading import Known, load
from leasedkeyq.stores.machine import StoreMachine
from leasedkeyq.stores.queues_form import QueuesForm
from leasedkeyq.stores.repository_form import RepositoryForm, StatusMap
from leasedkeyq.stores.sealing import seal, unseal
from leasedkeyq.stores.syncing import sync
from leasedkeyq.stores.texts import Texts

logger = logging.getLogger("leasedkeyq")

DocumentForm: TypeAlias = Literal["queues", "repository"]

SETTLED = 0.05
"""Seconds for which a file that somebody else wrote must rest before we judge it."""


class FileOptions(TypedDict, total=False):
    """The options of a `DocumentFile`."""

    form: DocumentForm | None
    name: str | None
    max_size: int | None
    default_max_retries: int
    status_map: StatusMap | None
    limits: Limits | None
    clock: Callable[[], float] | None
    ops: FileOps | None


class NeedsWriterError(Exception):
    """The document needs repair or an edit taken up, which takes the exclusive lock."""


class DocumentFile:
    """A document in a file, and its copy. Whoever uses it holds the lock.

    Args:
        path: The document, ``.yaml``, ``.yml`` or ``.json``. Its folder must exist.
        form: What a document must be: ``"queues"``, or ``"repository"`` for one queue with the
            items of a repository. None takes what is there, and ``"queues"`` for a new one.
        name: The name that the queue of a repository must have; the stem of the path is for those
            whose document does not tell.
        max_size: For a repository whose document does not tell.
        default_max_retries: The same.
        status_map: For a repository in whose document an item has a status of its own: which it is.
        limits: How much the store takes.
        clock: Unix time, for tests.
        ops: How files are handled, for tests.

    Attributes:
        notices: What happened to the document that its owner should know, latest last.
        seen: The stamp of the document that this engine knows.
        loads: How often it found a document that it did not write.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        form: DocumentForm | None = None,
        name: str | None = None,
        max_size: int | None = None,
        default_max_retries: int = 3,
        status_map: StatusMap | None = None,
        limits: Limits | None = None,
        clock: Callable[[], float] | None = None,
        ops: FileOps | None = None,
    ) -> None:
        path = Path(path)
        suffix = path.suffix.lower()
        if suffix not in {".yaml", ".yml", ".json"}:
            raise ValueError(f"the file store writes .yaml, .yml or .json, not {path.name!r}")
        self.path: Path = Path(os.path.realpath(path))
        if not self.path.parent.is_dir():
            raise StoreError(f"{self.path.parent} is not a folder; create it first")
        self.yaml: bool = suffix != ".json"
        self.limits: Limits = limits or Limits()
        self.notices: deque[str] = deque(maxlen=100)
        self.settled = SETTLED
        self.seen: Stamp | None = None
        self.loads: int = 0
        self._copy = self._beside(".bak")
        self._ops = ops or FileOps()
        self._clock = clock or _microseconds
        self._latest = float("-inf")
        forms = _forms(name or self.path.stem, max_size, default_max_retries, status_map)
        if form is not None and form not in forms:
            raise ValueError(f"the form of a document is one of {', '.join(forms)}, not {form!r}")
        self._form = None if form is None else forms[form]
        self._name: str | None = name
        self._texts = Texts(
            sorted(forms.values(), key=lambda known: known is not self._form), yaml=self.yaml
        )
        self._known: Known = {}
        self._document = self._texts.start()
        self._machine = StoreMachine(self.limits)
        self._told: list[str] = []
        self._held: int | None = None

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def forget(self) -> None:
        """Read the file again next time: the machine may be ahead of it."""
        self.seen = None

    def changed_by_others(self) -> bool:
        """Whether the file is another than the one that this engine knows. Takes no lock."""
        try:
            return self._ops.stamp(self.path) != self.seen
        except OSError:
            return True

    def _now(self) -> float:
        self._latest = max(self._latest, self._clock())
        return self._latest

    # Reading

    def _read_file(self, *, exclusive: bool) -> None:
        """Make `_document` and `_machine` those of the file."""
        stamp = self._ops.stamp(self.path)
        if stamp is not None and stamp == self.seen:
            return
        self.seen = None
        found = self._ops.read(self.path)
        copy = self._ops.read(self._copy)
        good = None if copy is None else copy[0]
        if found is None and good is None:
            self._start()
            return
        old = False
        if found is not None:
            text, stamp = found
            body, fits = unseal(text, yaml=self.yaml)
            old = bool(fits) and text != good and self._is_old(body, good)
            if fits and not old:
                document = self._parse_ours(body)
                self._document, self._machine = document, self._load_ours(document)
                self._hold(self.path, stamp)
                self.loads += 1
                return
        if not exclusive:
            raise NeedsWriterError
        self.loads += 1
        if found is None or old:
            assert good is not None
            self._roll_forward(None if found is None else found[0], good)
        else:
            self._judge(self._when_settled(found)[0], good)

    def _start(self) -> None:
        self._document = self._texts.start()
        self._machine = load(self._document, self.limits, self._now(), ours=True)

    def _load_ours(self, document: Document) -> StoreMachine:
        try:
            return load(document, self.limits, self._now(), ours=True, known=self._known)
        except NonsenseError as error:
            raise self._foreign(error) from error

    def _parse_ours(self, body: bytes) -> Document:
        """Read a text whose checksum fits."""
        try:
            document = self._texts.parse_ours(body)
        except NonsenseError as error:
            raise self._foreign(error) from error
        self._check(document)
        return document

    def _check(self, document: Document) -> None:
        """See that this is the document that we are to use."""
        form = document.form
        if self._form is not None and form is not self._form:
            raise StoreError(
                f"{self.path} is {form}, and not {self._form}; "
                "leave out form=, or give a repository its file:// URL"
            )
        settings = document.settings
        if self._name is not None and settings is not None and settings.name != self._name:
            raise StoreError(
                f"{self.path} is the queue {settings.name!r}, and not {self._name!r}; use its name"
            )

    def _foreign(self, error: NonsenseError) -> StoreError:
        message = f"{self.path} was written by another version of leasedkeyq: {error}"
        return StoreError(f"{message}; upgrade this one")

    def _is_old(self, body: bytes, good: bytes | None) -> bool:
        """Whether a text of ours is older than the copy."""
        if good is None:
            return False
        theirs, fits = unseal(good, yaml=self.yaml)
        if not fits:
            return False
        return self._parse_ours(body).revision < self._parse_ours(theirs).revision

    def _when_settled(self, found: tuple[bytes, Stamp]) -> tuple[bytes, Stamp]:
        """Wait while somebody is still writing."""
        for _ in range(100):
            if time.time() - found[1][1] / 1e9 > 1.0 or not self.settled:
                break
            time.sleep(self.settled)
            again = self._ops.read(self.path)
            if again is None or again[1] == found[1]:
                break
            found = again
        return found

    # Edits and damage

    def _roll_forward(self, text: bytes | None, good: bytes) -> None:
        """The copy is ahead of the file: a write was interrupted, or an old file put back."""
        newest = self._parse_ours(unseal(good, yaml=self.yaml)[0])
        before = 0
        if text is not None:
            before = self._parse_ours(unseal(text, yaml=self.yaml)[0]).revision
        if before + 1 == newest.revision:
            self._adopt(newest, "", ours=True)
        elif text is None:
            advice = "to begin anew, remove its .bak, too"
            self._restore(None, good, f"the file is missing; {advice}")
        else:
            reason = "somebody put an older version in its place; to go back, remove its .bak first"
            self._restore(text, good, reason)

    def _judge(self, text: bytes, good: bytes | None) -> None:
        """Take up a text that is not as we wrote it, or restore the copy."""
        body, fits = unseal(text, yaml=self.yaml)
        last = None
        if good is not None:
            good_body, good_fits = unseal(good, yaml=self.yaml)
            if good_fits:
                last = self._parse_ours(good_body)
                self._load_ours(last)
                if body == good_body or text == good:
                    # Only the line with the checksum was hit.
                    self._adopt(last, "the checksum line was changed, nothing else", ours=True)
                    return
                reason = _damage(text, good)
                if reason:
                    self._restore(text, good, reason)
                    return
        try:
            # JSON has its checksum inside, and is read as a whole.
            document = self._read_edit(body if self.yaml else text, last)
            added = None if last is None else _added(last, document)
        except NonsenseError as error:
            if last is None or good is None:
                message = f"{self.path} cannot be read, and no earlier version is there: {error}"
                advice = "mend it by hand, or move it away to begin anew"
                raise StoreError(f"{message}; {advice}") from error
            self._restore(text, good, str(error))
            return
        if last is None:
            if not text.strip():
                self._notice(f"{self.path} is empty; it is taken for an empty store", warn=True)
            elif fits is False:
                self._notice(
                    f"{self.path} does not fit its checksum and there is no copy to compare it "
                    "with; it is taken as it is",
                    warn=True,
                )
            self._adopt(document, "")
            return
        if added is not None:
            self._merge(text, last, added)
            return
        for name in ("revision", "last_id", "last_fence"):
            old = int(last.head.fields.get(name, "0"))
            new = int(document.head.fields.get(name, "0"))
            document.head.fields[name] = str(max(old, new))
        self._adopt(document, "edited by hand: " + _difference(last, document))

    def _read_edit(self, text: bytes, last: Document | None) -> Document:
        document = self._texts.parse(text)
        if last is not None and document.form is not last.form:
            raise NonsenseError(f"it is {document.form}, and it was {last.form}")
        self._check(document)
        load(document, self.limits, self._now(), ours=False)
        return document

    def _adopt(self, document: Document, notice: str, *, ours: bool = False) -> None:
        """Make `document` the current one, in the form that we write."""
        if notice:
            self._notice(f"{self.path}: {notice}")
        self._document = document
        self._machine = load(document, self.limits, self._now(), ours=ours)
        document.head.fields.setdefault("version", "1")
        sync(document, self._machine)
        self._save()

    def _merge(self, text: bytes, last: Document, added: list[tuple[Section, Entry]]) -> None:
        """The edit was made on an old version: take up what it adds, set the rest aside."""
        for section, entry in added:
            section.entries.append(entry)
        aside = self._set_aside(text, "it was made from an older version of the document")
        self._adopt(last, "")
        self._notice(
            f"{self.path} was replaced by an edit of an older version; {len(added)} new items were "
            f"taken up, everything else is as it was, and the edit is in {aside.name}",
            warn=True,
        )

    def _restore(self, text: bytes | None, good: bytes, reason: str) -> None:
        """Set the file aside and put the copy in its place."""
        body, fits = unseal(good, yaml=self.yaml)
        if not fits:
            raise StoreError(
                f"{self.path}: {reason}; and its .bak is damaged, too; mend one of them"
            )
        document = self._parse_ours(body)
        where = "" if text is None else f"; it is kept as {self._set_aside(text, reason).name}"
        self._notice(
            f"{self.path} was replaced by its last good version: {reason}{where}", warn=True
        )
        self._adopt(document, "", ours=True)

    def _set_aside(self, text: bytes, reason: str) -> Path:
        when = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        aside = self._beside(f".damaged-{when}")
        note = aside.with_name(f"{aside.name}.reason")
        self._ops.write(aside, text, self._mode())
        self._ops.write(note, f"{reason}\n".encode(), self._mode())
        self._ops.sync(aside)
        self._ops.sync(note)
        return aside

    def _notice(self, message: str, *, warn: bool = False) -> None:
        self.notices.append(message)
        if warn:
            self._told.append(message)
        else:
            logger.info(message)

    # Writing

    def _save(self) -> None:
        text = seal(self._texts.render(self._document), yaml=self.yaml)
        ops, new, copy = self._ops, self._beside(".new"), self._beside(".bak.new")
        mode = self._mode()
        ops.write(copy, text, mode)
        ops.write(new, text, mode)
        ops.sync(copy)
        ops.sync(new)
        self._hold(new, ops.stamp(new))
        stamp, self.seen = self.seen, None
        ops.rename(copy, self._copy)
        ops.rename(new, self.path)
        ops.sync(self.path.parent)
        self.seen = stamp

    def _hold(self, path: Path, stamp: Stamp | None) -> None:
        """Remember the file with this stamp as the one we know.

        It is kept open, so that no other file can get its inode: the clock of a file system is
        too coarse to tell two writes apart.
        """
        self._let_go()
        self._held, found = self._ops.open(path)
        self.seen = stamp if found == stamp else None

    def _mode(self) -> int | None:
        try:
            return self.path.stat().st_mode & 0o777
        except FileNotFoundError:
            return None

    def _let_go(self) -> None:
        """Close the file that `_hold` keeps open."""
        held, self._held = self._held, None
        if held is not None:
            os.close(held)


def _forms(
    name: str, max_size: int | None, default_max_retries: int, status_map: StatusMap | None
) -> dict[str, Form]:
    try:
        defaults = RepositorySettings(
            name=name, max_size=max_size, default_max_retries=default_max_retries
        )
    except NonsenseError as error:
        raise ValueError(str(error)) from error
    return {"queues": QueuesForm(), "repository": RepositoryForm(defaults, status_map)}


def _microseconds() -> float:
    """Unix time without the digits that nobody wants to read in a document."""
    return round(time.time(), 6)


def _damage(text: bytes, good: bytes) -> str:
    """Why `text` looks like a damaged `good`, or ""."""
    if len(text) < len(good) and good.startswith(text):
        return f"it was cut off after {len(text)} of {len(good)} bytes"
    # Lines that were moved can differ in single bits, too: those of b and c do.
    if len(text) == len(good) and sorted(text.split(b"\n")) != sorted(good.split(b"\n")):
        bits = [a ^ b for a, b in zip(text, good, strict=True) if a != b]
        if all(bit & (bit - 1) == 0 for bit in bits):
            return (
                f"{len(bits)} single bits differ from what was written; if that was an edit, make "
                "it again and delete the line with the checksum"
            )
    return ""


def _added(last: Document, edited: Document) -> list[tuple[Section, Entry]] | None:
    """The items that an edit of an older version adds, with the parts of `last` that they go to.

    None if it was an edit of this version.

    Raises:
        NonsenseError: They have no place there.
    """
    if edited.revision >= last.revision:
        return None
    added: list[tuple[Section, Entry]] = []
    for name, section in edited.sections.items():
        target = last.sections.get(name)
        if target is None:
            target = last.sections[name] = last.form.open_section(last, name)
        live = {entry.key for entry in target.entries}
        for entry in section.entries:
            if entry.new and entry.key not in live:
                live.add(entry.key)
                added.append((target, entry))
    return added


def _difference(old: Document, new: Document) -> str:
    """What an edit did, in a few words."""
    before = {(name, e.id): e for name, s in old.sections.items() for e in s.entries}
    after: dict[tuple[str, int], Entry] = {}
    added = 0
    for name, section in new.sections.items():
        for entry in section.entries:
            if (name, entry.id) in before:
                after[name, entry.id] = entry
            else:
                added += 1
    changed = [repr(e.key) for k, e in after.items() if e.fields != before[k].fields]
    gone = len(before) - len(after)
    names = f" ({', '.join(changed[:5])})" if changed else ""
    return f"{added} items added, {gone} removed, {len(changed)} changed{names}"
