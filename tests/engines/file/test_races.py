"""Edits that come while the file store writes, and programs that write slowly."""

import errno
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from leasedkeyq.engines.file.file_operations import Access, FileOperations, Stamp
from leasedkeyq.engines.file.store import FileEngine, FileStoreWarning
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Ack
from tests.engines.file.support import claim, keys, opened, put

Edit = Callable[[str], str]


class RacingOps(FileOperations):
    """Lets something happen right before the document is replaced.

    `means` says what the file system can do: exchange names, give a second name, or neither.
    """

    def __init__(self, means: str = "exchange", *, tells: bool = True) -> None:
        self.means = means
        self.tells = tells
        self.race: Callable[[], None] | None = None

    def sync(self, path: Path) -> None:
        super().sync(path)
        race = self.race
        if race is not None and path.name.endswith(".new") and ".bak" not in path.name:
            self.race = None
            race()

    def exchange(self, source: Path, target: Path) -> bool:
        return self.means == "exchange" and super().exchange(source, target)

    def link(self, source: Path, target: Path) -> bool:
        return self.means != "neither" and super().link(source, target)

    def is_being_written(self, path: Path) -> bool | None:
        return super().is_being_written(path) if self.tells else None


MEANS = pytest.mark.parametrize("means", ["exchange", "link", "neither"])
SAVES = pytest.mark.parametrize("save", ["rename", "in place", "backup"])


