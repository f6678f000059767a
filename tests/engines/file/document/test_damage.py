"""A damaged copy, and an edit that looks like damage. Flipped bits: `tests.torture.damage`."""

import random
from pathlib import Path

import pytest

from leasedkeyq.engines.file.document_file import DocumentForm
from leasedkeyq.engines.file.store import FileEngine, FileStoreWarning
from leasedkeyq.model.requests import Put
from tests.engines.file.disguise import live
from tests.torture.damage.documents import filled, seen
from tests.torture.damage.harm import harm

FORMS = pytest.mark.parametrize("form", ["queues", "repository"])
SUFFIXES = pytest.mark.parametrize("suffix", ["yaml", "json"])


@FORMS
@SUFFIXES
def test_damage_to_the_copy_does_not_matter_while_the_document_is_good(
    tmp_path: Path, suffix: str, form: DocumentForm
) -> None:
    path = tmp_path / f"queue.{suffix}"
    copy = path.with_name(f"{path.name}.bak")
    filled(path, form)
    expected = seen(FileEngine(path))
    good = path.read_bytes()
    dice = random.Random(1)
    for _ in range(50):
        copy.write_bytes(harm(good, dice))
        fresh = FileEngine(path)
        assert seen(fresh) == expected
        fresh.apply([Put("mail", (("new", live(b"1")),))])
        assert copy.read_bytes() == path.read_bytes()
        path.write_bytes(good)
        copy.write_bytes(good)


@FORMS
def test_a_single_bit_can_be_edited_by_deleting_the_checksum(
    tmp_path: Path, form: DocumentForm
) -> None:
    path = tmp_path / "queue.yaml"
    engine = filled(path, form)
    text = path.read_text().replace("priority: 2", "priority: 3")
    path.write_text(text[: text.rindex("# sum")])
    assert {item.priority for item in seen(engine)} == {0, 1, 3, 5}
    assert "changed" in engine.file.notices[-1]


@pytest.mark.parametrize("kept", [0, 65])
def test_a_document_cut_off_beside_a_damaged_copy_is_told_and_the_copy_is_kept(
    tmp_path: Path, kept: int
) -> None:
    """Without its checksum a document looks as if a person had written it."""
    path = tmp_path / "queue.yaml"
    filled(path, "queues")
    good = path.read_bytes()
    bad_copy = good.replace(b"welcome-1", b"welcome-3")
    path.write_bytes(good[:kept])
    path.with_name("queue.yaml.bak").write_bytes(bad_copy)
    with pytest.warns(FileStoreWarning, match=r"its \.bak is damaged.*kept as"):
        assert not seen(FileEngine(path))
    [aside] = (file for file in tmp_path.glob("*.damaged-*") if file.suffix != ".reason")
    assert aside.read_bytes() == bad_copy
