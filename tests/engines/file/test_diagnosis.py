"""What a file store finds wrong with its document, each provoked."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import connect
from leasedkeyq.engines.file import diagnosis
from leasedkeyq.engines.file.document.codec import add_checksum
from leasedkeyq.stores import Finding, Put, SchemaState


def findings(path: Path, *, put: bool = True) -> dict[str, Finding]:
    async def run() -> list[Finding]:
        async with connect(f"file://{path}") as store:
            if put:
                await store.put([Put("q", (("k", b'"value"'),))])
            return await store.diagnose()

    return {finding.code: finding for finding in asyncio.run(run())}


def state(path: Path, **options: Any) -> SchemaState | None:
    async def run() -> SchemaState | None:
        async with connect(f"file://{path}", **options) as store:
            return await store.schema_state()

    return asyncio.run(run())


def test_a_sound_document_has_nothing_to_tell(tmp_path: Path) -> None:
    assert findings(tmp_path / "q.yaml") == {}


@pytest.mark.filterwarnings("ignore::leasedkeyq.engines.file.engine.FileStoreWarning")
def test_a_document_that_was_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "q[1].json"
    findings(path)
    path.write_text("{ nonsense")
    found = findings(path)
    assert found["document-set-aside"].severity == "warning"
    assert "q[1].json.damaged-" in found["document-set-aside"].what
    assert "replaced by its last good version" in found["document-changed"].what
    # Also by a process that did not see it happen.
    assert [*findings(path, put=False)] == ["document-set-aside"]


def test_a_document_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "q.json"
    path.write_text("{ nonsense")
    [(code, found)] = findings(path, put=False).items()
    assert (code, found.severity) == ("document-damaged", "error")


def test_a_large_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "LARGE", 10)
    assert "SQLite" in findings(tmp_path / "q.yaml")["document-large"].advice


def test_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda place, _mode: place == tmp_path)
    assert findings(tmp_path / "q.yaml")["rights-missing"].severity == "error"


def test_the_version_of_a_document(tmp_path: Path) -> None:
    path = tmp_path / "q.json"
    new = state(path, migrate=False)
    assert new is not None
    assert (new.version, new.outdated) == (0, True)
    assert not path.exists(), "looking makes nothing"
    findings(path)
    assert state(path) == SchemaState(version=new.wanted, wanted=new.wanted)
    old = tmp_path / "old.yaml"
    text = b"version: 1\nrevision: 1\nlast_id: 0\nlast_fence: 0\nqueues: {}\n"
    old.write_bytes(add_checksum(text, yaml=True))
    found = state(old)
    assert found is not None
    assert found.version == 1
    assert "lines" in found.changes[0]