def save(path: Path, text: str, how: str) -> None:
    """Save a file as editors do."""
    if how == "in place":
        path.write_text(text)
    elif how == "rename":
        other = path.with_name(".editor~")
        other.write_text(text)
        other.replace(path)
    else:
        path.replace(path.with_name("queue.yaml~"))
        path.write_text(text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.yaml"


def added(key: str) -> Edit:
    return lambda text: text.replace("# sum", f"      - key: {key}\n# sum")


@MEANS
@SAVES
def test_an_edit_that_comes_while_the_document_is_written(
    path: Path, means: str, save: str
) -> None:
    ops = RacingOps(means)
    engine = opened(path, ops=ops)
    put(engine, "a", "b", "c", "d", "e")
    first = claim(engine)[0]

    def edit() -> None:
        text = path.read_text()
        blocks = text.split("      - key: ")
        assert blocks[3].startswith("c")
        del blocks[3]
        text = "      - key: ".join(blocks)
        text = text.replace("- key: d\n", "- key: d # mine\n        priority: 9\n")
        text = text.replace("- key: e\n", "- key: by-hand\n      - key: e\n")
        globals()["save"](path, f"# remember\n{text}", save)

    ops.race = edit
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert put(engine, "f") == (6,)
    # What the store did and what the person did, and nobody was told anything.
    assert keys(engine) == ["d", "b", "by-hand", "e", "f"]
    assert engine.apply([Ack("jobs", "a", first.token)]) == [None]
    text = path.read_text()
    assert text.startswith("# remember\n")
    assert "- key: d # mine\n" in text
    assert "1 items added, 1 removed, 1 changed" in engine.file.notices[-1]
    assert keys(opened(path)) == ["d", "b", "by-hand", "e", "f"]
    assert _left(path) == []


def _left(path: Path) -> list[str]:
    """Files that should not be there when all is done."""
    known = {path.name, f"{path.name}.bak", f"{path.name}.lock", "queue.yaml~"}
    return sorted(file.name for file in path.parent.iterdir() if file.name not in known)


def _aside(path: Path) -> list[str]:
    return [
        file.read_text() for file in path.parent.glob("*.damaged-*") if file.suffix != ".reason"
    ]


@MEANS
def test_an_edit_of_what_the_store_changes_is_set_aside(path: Path, means: str) -> None:
    ops = RacingOps(means)
    engine = opened(path, ops=ops)
    put(engine, "a", "b")
    claimed = claim(engine)[0]

    def edit() -> None:
        text = path.read_text().replace("- key: a\n", "- key: a\n        priority: 3\n")
        save(path, added("by-hand")(text), "rename")

    ops.race = edit
    with pytest.warns(FileStoreWarning, match="'a' was changed, and done meanwhile"):
        assert engine.apply([Ack("jobs", "a", claimed.token)]) == [None]
    assert keys(engine) == ["b", "by-hand"]
    (aside,) = _aside(path)
    assert "priority: 3" in aside


@MEANS
def test_nonsense_that_comes_while_the_document_is_written(path: Path, means: str) -> None:
    ops = RacingOps(means)
    engine = opened(path, ops=ops)
    put(engine, "a")
    ops.race = lambda: save(path, "queues: 7\n", "rename")
    with pytest.warns(FileStoreWarning, match="was not taken up: queues is not a mapping"):
        put(engine, "b")
    assert keys(engine) == ["a", "b"]
    assert _aside(path) == ["queues: 7\n"]
    assert not opened(path).file.notices


def test_a_field_of_an_item_that_is_claimed_at_the_same_time(path: Path) -> None:
    ops = RacingOps()
    engine = opened(path, ops=ops)
    put(engine, "a", "b")

    def edit() -> None:
        text = path.read_text().replace("- key: a\n", "- key: a\n        priority: 3\n")
        save(path, text, "rename")

    ops.race = edit
    (claimed,) = claim(engine)
    assert not _aside(path)
    assert "priority: 3" in path.read_text()
    assert engine.apply([Ack("jobs", "a", claimed.token)]) == [None]


def test_an_edit_of_an_older_version_that_comes_while_the_document_is_written(path: Path) -> None:
    ops = RacingOps()
    engine = opened(path, ops=ops)
    put(engine, "a")
    old = path.read_text()
    put(engine, "b")
    ops.race = lambda: save(path, added("by-hand")(old), "rename")
    with pytest.warns(FileStoreWarning, match="older version"):
        put(engine, "c")
    assert keys(engine) == ["a", "b", "c", "by-hand"]
    assert len(_aside(path)) == 1


@MEANS
def test_an_older_version_that_is_put_back_while_the_document_is_written(
    path: Path, means: str
) -> None:
    ops = RacingOps(means)
    engine = opened(path, ops=ops)
    put(engine, "a")
    old = path.read_text()
    put(engine, "b")
    ops.race = lambda: save(path, old, "rename")
    with pytest.warns(FileStoreWarning, match="older version was put in its place"):
        put(engine, "c")
    assert keys(engine) == ["a", "b", "c"]
    assert _aside(path) == [old]


@MEANS
@pytest.mark.parametrize("times", [1, 3])
def test_an_editor_that_moves_the_document_away_at_the_last_moment(
    path: Path, means: str, times: int
) -> None:
    class MovingOps(RacingOps):
        left = 0

        def move(self) -> None:
            if self.left:
                self.left -= 1
                path.replace(path.with_name("queue.yaml~"))

        def exchange(self, source: Path, target: Path) -> bool:
            self.move()
            return super().exchange(source, target)

        def link(self, source: Path, target: Path) -> bool:
            self.move()
            return super().link(source, target)

    ops = MovingOps(means)
    engine = opened(path, ops=ops)
    put(engine, "a")
    for key in "bcd"[:times]:
        ops.left = 1
        put(engine, key)
    expected = list("abcd"[: times + 1])
    assert keys(engine) == keys(opened(path)) == expected
    assert _left(path) == []


@pytest.mark.parametrize("step", ["exchange", "link"])
def test_a_document_that_is_there_and_not_there_is_an_error(path: Path, step: str) -> None:
    """Whatever a file system means by that: nobody waits for ever."""
    ops = RacingOps(step)
    engine = opened(path, ops=ops)
    put(engine, "a")

    def missing(source: Path, target: Path) -> bool:
        raise FileNotFoundError(errno.ENOENT, "No such file", str(target))

    setattr(ops, step, missing)
    with pytest.raises(StoreError, match="No such file"):
        put(engine, "b")
    delattr(ops, step)
    put(engine, "c")
    assert keys(engine) == ["a", "c"]
    assert _left(path) == []


def test_edit_upon_edit(path: Path) -> None:
    ops = RacingOps()
    engine = opened(path, ops=ops)
    put(engine, "a")

    def edit(number: int) -> Callable[[], None]:
        def race() -> None:
            save(path, added(f"e{number}")(path.read_text()), "rename")
            ops.race = edit(number + 1) if number < 4 else None

        return race

    ops.race = edit(0)
    put(engine, "b")
    assert sorted(keys(engine)) == ["a", "b", "e0", "e1", "e2", "e3", "e4"]
    assert _left(path) == []


class Stop(BaseException):
    """The end of a process."""


@pytest.mark.parametrize("step", ["sync", "rename displaced", "save"])
def test_an_edit_is_not_lost_when_the_process_ends_before_it_is_merged(
    path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StoppingOps(RacingOps):
        stops = False

        def rename(self, source: Path, target: Path) -> None:
            if self.stops and step == "rename displaced" and target.name.endswith(".edit"):
                raise Stop
            super().rename(source, target)
            if self.stops and step == "save" and target.name.endswith(".edit"):
                self.stops = False
                monkeypatch.setattr(FileOperations, "write", stop)

        def sync(self, path: Path) -> None:
            if self.stops and step == "sync" and path.is_dir():
                raise Stop
            super().sync(path)

    def stop(*_: Any) -> None:
        raise Stop

    ops = StoppingOps()
    engine = opened(path, ops=ops)
    put(engine, "a")

    def edit() -> None:
        save(path, added("by-hand")(path.read_text()), "rename")
        ops.stops = True

    ops.race = edit
    # A dead process does not tidy up.
    monkeypatch.setattr(engine.file, "_clean_up", lambda stamp: None)
    with pytest.raises(Stop):
        put(engine, "b")
    engine.close()
    monkeypatch.undo()
    later = opened(path)
    with pytest.warns(FileStoreWarning, match="1 new items"):
        assert keys(later) == ["a", "b", "by-hand"]
    assert keys(opened(path)) == ["a", "b", "by-hand"]
    assert [name for name in _left(path) if ".damaged-" not in name] == ["queue.yaml.bak.new"] * (
        "queue.yaml.bak.new" in _left(path)
    )


def test_a_full_disk_keeps_the_edit_for_later(path: Path) -> None:
    class FullDisk(RacingOps):
        full = False

        def write(self, path: Path, data: bytes, access: Access | None) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write(path, data, access)

    ops = FullDisk()
    engine = opened(path, ops=ops)
    put(engine, "a")

    def edit() -> None:
        save(path, added("by-hand")(path.read_text()), "rename")
        ops.full = True

    ops.race = edit
    assert put(engine, "b") == (2,)  # it is stored, whatever becomes of the edit
    ops.full = False
    with pytest.warns(FileStoreWarning, match="1 new items"):
        assert keys(engine) == ["a", "b", "by-hand"]


# Programs that write slowly


def slowly(file: Any, text: str, pause: float = 0.1) -> None:
    step = max(len(text) // 8, 1)
    for at in range(0, len(text), step):
        file.write(text[at : at + step])
        file.flush()
        time.sleep(pause)


@pytest.fixture
def threads() -> Iterator[Callable[[Callable[[], None]], None]]:
    started: list[threading.Thread] = []

    def start(work: Callable[[], None]) -> None:
        started.append(threading.Thread(target=work))
        started[-1].start()

    yield start
    for thread in started:
        thread.join(60)


Start = Callable[[Callable[[], None]], None]
TELLS = pytest.mark.parametrize("tells", [True, False])


@TELLS
@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_program_that_truncates_and_writes_slowly_is_waited_for(
    tmp_path: Path, threads: Start, tells: bool, suffix: str
) -> None:
    path = tmp_path / f"queue.{suffix}"
    engine = FileEngine(path, ops=RacingOps(tells=tells))
    put(engine, *(f"k{number}" for number in range(50)))
    text = path.read_text()
    if suffix == "yaml":
        text = added("slow")(text)
    else:
        text = text.replace('"items": [', '"items": [{"key": "slow"},')
    opened_file = threading.Event()

    def write() -> None:
        with path.open("w") as file:
            opened_file.set()
            slowly(file, text)

    threads(write)
    assert opened_file.wait(10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(keys(engine)) == 51
        put(engine, "after")
    assert len(keys(FileEngine(path))) == 52


@TELLS
@MEANS
def test_a_program_that_truncates_the_file_that_is_being_replaced(
    path: Path, threads: Start, tells: bool, means: str
) -> None:
    """What it writes goes to the file that was displaced."""
    ops = RacingOps(means, tells=tells)
    engine = FileEngine(path, ops=ops)
    put(engine, *(f"k{number}" for number in range(50)))

    def truncate() -> None:
        text = added("slow")(path.read_text())
        file = path.open("w")

        def write() -> None:
            with file:
                slowly(file, text)

        threads(write)

    ops.race = truncate
    with warnings.catch_warnings():
        # Without a second name for the file, what is written to it later is lost.
        warnings.simplefilter("ignore" if means == "neither" else "error")
        put(engine, "b")
    found = keys(engine)
    assert "b" in found
    assert ("slow" in found) == (means != "neither")


def test_a_program_that_opens_before_and_writes_after_the_exchange(
    path: Path, threads: Start
) -> None:
    ops = RacingOps()
    engine = FileEngine(path, ops=ops)
    put(engine, "a")
    text = added("late")(path.read_text())

    def hold_open() -> None:
        file = path.open("r+")

        def write() -> None:
            time.sleep(0.3)
            with file:
                file.write(text)

        threads(write)

    ops.race = hold_open
    put(engine, "b")
    # Where the system does not tell who has a file open, nobody can know.
    assert keys(engine) == (["a", "late", "b"] if _tells(path) else ["a", "b"])


def _tells(path: Path) -> bool:
    """Whether the system tells who has a file open for writing."""
    return FileOperations().is_being_written(path) is not None


@pytest.mark.parametrize("before", [True, False])
def test_a_program_that_does_not_end_is_not_waited_for_for_ever(path: Path, before: bool) -> None:
    """What it writes later goes to a file that was set aside."""
    ops = RacingOps()
    engine = FileEngine(path, ops=ops)
    engine.file.patience = 0.2
    put(engine, "a")
    files: list[Any] = []

    def begin() -> None:
        files.append(path.open("w"))
        files[0].write("half a docu")
        files[0].flush()

    if before:
        begin()
    else:
        ops.race = begin
    began = time.monotonic()
    with pytest.warns(FileStoreWarning, match="is kept as"):
        put(engine, "b")
    assert time.monotonic() - began < 5.0
    assert keys(engine) == ["a", "b"]
    files[0].write("ment")
    files[0].close()
    # Where it was displaced, it is the file itself that was set aside.
    whole = _tells(path) or not before
    assert ("half a document" if whole else "half a docu") in _aside(path)


def test_what_is_written_while_a_file_is_read_has_another_stamp(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the rest of a slow write is taken for known, and displaced without a look."""
    path.write_bytes(b"")
    real = Path.open

    class Slow:
        def __init__(self) -> None:
            self.file = real(path, "rb")

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def fileno(self) -> int:
            return self.file.fileno()

        def read(self) -> bytes:
            data = self.file.read()
            with real(path, "wb") as file:
                file.write(b"the rest")
            return data

    monkeypatch.setattr(Path, "open", lambda *_: Slow())
    found = FileOperations().read(path)
    assert found is not None
    assert found[0] == b""
    assert found[1] != FileOperations().stamp(path)


# Files that were set aside


def test_files_that_were_set_aside_have_a_limit(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = opened(path)
    engine.file.set_aside_limit = 3
    put(engine, "a")
    for number in range(5):
        path.write_text(f"nonsense {number}")
        with pytest.warns(FileStoreWarning):
            assert keys(engine) == ["a"]
    assert sorted(_aside(path)) == ["nonsense 2", "nonsense 3", "nonsense 4"]
    assert len(list(path.parent.glob("*.damaged-*"))) == 6
    assert "more than 3 files were set aside" in caplog.text


def test_what_is_read_again_is_what_was_written(path: Path) -> None:
    """Stamps of a file that was exchanged tell that it is ours."""
    engine = opened(path)
    put(engine, "a")
    loads = engine.file.loads
    for number in range(5):
        put(engine, f"b{number}")
    assert engine.file.loads == loads
    stamp: Stamp | None = FileOperations().stamp(path)
    assert stamp == engine.file.seen
    assert os.stat(path).st_ino == os.fstat(engine.file._held or -1).st_ino
