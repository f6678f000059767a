"""The file of the file store: how a document is read, judged, taken up and written.

A new document is written like this:

1. the new text into ``<name>.bak.new`` and ``<name>.new``, both synced,
2. ``<name>.new`` renamed to ``<name>.displaced``, which then changes names with the document,
3. the folder synced,
4. ``<name>.bak.new`` renamed to ``<name>.bak``,
5. ``<name>.displaced``, which is what stood in the place of the document, looked at and removed.

So ``.bak`` is a copy, on other disk blocks, of the last version we wrote, and it is never newer
than the document. With it an edit can be told from damage. When the checksum in the document does
not fit:

- while some program has the file open for writing, it is given time to end, see `PATIENCE`.
- a text that is the beginning of the copy was cut off; one that differs from it in single bits
  was damaged, unless its checksum line was deleted; one that cannot be read, or says what a
  queue cannot be, is nonsense. These are set aside as ``<name>.damaged-<time>``, with a
  ``.reason`` beside, and the copy is put in their place. Nothing that was acknowledged is lost.
- a text that was made from an older version than the copy (an editor that was open while the
  queue went on) is set aside, too; the items that it adds are taken up.
- everything else is an edit, and is taken up.

An older version of ours that was put back is an edit, too: it counts, and the version that it
replaced is set aside. Only where it was put back within a moment of a write, there was no time to
mean that: a program has written the version that it had read before.

An edit that comes between reading and writing is found in step 5, as the displaced file is not the
one that was read. It is merged into the version just written, see
`document_merge`, which is then written again; ``<name>.edit`` is the edit as long
as that takes. A crash in between leaves ``.displaced`` or ``.edit``, and the next process that has
the lock goes on with it.

Where the system cannot let two files change names, the file in the place of the document gets a
second name, and is then replaced. An edit that arrives by a rename between these two steps, some
microseconds, is lost.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias, TypedDict

from leasedkeyq.engines.file.document.codec import (
    DocumentCodec,
    add_checksum,
    split_checksum,
    without_sums,
)
from leasedkeyq.engines.file.document.document import Document, Entry, Form, RepositorySettings
from leasedkeyq.engines.file.document.json_fields import NonsenseError
from leasedkeyq.engines.file.document.model_mapping import Known, load, sync
from leasedkeyq.engines.file.document.queues_form import QueuesForm
from leasedkeyq.engines.file.document.repository_form import RepositoryForm, StatusTranslation
from leasedkeyq.engines.file.document_merge import Merge, add_new_items, merge_edit
from leasedkeyq.engines.file.file_operations import Access, FileOperations, Stamp
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Limits
from leasedkeyq.model.store_model import StoreModel

logger = logging.getLogger("leasedkeyq")

DocumentForm: TypeAlias = Literal["queues", "repository"]

SETTLED = 0.05
"""Seconds for which a file that another program wrote must rest before we judge it."""
PATIENCE = 2.0
"""Seconds without a change after which a program that has the file open is not waited for."""
LONGEST = 20.0
"""Seconds after which no such program is waited for."""
MOMENT = 2.0
"""Seconds after a write in which a person cannot mean to put back an older version."""
TRIES = 10
"""How often a document that is moved away at the last moment is written again."""
SET_ASIDE = 100
"""How many files that were set aside are kept; older ones are removed."""


class FileOptions(TypedDict, total=False):
    """The options of a `DocumentFile`."""

    form: DocumentForm | None
    name: str | None
    max_size: int | None
    default_max_retries: int
    status_map: StatusTranslation | None
    limits: Limits | None
    clock: Callable[[], float] | None
    ops: FileOperations | None


class NeedsWriterError(Exception):
    """The document needs repair or an edit taken up, which takes the exclusive lock."""


class DocumentFile:
    """A document in a file, and its copy. `FileEngine` holds the lock while it uses this.

    Args:
        path: The document, ``.yaml``, ``.yml`` or ``.json``. Its folder must exist.
        form: What a document must be: ``"queues"``, or ``"repository"`` for one queue with the
            items of a repository. None takes that of the document, and ``"queues"`` for a new one.
        name: The name that the queue of a repository must have; where its document does not tell
            one, it is the stem of the path.
        max_size: For a repository whose document does not tell.
        default_max_retries: The same.
        status_map: For a repository in whose document an item has a status of its own: which it is.
        limits: How much the store takes.
        clock: Unix time, for tests.
        ops: How files are handled, for tests.

    Attributes:
        document: The document as it was read or written last.
        model: The model that it describes.
        writable: Whether this transaction may write; if not, it makes do with what it can read.
        notices: What happened to the document that its owner should know, latest last.
        told: Notices of this transaction that are to be warnings.
        seen: The stamp of the document that this object knows.
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
        status_map: StatusTranslation | None = None,
        limits: Limits | None = None,
        clock: Callable[[], float] | None = None,
        ops: FileOperations | None = None,
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
        self.settled: float = SETTLED
        self.patience: float = PATIENCE
        self.set_aside_limit: int = SET_ASIDE
        self.seen: Stamp | None = None
        self.loads: int = 0
        self._copy = self.beside(".bak")
        self._displaced = self.beside(".displaced")
        self._edit = self.beside(".edit")
        self._ops = ops or FileOperations()
        self._clock = clock or _microseconds
        self._latest = float("-inf")
        forms = _forms(name or self.path.stem, max_size, default_max_retries, status_map)
        if form is not None and form not in forms:
            raise ValueError(f"the form of a document is one of {', '.join(forms)}, not {form!r}")
        self._form = None if form is None else forms[form]
        self.name: str | None = name
        self._codec = DocumentCodec(
            sorted(forms.values(), key=lambda known: known is not self._form), yaml=self.yaml
        )
        self._known: Known = {}
        self.document: Document = self._codec.start()
        self.model: StoreModel = StoreModel(self.limits)
        self.told: list[str] = []
        self._held: int | None = None
        self._base: Stamp | None = None
        """The stamp of the document that was read: the one that the next write replaces."""
        self.writable: bool = True
        self._exchanges = True
        self._merging: Stamp | None = None
        """The stamp of the edit that is being merged."""

    def beside(self, suffix: str) -> Path:
        """The file beside the document with this suffix behind its name."""
        return self.path.with_name(self.path.name + suffix)

    def forget(self) -> None:
        """Read the file again next time: the model may be ahead of it."""
        self.seen = None

    def changed_by_others(self) -> bool:
        """Whether the file is another than the one that this engine knows. Takes no lock."""
        try:
            return self._ops.stamp(self.path) != self.seen
        except OSError:
            return True

    def now(self) -> float:
        """The time of the store, which never runs back."""
        self._latest = max(self._latest, self._clock())
        return self._latest

    # Reading

    def read(self, *, exclusive: bool) -> None:
        """Read the file into `document` and `model`, unless they are of it already.

        Raises:
            NeedsWriterError: That takes the exclusive lock.
        """
        unfinished = self._ops.stamp(self._displaced) or self._ops.stamp(self._edit)
        if unfinished and self.writable and not exclusive:
            raise NeedsWriterError
        self._read_document(exclusive=exclusive)
        if unfinished and self.writable:
            self._finish()

    def _read_document(self, *, exclusive: bool) -> None:
        stamp = self._ops.stamp(self.path)
        if stamp is not None and stamp == self.seen:
            return
        self.seen = None
        found = self._ops.read(self.path)
        copy, good = self._read_copies()
        self._base = None if found is None else found[1]
        if found is None and good is None:
            self._start()
            return
        if found is not None and self._read_ours(*found, copy):
            return
        if not exclusive:
            raise NeedsWriterError
        self.loads += 1
        if found is None and self._is_back():
            self._read_document(exclusive=exclusive)
            return
        if found is None:
            assert good is not None
            self._restore(None, good, "the file is missing; to begin anew, remove its .bak, too")
            return
        text, self._base = self._when_settled(self.path, found, good)
        if text != found[0] and self._read_ours(text, self._base, copy):
            return
        self._judge(text, good)

    def _is_back(self) -> bool:
        """Whether a missing file comes back: editors that rename it first need a moment."""
        for _ in range(4):
            time.sleep(self.settled)
            if self._ops.stamp(self.path) is not None:
                return True
        return False

    def _read_ours(self, text: bytes, stamp: Stamp, copy: bytes | None) -> bool:
        """Take a text as it is, if its checksum fits and it is not older than the copy."""
        body, fits = split_checksum(text, yaml=self.yaml)
        if not fits:
            return False
        # Without the lock the copy may be newer because another process is writing just now.
        if self.writable and text != copy and self._is_old(body, copy):
            return False
        document = self._parse_ours(body)
        self.document, self.model = document, self._load_ours(document)
        self._hold(self.path, stamp)
        self.loads += 1
        return True

    def _read_copies(self) -> tuple[bytes | None, bytes | None]:
        """The copy, and the newest version of which there is a copy.

        A crash right after a write leaves the copy of that under its first name.
        """
        copy = self._ops.read(self._copy)
        if copy is None:
            return None, None
        newer = self._ops.read(self.beside(".bak.new"))
        if newer is not None:
            body, fits = split_checksum(newer[0], yaml=self.yaml)
            if fits and not self._is_old(body, copy[0]):
                return copy[0], newer[0]
        return copy[0], copy[0]

    def _start(self) -> None:
        self.document = self._codec.start()
        self.model = load(self.document, self.limits, self.now(), ours=True)

    def _load_ours(self, document: Document) -> StoreModel:
        try:
            return load(document, self.limits, self.now(), ours=True, known=self._known)
        except NonsenseError as error:
            raise self._foreign(error) from error

    def _parse_ours(self, body: bytes) -> Document:
        """Read a text whose checksum fits."""
        try:
            document = self._codec.parse_ours(body)
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
        if self.name is not None and settings is not None and settings.name != self.name:
            raise StoreError(
                f"{self.path} is the queue {settings.name!r}, and not {self.name!r}; use its name"
            )

    def _foreign(self, error: NonsenseError) -> StoreError:
        message = f"{self.path} was written by another version of leasedkeyq: {error}"
        return StoreError(f"{message}; upgrade this one")

    def _is_old(self, body: bytes, good: bytes | None) -> bool:
        """Whether a text of ours is older than the copy."""
        if good is None:
            return False
        theirs, fits = split_checksum(good, yaml=self.yaml)
        if not fits:
            return False
        return self._parse_ours(body).revision < self._parse_ours(theirs).revision

    def _when_settled(
        self, path: Path, found: tuple[bytes, Stamp], good: bytes | None
    ) -> tuple[bytes, Stamp]:
        """Wait while another program is still writing the file, for a while."""
        if not self.settled:
            return found
        began = moved = time.monotonic()
        while True:
            rest = self._rest(path, found, good)
            # Only now: the last bytes may have come right before the file was closed.
            again = None if self._ops.stamp(path) == found[1] else self._ops.read(path)
            now = time.monotonic()
            if again is not None and again[1] != found[1]:
                found, moved = again, now
            elif now - moved >= rest:
                return found
            if now - began >= LONGEST:
                return found
            time.sleep(self.settled)

    def _rest(self, path: Path, found: tuple[bytes, Stamp], good: bytes | None) -> float:
        """For how long a file must not have changed before it is taken as it is."""
        written = told = self._ops.is_being_written(path)
        if written is None:
            # Then a text that does not end as ours do may go on.
            written = good is not None and split_checksum(found[0], yaml=self.yaml)[1] is None
        age = time.time() - found[1][1] / 1e9
        rest = self.patience if written else self.settled
        return 0.0 if age > max(rest, 1.0) and not told else rest

    # Edits and damage

    def _put_back(self, text: bytes, good: bytes) -> None:
        """Take up an older version that was put in the place of the document, or refuse it."""
        when = self.path.stat().st_ctime - self._copy.stat().st_mtime
        if when < MOMENT:
            reason = (
                "somebody put an older version in its place within a moment of a write; to go "
                "back, end the programs that write it first"
            )
            self._restore(text, good, reason)
            return
        document = self._parse_ours(split_checksum(text, yaml=self.yaml)[0])
        last = self._parse_ours(split_checksum(good, yaml=self.yaml)[0])
        load(last, self.limits, self.now(), ours=True)
        load(document, self.limits, self.now(), ours=False)
        _go_on(last, document)
        what = _difference(last, document)
        aside = self._set_aside(good, "somebody put an older version in its place")
        self._adopt(document, "")
        self._notice(
            f"{self.path}: an older version was put back and counts now ({what}); the one that it "
            f"replaced is kept as {aside.name}",
            warn=True,
        )

    def _judge(self, text: bytes, good: bytes | None) -> None:
        """Take up a text that is not as we wrote it, or restore the copy."""
        body, fits = split_checksum(text, yaml=self.yaml)
        if fits and good is not None:
            self._put_back(text, good)
            return
        last = None
        if good is not None:
            good_body, good_fits = split_checksum(good, yaml=self.yaml)
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
            document = self._read_edit(text, last)
            merge = None if last is None else add_new_items(last, document)
        except NonsenseError as error:
            if last is None or good is None:
                message = f"{self.path} cannot be read, and no earlier version is there: {error}"
                advice = "mend it by hand, or move it away to begin anew"
                raise StoreError(f"{message}; {advice}") from error
            self._restore(text, good, str(error))
            return
        if last is None:
            if good is not None:
                # The document may have been cut off, and the copy may have what it lacks.
                aside = self._set_aside(good, "it is the copy, and does not fit its checksum")
                self._notice(
                    f"{self.path}: its .bak is damaged, so that there is no version to compare it "
                    f"with; it is taken as it is, and the .bak is kept as {aside.name}; see "
                    "whether items are missing",
                    warn=True,
                )
            elif not text.strip():
                self._notice(f"{self.path} is empty; it is taken for an empty store", warn=True)
            elif fits is False:
                self._notice(
                    f"{self.path} does not fit its checksum and there is no copy to compare it "
                    "with; it is taken as it is",
                    warn=True,
                )
            self._adopt(document, "")
            return
        if merge is not None:
            aside = self._set_aside(text, "it was made from an older version of the document")
            self._adopt(merge.document, "")
            self._tell_of_old_edit(merge, aside)
            return
        _go_on(last, document)
        self._adopt(document, "edited by hand: " + _difference(last, document))

    def _read_edit(self, text: bytes, last: Document | None) -> Document:
        # JSON has its checksum inside, and is read as a whole.
        document = self._codec.parse(without_sums(text) if self.yaml else text)
        if last is not None and document.form is not last.form:
            raise NonsenseError(f"it is {document.form}, and it was {last.form}")
        self._check(document)
        load(document, self.limits, self.now(), ours=False, known=self._known)
        return document

    def _adopt(self, document: Document, notice: str, *, ours: bool = False) -> None:
        """Make `document` the current one, in the form that we write."""
        if notice:
            self._notice(f"{self.path}: {notice}")
        self.document = document
        self.model = load(document, self.limits, self.now(), ours=ours, known=self._known)
        sync(document, self.model)
        self.save()

    def _tell_of_old_edit(self, merge: Merge, aside: Path) -> None:
        self._notice(
            f"{self.path} was replaced by an edit of an older version; {merge.added} new items "
            f"were taken up, everything else is as it was, and the edit is in {aside.name}",
            warn=True,
        )

    # Edits that come while we write

    def _finish(self) -> None:
        """Go on where a crash or an error stopped: there may be an edit to be merged."""
        if self._ops.stamp(self._edit):
            self._merge_edit(None)
        if self._ops.stamp(self._displaced):
            found = self._ops.read(self._displaced)
            if found is None or split_checksum(found[0], yaml=self.yaml)[1]:
                self._ops.remove(self._displaced)
                return
            self._ops.rename(self._displaced, self._edit)
            self._merge_edit(None)

    def _merge_edit(self, base: bytes | None) -> None:
        """Merge ``.edit``, which was made from the version `base`, into the document."""
        found = self._ops.read(self._edit)
        if found is None:
            return
        self.loads += 1
        ours = self.document
        text, stamp = self._when_settled(self._edit, found, base)
        fits = split_checksum(text, yaml=self.yaml)[1]
        if fits and base is not None and text != base:
            kept = self._set_edit_aside("it is an older version")
            self._notice(
                f"{self.path}: an older version was put in its place while it was written, and was "
                f"not taken up; it is kept as {kept.name}; to go back, end the programs that write "
                "it first",
                warn=True,
            )
            return
        if fits or text == base:
            # Our own version, which a program only opened, or wrote again as it was.
            self._keep_open_file("nothing was written to it yet")
            return
        try:
            merge = self._merged(text, ours, base)
        except (NonsenseError, StoreError) as error:
            kept = self._set_edit_aside(str(error))
            self._notice(
                f"{self.path}: an edit came while it was written, and was not taken up: {error}; "
                f"it is kept as {kept.name}",
                warn=True,
            )
            return
        aside: Path | None = None
        if base is None or merge.conflicts:
            reason = "; ".join(merge.conflicts) or "it was made from an older version"
            aside = self._set_aside(text, reason)
        self._merging = stamp
        self._adopt(merge.document, "")
        if aside is None:
            self._notice(f"{self.path}: edited by hand while it was written: {merge}")
        elif merge.conflicts:
            self._notice(
                f"{self.path}: an edit came while it was written; {merge}, but not everything: "
                f"{'; '.join(merge.conflicts)}; the edit is kept as {aside.name}",
                warn=True,
            )
        else:
            self._tell_of_old_edit(merge, aside)

    def _end_merge(self) -> None:
        """The document with the edit in it is on the disk: the edit itself is not needed."""
        stamp, self._merging = self._merging, None
        if stamp is None:
            return
        if self._ops.stamp(self._edit) == stamp:
            self._keep_open_file("it was taken up as it was until then")
            return
        aside = self._set_edit_aside("it was changed after it had been taken up")
        self._notice(
            f"{self.path}: an edit was changed after it had been taken up; it is kept as "
            f"{aside.name}",
            warn=True,
        )

    def _merged(self, text: bytes, ours: Document, base: bytes | None) -> Merge:
        """The document with what an edit changed.

        Raises:
            NonsenseError: They do not go together.
        """
        if base is not None and (reason := _damage(text, base)):
            raise NonsenseError(reason)
        edited = self._read_edit(text, ours)
        current = self._codec.parse_ours(self._codec.render(ours))
        load(current, self.limits, self.now(), ours=True)
        merge = None
        if base is not None:
            start = self._parse_ours(split_checksum(base, yaml=self.yaml)[0])
            load(start, self.limits, self.now(), ours=True)
            merge = merge_edit(start, current, edited)
        if merge is None:
            merge = add_new_items(current, edited) or Merge(current)
            if base is not None:
                merge.conflicts.append("it was made from an older version")
        load(merge.document, self.limits, self.now(), ours=False)
        return merge

    def _keep_open_file(self, reason: str) -> None:
        """Remove ``.edit``, unless a program may still write it."""
        if self._ops.is_being_written(self._edit):
            aside = self._set_edit_aside(f"some program has it open for writing; {reason}")
            self._notice(
                f"{self.path}: some program still has an earlier version open for writing; what "
                f"it writes goes to {aside.name}",
                warn=True,
            )
        else:
            self._ops.remove(self._edit)

    def _set_edit_aside(self, reason: str) -> Path:
        """Keep the file itself: a program may still write it."""
        aside = self._name_aside()
        self._ops.write(_reason(aside), f"{reason}\n".encode(), self._access())
        self._ops.rename(self._edit, aside)
        self._ops.sync(aside)
        self._ops.sync(_reason(aside))
        self._ops.sync(self.path.parent)
        self._limit_set_aside()
        return aside

    def _restore(self, text: bytes | None, good: bytes, reason: str) -> None:
        """Set the file aside and put the copy in its place."""
        body, fits = split_checksum(good, yaml=self.yaml)
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
        aside = self._name_aside()
        if not self.writable:
            return aside
        self._ops.write(aside, text, self._access())
        self._ops.write(_reason(aside), f"{reason}\n".encode(), self._access())
        self._ops.sync(aside)
        self._ops.sync(_reason(aside))
        self._limit_set_aside()
        return aside

    def _name_aside(self) -> Path:
        when = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        return self.beside(f".damaged-{when}")

    def _limit_set_aside(self) -> None:
        """Remove the oldest of too many files that were set aside."""
        prefix = f"{self.path.name}.damaged-"
        folder = self.path.parent
        names = sorted(name for name in os.listdir(folder) if name.startswith(prefix))
        files = [name for name in names if not name.endswith(".reason")]
        for name in files[: max(len(files) - self.set_aside_limit, 0)]:
            self._ops.remove(folder / name)
            self._ops.remove(_reason(folder / name))
            logger.warning(
                "%s: removed %s, as more than %d files were set aside",
                self.path,
                name,
                self.set_aside_limit,
            )

    def _notice(self, message: str, *, warn: bool = False) -> None:
        if not self.writable:
            message += "; this process may not write, and has left the files as they are"
        self.notices.append(message)
        if warn:
            self.told.append(message)
        else:
            logger.info(message)

    # Writing

    def save(self) -> None:
        """Write `document`; it is durable on return, and an edit that came meanwhile is merged."""
        if not self.writable:
            self.forget()
            return
        text = add_checksum(self._codec.render(self.document), yaml=self.yaml)
        ops, new, copy = self._ops, self.beside(".new"), self.beside(".bak.new")
        access = self._access()
        stamp = None
        try:
            ops.write(copy, text, access)
            ops.write(new, text, access)
            ops.sync(copy)
            ops.sync(new)
            self._hold(new, ops.stamp(new))
            stamp, self.seen = self.seen, None
            displaced = self._replace(new)
            ops.sync(self.path.parent)
        except BaseException:
            self._clean_up(stamp)
            raise
        base, self._base = self._base, stamp
        self.seen = stamp
        self._finish_save(copy, base, displaced=displaced)

    def _replace(self, new: Path) -> bool:
        """Put the new file in the place of the document; return whether there was one."""
        ops, failed = self._ops, 0
        while True:
            if ops.stamp(self.path) is None and ops.rename_new(new, self.path):
                return False
            try:
                return self._displace(new)
            except FileNotFoundError:
                # An editor has just moved the document away to save it anew, or all is gone.
                if ops.stamp(new) is None:
                    ops.rename(self._displaced, new)
                failed += 1
                if failed == TRIES:
                    raise

    def _displace(self, new: Path) -> bool:
        ops, displaced = self._ops, self._displaced
        if self._exchanges:
            ops.rename(new, displaced)
            if ops.exchange(displaced, self.path):
                return True
            self._exchanges = False
            ops.rename(displaced, new)
        if not ops.link(self.path, displaced) and ops.stamp(self.path) != self._base:
            found = ops.read(self.path)
            if found is not None:
                ops.write(displaced, found[0], self._access())
        ops.rename(new, self.path)
        return ops.stamp(displaced) is not None

    def _clean_up(self, stamp: Stamp | None) -> None:
        """After an error: leave no files behind, but for those that others may have written."""
        with suppress(OSError):
            self._ops.remove(self.beside(".new"))
            if stamp is not None and self._ops.stamp(self.path) == stamp:
                self._ops.rename(self.beside(".bak.new"), self._copy)
                return
            self._ops.remove(self.beside(".bak.new"))
            if stamp is not None and self._ops.stamp(self._displaced) == stamp:
                self._ops.remove(self._displaced)

    def _finish_save(self, copy: Path, base: Stamp | None, *, displaced: bool) -> None:
        """After a write is durable: see whether it has displaced an edit."""
        ops = self._ops
        try:
            edited = displaced and (
                ops.stamp(self._displaced) != base or ops.is_being_written(self._displaced)
            )
            before = ops.read(self._copy) if edited else None
            ops.rename(copy, self._copy)
            self._end_merge()
            if not edited:
                if displaced:
                    ops.remove(self._displaced)
                return
            ops.rename(self._displaced, self._edit)
            self._merge_edit(None if before is None else before[0])
        except OSError as error:
            # The write itself is done. The next process that has the lock goes on with the rest.
            logger.warning("%s: will look for edits again later: %s", self.path, error)
            self.forget()

    def _hold(self, path: Path, stamp: Stamp | None) -> None:
        """Remember the file with this stamp as the one we know.

        It is kept open, so that no other file can get its inode: the clock of a file system is
        too coarse to tell two writes apart.
        """
        self.close()
        self._held, found = self._ops.open(path)
        self.seen = stamp if found == stamp else None

    def _access(self) -> Access | None:
        # A document that comes back is for the same people as the one that was lost.
        return self._ops.access(self.path) or self._ops.access(self._copy)

    def close(self) -> None:
        """Let go of the document."""
        held, self._held = self._held, None
        if held is not None:
            os.close(held)

    def __del__(self) -> None:
        if getattr(self, "_held", None) is not None:
            self.close()


