"""Levels, hysteresis, and callbacks of every kind."""

import asyncio
import logging
import threading
from collections.abc import Awaitable
from datetime import timedelta
from functools import partial
from math import nan
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasedkeyq.lanes import LaneConfig, MonitorConfig
from leasedkeyq.lanes.policies.alerts import SAMPLES, Alert, AlertManager, AlertRule
from leasedkeyq.telemetry.stats import LaneStats, QueueStats
from tests.lanes.support import in_memory
from tests.support import started, steps

# The machine may be busy.
busy = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def stats(**lanes: LaneStats) -> QueueStats:
    return QueueStats(lanes=lanes)


def deep(pending: int) -> QueueStats:
    return stats(api=LaneStats(pending=pending))


def ended(completed: int, failed: int) -> QueueStats:
    return stats(api=LaneStats(completed=completed, failed=failed))


async def levels(rule: AlertRule, *course: QueueStats, step: float = 1) -> list[str]:
    """The level after each look; a look that changes nothing repeats the one before."""
    manager = AlertManager([rule])
    found: list[str] = []
    for place, each in enumerate(course):
        changes = await manager.check(each, place * step)
        found.append(changes[0].level if changes else found[-1] if found else "ok")
        assert not changes or changes[0].previous == (found[-2] if len(found) > 1 else "ok")
    return found


class TestLevels:
    async def test_queue_depth(self) -> None:
        rule = AlertRule.queue_depth(10, 20)
        course = (deep(depth) for depth in (0, 9, 10, 19, 20, 99))
        assert await levels(rule, *course) == [
            *("ok", "ok", "warning", "warning", "critical", "critical")
        ]

    async def test_an_alert_ends_below_its_release_and_does_not_flap(self) -> None:
        rule = AlertRule.queue_depth(10, 20)
        course = [deep(depth) for depth in (10, 9, 10, 8, 9, 7)]
        assert await levels(rule, *course) == ["warning"] * 5 + ["ok"]
        course = [deep(depth) for depth in (20, 19, 16, 20, 15, 19, 20, 15, 8, 7)]
        expected = ["critical"] * 4 + ["warning"] * 2 + ["critical"] + ["warning"] * 2 + ["ok"]
        assert await levels(rule, *course) == expected

    async def test_from_critical_to_ok_at_once(self) -> None:
        rule = AlertRule.queue_depth(10, 20)
        assert await levels(rule, deep(20), deep(7)) == ["critical", "ok"]
        assert await levels(rule, deep(20), deep(8)) == ["critical", "warning"]

    async def test_the_release_can_be_chosen(self) -> None:
        course = [deep(depth) for depth in (10, 9, 10)]
        rule = AlertRule.queue_depth(10, release=1)
        assert await levels(rule, *course) == ["warning", "ok", "warning"]
        course = [deep(depth) for depth in (10, 5, 4)]
        assert await levels(AlertRule.queue_depth(10, release=0.5), *course) == [
            *("warning", "warning", "ok")
        ]

    async def test_one_level_alone(self) -> None:
        course = [deep(depth) for depth in (5, 15, 25)]
        rule = AlertRule.queue_depth(critical=20)
        assert await levels(rule, *course) == ["ok", "ok", "critical"]
        assert await levels(AlertRule.queue_depth(10), *course) == ["ok", "warning", "warning"]

    @busy
    @given(st.integers(1, 20), st.integers(0, 20), st.floats(0.01, 1), st.lists(st.floats(0, 50)))
    def test_a_level_is_left_only_below_its_release(
        self, warning: int, more: int, release: float, values: list[float]
    ) -> None:
        critical = warning + more
        rule = AlertRule.queue_depth(warning, critical, release=release)
        level: Any = "ok"
        for value in values:
            before, (level, threshold) = level, rule.level(value, level)
            assert threshold == {"ok": None, "warning": warning, "critical": critical}[level]
            if value >= critical:
                assert level == "critical"
            elif value >= warning:
                assert level != "ok"
            if before == "critical" and level != "critical":
                assert value < critical * release
            if before != "ok" and level == "ok":
                assert value < warning * release
            if before == "ok" and level != "ok":
                assert value >= warning


