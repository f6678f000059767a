"""The conformance kit itself: what it reports, what it declares, and what it leaves behind."""

import asyncio
import multiprocessing
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.errors import KeyAlreadyInFlightError, QueueFullError
from leasedkeyq.stores import Claim, Claimed, Refusal, Store, StoredItem
from leasedkeyq.testing import (
    CheckResult,
    ConformanceReport,
    ManualClock,
    Place,
    StoreConformance,
    run_conformance,
)
from leasedkeyq.testing.differential import Differential
from leasedkeyq.testing.likeness import Id, Likeness, in_order
from leasedkeyq.testing.model_time import RealTime, TooSlowError
from leasedkeyq.testing.processes import ProcessEndedError, Worker, put
from leasedkeyq.testing.report import run_checks
from leasedkeyq.testing.shorthand import one
from leasedkeyq.testing.suite import checks_of, site_check
from tests.testing.broken.leases import ForgetsTheFront
from tests.testing.broken.random_comparison import RoundsTimes

FRONT = "test_release_front_back_and_later"
RANDOM = "test_it_answers_random_requests_as_the_model_does"
HYPOTHESIS = "test_hypothesis_finds_no_requests_that_it_answers_otherwise"
LACKS = "test_what_it_lacks_is_declared"


def memory(_: Place) -> Callable[..., Store]:
    return MemoryStore


def sqlite(place: Place) -> str:
    return f"sqlite:///{place.folder}/jobs.db"


# The checks


@pytest.mark.parametrize("check", [*checks_of(StoreConformance)], ids=lambda check: check.name)
def test_a_check_says_what_it_checks(check: Any) -> None:
    assert check.name.startswith("test_")
    assert check.title.endswith(".")
    assert getattr(StoreConformance, check.name).__doc__.startswith(check.title)


def test_the_names_are_different() -> None:
    names = [check.name for check in checks_of(StoreConformance)]
    assert len(names) == len(set(names)) > 60


# The report


def test_a_report_of_a_good_store_shows_what_does_not_apply_and_why() -> None:
    report = run_conformance(memory, accepts=("clock", "limits"), without=("hypothesis",))
    assert report.ok
    assert {result.name: result.reason for result in report.not_applicable} == {
        check.name: {
            "durability": "the store does not claim to keep anything (capabilities.durability)",
            "cross_process": "the store does not claim to be shared by processes "
            "(capabilities.cross_process)",
            "hypothesis": "left out: without hypothesis",
        }[check.needs]
        for check in checks_of(StoreConformance)
        if check.needs not in (None, "joint_edits", "extends_apart")
    }
    assert not report.failed
    assert len(report.results) == len(report.passed) + len(report.not_applicable)
    lines = str(report).splitlines()
    assert lines[-1] == f"{len(report.passed)} passed, 0 failed, 19 not applicable"
    assert f"        passed  {FRONT}" in lines


def test_a_report_of_a_failure_says_what_is_not_so() -> None:
    report = run_conformance(lambda _: partial(ForgetsTheFront, MemoryStore), only=[FRONT, LACKS])
    assert not report.ok
    [failure] = report.failed
    assert failure.name == FRONT
    assert failure.reason == 'AssertionError: assert await order(store) == ["b", "d", "a"]'
    assert "Traceback" in failure.details
    assert failure.title == "Where a released item goes."
    assert [result.name for result in report.passed] == [LACKS]
    assert str(failure) in str(report)


def test_a_store_that_cannot_be_opened_fails_every_check() -> None:
    report = run_conformance(lambda _: "nowhere://", only=[FRONT, LACKS])
    assert [result.outcome for result in report.results] == ["failed", "failed"]
    assert "no store for the scheme 'nowhere'" in report.failed[0].reason


@pytest.mark.parametrize(
    "options, message",
    [
        ({"only": ["test_nonsense"]}, r"only has \['test_nonsense'\]; known are test_"),
        ({"without": ("durable",)}, r"without has \['durable'\]; known are durability, "),
        ({"accepts": ("clocks",)}, r"accepts has \['clocks'\]; known are clock, limits"),
    ],
)
def test_names_that_mean_nothing(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_conformance(memory, **options)


def test_a_report_can_be_made_by_hand() -> None:
    report = ConformanceReport((CheckResult("test_a", "A.", "failed", "no"),))
    assert str(report) == "        failed  test_a: no\n0 passed, 1 failed, 0 not applicable"


def test_without_assertions_there_is_no_report() -> None:
    code = "from leasedkeyq.testing import run_conformance; run_conformance(None)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-O", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment,
    )
    assert "RuntimeError: the checks are assert statements: run Python without -O" in done.stderr


# Gaps


