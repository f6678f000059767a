"""The health of a store: what `leasedkeyq doctor` says."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from leasedkeyq.model.findings import Finding, worst
from leasedkeyq.operations.doctor import examine
from leasedkeyq.web.screens import Action, Content, Screen
from leasedkeyq.web.visit import Visit

PATIENCE: Final = 0.1
"""Seconds that a page waits for an examination."""


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

    examination: Examination | None = None
    if visit.wants_json:
        examination = await visit.look_rarely("health", make)
    else:
        # It may take a second on a store with many queues: the page comes without it, and its
        # live part brings it. The look goes on, whoever waits for it.
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                examination = await visit.look_rarely("health", make)
    findings = examination.findings if examination else ()
    return Content(
        "Health",
        {
            "at": examination.at if examination else None,
            "took": examination.took if examination else None,
            "worst": worst(findings),
            "findings": findings,
            "store": store.name,
            "durability": store.capabilities.durability,
        },
    )


SCREENS: Final[Sequence[Screen]] = [Screen("/health", "health.html", health, nav="Health")]
ACTIONS: Final[Sequence[Action]] = []
