"""The engine of the file store: whole transactions on one document, synchronous, safe by itself.

A transaction takes the lock, reads the document unless it is the one we know, applies the whole
batch to the machine, and if that changed anything writes a new document:

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

What happened is kept in `FileEngine.notices`, logged, and, where something was set aside, told by
a `FileStoreWarning`.
"""

import errno
import logging
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from leasedkeyq.errors import StoreClosedError, StoreError
from leasedkeyq.stores.contract import (
    Answer,
    Claim,
    Limits,
    Put,
    Request,
)
from leasedkeyq.stores.document import COUNTERS, VERSION, Document, Entry, NonsenseError
from leasedkeyq.stores.fileops import FileLock, FileOps, Stamp
from leasedkeyq.stores.freeform import parse_freeform
from leasedkeyq.stores.layout import (
    HEADER,
    FreeFormError,
    YamlReader,
    check_json_names,
    parse_json,
    render_json,
    render_yaml,
    seal,
    unseal,
)
from leasedkeyq.stores.machine import StoreMachine

logger = logging.getLogger("leasedkeyq")

T = TypeVar("T")
Work = Callable[[StoreMachine, float], T]

SETTLED = 0.05
"""Seconds for which a file that somebody else wrote must rest before we judge it."""
MODE = 0o666

_ADVICE = {
    errno.ENOSPC: "free some space and try again",
    errno.EDQUOT: "free some space and try again",
    errno.EACCES: "give this process the right to write the file and its folder",
    errno.EPERM: "give this process the right to write the file and its folder",
    errno.EROFS: "the file system is read-only; use another folder",
    errno.ENOENT: "create the folder first",
    errno.ENOTDIR: "create the folder first",
}


class FileStoreWarning(UserWarning):
    """The document was damaged or edited into nonsense; the message says what was done."""


class UnstorableError(StoreError, ValueError):
    """A request would make a document that cannot be read back. Nothing was stored."""


class _NeedsWriterError(Exception):
    """The document needs repair or an edit taken up, which takes the exclusive lock."""


