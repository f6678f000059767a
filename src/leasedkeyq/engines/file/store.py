"""The file store: queues in one YAML or JSON document that people can read and edit."""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from leasedkeyq.engines.file.diagnosis import damaged, diagnose, schema_state
from leasedkeyq.engines.file.document.document import RepositorySettings
from leasedkeyq.engines.file.document.repository_form import StatusTranslation
from leasedkeyq.engines.file.document_file import DocumentForm
from leasedkeyq.engines.file.engine import FileEngine, FileStoreWarning, Work, apply_request
from leasedkeyq.engines.file.file_operations import FileOperations
from leasedkeyq.engines.file.watch import FileWatch
from leasedkeyq.errors import StoreError
from leasedkeyq.model.edit import Edit
from leasedkeyq.model.findings import Finding, SchemaState
from leasedkeyq.model.requests import (
    Capabilities,
    Claim,
    Counts,
    Limits,
    Request,
    StoredItem,
    StoredState,
)
from leasedkeyq.model.store_model import StoreModel
from leasedkeyq.stores.batched_store import BatchedStore
from leasedkeyq.stores.batching import SpoiledBatchError, ThreadBatcher, undo_claim

__all__ = ["FileEngine", "FileStore", "FileStoreWarning"]

ModelWork: TypeAlias = "Request | Edit | Work[Any]"


class _SweepWork:
    """Looks at what is due. Unlike other looking it is written down, so that it is done once."""

    def __init__(self, queues: Sequence[str]) -> None:
        self.queues = queues

    def __call__(self, model: StoreModel, now: float) -> list[float | None]:
        return [model.sweep(queue, now) for queue in self.queues]


