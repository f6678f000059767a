"""The checks of hostile input find what they look for: faults that are planted."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.errors import StoreError
from leasedkeyq.stores import Put
from tests.torture.hostile import rounds
from tests.torture.hostile.opened import OpenedStore
from tests.torture.hostile.payloads import CANARY, all_payloads
from tests.torture.hostile.rounds import Judge, payload_of
from tests.torture.hostile.shown_places import check_page, check_terminal
from tests.torture.hostile.store_places import TEXT_PLACES, Scene
from tests.torture.hostile.verdicts import SpoiledError, Verdict, expect, unclear
from tests.torture.part import Findings, Trial


@pytest.mark.parametrize(
    "page",
    [
        f"<p><{CANARY}></p>",
        f"<script>{CANARY}</script>",
        f"<a onclick={CANARY}>",
        "<a href='JavaScript:x'>",
        "<base href=x>",
        "<form action=//evil.example>",
        "<meta http-equiv=refresh>",
    ],
)
def test_an_element_of_a_payload_is_found_on_a_page(page: str) -> None:
    with pytest.raises(SpoiledError, match="a page has"):
        check_page(page)


def test_a_page_of_text_is_good() -> None:
    check_page(f"<script src=x></script><a href='/s'>&lt;{CANARY}&gt;</a>")


@pytest.mark.parametrize("text", ["\x1b[31m", "\x9b0m", "\u202e", "\x7f", "a\rb"])
def test_what_a_terminal_obeys_is_found(text: str) -> None:
    with pytest.raises(SpoiledError, match="list prints"):
        check_terminal("list", text)


@pytest.mark.parametrize("text", ["", "x" * 5000, "\x1b[31m", "'int' object is not callable"])
def test_a_refusal_that_is_not_clear_is_found(text: str) -> None:
    assert unclear(ValueError(text))


def test_another_type_or_value_is_found() -> None:
    for given, wanted in ((1, True), (1, 2), ("é", "e\u0301"), (0.0, 0)):
        with pytest.raises(SpoiledError):
            expect(given, wanted, "it")


async def _executes(scene: Scene, value: Any) -> Verdict:
    """Does what a payload would do that is executed."""
    del scene, value
    _plant_canary()
    return "kept"


def _plant_canary() -> None:
    Path(CANARY).touch()


async def _leaves(scene: Scene, value: Any) -> Verdict:
    await scene.store.put([Put("left behind", (("k", b"1"),))])
    return f"refused {value}"


async def _crashes(scene: Scene, value: Any) -> Verdict:
    raise RuntimeError(f"{scene.name} {value}")


async def _changes(scene: Scene, value: Any) -> Verdict:
    del scene
    expect(f"{value}x", f"{value}", "it")
    return "kept"


async def _is_unclear(scene: Scene, value: Any) -> Verdict:
    del scene
    raise StoreError("\x1b" if value else "")


@pytest.mark.parametrize(
    "place, wrong",
    [
        (_executes, rounds.EXECUTED),
        (_leaves, rounds.LEFT),
        (_crashes, rounds.CRASHED),
        (_changes, rounds.SPOILED),
        (_is_unclear, rounds.UNCLEAR),
    ],
)
def test_a_planted_fault_is_found(
    place: Callable[[Scene, Any], Awaitable[Verdict]],
    wrong: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Findings()
    seed = next(n for n in range(1, 300) if payload_of(n).family == "blank" and n % 10)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rounds, "places_for", lambda seed, value: {"a planted place": place})

    async def main() -> None:
        judge = Judge(Trial("memory", range(1, 2), tmp_path), found)
        await judge.try_store(seed, OpenedStore("memory", "memory://", MemoryStore()))

    asyncio.run(main())
    assert found.wrong[wrong] == 1, found.violations


def test_another_verdict_is_found_unless_it_is_declared(tmp_path: Path) -> None:
    found = Findings()
    judge = Judge(Trial("redis", range(1, 2), tmp_path), found)
    large = next(n for n in range(1, 300) if payload_of(n).make() == 2**63 - 1)
    judge.compare(large, "redis", {"a priority": "refused"}, {"a priority": "kept"})
    assert not found.wrong
    judge.compare(large, "sqlite", {"a priority": "refused"}, {"a priority": "kept"})
    judge.compare(1, "redis", {"a priority": "refused"}, {"a priority": "kept"})
    assert found.wrong[rounds.DIFFERENT] == 2


def test_payloads_go_on_behind_the_end_of_the_list() -> None:
    known = len(all_payloads())
    assert known >= 200
    beyond = payload_of(known + 1)
    assert beyond.make() == payload_of(known + 1).make() != payload_of(known + 2).make()
    assert {"a key", "a holder"} <= TEXT_PLACES.keys()