class FileEngine:
    """Applies batches to a document. Any number of threads and processes may do so at a time.

    Args:
        path: The document, ``.yaml``, ``.yml`` or ``.json``. Its folder must exist.
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
        limits: Limits | None = None,
        clock: Callable[[], float] | None = None,
        ops: FileOps | None = None,
    ) -> None:
        path = Path(path)
        suffix = path.suffix.lower()
        if suffix not in {".yaml", ".yml", ".json"}:
            raise ValueError(f"the file store writes .yaml, .yml or .json, not {path.name!r}")
        self.path = Path(os.path.realpath(path))
        self.yaml = suffix != ".json"
        self.limits = limits or Limits()
        self.notices: deque[str] = deque(maxlen=100)
        self.settled = SETTLED
        self.seen: Stamp | None = None
        self.loads = 0
        self._copy = self._beside(".bak")
        self._ops = ops or FileOps()
        self._clock = clock or _microseconds
        self._latest = float("-inf")
        self._reader = YamlReader()
        self._document = Document()
        self._machine = StoreMachine(self.limits)
        self._told: list[str] = []
        self._held: int | None = None
        self._closed = False
        self._mutex = threading.Lock()
        self._process = os.getpid()
        self._lock = FileLock(self._beside(".lock"))
        if not self.path.parent.is_dir():
            raise StoreError(f"{self.path.parent} is not a folder; create it first")

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def changed_by_others(self) -> bool:
        """Whether the file is another than the one that this engine knows. Takes no lock."""
        try:
            return self._ops.stamp(self.path) != self.seen
        except OSError:
            return True

    # Transactions

    def apply(self, requests: Sequence[Request]) -> list[Answer]:
        """Apply requests in order; all of them are durable when this returns.

        Raises:
            StoreError: The document could not be read or written. The batch was applied as a
                whole or not at all.
        """

        def work(machine: StoreMachine, now: float) -> list[Answer]:
            return [apply_request(machine, request, now) for request in requests]

        return self.change(work)

    def change(self, work: Work[T]) -> T:
        """Let `work` change the machine, and make that durable. What it raises undoes it all."""
        with self._transaction(shared=False):
            try:
                self._load(exclusive=True)
                result = work(self._machine, self._now())
                dropped, self._machine.dropped = self._machine.dropped, []
                if self._sync():
                    self._save()
            except BaseException:
                self.seen = None  # The machine may be ahead of the file: read that again.
                raise
        for item in dropped:
            logger.warning("queue %r: dropped the oldest buried item, key %r", item.queue, item.key)
        return result

    def read(self, work: Work[T]) -> T:
        """Let `work` look at the machine. Nothing is written."""
        try:
            with self._transaction(shared=True):
                self._load(exclusive=False)
                return work(self._machine, self._now())
        except _NeedsWriterError:
            with self._transaction(shared=False):
                self._load(exclusive=True)
                return work(self._machine, self._now())

    def close(self) -> None:
        """Let go of the files."""
        with self._mutex:
            self._closed = True
            self._lock.close()
            held, self._held = self._held, None
            if held is not None:
                os.close(held)

    def __del__(self) -> None:
        if getattr(self, "_held", None) is not None:
            self.close()

    @contextmanager
    def _transaction(self, *, shared: bool) -> Generator[None]:
        if self._process != os.getpid():
            # After a fork: the other threads are gone, whatever they held.
            self._mutex = threading.Lock()
            self._process = os.getpid()
            self.seen = None
        told: list[str] = []
        try:
            with self._mutex:
                if self._closed:
                    raise StoreClosedError(f"the file store {self.path} is closed")
                try:
                    self._lock.acquire(shared=shared)
                    try:
                        yield
                    finally:
                        self._lock.release()
                        told, self._told = self._told, []
                except OSError as error:
                    self.seen = None
                    raise self._explain(error) from error
        finally:
            for message in told:
                _warn(message)

    def _sync(self) -> bool:
        try:
            return self._document.sync(self._machine)
        except NonsenseError as error:
            raise UnstorableError(f"{self.path}: this cannot be stored: {error}") from error

    def _explain(self, error: OSError) -> StoreError:
        advice = _ADVICE.get(error.errno or 0, "nothing was half done; try again")
        return StoreError(f"{self.path}: {error.strerror or error}: {advice}")

    def _now(self) -> float:
        self._latest = max(self._latest, self._clock())
        return self._latest

    # Reading

    def _load(self, *, exclusive: bool) -> None:
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
            raise _NeedsWriterError
        self.loads += 1
        if found is None or old:
            assert good is not None
            self._roll_forward(None if found is None else found[0], good)
        else:
            self._judge(self._when_settled(found)[0], good)

    def _start(self) -> None:
        document = Document()
        document.head.fields = dict.fromkeys(COUNTERS, "0") | {"version": str(VERSION)}
        document.head.notes["version"] = (HEADER, "")
        self._document = document
        self._machine = document.load(self.limits, self._now(), ours=True)

    def _load_ours(self, document: Document) -> StoreMachine:
        try:
            return document.load(self.limits, self._now(), ours=True)
        except NonsenseError as error:
            raise self._foreign(error) from error

    def _parse_ours(self, body: bytes) -> Document:
        """Read a text whose checksum fits."""
        try:
            return self._parse(body, strict=False)
        except NonsenseError as error:
            raise self._foreign(error) from error

    def _foreign(self, error: NonsenseError) -> StoreError:
        message = f"{self.path} was written by another version of leasedkeyq: {error}"
        return StoreError(f"{message}; upgrade this one")

    def _parse(self, body: bytes, *, strict: bool) -> Document:
        if not self.yaml:
            # Our text is open at its end, for the checksum.
            text = body if strict else body.rstrip()[:-1] + b"}"
            if strict:
                check_json_names(text)
            return parse_json(text)
        try:
            text_ = body.decode()
        except UnicodeDecodeError as error:
            raise NonsenseError(f"not UTF-8 text: {error}") from error
        try:
            return self._reader.parse(text_)
        except FreeFormError:
            return parse_freeform(text_)

    def _is_old(self, body: bytes, good: bytes | None) -> bool:
        """Whether a text of ours is older than the copy."""
        if good is None:
            return False
        theirs, fits = unseal(good, yaml=self.yaml)
        return bool(fits) and _revision(body, self.yaml) < _revision(theirs, self.yaml)

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
        body, _ = unseal(good, yaml=self.yaml)
        before = 0 if text is None else _revision(text, self.yaml)
        if before + 1 == _revision(body, self.yaml):
            self._adopt(self._parse_ours(body), "", ours=True)
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
            document = self._parse(body if self.yaml else text, strict=True)
            document.load(self.limits, self._now(), ours=False)
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
        if document.revision < last.revision:
            self._merge(text, document, last)
            return
        for name in ("revision", "last_id", "last_fence"):
            old = int(last.head.fields.get(name, "0"))
            new = int(document.head.fields.get(name, "0"))
            document.head.fields[name] = str(max(old, new))
        self._adopt(document, "edited by hand: " + _difference(last, document))

    def _adopt(self, document: Document, notice: str, *, ours: bool = False) -> None:
        """Make `document` the current one, in the form that we write."""
        if notice:
            self._notice(f"{self.path}: {notice}")
        self._document = document
        self._machine = document.load(self.limits, self._now(), ours=ours)
        document.head.fields.setdefault("version", "1")
        document.sync(self._machine)
        self._save()

    def _merge(self, text: bytes, document: Document, last: Document) -> None:
        """The edit was made on an old version: take up what it adds, set the rest aside."""
        added = 0
        for name, section in document.sections.items():
            live = {
                entry.fields.get("key")
                for entry in (last.sections[name].entries if name in last.sections else ())
            }
            for entry in section.entries:
                if "id" not in entry.fields and entry.fields.get("key") not in live:
                    last.sections.setdefault(name, type(section)()).entries.append(entry)
                    entry.id = 0
                    live.add(entry.fields.get("key"))
                    added += 1
        aside = self._set_aside(text, "it was made from an older version of the document")
        self._adopt(last, "")
        self._notice(
            f"{self.path} was replaced by an edit of an older version; {added} new items were "
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
        document = self._document
        body = render_yaml(document) if self.yaml else render_json(document)
        text = seal(body, yaml=self.yaml)
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
        held, self._held = self._held, None
        if held is not None:
            os.close(held)
        self._held, found = self._ops.open(path)
        self.seen = stamp if found == stamp else None

    def _mode(self) -> int:
        try:
            return self.path.stat().st_mode & 0o777
        except FileNotFoundError:
            return MODE


def apply_request(machine: StoreMachine, request: Request, now: float) -> Answer:
    """Apply one request, of whatever kind."""
    if isinstance(request, Put):
        return machine.put(request, now)
    if isinstance(request, Claim):
        return machine.claim(request, now)
    return machine.settle(request, now)


def _microseconds() -> float:
    """Unix time without the digits that nobody wants to read in a document."""
    return round(time.time(), 6)


def _warn(message: str) -> None:
    logger.warning(message)
    try:
        warnings.warn(message, FileStoreWarning, stacklevel=2)
    except FileStoreWarning:
        # Warnings are errors here. The work is done, and its answer must not be lost for this.
        logger.error("the warning above was to be an error")  # noqa: TRY400


def _revision(body: bytes, yaml: bool) -> int:
    """The revision of a text of ours, without reading the rest."""
    mark = b"\nrevision: " if yaml else b'\n"revision": '
    _, _, rest = body.partition(mark)
    digits = rest[:20].split(b"\n")[0].rstrip(b",")
    return int(digits) if digits.isdigit() else 0


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
    changed = [e.fields["key"] for k, e in after.items() if e.fields != before[k].fields]
    gone = len(before) - len(after)
    names = f" ({', '.join(changed[:5])})" if changed else ""
    return f"{added} items added, {gone} removed, {len(changed)} changed{names}"