class FileStore(BatchedStore):
    """Queues in a document, which any number of processes may use, and people may edit.

    The whole document is written with each batch: good for hundreds of items, and for thousands
    where a few milliseconds do not matter. Move on to SQLite from there.

    Args:
        path: The document: ``.yaml``, ``.yml`` or ``.json``. It is created if need be, its folder
            is not. Beside it stand ``.bak``, a copy of the last version, and ``.lock``.
        form: What the document must be: ``"queues"``, or ``"repository"`` for one queue with the
            items of a `leasedkeyq.repository.QueueRepository`. None takes what is there, and
            ``"queues"`` for a new one.
        name: The name that the queue of a repository must have. Where the document does not tell
            a name, it is this one, or else the stem of the path.
        max_size: For a repository whose document does not tell.
        default_max_retries: The same.
        status_map: For a repository in whose document an item has a status that is none of the
            five: which one it is, by its name or by a function of that.
        limits: How much the store takes.
        clock: Unix time, for tests.
        ops: How files are handled, for tests.

    Raises:
        ValueError: The path has another suffix.
        StoreError: The folder is not there.
    """

    capabilities: Capabilities = Capabilities(
        durability="power",
        cross_process=True,
        joint_edits=True,
        extends_apart=True,
        minute_series=False,
    )

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
        self.engine: FileEngine = FileEngine(
            path,
            form=form,
            name=name,
            max_size=max_size,
            default_max_retries=default_max_retries,
            status_map=status_map,
            limits=limits,
            clock=clock,
            ops=ops,
        )
        self.path: Path = self.engine.path
        super().__init__(f"file store {self.path}", self.engine.file.limits)
        self._loads = 0
        self._writer: ThreadBatcher[ModelWork, Any] = ThreadBatcher(
            self._apply, name=self._name, undo=undo_claim, at_end=self.engine.close
        )
        self._batcher = self._writer
        self._watch = FileWatch(self.path, wanted=lambda: bool(self._watchers), changed=self._heard)

    @property
    def warnings(self) -> list[str]:
        """What happened to the document: damage that was mended, edits that were taken up."""
        return list(self.engine.file.notices)

    # A repository

    @property
    def settings(self) -> RepositorySettings | None:
        """What the document says about its queue; None if it has several, or is not known yet.

        Inside the work of an edit that is what the document says and will say then; otherwise it is
        as of the last call.
        """
        return self.engine.settings

    async def read_settings(self) -> RepositorySettings | None:
        """What the document says about its queue now; None if it has several queues.

        Instruments are not told of it: they measure what every store does.
        """
        self._check_usable()

        def work(_model: StoreModel, _now: float) -> RepositorySettings | None:
            return self.engine.settings

        found: RepositorySettings | None = await self._ask(
            "read_settings", self._writer.submit, work
        )
        return found

    def change_settings(self, **changes: Any) -> None:
        """Inside the work of an edit: change settings, together with the edit or not at all.

        Another name counts for the calls after the edit.

        Args:
            changes: The fields of `RepositorySettings`, as far as they change.

        Raises:
            RuntimeError: Called outside of the work of an edit.
            ValueError: No queue can have such settings.
            StoreError: The document has several queues.
        """
        self.engine.change_settings(**changes)

    # The contract

    def do_sweep(self, queues: Sequence[str]) -> Awaitable[list[float | None] | StoreError]:
        """As `Store.do_sweep`."""
        return self._writer.submit(_SweepWork(queues))

    def do_watch(self, queue: str, wake: Callable[[], None]) -> Callable[[], None]:
        """As `Store.do_watch`."""
        remove = super().do_watch(queue, wake)
        self._watch.start()
        return remove

    def do_count(
        self, queues: Sequence[str] | None
    ) -> Awaitable[Mapping[str, Counts] | StoreError]:
        """As `Store.do_count`."""

        def work(model: StoreModel, now: float) -> dict[str, Counts]:
            names = list(model.queues) if queues is None else queues
            return {name: model.count(name, now) for name in names}

        return self._writer.submit(work)

    def do_heads(self, queues: Sequence[str]) -> Awaitable[list[StoredItem | None] | StoreError]:
        """As `Store.do_heads`."""
        return self._writer.submit(lambda model, now: [model.head(q, now) for q in queues])

    def do_look(
        self, queue: str, keys: Sequence[str]
    ) -> Awaitable[list[tuple[StoredItem, ...]] | StoreError]:
        """As `Store.do_look`."""
        return self._writer.submit(lambda model, now: [model.look(queue, key, now) for key in keys])

    def do_line(
        self, queue: str, key: str, after: int, limit: int, /
    ) -> Awaitable[Sequence[StoredItem] | StoreError]:
        """As `Store.do_line`."""
        return self._writer.submit(
            lambda model, now: model.line(queue, key, now, after=after, limit=limit)
        )

    def do_browse(
        self,
        queue: str,
        states: Sequence[StoredState],
        prefix: str,
        after: int,
        limit: int,
        /,
        *,
        newest_first: bool,
    ) -> Awaitable[list[StoredItem] | StoreError]:
        """As `Store.do_browse`."""
        return self._writer.submit(
            lambda model, now: model.browse(
                queue, states, prefix, now, after=after, limit=limit, newest_first=newest_first
            )
        )

    def do_results(
        self, queue: str, ids: Sequence[int]
    ) -> Awaitable[list[StoredItem | None] | StoreError]:
        """As `Store.do_results`."""
        return self._writer.submit(
            lambda model, now: [model.result(queue, number, now) for number in ids]
        )

    async def do_diagnose(self) -> list[Finding]:
        """As `Store.do_diagnose`. A damaged document is mended as by every other call."""

        def work(_model: StoreModel, _now: float) -> list[Finding]:
            return diagnose(self.path, self.warnings)

        try:
            found: list[Finding] | StoreError = await self._writer.submit(work)
        except StoreError as error:
            found = error
        return [damaged(self.path, found)] if isinstance(found, StoreError) else found

    async def do_schema_state(self) -> SchemaState | StoreError | None:
        """As `Store.do_schema_state`."""

        def work(_model: StoreModel, _now: float) -> SchemaState | None:
            return schema_state(self.path, self.engine.file.document)

        found: SchemaState | StoreError | None = await self._writer.submit(work)
        return found

    async def do_close(self) -> None:
        """As `Store.do_close`."""
        await self._writer.close()
        self._watch.close()

    # In the batcher's thread

    def _apply(self, calls: list[ModelWork]) -> list[Any]:
        """One transaction for all."""
        try:
            return self._transact(calls)
        except (TypeError, ValueError, OverflowError) as error:
            raise SpoiledBatchError(str(self.path), error) from error

    def _transact(self, calls: list[ModelWork]) -> list[Any]:
        moved: set[str] = set()

        def work(model: StoreModel, now: float) -> list[Any]:
            answers = [_apply_call(call, model, now) for call in calls]
            moved.update(model.moved)
            model.moved.clear()
            return answers

        engine = self.engine
        # Reading does not need the exclusive lock.
        reading = all(callable(call) and not isinstance(call, _SweepWork) for call in calls)
        answers = engine.read(work) if reading else engine.change(work)
        if engine.file.loads != self._loads:
            # A waiting call may be after a change that another process made before this.
            self._loads = engine.file.loads
            self._watchers.wake_all()
        touched: set[str] = set()
        for call, answer in zip(calls, answers, strict=True):
            if isinstance(call, Claim):
                touched.update(claimed.queue for claimed in answer)
            elif not callable(call) and not isinstance(answer, Exception):
                # A refused request wakes none: a put that waits for room would ask for ever.
                touched.update(call.queues if isinstance(call, Edit) else (call.queue,))
        self._watchers.wake(touched | moved)
        return answers

    def _heard(self) -> None:
        """The document was written, maybe by ourselves."""
        if self.engine.file.changed_by_others():
            self._watchers.wake_all()


def _apply_call(call: ModelWork, model: StoreModel, now: float) -> Any:
    if isinstance(call, Edit):
        return model.edit(call, now)
    return call(model, now) if callable(call) else apply_request(model, call, now)
