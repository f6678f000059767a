"""The event loop with virtual time."""

import asyncio
import time

import pytest

from leasedkeyq.testing import DeadlockError, VirtualTimeLoop


def test_waiting_takes_no_time_and_keeps_the_order() -> None:
    seen: list[tuple[str, float]] = []

    async def sleep(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, asyncio.get_running_loop().time()))

    async def main() -> None:
        await asyncio.gather(sleep("day", 86_400), sleep("hour", 3600), sleep("third", 1 / 3))

    begin = time.monotonic()
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
    assert time.monotonic() - begin < 60
    assert [name for name, _ in seen] == ["third", "hour", "day"]
    assert [when for _, when in seen] == pytest.approx([1 / 3, 3600, 86_400])


def test_a_deadlock_is_found() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    loop = VirtualTimeLoop()
    try:
        task = loop.create_task(main())
        with pytest.raises(DeadlockError, match="every task waits"):
            loop.run_until_complete(task)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)
    finally:
        loop.close()


def test_jump_lets_time_pass_at_once() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop.jump(5)
        return loop.time()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(main()) == 5
