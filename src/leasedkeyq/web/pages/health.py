"""The health of a store: what `leasedkeyq doctor` says."""

import time
from collections.abc import Sequence
from typing import Final

import msgspec

from leasedkeyq.model.findings import Finding, worst
from leasedkeyq.operations.doctor import examine
from leasedkeyq.web.screens import Action, Content, Screen
from leasedkeyq.web.visit import Visit


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """What an examination has found, and when it was."""

    at: float
    took: float
    findings: tuple[Finding, ...]


async def health(visit: Visit) -> Content:
    """What is wrong with the store and its workers, the worst first."""
    store = visit.shown.store

    async def make() -> Examination:
        began = time.perf_counter()
        findings = await examine(store)
        took = time.perf_counter() - began
        return Examination(at=time.time(), took=took, findings=tuple(findings))

    examination = await visit.look_rarely("health", make)
    return Content(
        "Health",
        {
            "at": examination.at,
            "took": examination.took,
            "worst": worst(examination.findings),
            "findings": examination.findings,
            "store": store.name,
            "durability": store.capabilities.durability,
        },
    )


SCREENS: Final[Sequence[Screen]] = [Screen("/health", "health.html", health, nav="Health")]
ACTIONS: Final[Sequence[Action]] = []