class TestWhatIsLookedAt:
    async def test_all_lanes_together_or_one(self) -> None:
        both = stats(
            a=LaneStats(pending=6, oldest_age=3.0), b=LaneStats(pending=5, oldest_age=None)
        )
        rules = [
            AlertRule.queue_depth(11),
            AlertRule.queue_depth(12),
            AlertRule.queue_depth(6, lane="a"),
            AlertRule.queue_depth(6, lane="b"),
            AlertRule.oldest_age(3),
            AlertRule.oldest_age(timedelta(seconds=3), lane="a"),
            AlertRule.oldest_age(3, lane="b"),
        ]
        alerts = await AlertManager(rules).check(both, 5)
        assert [alert.rule for alert in alerts] == [rules[0], rules[2], rules[4], rules[5]]
        assert alerts[1] == Alert(
            rule=rules[2], lane="a", level="warning", previous="ok", value=6, threshold=6, at=5
        )
        assert [(alert.lane, alert.value) for alert in alerts] == [
            *((None, 11), ("a", 6), (None, 3.0), ("a", 3.0))
        ]

    async def test_nothing_waits(self) -> None:
        assert await AlertManager([AlertRule.oldest_age(1)]).check(QueueStats()) == []

    async def test_an_unknown_lane_is_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        manager = AlertManager([AlertRule.queue_depth(1, lane="apu")])
        for _ in range(3):
            assert await manager.check(deep(5)) == []
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "'apu'" in caplog.text

    async def test_what_is_active(self) -> None:
        rules = [AlertRule.queue_depth(5), AlertRule.queue_depth(10)]
        manager = AlertManager(rules)
        assert manager.rules == tuple(rules)
        assert not manager.active
        await manager.check(deep(10))
        assert [alert.rule for alert in manager.active] == rules
        await manager.check(deep(5))
        assert [alert.rule for alert in manager.active] == rules[:1]

    async def test_an_alert_tells_its_story(self) -> None:
        manager = AlertManager([AlertRule.queue_depth(5, lane="api")])
        (begin,) = await manager.check(deep(7))
        (end,) = await manager.check(deep(0))
        assert str(begin) == "warning: queue depth of lane 'api' is 7 (threshold 5), was ok"
        assert str(end) == "ok: queue depth of lane 'api' is 0, was warning"


class TestFailureRate:
    async def test_of_the_commands_that_ended_since(self) -> None:
        rule = AlertRule.failure_rate(0.25, 0.5, 60)
        course = (ended(1000, 1000), ended(1015, 1005), ended(1015, 1015), ended(1100, 1015))
        # 5 of 20, then 15 of 30, then 15 of 115
        assert await levels(rule, *course) == ["ok", "warning", "critical", "ok"]

    async def test_only_the_window_counts(self) -> None:
        rule = AlertRule.failure_rate(0.5, window=timedelta(seconds=10))
        course = [ended(0, 0), ended(0, 10), *(ended(0, 10) for _ in range(9)), ended(0, 10)]
        # The failures were seen at 1. They count until nothing before them is in the window.
        assert await levels(rule, *course) == ["ok", *["warning"] * 10, "ok"]

    async def test_too_few_say_nothing(self) -> None:
        rule = AlertRule.failure_rate(0.5, window=60, least=10)
        assert await levels(rule, ended(0, 0), ended(0, 9)) == ["ok", "ok"]
        assert await levels(rule, ended(0, 0), ended(0, 10)) == ["ok", "warning"]

    async def test_too_few_keep_the_level_and_none_end_it(self) -> None:
        rule = AlertRule.failure_rate(0.5, window=10, least=10)
        manager = AlertManager([rule])
        await manager.check(ended(0, 0), 0)
        await manager.check(ended(0, 20), 1)
        await manager.check(ended(5, 20), 11)
        assert [alert.level for alert in manager.active] == ["warning"]
        await manager.check(ended(5, 20), 22)
        assert not manager.active

    async def test_counters_that_start_anew(self) -> None:
        rule = AlertRule.failure_rate(0.5, window=60)
        course = (ended(500, 500), ended(500, 600), ended(0, 0), ended(90, 10), ended(90, 200))
        assert await levels(rule, *course) == ["ok", "warning", "ok", "ok", "warning"]

    async def test_a_clock_that_runs_back(self) -> None:
        manager = AlertManager([AlertRule.failure_rate(0.5, window=10)])
        for now, each in ((1000, ended(0, 0)), (1001, ended(0, 50)), (0, ended(0, 50))):
            await manager.check(each, now)
        assert not manager.active
        # It goes on from there, and what was before is not counted again.
        await manager.check(ended(100, 60), 1)
        assert not manager.active
        await manager.check(ended(100, 300), 2)
        assert len(manager.active) == 1

    async def test_memory_does_not_grow_with_the_looks(self) -> None:
        manager = AlertManager([AlertRule.failure_rate(0.5, window=10)])
        for look in range(20_000):
            await manager.check(ended(look, look // 4), look / 1000)
        assert len(manager._watched[0]._ends) <= SAMPLES + 3
        assert not manager.active
        completed, failed = 20_000, 5_000
        for look in range(20_000, 40_000):
            failed += 1
            await manager.check(ended(completed, failed), look / 1000)
        assert [alert.level for alert in manager.active] == ["warning"]

    @busy
    @given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 9), st.integers(0, 9)), max_size=60))
    def test_the_window_is_right_to_a_hundredth(self, course: list[tuple[float, int, int]]) -> None:
        """Against the sum over all looks, which remembers everything."""
        window = 10.0
        manager = AlertManager([AlertRule.failure_rate(0.5, window=window, least=1)])
        now, completed, failed = 0.0, 0, 0
        looks = [(now, completed, failed)]

        async def check() -> None:
            nonlocal now, completed, failed
            await manager.check(ended(0, 0), 0)
            for step, more_completed, more_failed in course:
                now += step
                completed += more_completed
                failed += more_failed
                looks.append((now, completed, failed))
                await manager.check(ended(completed, failed), now)
                ends = manager._watched[0]._ends
                assert (ends[-1][1], ends[-1][2]) == (completed, failed)
                # The look that it counts from is the last before the window, or nearly so.
                before = [look for look in looks if look[0] <= now - window]
                oldest = before[-1] if before else looks[0]
                assert ends[0][0] <= oldest[0] + 2 * window / SAMPLES
                assert ends[0][0] >= oldest[0] - 2 * window / SAMPLES

        asyncio.run(check())


