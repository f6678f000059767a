"""The engine of the file store: whole transactions on one document, synchronous, safe by itself.

A transaction takes the lock, reads the document unless it is the one we know, applies the whole
batch to the model, and if that changed anything writes a new document: see `document_file`.

What happened to the document is kept in `DocumentFile.notices`, logged, and, where something was
set aside, told by a `FileStoreWarning`.
"""

import errno
import logging
import os
import threading
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, Unpack

import msgspec

from leasedkeyq.engines.file.document.document import RepositorySettings
from leasedkeyq.engines.file.document.json_fields import NonsenseError
from leasedkeyq.engines.file.document.model_mapping import sync
from leasedkeyq.engines.file.document_file import DocumentFile, FileOptions, NeedsWriterError
from leasedkeyq.engines.file.file_lock import file_lock
from leasedkeyq.errors import StoreError, UnstorableError, store_closed
from leasedkeyq.model.requests import Answer, Claim, Put, Request
from leasedkeyq.model.store_model import StoreModel
from leasedkeyq.stores.store import report_dropped

logger = logging.getLogger("leasedkeyq")

T = TypeVar("T")
Work = Callable[[StoreModel, float], T]

_ADVICE = {
    errno.ENOSPC: "free some space and try again",
    errno.EDQUOT: "free some space and try again",
    errno.EACCES: "give this process the right to write the file and its folder",
    errno.EPERM: "give this process the right to write the file and its folder",
    errno.EROFS: "the file system is read-only; use another folder",
    errno.ENOENT: "create the folder first",
    errno.ENOTDIR: "create the folder first",
    errno.EBUSY: "a file that is mounted by itself cannot be replaced; mount its folder",
}
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


class FileStoreWarning(UserWarning):
    """The document was damaged or edited into nonsense; the message says what was done."""


