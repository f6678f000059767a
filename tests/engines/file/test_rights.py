"""Users who share a document: who may write it, who may read it, and whose it is."""

import multiprocessing
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leasedkeyq.engines.file.store import FileEngine
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Put
from tests.engines.file.support import edit, keys, opened, put

ROOT = os.geteuid() == 0
ALICE, BOB, CAROL = 41001, 41002, 41003
GROUP, OTHERS = 42001, 42002


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users can reach, which is not so in that of pytest."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


def as_user(user: int, group: int, work: Callable[[], None], umask: int = 0o022) -> None:
    """Do something as somebody else, if this process may; it fails here if it fails there."""

    def child() -> None:
        if ROOT:
            os.setgroups([group])
            os.setgid(group)
            os.setuid(user)
        os.umask(umask)
        work()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def own(path: Path, user: int, group: int) -> None:
    """Give a file to somebody, if this process may."""
    if ROOT:
        os.chown(path, user, group)


def facts(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_second_user_of_the_group(folder: Path, umask: int) -> None:
    own(folder, 0, GROUP)
    folder.chmod(0o2775)
    path = folder / "queue.yaml"

    def share() -> None:
        engine = FileEngine(path)
        put(engine, "a")
        path.chmod(0o664)
        # Who comes next sees to the lock.
        put(FileEngine(path), "b")

    as_user(ALICE, GROUP, share, umask)
    as_user(BOB, GROUP, lambda: put(FileEngine(path), "c"), umask)
    as_user(ALICE, GROUP, lambda: put(FileEngine(path), "d"), umask)
    assert keys(opened(path)) == ["a", "b", "c", "d"]
    assert facts(path)[2] == 0o664
    assert facts(path.with_name("queue.yaml.lock"))[2] == 0o664


@pytest.mark.parametrize("lock", ["readable", "unreadable", "missing"])
def test_who_may_only_read_can_read(folder: Path, lock: str) -> None:
    path = folder / "queue.yaml"
    put(opened(path), "a", "b")
    lock_file = path.with_name("queue.yaml.lock")
    if lock == "missing":
        lock_file.unlink()
    elif lock == "unreadable":
        lock_file.chmod(0o600 if ROOT else 0o000)
    folder.chmod(0o555)
    before = sorted(file.name for file in folder.iterdir())

    def look() -> None:
        engine = opened(path)
        assert keys(engine) == ["a", "b"]
        with pytest.raises(StoreError, match="give this process the right to write"):
            put(engine, "c")
        assert keys(engine) == ["a", "b"]

    as_user(CAROL, OTHERS, look)
    assert sorted(file.name for file in folder.iterdir()) == before
    folder.chmod(0o755)


def test_who_may_only_read_sees_an_edit_that_nobody_has_taken_up(folder: Path) -> None:
    path = folder / "queue.yaml"
    put(opened(path), "a")
    edit(path, ("# sum", "      - key: by-hand\n# sum"))
    text = path.read_bytes()
    folder.chmod(0o555)

    def look() -> None:
        engine = opened(path)
        assert keys(engine) == ["a", "by-hand"]
        assert keys(engine) == ["a", "by-hand"]

    as_user(CAROL, OTHERS, look)
    assert path.read_bytes() == text
    folder.chmod(0o755)


def test_who_may_only_read_sees_the_last_good_version(folder: Path) -> None:
    path = folder / "queue.yaml"
    put(opened(path), "a")
    path.write_text("nonsense")
    folder.chmod(0o555)

    def look() -> None:
        engine = opened(path)
        with pytest.warns(UserWarning, match="has left the files as they are"):
            assert keys(engine) == ["a"]

    as_user(CAROL, OTHERS, look)
    assert path.read_text() == "nonsense"
    folder.chmod(0o755)


def test_a_write_by_root_leaves_the_document_to_its_owner(folder: Path) -> None:
    path = folder / "queue.yaml"
    own(folder, ALICE, GROUP)
    as_user(ALICE, GROUP, lambda: put(FileEngine(path), "a"))
    path.chmod(0o640)
    before = facts(path)
    engine = FileEngine(path)
    put(engine, "b")
    assert facts(path) == before
    assert facts(path.with_name("queue.yaml.bak")) == before
    path.write_text("nonsense")
    with pytest.warns(UserWarning, match="last good version"):
        assert keys(engine) == ["a", "b"]
    for aside in folder.glob("*.damaged-*"):
        assert facts(aside) == before
    as_user(ALICE, GROUP, lambda: put(FileEngine(path), "c"))
    assert keys(engine) == ["a", "b", "c"]
    if ROOT:
        assert before[:2] == (ALICE, GROUP)


@pytest.mark.parametrize("lost", ["removed", "moved away"])
def test_a_document_that_is_restored_is_as_private_as_it_was(folder: Path, lost: str) -> None:
    path = folder / "queue.yaml"
    engine = FileEngine(path)
    put(engine, "a")
    path.chmod(0o600)
    put(engine, "b")
    if lost == "removed":
        path.unlink()
    else:
        path.rename(folder / "elsewhere")
    with pytest.warns(UserWarning, match="the file is missing"):
        assert keys(engine) == ["a", "b"]
    assert facts(path)[2] == facts(path.with_name("queue.yaml.bak"))[2] == 0o600


def test_what_the_group_may_do_is_not_given_to_another_group(folder: Path) -> None:
    """A user who is not of the group cannot keep it."""
    path = folder / "queue.yaml"
    folder.chmod(0o777)
    own(folder, 0, 0)
    put(FileEngine(path), "a")
    path.chmod(0o660 if ROOT else 0o640)
    own(path, CAROL, GROUP)
    own(path.with_name("queue.yaml.lock"), CAROL, GROUP)
    own(path.with_name("queue.yaml.bak"), CAROL, GROUP)

    def write() -> None:
        FileEngine(path).apply([Put("jobs", (("b", b"1"),))])

    as_user(CAROL, OTHERS, write)
    found = facts(path)
    if ROOT:
        assert found == (CAROL, OTHERS, 0o600)
    else:
        assert found[2] == 0o640


def test_an_error_names_the_file_that_may_not_be_used(folder: Path) -> None:
    path = folder / "queue.yaml"
    put(opened(path), "a")
    path.with_name("queue.yaml.lock").chmod(0o600 if ROOT else 0o000)

    def write() -> None:
        with pytest.raises(StoreError, match=r"queue\.yaml\.lock: Permission denied: give"):
            put(opened(path), "b")

    as_user(CAROL, OTHERS, write)
