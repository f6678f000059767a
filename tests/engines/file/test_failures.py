"""Each step of a write failing, and the power going at each step. Killing: `tests.torture`."""

import errno
import itertools
import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.engines.file.document_file import DocumentForm
from leasedkeyq.engines.file.file_operations import Access, FileOperations
from leasedkeyq.engines.file.store import FileEngine
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Ack, Claim, Put, Request
from leasedkeyq.model.store_model import StoreModel
from tests.engines.file.disguise import live

SUFFIXES = pytest.mark.parametrize("suffix", ["yaml", "json"])
FORMS = pytest.mark.parametrize("form", ["queues", "repository"])


class FailingOps(FileOperations):
    """Fails at the n-th step, before it, halfway or after it."""

    def __init__(self) -> None:
        self.left = -1
        self.how = "before"
        self.failed = ""
        self.exchanges = True

    def _fails(self, name: str, how: str) -> None:
        if self.left == 0 and self.how == how:
            self.left = -1
            self.failed = name
            raise OSError(errno.ENOSPC, "No space left on device")

    def _step(self, name: str, *arguments: Any) -> Any:
        self._fails(name, "before")
        if self.left == 0 and self.how == "halfway" and name == "write":
            path, data, access = arguments
            super().write(path, data[: len(data) // 2], access)
        self._fails(name, "halfway")
        answer = getattr(super(), name)(*arguments)
        self._fails(name, "after")
        self.left -= 1
        return answer

    def write(self, path: Path, data: bytes, access: Access | None) -> None:
        self._step("write", path, data, access)

    def sync(self, path: Path) -> None:
        self._step("sync", path)

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename", source, target)

    def rename_new(self, source: Path, target: Path) -> bool:
        return bool(self._step("rename_new", source, target))

    def exchange(self, source: Path, target: Path) -> bool:
        return self.exchanges and bool(self._step("exchange", source, target))

    def link(self, source: Path, target: Path) -> bool:
        return bool(self._step("link", source, target))

    def remove(self, path: Path) -> None:
        self._step("remove", path)


def value(form: str, text: str) -> bytes:
    """A value that has its place in a document of this form."""
    return live(text.encode()) if form == "repository" else text.encode()


def keys(path: Path) -> list[str]:
    engine = FileEngine(path)
    engine.file.settled = 0.0

    def work(model: StoreModel, now: float) -> list[str]:
        return sorted(
            key for queue_model in model.queues.values() for key in queue_model.state.items
        )

    found = engine.read(work)
    # Whatever failed, or ended in the middle: it is not damage, and there is nothing to tell.
    assert not engine.file.notices
    return found


PREPARING = ["write", "write", "sync", "sync"]
EXCHANGING = [*PREPARING, "rename", "exchange", "sync"]
LINKING = [*PREPARING, "link", "rename", "sync"]
FINISHING = ["rename", "remove"]
"""After the write is durable: a failure here is not one of the write."""


@SUFFIXES
@FORMS
@pytest.mark.parametrize("how", ["before", "halfway", "after"])
def test_the_nth_step_fails(tmp_path: Path, suffix: str, form: DocumentForm, how: str) -> None:
    steps, later = _failing_steps(tmp_path, suffix, form, how, exchanges=True)
    assert (steps, later) == (EXCHANGING, FINISHING)


@pytest.mark.parametrize("how", ["before", "halfway", "after"])
def test_the_nth_step_fails_where_files_cannot_change_names(tmp_path: Path, how: str) -> None:
    steps, later = _failing_steps(tmp_path, "yaml", "queues", how, exchanges=False)
    assert (steps, later) == (LINKING, FINISHING)


def _failing_steps(
    tmp_path: Path, suffix: str, form: DocumentForm, how: str, *, exchanges: bool
) -> tuple[list[str], list[str]]:
    """Let each step fail once; return those whose failure is told, and those that wait."""
    steps: list[str] = []
    later: list[str] = []
    for number in itertools.count():
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / f"queue.{suffix}"
        ops = FailingOps()
        ops.how = how
        ops.exchanges = exchanges
        engine = FileEngine(path, form=form, name="q", ops=ops)
        engine.apply([Put("q", (("a", value(form, "1")), ("b", value(form, "2"))))])
        claimed: Any = engine.apply([Claim((("q", 1),))])[0]
        ops.left = number
        batch: list[Request] = [
            Put("q", (("c", value(form, "3")),)),
            Ack("q", "a", claimed[0].token),
            Put("q" if form == "repository" else "r", (("d", value(form, "4")),)),
        ]
        failure: StoreError | None = None
        try:
            engine.apply(batch)
        except StoreError as error:
            failure = error
        if not ops.failed:
            break
        if failure is None:
            later.append(ops.failed)
            assert keys(path) == ["b", "c", "d"]
        else:
            assert f"{path}: " in str(failure)
            assert "free some space" in str(failure)
            assert isinstance(failure.__cause__, OSError)
            steps.append(ops.failed)
            assert not list(folder.glob("*.new"))
        now = keys(path)
        assert now in (["a", "b"], ["b", "c", "d"])
        # The cause is gone: work goes on, with what is on the disk.
        engine.apply([Put("q", (("e", value(form, "5")),))])
        assert keys(path) == sorted([*now, "e"])
        assert _names(folder) == ["", ".bak", ".lock"]
    return steps, later


def _names(folder: Path) -> list[str]:
    """What is in the folder, without the name of the document."""
    return sorted(file.name.removeprefix("queue").lstrip(".")[4:] for file in folder.iterdir())


@FORMS
@pytest.mark.filterwarnings("ignore::leasedkeyq.engines.file.store.FileStoreWarning")
def test_a_failing_repair_is_repeated(tmp_path: Path, form: DocumentForm) -> None:
    number = 0
    for number in itertools.count():
        path = tmp_path / f"queue{number}.yaml"
        ops = FailingOps()
        engine = FileEngine(path, form=form, name="q", ops=ops)
        engine.file.settled = 0.0
        engine.apply([Put("q", (("a", value(form, "1")), ("b", value(form, "2"))))])
        path.write_bytes(path.read_bytes()[:150])
        ops.left = number
        try:
            engine.apply([Put("q", (("c", value(form, "3")),))])
        except StoreError:
            engine.apply([Put("q", (("c", value(form, "3")),))])
            assert keys(path) == ["a", "b", "c"]
        else:
            break
    assert number > 10


@SUFFIXES
def test_an_unwritable_folder(suffix: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        # Root may write everywhere, so somebody else tries.
        child = multiprocessing.get_context("fork").Process(
            target=_try_an_unwritable_folder, args=(folder / "folder", suffix)
        )
        child.start()
        child.join(60)
        assert child.exitcode == 0


def _try_an_unwritable_folder(folder: Path, suffix: str) -> None:
    if os.geteuid() == 0:
        os.setuid(65534)
    folder.mkdir()
    path = folder / f"queue.{suffix}"
    engine = FileEngine(path)
    engine.apply([Put("q", (("a", b"1"),))])
    folder.chmod(0o500)
    with pytest.raises(StoreError, match="right to write"):
        engine.apply([Put("q", (("b", b"1"),))])
    folder.chmod(0o700)
    engine.apply([Put("q", (("b", b"1"),))])
    assert keys(path) == ["a", "b"]


# Power


class RecordingOps(FileOperations):
    def __init__(self, *, exchanges: bool) -> None:
        self.steps: list[tuple[Any, ...]] = []
        self.exchanges = exchanges

    def write(self, path: Path, data: bytes, access: Access | None) -> None:
        super().write(path, data, access)
        self.steps.append(("write", path.name, data))

    def sync(self, path: Path) -> None:
        super().sync(path)
        self.steps.append(("sync", path.name if path.is_file() else ""))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.steps.append(("rename", source.name, target.name))

    def rename_new(self, source: Path, target: Path) -> bool:
        done = super().rename_new(source, target)
        assert done
        self.steps.append(("rename", source.name, target.name))
        return done

    def exchange(self, source: Path, target: Path) -> bool:
        if not self.exchanges:
            return False
        self.steps.append(("exchange", source.name, target.name))
        return super().exchange(source, target)

    def link(self, source: Path, target: Path) -> bool:
        self.steps.append(("link", source.name, target.name))
        return super().link(source, target)

    def remove(self, path: Path) -> None:
        self.steps.append(("remove", path.name))
        super().remove(path)


class Disk:
    """What may be on a disk after a loss of power: only what was synced is certain."""

    def __init__(self) -> None:
        self.synced: dict[int, bytes] = {}
        self.written: dict[int, bytes] = {}
        self.durable: dict[str, int] = {}
        self.names: dict[str, int] = {}
        self.pending: list[dict[str, int | None]] = []

    def do(self, step: tuple[Any, ...]) -> None:
        kind, name, *rest = step
        if kind == "write":
            file = len(self.written)
            self.written[file] = rest[0]
            self._name({name: file})
        elif kind == "rename":
            self._name({name: None, rest[0]: self.names[name]})
        elif kind == "exchange":
            self._name({name: self.names[rest[0]], rest[0]: self.names[name]})
        elif kind == "link":
            self._name({rest[0]: self.names[name]})
        elif kind == "remove":
            self._name({name: None})
        elif name:
            file = self.names[name]
            self.synced[file] = self.written[file]
        else:
            self.durable, self.pending = dict(self.names), []

    def _name(self, change: dict[str, int | None]) -> None:
        self.pending.append(change)
        _rename(self.names, change)

    def outcomes(self) -> Iterator[dict[str, bytes]]:
        """Any of the pending changes of names may have reached the disk, in any selection."""
        for chosen in itertools.product((False, True), repeat=len(self.pending)):
            names = dict(self.durable)
            for change in itertools.compress(self.pending, chosen):
                _rename(names, change)
            for content in (lambda data: b"", lambda data: data[: len(data) // 2]):
                yield {
                    name: self.synced.get(file, content(self.written[file]))
                    for name, file in names.items()
                }


def _rename(names: dict[str, int], change: dict[str, int | None]) -> None:
    for name, file in change.items():
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file


@pytest.mark.parametrize(
    "suffix, form, exchanges",
    itertools.product(("yaml", "json"), ("queues", "repository"), (True, False))
    if os.environ.get("TORTURE") == "1"
    else [("yaml", "queues", False), ("json", "queues", True), ("json", "repository", True)],
)
def test_a_loss_of_power_at_each_step_loses_nothing(
    tmp_path: Path, suffix: str, form: DocumentForm, exchanges: bool
) -> None:
    name = f"queue.{suffix}"
    folder = tmp_path / "live"
    folder.mkdir()
    ops = RecordingOps(exchanges=exchanges)
    engine = FileEngine(folder / name, form=form, name="q", ops=ops)
    # How many steps were made when each state was acknowledged.
    acknowledged: list[tuple[int, list[str]]] = [(0, [])]
    for key in ("a", "b", "c"):
        engine.apply([Put("q", ((key, value(form, "1")),))])
        acknowledged.append((len(ops.steps), keys(folder / name)))
    claimed: Any = engine.apply([Claim((("q", 1),))])[0]
    engine.apply([Ack("q", "a", claimed[0].token)])
    acknowledged.append((len(ops.steps), keys(folder / name)))
    assert acknowledged[-1][1] == ["b", "c"]

    disk = Disk()
    tried: set[tuple[tuple[str, bytes], ...]] = set()
    for count in range(len(ops.steps) + 1):
        if count:
            disk.do(ops.steps[count - 1])
        past = [state for steps, state in acknowledged if steps <= count]
        future = [state for steps, state in acknowledged if steps > count][:1]
        for number, files in enumerate(disk.outcomes()):
            mark = (*sorted(files.items()), ("count", b"%d" % count))
            if mark in tried:
                continue
            tried.add(mark)
            folder = tmp_path / f"{count}-{number}"
            folder.mkdir()
            for file, data in files.items():
                (folder / file).write_bytes(data)
            assert keys(folder / name) in [past[-1], *future]
    assert len(tried) > len(ops.steps)