class FileEngine:
    """Applies batches to a document. Any number of threads and processes may do so at a time.

    It is made as a `DocumentFile` is.

    Attributes:
        file: The document, which is used under the lock.
        path: Where that is.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Unpack[FileOptions]) -> None:
        self.file: DocumentFile = DocumentFile(path, **options)
        self.path: Path = self.file.path
        self._settings: RepositorySettings | None = None
        self._wanted: RepositorySettings | None = None
        self._changing = False
        self._closed = False
        self._mutex = threading.Lock()
        self._process = os.getpid()
        self._lock = file_lock(self.file.beside(".lock"), self.path)

    # Transactions

    def apply(self, requests: Sequence[Request]) -> list[Answer]:
        """Apply requests in order; all of them are durable when this returns.

        Raises:
            StoreError: The document could not be read or written. The batch was applied as a
                whole or not at all.
        """

        def work(model: StoreModel, now: float) -> list[Answer]:
            return [apply_request(model, request, now) for request in requests]

        return self.change(work)

    def change(self, work: Work[T]) -> T:
        """Let `work` change the model, and make that durable. What it raises undoes it all."""
        with self._transaction(shared=False):
            try:
                self._load(exclusive=True)
                self._changing = True
                result = work(self.file.model, self.file.now())
                dropped, self.file.model.dropped = self.file.model.dropped, []
                if self._sync():
                    self.file.save()
            except BaseException:
                self.file.forget()
                raise
            else:
                # That of the document: a person may have changed it at the same time.
                self._settings = self._wanted = self.file.document.settings
                if self.file.name is not None and self._settings is not None:
                    self.file.name = self._settings.name
            finally:
                self._changing = False
        report_dropped((item.queue, item.key) for item in dropped)
        return result

    def read(self, work: Work[T]) -> T:
        """Let `work` look at the model. Nothing is written."""
        try:
            with self._transaction(shared=True):
                self._load(exclusive=False)
                return work(self.file.model, self.file.now())
        except NeedsWriterError:
            pass
        try:
            with self._transaction(shared=False):
                self._load(exclusive=True)
                return work(self.file.model, self.file.now())
        except StoreError as error:
            if getattr(error.__cause__, "errno", None) not in _FORBIDDEN:
                raise
        # A process that may not write sees the document that would be written.
        with self._transaction(shared=True):
            self.file.writable = False
            self._load(exclusive=True)
            return work(self.file.model, self.file.now())

    @property
    def settings(self) -> RepositorySettings | None:
        """What the document says about its queue; None if it has several, or is not known yet.

        In a transaction that is what it says, and will say; otherwise as of the last one.
        """
        return self._wanted if self._changing else self._settings

    def change_settings(self, **changes: Any) -> None:
        """In a transaction: have other settings written with it, or with nothing of it.

        Another name counts from the next transaction on.

        Raises:
            RuntimeError: There is no transaction under way that could do so.
            ValueError: No queue can have such settings.
            StoreError: A document of several queues has no settings.
        """
        if not self._changing:
            raise RuntimeError("settings can be changed inside the work of an edit only")
        if self._wanted is None:
            raise StoreError(f"{self.path}: a document of several queues has no settings")
        try:
            self._wanted = msgspec.structs.replace(self._wanted, **changes)
        except NonsenseError as error:
            raise ValueError(str(error)) from error

    def close(self) -> None:
        """Let go of the files."""
        with self._mutex:
            self._closed = True
            self._lock.close()
            self.file.close()

    def _load(self, *, exclusive: bool) -> None:
        self.file.read(exclusive=exclusive)
        self._settings = self._wanted = self.file.document.settings

    @contextmanager
    def _transaction(self, *, shared: bool) -> Generator[None]:
        if self._process != os.getpid():
            # After a fork: the other threads are gone, whatever they held.
            self._mutex = threading.Lock()
            self._process = os.getpid()
            self.file.forget()
        told: list[str] = []
        try:
            with self._mutex:
                if self._closed:
                    raise store_closed(f"file store {self.path}")
                try:
                    self._acquire(shared=shared)
                    try:
                        yield
                    finally:
                        self._lock.release()
                        self.file.writable = True
                        told, self.file.told = self.file.told, []
                except OSError as error:
                    self.file.forget()
                    raise self._explain(error) from error
        finally:
            for message in told:
                _warn(message)

    def _acquire(self, *, shared: bool) -> None:
        try:
            self._lock.acquire(shared=shared)
        except OSError as error:
            if not shared or error.errno not in _FORBIDDEN:
                raise
            # A process that may read the document and not its lock reads without: a document is
            # replaced at once, and so is never half written but by other programs.
            self.file.writable = False

    def _sync(self) -> bool:
        try:
            if self._wanted != self._settings and self._wanted is not None:
                self._configure(self._wanted)
            return sync(self.file.document, self.file.model)
        except NonsenseError as error:
            raise UnstorableError(f"{self.path}: this cannot be stored: {error}") from error

    def _configure(self, settings: RepositorySettings) -> None:
        document = self.file.document
        ((old, section),) = document.sections.items()
        document.sections = {settings.name: section}
        document.settings = settings
        document.touched = True
        queue_model = self.file.model.queues.pop(old, None)
        if queue_model is not None:
            self.file.model.queues[settings.name] = queue_model
            for number, done in queue_model.done.items():
                queue_model.done[number] = msgspec.structs.replace(done, queue=settings.name)

    def _explain(self, error: OSError) -> StoreError:
        advice = _ADVICE.get(error.errno or 0, "nothing was half done; try again")
        what = error.strerror or str(error)
        if isinstance(error.filename, str) and error.filename != str(self.path):
            what = f"{os.path.basename(error.filename)}: {what}"
        return StoreError(f"{self.path}: {what}: {advice}")


def apply_request(model: StoreModel, request: Request, now: float) -> Answer:
    """Apply one request, of whatever kind."""
    if isinstance(request, Put):
        return model.put(request, now)
    if isinstance(request, Claim):
        return model.claim(request, now)
    return model.settle(request, now)


def _warn(message: str) -> None:
    logger.warning(message)
    try:
        warnings.warn(message, FileStoreWarning, stacklevel=2)
    except FileStoreWarning:
        # Warnings are errors here. The work is done, and its answer must not be lost for this.
        logger.error("the warning above was to be an error")  # noqa: TRY400
