"""The document of a repository: which form it has, and its settings."""

import asyncio
import errno
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from leasedkeyq import connect, errors
from leasedkeyq.engines.file.document.codec import split_checksum
from leasedkeyq.engines.file.document.document import RepositorySettings
from leasedkeyq.engines.file.document.model_mapping import load, sync
from leasedkeyq.engines.file.document_file import FileOptions
from leasedkeyq.engines.file.store import FileEngine, FileStore
from leasedkeyq.model.requests import Limits, Put
from leasedkeyq.model.store_model import StoreModel
from leasedkeyq.testing.shorthand import EVERY_STATE
from tests.engines.file.document.repository_documents import (
    FORM,
    NOW,
    opened,
    put,
    read_plainly,
    ready,
    seen,
    value,
)
from tests.engines.file.support import edit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.yaml"


def test_the_form_is_that_of_the_document(tmp_path: Path) -> None:
    one, many = tmp_path / "one.yaml", tmp_path / "many.yaml"
    put(opened(one), "a")
    FileEngine(many).apply([Put("jobs", (("a", b"1"),))])
    assert list(seen(opened(one, form=None, name=None))) == ["a"]
    for wrong in (
        opened(one, form="queues", name=None),
        opened(many),
        opened(one, name="others"),
    ):
        before = one.read_bytes(), many.read_bytes()
        with pytest.raises(errors.StoreError, match=r"(one|many)\.yaml is .* and not "):
            put(wrong, "b")
        assert (one.read_bytes(), many.read_bytes()) == before
    one.write_text("items: []\n")
    many.write_text("queues: {}\n")
    with pytest.raises(errors.StoreError, match="and not"):
        put(opened(many), "b")
    with pytest.raises(ValueError, match="queues, repository"):
        FileEngine(one, form="table")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_connect(tmp_path: Path) -> None:
    async def main() -> None:
        store = connect(f"file://{tmp_path}/one.yaml", form="repository", max_size=7)
        assert isinstance(store, FileStore)
        early, found, late = store.settings, await store.read_settings(), store.settings
        assert early is None
        assert found == late == RepositorySettings(name="one", max_size=7)
        await store.put([Put("one", (("a", value()),))])
        await store.close()
        again = connect(f"file://{tmp_path}/one.yaml", max_size=8)
        assert (await again.count())["one"].available == 1
        assert isinstance(again, FileStore)
        assert again.settings == found
        await again.close()
        many = FileStore(tmp_path / "many.json")
        assert await many.read_settings() is None
        await many.close()
        with pytest.raises(errors.StoreClosedError, match=r"the file store .*many\.json is closed"):
            await many.read_settings()

    asyncio.run(main())


def test_settings_change_with_an_edit_or_not_at_all(path: Path) -> None:
    def wish(**changes: Any) -> Callable[[Any], list[Put]]:
        def work(items: Any) -> list[Put]:
            store.change_settings(**changes)
            assert store.settings is not None
            assert store.settings.max_size == changes.get("max_size")
            return [Put("jobs", (("x", value()),))]

        return work

    def stopped(items: Any) -> list[Put]:
        store.change_settings(max_size=99)
        raise LookupError

    def written() -> bytes:
        return path.read_bytes()

    async def main() -> None:
        await store.edit("jobs", wish(max_size=5))
        assert (await store.read_settings()) == RepositorySettings(name="jobs", max_size=5)
        before = written()
        with pytest.raises(LookupError):
            await store.edit("jobs", stopped)
        assert store.settings == await store.read_settings()
        with pytest.raises(ValueError, match="out of range"):
            await store.edit("jobs", wish(max_size=-1))
        with pytest.raises(RuntimeError, match="inside"):
            store.change_settings(max_size=5)
        assert written() == before
        assert (await store.read_settings()) == RepositorySettings(name="jobs", max_size=5)
        # The edit itself is about the queue by its old name.
        await store.edit("jobs", wish(max_size=None, name="tasks", default_max_retries=9))
        assert list(await store.count()) == ["tasks"]
        (answer,) = await store.put([Put("jobs", (("y", value()),))])
        assert isinstance(answer, errors.StoreError)
        await store.put([Put("tasks", (("y", b'{"type":"t","payload":{}}'),))])
        await store.close()

    store = FileStore(path, form="repository", name="jobs")
    asyncio.run(main())
    found = yaml.safe_load(path.read_text())
    assert (found["name"], found["max_size"], found["default_max_retries"]) == ("tasks", None, 9)
    assert {item.id: item.max_retries for item in read_plainly(path)} == {"x": 3, "y": 9}
    assert set(seen(opened(path, name=None), "tasks")) == {"x", "y"}
    edit(path, ("max_size: null", "max_size: 12 # enough"), ("name: tasks", "name: jobs"))
    engine = opened(path, name=None)
    assert set(seen(engine)) == {"x", "y"}
    assert engine.settings == RepositorySettings(name="jobs", max_size=12, default_max_retries=9)
    assert "max_size: 12 # enough\n" in path.read_text()


def test_a_new_name_that_could_not_be_written_does_not_count(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes, mode: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    engine = opened(path)
    put(engine, "a")
    with monkeypatch.context() as patch, pytest.raises(errors.StoreError, match="free some space"):
        patch.setattr(engine.file._ops, "write", full)
        engine.change(lambda model, now: engine.change_settings(name="tasks"))
    assert engine.settings == RepositorySettings(name="jobs")
    assert put(engine, "b") == (2,)
    engine.change(lambda model, now: engine.change_settings(name="tasks"))
    assert set(seen(engine, "tasks")) == {"a", "b"}


@pytest.mark.parametrize(
    "wrong", [FileOptions(max_size=-1), FileOptions(default_max_retries=-1), FileOptions(name="\0")]
)
def test_settings_that_no_queue_can_have(path: Path, wrong: FileOptions) -> None:
    with pytest.raises(ValueError, match=r"must not have NUL|out of range"):
        FileEngine(path, **wrong)


def test_settings_of_several_queues(path: Path) -> None:
    def work(items: Any) -> list[Put]:
        store.change_settings(max_size=1)
        return []

    async def main() -> None:
        with pytest.raises(errors.StoreError, match="several queues"):
            await store.edit("jobs", work)
        await store.close()

    store = FileStore(path)
    asyncio.run(main())


def test_what_nobody_can_read_alone_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ruamel.yaml", None)
    engine = opened(path)
    put(engine, "a")
    edit(path, ("leasedkeyq:", "- type: task\n  payload: {}\n  priority: 4\nleasedkeyq:"))
    assert len(ready(engine)) == 2
    assert split_checksum(path.read_bytes(), yaml=True)[1]
    edit(path, ("type: task", "type: &kind task"))
    with pytest.raises(errors.StoreError, match=r"leasedkeyq\[yaml\]"):
        put(engine, "b")


def test_times_are_finite() -> None:
    """A moment that no calendar has is still a moment for the store."""
    model = StoreModel()
    model.put(Put("jobs", (("a", value()),), delay=1e15), NOW)
    document = FORM.start()
    sync(document, model)
    again = load(FORM.parse_yaml(FORM.render_yaml(document), {}), Limits(), NOW, ours=True)
    (item,) = again.browse("jobs", EVERY_STATE, "", NOW)
    assert item.due is not None
    assert math.isclose(item.due, 1e15 + NOW)
