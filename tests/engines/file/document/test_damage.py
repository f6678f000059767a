"""The document cut off and with flipped bits: detected or harmless, never a wrong item."""

import random
import warnings
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.engines.file.document_file import DocumentForm
from leasedkeyq.engines.file.store import FileEngine
from leasedkeyq.model.requests import Ack, Bury, Claim, Put, StoredItem
from leasedkeyq.model.store_model import StoreModel
from leasedkeyq.testing.shorthand import EVERY_STATE
from tests.engines.file.disguise import finished, live

KEYS = ("later", "x", "now", "raw", "bad", "done", *(f"welcome-{n}" for n in range(6)))
FORMS = pytest.mark.parametrize("form", ["queues", "repository"])
SUFFIXES = pytest.mark.parametrize("suffix", ["yaml", "json"])


def filled(path: Path, form: DocumentForm) -> FileEngine:
    """Items in all states, in two queues where there can be several."""
    engine = FileEngine(path, form=form, name="mail")
    engine.file.settled = 0.0
    one = form == "repository"
    jobs = "mail" if one else "jobs"
    wrap = live if one else bytes
    for number in range(6):
        value = b'{"to":"ann@example.org","n":%d,"text":"hello, w\xc3\xb6rld"}' % number
        engine.apply([Put("mail", ((f"welcome-{number}", wrap(value)),), priority=number % 3)])
    engine.apply([Put(jobs, (("later", wrap(b"[1,2.5,null]")), ("x", wrap(b"0"))), delay=3600.0)])
    values = (("now", b'"v"'), ("raw", b"\xff\xfe"), ("bad", b"{}"), ("done", b"7"))
    engine.apply([Put(jobs, tuple((key, wrap(value)) for key, value in values), priority=5)])
    claimed: Any = engine.apply([Claim(((jobs, 4), ("mail", 1)), 5, lease_time=3600.0)])[0]
    tokens = {item.key: item.token for item in claimed}
    engine.apply(
        [
            Put(jobs, (("now", wrap(b'"newer"')),), "buffer"),
            Put(jobs, (("now", wrap(b'"newest"')), ("bad", wrap(b'"next"'))), "append"),
            Bury(jobs, "bad", tokens["bad"], "it failed", hold=True),
            Ack(jobs, "done", tokens["done"], finished("done", b"7") if one else b"7", 3600.0),
        ]
    )
    return engine


def seen(engine: FileEngine) -> list[StoredItem]:
    def work(model: StoreModel, now: float) -> list[StoredItem]:
        names = sorted(model.queues)
        return [item for name in names for item in model.browse(name, EVERY_STATE, "", now)]

    return engine.read(work)


def leases(engine: FileEngine) -> list[tuple[str, str, int]]:
    return engine.read(
        lambda model, now: sorted(
            (item.key, item.lease.token, item.lease.fence)
            for queue_model in model.queues.values()
            for item in queue_model.state.in_flight.values()
        )
    )


def harm(text: bytes, dice: random.Random) -> bytes:
    kind = dice.randrange(4)
    if kind == 0:
        return text[: dice.randrange(len(text))]
    if kind == 1:
        # Half written: zeros where the rest should be.
        cut = dice.randrange(len(text))
        return text[:cut] + bytes(len(text) - cut)
    harmed = bytearray(text)
    for _ in range(1 if kind == 2 else dice.randint(2, 5)):
        harmed[dice.randrange(len(harmed))] ^= 1 << dice.randrange(8)
    return bytes(harmed)


@FORMS
@SUFFIXES
def test_truncations_and_bit_flips(tmp_path: Path, suffix: str, form: DocumentForm) -> None:
    harm_often(tmp_path, suffix, form, 100)


def harm_often(folder: Path, suffix: str, form: DocumentForm, times: int) -> None:
    """Harm a document again and again, and see that nothing comes of it. Also for tests/torture."""
    path = folder / f"queue.{suffix}"
    filled(path, form)
    engine = FileEngine(path)
    expected, held = seen(engine), leases(engine)
    assert {item.key for item in expected} == set(KEYS)
    assert {item.state for item in expected} == set(EVERY_STATE)
    good = path.read_bytes()
    dice = random.Random(suffix)
    restored = 0
    for _ in range(times):
        bad = harm(good, dice)
        if bad == good:
            continue
        path.write_bytes(bad)
        fresh = FileEngine(path)
        fresh.file.settled = 0.0
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert seen(fresh) == expected, bad
        assert leases(fresh) == held
        assert path.read_bytes() == good
        aside = list(folder.glob("*.damaged-*"))
        if caught:
            restored += 1
            assert bad in [file.read_bytes() for file in aside]
            assert "last good version" in str(caught[0].message)
        else:
            assert "checksum line" in fresh.file.notices[-1]
        for file in aside:
            file.unlink()
    assert restored > 0.9 * times


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