class TestCallbacks:
    """These run in real time: a plain function is called in a thread."""

    def run(self, *callbacks: Any, depths: tuple[int, ...] = (10,), timeout: float = 30) -> None:
        async def check() -> None:
            manager = AlertManager(
                [AlertRule.queue_depth(5), AlertRule.queue_depth(10)],
                callbacks,
                callback_timeout=timeout,
            )
            for depth in depths:
                await manager.check(deep(depth))

        asyncio.run(check())

    def test_plain_functions_and_coroutine_functions(self) -> None:
        names = ("plain", "async", "partial", "object", "mixed")
        told: dict[str, list[Alert]] = {name: [] for name in names}

        async def tell(name: str, alert: Alert) -> None:
            await asyncio.sleep(0)
            told[name].append(alert)

        async def tell_async(alert: Alert) -> None:
            await tell("async", alert)

        class Caller:
            async def __call__(self, alert: Alert) -> None:
                await tell("object", alert)

        def mixed(alert: Alert) -> Awaitable[None]:
            return tell("mixed", alert)

        self.run(told["plain"].append, tell_async, partial(tell, "partial"), Caller(), mixed)
        for alerts in told.values():
            assert [alert.rule.warning for alert in alerts] == [5, 10]

    def test_a_plain_function_may_block_and_the_loop_goes_on(self) -> None:
        gone_on = threading.Event()

        async def check() -> None:
            blocked = AlertManager([AlertRule.queue_depth(1)], [lambda _: gone_on.wait(60)])
            checking = asyncio.create_task(blocked.check(deep(1)))
            await asyncio.sleep(0)
            gone_on.set()
            await checking

        asyncio.run(check())

    def test_no_change_no_call(self) -> None:
        told: list[Alert] = []
        self.run(told.append, depths=(10, 10, 11, 9))
        assert len(told) == 2

    @pytest.mark.parametrize("is_async", [False, True])
    def test_one_that_raises_harms_nobody(
        self, is_async: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        told: list[Alert] = []

        def fail(alert: Alert) -> None:
            raise ZeroDivisionError(str(alert))

        async def fail_async(alert: Alert) -> None:
            fail(alert)

        self.run(fail_async if is_async else fail, told.append, depths=(10, 0))
        assert len(told) == 4
        assert caplog.text.count("ZeroDivisionError: ") == 4

    def test_a_plain_one_that_hangs_harms_nobody(self, caplog: pytest.LogCaptureFixture) -> None:
        told: list[Alert] = []
        hung: list[Alert] = []
        free = threading.Event()

        def hang(alert: Alert) -> None:
            hung.append(alert)
            free.wait(60)

        try:
            self.run(hang, told.append, depths=(10, 0), timeout=0.05)
        finally:
            free.set()
        assert len(told) == 4
        # It is not called again as long as it hangs: threads do not pile up.
        assert len(hung) == 1
        assert caplog.text.count("took longer than 0.05 s") == 1
        assert caplog.text.count("has not ended yet") == 3

    def test_one_that_was_late_is_called_again_when_it_has_ended(self) -> None:
        free = threading.Event()
        told: list[Alert] = []

        def slow_at_first(alert: Alert) -> None:
            if not told:
                free.wait(60)
            told.append(alert)

        async def check() -> None:
            rules = [AlertRule.queue_depth(1)]
            manager = AlertManager(rules, [slow_at_first], callback_timeout=0.05)
            await manager.check(deep(1))
            free.set()
            depth = 1
            while len(told) < 2:
                depth = 1 - depth
                await manager.check(deep(depth))

        asyncio.run(asyncio.wait_for(check(), 60))

    @pytest.mark.parametrize("is_object", [False, True])
    async def test_an_async_one_that_hangs_is_cancelled(
        self, is_object: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        ended: list[BaseException] = []
        told: list[Alert] = []

        async def hang(alert: Alert) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as error:
                ended.append(error)
                raise

        class Hanging:
            async def __call__(self, alert: Alert) -> None:
                await hang(alert)

        async def tell(alert: Alert) -> None:
            told.append(alert)

        callback = Hanging() if is_object else hang
        manager = AlertManager([AlertRule.queue_depth(1)], [callback, tell])
        loop = asyncio.get_running_loop()
        assert len(await manager.check(deep(1))) == 1
        assert loop.time() == 10
        await steps()
        assert len(ended) == len(told) == 1
        await manager.check(deep(0))
        await steps()
        assert len(ended) == len(told) == 2
        assert caplog.text.count("took longer than 10.0 s") == 2

    async def test_one_that_will_not_be_cancelled_is_not_waited_for(self) -> None:
        release = asyncio.Event()

        async def stubborn(alert: Alert) -> None:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue

        manager = AlertManager([AlertRule.queue_depth(1)], [stubborn], callback_timeout=5)
        await manager.check(deep(1))
        assert asyncio.get_running_loop().time() == 5
        release.set()
        await steps()
        assert len(asyncio.all_tasks()) == 1

    async def test_one_that_cancels_itself(self, caplog: pytest.LogCaptureFixture) -> None:
        async def cancel(alert: Alert) -> None:
            raise asyncio.CancelledError

        manager = AlertManager([AlertRule.queue_depth(1)], [cancel])
        assert len(await manager.check(deep(1))) == 1
        assert "was cancelled" in caplog.text

    async def test_a_cancelled_check_cancels_its_callbacks(self) -> None:
        async def hang(alert: Alert) -> None:
            await asyncio.Event().wait()

        manager = AlertManager([AlertRule.queue_depth(1)], [hang, hang])
        checking = await started(manager.check(deep(1)))
        checking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await checking
        await steps()
        assert len(asyncio.all_tasks()) == 1
        # The level was set, and is not told again.
        assert [alert.level for alert in manager.active] == ["warning"]

    def test_a_callback_is_callable(self) -> None:
        callback: Any = "https://example.org"
        with pytest.raises(TypeError, match="callback"):
            AlertManager([], [callback])


async def test_a_builder_adds_its_callbacks_to_those_of_an_alert_manager() -> None:
    told: list[str] = []

    async def own(alert: Alert) -> None:
        told.append(f"own {alert.level}")

    async def added(alert: Alert) -> None:
        told.append(f"added {alert.level}")

    alerts = AlertManager([AlertRule.queue_depth(1)], [own])
    builder = in_memory().with_lane("api", LaneConfig(0, 1), 0)
    manager = builder.with_alerts(alerts, added, own, monitor=MonitorConfig(1)).build()
    manager.pause("api")

    @manager.command("nothing")
    async def nothing() -> None: ...

    async with manager:
        await manager.submit("api", nothing())
        await asyncio.sleep(2)
        assert sorted(told) == ["added warning", "own warning"]
        assert len(alerts.active) == 1
        manager.resume("api")
        await asyncio.sleep(2)
    assert sorted(told) == ["added ok", "added warning", "own ok", "own warning"]


@pytest.mark.parametrize(
    "make, arguments, options, said",
    [
        (AlertRule.queue_depth, (10**400,), {}, "warning"),
        (AlertRule.queue_depth, (), {}, "warning, critical"),
        (AlertRule.queue_depth, (0,), {}, "warning"),
        (AlertRule.queue_depth, (None, -1), {}, "critical"),
        (AlertRule.queue_depth, (20, 10), {}, "warning"),
        (AlertRule.queue_depth, (1,), {"release": 0}, "release"),
        (AlertRule.queue_depth, (1,), {"release": 1.5}, "release"),
        (AlertRule.queue_depth, (nan,), {}, "warning"),
        (AlertRule.oldest_age, (-1,), {}, "warning"),
        (AlertRule.failure_rate, (25,), {}, "warning must be above 0 and at most 1"),
        (AlertRule.failure_rate, (0.5,), {"window": 0}, "window"),
        (AlertRule.failure_rate, (0.5,), {"least": 0}, "least"),
    ],
)
def test_wrong_arguments(
    make: Any, arguments: tuple[Any, ...], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        make(*arguments, **options)
