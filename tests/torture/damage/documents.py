"""Documents of the file store with items in all states, and what becomes of them when harmed."""

import shutil
import warnings
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple, TypeAlias

from leasedkeyq.engines.file.document_file import DocumentForm
from leasedkeyq.engines.file.store import FileEngine
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Ack, Bury, Claim, Put, StoredItem
from leasedkeyq.model.store_model import StoreModel
from leasedkeyq.testing.shorthand import EVERY_STATE
from tests.engines.file.disguise import finished, live
from tests.torture.damage.harm import harm

NOW = 1.8e9
KEYS = ("later", "x", "now", "raw", "bad", "done", *(f"welcome-{n}" for n in range(6)))
Target: TypeAlias = Literal["document", "copy", "both", "copy of a missing document"]
TARGETS: tuple[Target, ...] = ("document", "copy", "both", "copy of a missing document")


def opened(path: Path, **options: Any) -> FileEngine:
    """An engine that waits for no other program, at a moment of its own."""
    engine = FileEngine(path, clock=lambda: NOW, **options)
    engine.file.settled = 0.0
    return engine


def filled(path: Path, form: DocumentForm) -> FileEngine:
    """Items in all states, in two queues where there can be several."""
    engine = opened(path, form=form, name="mail")
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


class Sample(NamedTuple):
    """A document that is as it should be, and what is in it."""

    suffix: str
    form: DocumentForm
    text: bytes
    items: list[StoredItem]
    leases: list[tuple[str, str, int]]


def sample(folder: Path, suffix: str, form: DocumentForm) -> Sample:
    path = folder / f"sample.{suffix}"
    filled(path, form).close()
    engine = opened(path)  # values have the spelling of the document
    items, held = seen(engine), leases(engine)
    assert {item.key for item in items} == set(KEYS)
    assert {item.state for item in items} == set(EVERY_STATE)
    engine.close()
    text = path.read_bytes()
    assert path.with_name(f"{path.name}.bak").read_bytes() == text
    for file in folder.glob(f"{path.name}*"):
        file.unlink()
    return Sample(suffix, form, text, items, held)


def choose_target(dice: Random) -> Target:
    return dice.choices(TARGETS, (14, 2, 3, 1))[0]


class Outcome(NamedTuple):
    """What an engine makes of harmed files."""

    wrong: str = ""
    """What must not be, in words."""
    how: str = ""
    """How it ended, if that is as it should be."""


def open_harmed(folder: Path, sample: Sample, target: Target, dice: Random) -> Outcome:
    """Harm a document, its copy or both; open them, and work on."""
    folder.mkdir()
    try:
        return _open_harmed(folder / f"queue.{sample.suffix}", sample, target, dice)
    finally:
        shutil.rmtree(folder)


def _open_harmed(path: Path, sample: Sample, target: Target, dice: Random) -> Outcome:
    copy = path.with_name(f"{path.name}.bak")
    bad = sample.text if target == "copy" else harm(sample.text, dice)
    if target != "copy of a missing document":
        path.write_bytes(bad)
    copy.write_bytes(sample.text if target == "document" else harm(sample.text, dice))
    engine = opened(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found, held = seen(engine), leases(engine)
        except StoreError as error:
            engine.close()
            return _refused(path, target, str(error))
    right = (found, held) == (sample.items, sample.leases)
    told = [str(warning.message) for warning in caught]
    notices = [*engine.file.notices]
    outcome = _judge(path, sample, target, bad=bad, told=told, notices=notices, right=right)
    if outcome.wrong or not right:
        engine.close()
        return outcome
    # It works on, and what it writes is whole again.
    value = live(b"1") if sample.form == "repository" else b"1"
    engine.apply([Put("mail", (("new", value),))])
    engine.close()
    again = opened(path)
    if len(seen(again)) != len(sample.items) + 1 or again.file.notices:
        return Outcome(f"after a put it has {again.file.notices or 'other items'}")
    again.close()
    if copy.read_bytes() != path.read_bytes():
        return Outcome("after a put the copy is not that of the document")
    return outcome


def _refused(path: Path, target: Target, message: str) -> Outcome:
    """Without a good version to go back to, an error that says what to do is right."""
    if target in ("document", "copy"):
        return Outcome(f"there was a good version, and opening failed: {message}")
    if str(path) not in message or "mend" not in message:
        return Outcome(f"the error does not say what to do: {message}")
    return Outcome(how="refused, as no good version was left")


def _judge(
    path: Path,
    sample: Sample,
    target: Target,
    *,
    bad: bytes,
    told: list[str],
    notices: list[str],
    right: bool,
) -> Outcome:
    if not right and not (told and target == "both"):
        return Outcome("the items are not those that were stored, and nobody was told")
    if target == "both":
        return Outcome(how="taken as it was, with a warning" if told else "nothing was hit")
    if target == "copy":
        if told or notices:
            return Outcome(f"the document was good, and it said {told or notices}")
        return Outcome(how="the copy alone was hit")
    if path.read_bytes() != sample.text:
        return Outcome("the document was not mended")
    if not told:
        if not notices or "checksum line" not in notices[-1]:
            return Outcome(f"damage was not told, but {notices}")
        return Outcome(how="the checksum alone was hit")
    aside = [file.read_bytes() for file in path.parent.glob("*.damaged-*")]
    if bad not in aside or "last good version" not in told[0]:
        return Outcome(f"the damaged document was not set aside: {told}")
    return Outcome(how="replaced by the last good version")