def test_a_gap_must_be_declared() -> None:
    class Undeclared(StoreConformance):
        def opener(self, place: Place) -> Callable[..., Store]:
            return MemoryStore

    with pytest.raises(AssertionError) as raised:
        Undeclared().test_the_lease_of_a_killed_process_expires()
    assert "does not claim to be shared by processes" in str(raised.value)
    assert "class Undeclared(..., without=('cross_process',))" in str(raised.value)


def test_a_declared_gap_has_no_checks_and_must_be_one() -> None:
    class Wrong(StoreConformance, without=("cross_process",)):
        def opener(self, place: Place) -> str:
            return sqlite(place)

    class More(Wrong, without=("hypothesis",)):
        """What a suite lacks, those lack that build on it."""

    killed = "test_the_lease_of_a_killed_process_expires"
    assert [getattr(suite, killed) for suite in (Wrong, More)] == [None, None]
    needs = {None, "durability", "joint_edits", "extends_apart"}
    assert {check.needs for check in checks_of(Wrong)} == needs | {"hypothesis"}
    assert {check.needs for check in checks_of(More)} == needs
    with pytest.raises(AssertionError, match="the store claims cross_process: it is no gap"):
        Wrong().test_what_it_lacks_is_declared()
    report = run_checks(More, only=[LACKS])
    assert [result.name for result in report.failed] == [LACKS]


# Hypothesis


def test_hypothesis_is_needed_by_one_check_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    monkeypatch.delitem(sys.modules, "leasedkeyq.testing.hypothesis_machine", raising=False)
    report = run_conformance(memory, accepts=("clock",), only=[HYPOTHESIS, RANDOM, FRONT])
    assert [(result.name, result.outcome) for result in report.results if result.reason] == [
        (HYPOTHESIS, "failed")
    ]
    assert 'pip install "leasedkeyq[testing]"' in report.failed[0].reason


# Places


def test_a_place_is_empty_alone_and_thrown_away() -> None:
    first, second = Place(), Place()
    ended: list[str] = []
    first.at_end(lambda: ended.append(first.name))
    assert first.name != second.name
    assert first.name.isalnum()
    assert list(first.folder.iterdir()) == []
    (first.folder / "sub").mkdir()
    (first.folder / "sub" / "file").write_text("...", encoding="utf-8")
    first.close()
    assert ended == [first.name]
    assert not first.folder.exists()
    assert second.folder.exists()
    second.close()


def test_a_failed_check_leaves_nothing_behind() -> None:
    places: list[Place] = []
    closed: list[bool] = []

    class Noted(MemoryStore):
        async def do_close(self) -> None:
            closed.append(True)
            await super().do_close()

    def factory(place: Place) -> Callable[..., Store]:
        places.append(place)
        return partial(ForgetsTheFront, Noted)

    assert not run_conformance(factory, only=[FRONT]).ok
    assert closed == [True]
    assert [place.folder.exists() for place in places] == [False]


# Time


def test_what_hangs_is_a_failure() -> None:
    class Hangs(MemoryStore):
        async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
            await asyncio.Event().wait()
            return []

    class Hanging(StoreConformance, without=("durability", "cross_process")):
        time_limit = 0.2

        def opener(self, place: Place) -> Callable[..., Store]:
            return Hangs

    with pytest.raises(AssertionError, match=r"not done within 0\.2 s"):
        Hanging().test_first_in_first_out()


def test_the_clock_is_moved_by_hand() -> None:
    clock = ManualClock(5.0)
    assert clock() == clock() == 5.0
    clock.advance(2.5)
    assert clock() == clock.now == 7.5


def test_a_call_in_real_time_must_not_take_too_long() -> None:
    async def main() -> None:
        times = RealTime(0.1)
        await times.before()
        times.after()
        await asyncio.sleep(0.09)
        with pytest.raises(TooSlowError):
            times.after()

    asyncio.run(main())


def test_bursts_in_real_time_are_so_far_apart_that_all_is_due_that_is_due_soon() -> None:
    async def main() -> None:
        times = RealTime(0.2)
        await times.before()
        times.after()
        ended = time.monotonic()
        await asyncio.sleep(0.1)
        await times.before()
        assert time.monotonic() >= ended + 0.25

    asyncio.run(main())


def test_the_clock_of_the_store_counts_in_real_time() -> None:
    async def main() -> None:
        store = MemoryStore(clock=lambda: time.time() - 5000)
        times = RealTime(0.5)
        await times.calibrate(store)
        assert abs(await times.before() - (time.time() - 5000)) < 60
        assert not await store.count()

    asyncio.run(main())


# Seeds