def _forms(
    name: str, max_size: int | None, default_max_retries: int, status_map: StatusTranslation | None
) -> dict[str, Form]:
    try:
        defaults = RepositorySettings(
            name=name, max_size=max_size, default_max_retries=default_max_retries
        )
    except NonsenseError as error:
        raise ValueError(str(error)) from error
    return {"queues": QueuesForm(), "repository": RepositoryForm(defaults, status_map)}


def _microseconds() -> float:
    """Unix time to the microsecond: more digits would make a document hard to read."""
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


def _reason(aside: Path) -> Path:
    return aside.with_name(f"{aside.name}.reason")


def _go_on(last: Document, document: Document) -> None:
    """Let the counters of a document go on where those of the last one ended."""
    for name in ("revision", "last_id", "last_fence"):
        old = int(last.head.fields.get(name, "0"))
        new = int(document.head.fields.get(name, "0"))
        document.head.fields[name] = str(max(old, new))


def _difference(old: Document, new: Document) -> str:
    """What an edit did, in a few words."""
    before = {(name, e.id): e for name, s in old.sections.items() for e in s.entries}
    after: dict[tuple[str, int], Entry] = {}
    added = 0
    for name, section in new.sections.items():
        for entry in section.entries:
            if (name, entry.written_id) in before:
                after[name, entry.written_id] = entry
            else:
                added += 1
    changed = [repr(e.key) for k, e in after.items() if e.fields != before[k].fields]
    gone = len(before) - len(after)
    names = f" ({', '.join(changed[:5])})" if changed else ""
    return f"{added} items added, {gone} removed, {len(changed)} changed{names}"
