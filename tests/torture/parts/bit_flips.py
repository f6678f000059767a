"""Bit flips and truncations of the files of a store.

One round on the file store harms one YAML and one JSON document, its copy or both; one on SQLite
harms the database or its log. A document is found out and mended, or refused with advice where no
good version is left, and is never silently another. SQLite has no checksums in the database: there
any answer or a `StoreError` is right, and anything else is not.
"""

import logging
import shutil
from collections.abc import Iterator
from random import Random
from typing import Final

from leasedkeyq.engines.file.document_file import DocumentForm
from tests.torture.damage import databases, documents
from tests.torture.part import Findings, Part, Trial
from tests.torture.scratch import scratch_folder

WRONG_ITEMS: Final = "damaged files that were not dealt with as documented"
FORMS: Final[tuple[DocumentForm, ...]] = ("queues", "repository")


def run(trial: Trial) -> Findings:
    # Each of the documents is a warning in the log.
    logger = logging.getLogger("leasedkeyq")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        return _files(trial) if trial.engine == "file" else _databases(trial)
    finally:
        logger.setLevel(level)


def _files(trial: Trial) -> Findings:
    found = Findings()
    with scratch_folder(trial.folder) as folder:
        samples = {
            (suffix, form): documents.sample(folder, suffix, form)
            for suffix in ("yaml", "json")
            for form in FORMS
        }
        for seed in trial.seeds:
            dice = trial.dice(seed)
            form: DocumentForm = "repository" if dice.random() < 0.3 else "queues"
            for suffix, own in _dice_of_each(dice):
                target = documents.choose_target(own)
                sample = samples[suffix, form]
                outcome = documents.open_harmed(folder / "harmed", sample, target, own)
                _count(found, seed, f"{suffix}, {form}, {target}", outcome)
    return found


def _dice_of_each(dice: Random) -> Iterator[tuple[str, Random]]:
    for suffix in ("yaml", "json"):
        yield suffix, Random(dice.getrandbits(64))


def _databases(trial: Trial) -> Findings:
    found = Findings()
    with scratch_folder(trial.folder) as folder:
        samples = databases.samples(folder / "samples")
        for seed in trial.seeds:
            dice = trial.dice(seed)
            sample = dice.choice(samples)
            _count(found, seed, "", databases.open_harmed(folder / "harmed", sample, dice))
            shutil.rmtree(folder / "harmed", ignore_errors=True)
    return found


def _count(
    found: Findings, seed: int, where: str, outcome: "documents.Outcome | databases.Outcome"
) -> None:
    found.tried += 1
    if outcome.wrong:
        found.violation(WRONG_ITEMS, seed, f"{where}: {outcome.wrong}" if where else outcome.wrong)
    else:
        found.counted[outcome.how] += 1


PART = Part(
    name="bit-flips",
    title="Files cut off, zeroed, with flipped bits or sectors of rubbish",
    unit="damaged files",
    amounts={"file": 10_000, "sqlite": 10_000},
    slice={"file": 20, "sqlite": 15},
    run=run,
    wrong=(WRONG_ITEMS,),
    note=(
        "A round of the file store is one of YAML and one of JSON. SQLite has no checksums in its "
        "pages: what it does not notice is counted beside what it tells, and must only not be an "
        "error of another kind, a crash or a call that is stuck."
    ),
)