def test_a_failure_of_random_requests_can_be_repeated_by_its_seed() -> None:
    def failure(seed: int | None) -> str:
        report = run_conformance(
            lambda _: partial(RoundsTimes, MemoryStore),
            accepts=("clock", "limits"),
            only=[RANDOM],
            seed=seed,
        )
        # Tokens are random in each run.
        return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "token", report.failed[0].reason)

    first = failure(None)
    found = re.search(r"seed=(\d+)", first)
    assert found is not None
    assert failure(int(found[1])) == first


def test_random_requests_name_no_item_whose_id_was_never_seen() -> None:
    """Such as the result of one that was requeued and then cancelled: this seed leads to it."""

    async def run() -> None:
        clock = ManualClock()
        async with MemoryStore(clock=clock) as store:
            await Differential([store], clock, 1404).run(500)

    asyncio.run(run())


# Likeness


def item(number: int, **options: Any) -> StoredItem:
    fields: dict[str, Any] = {"queue": "q", "key": "a", "state": "available", "value": b"1"}
    return StoredItem(**{**fields, **options}, id=number)


def test_ids_belong_together_and_grow_in_the_same_order() -> None:
    likeness = Likeness(0.0)
    assert likeness.same(item(1), item(100))
    assert likeness.same(item(1), item(100))
    assert not likeness.same(item(1), item(101))
    assert not likeness.same(item(2), item(100))
    assert not likeness.same(item(2), item(99))
    assert likeness.same(item(5), item(300))
    assert likeness.same((Id(3), Id(4)), (200, 201))
    assert not likeness.same((Id(6),), (250,))
    assert likeness.theirs(3) == 200
    assert likeness.theirs(7) not in (100, 200, 201, 300)


@pytest.mark.parametrize(
    "mine, yours, same",
    [
        (True, True, True),
        (True, 1, False),
        (None, False, False),
        (1.0, 1.2, False),
        ([1, (2,)], ((1, [2])), True),
        ([1], [1, 2], False),
        (item(1, token="x"), item(1, token="y"), True),
        (item(1, token="x"), item(1), False),
        (item(1, place=3), item(1, place=8), True),
        (item(1, put_at=3.0), item(1, put_at=4.0), False),
        (item(1), None, False),
        (None, item(1), False),
        (Refusal("a"), Refusal("a", 7.0), True),
        (Refusal("a"), Refusal("b"), False),
        (Refusal("a"), None, False),
        (
            KeyAlreadyInFlightError("x", keys=("a",)),
            KeyAlreadyInFlightError("y", keys=("a",)),
            True,
        ),
        (KeyAlreadyInFlightError("x", keys=("a",)), KeyAlreadyInFlightError("x"), False),
        (QueueFullError("x", maxsize=1), QueueFullError("x", maxsize=2), False),
    ],
)
def test_what_counts_as_the_same(mine: object, yours: object, same: bool) -> None:
    assert Likeness(0.0).same(mine, yours) is same


def test_moments_may_differ_by_the_tolerance() -> None:
    assert Likeness(0.5).same(item(1, put_at=3.0), item(1, put_at=3.5))
    assert not Likeness(0.5).same(item(1, put_at=3.0), item(1, put_at=3.6))


def test_the_order_is_that_of_priorities_and_places() -> None:
    items = [item(1, place=2), item(2, place=1), item(3, priority=1, place=9)]
    assert in_order([*items, item(4, state="done")]) == (3, 2, 1)


# Processes


def open_memory() -> Store:
    return MemoryStore()


def test_a_process_answers_and_can_be_killed() -> None:
    async def main() -> None:
        worker = Worker(open_memory)
        try:
            answers = await worker.ask(put, [one("a"), one("a")])
            assert answers == [((1, "added"),), ((1, "updated"),)]
            worker.tell(put, "nonsense")
            with pytest.raises(ProcessEndedError, match="Traceback"):
                await worker.hear()
            assert await worker.hear_after_kill() == []
        finally:
            worker.kill()
        with pytest.raises(ProcessEndedError, match="the other process ended"):
            await worker.hear()

    asyncio.run(main())
    assert multiprocessing.active_children() == []


def test_an_opener_must_be_picklable() -> None:
    with pytest.raises(TypeError, match=r"cannot be given to another process .* use a URL"):
        Worker(lambda: open_memory())  # noqa: PLW0108 - a lambda cannot be pickled
    assert multiprocessing.active_children() == []


class LeavesProcesses(StoreConformance, without=("hypothesis",)):
    def opener(self, place: Place) -> str:
        return sqlite(place)

    @site_check()
    async def test_fails_while_a_process_works(self, site: Any) -> None:
        """A check with a process in it."""
        await site.start_process().ask(put, [one("a")])
        raise ArithmeticError


def test_a_failed_check_ends_its_processes(tmp_path: Path) -> None:
    with pytest.raises(ArithmeticError):
        LeavesProcesses().test_fails_while_a_process_works()
    assert multiprocessing.active_children() == []
