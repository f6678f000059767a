"""Natural batching: who waits together is served together, and nobody harms anybody."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from leasedkeyq.errors import StoreClosedError
from leasedkeyq.stores.batching import ThreadBatcher


class Recorder:
    """Applies requests by doubling them; holds every batch until it is let go, if asked to."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.threads: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()

    def __call__(self, requests: list[int]) -> list[int]:
        self.threads.add(threading.get_ident())
        self.batches.append(list(requests))
        self.begun.set()
        assert self.gate.wait(10)
        if -1 in requests:
            raise OSError("broken")
        return [2 * request for request in requests]

    async def has_begun(self) -> None:
        while not self.begun.is_set():
            await asyncio.sleep(0.001)


def undo(request: int, answer: int) -> Iterator[int]:
    yield 1000 + request


async def block(batcher: ThreadBatcher[int, int], recorder: Recorder) -> "asyncio.Task[int]":
    """A batch with request 0 that is under way until the gate opens."""
    recorder.gate.clear()
    first = asyncio.create_task(batcher.submit(0))
    await recorder.has_begun()
    return first


async def start(batcher: ThreadBatcher[int, int], *requests: int) -> list["asyncio.Task[int]"]:
    tasks = [asyncio.create_task(batcher.submit(request)) for request in requests]
    await asyncio.sleep(0)
    return tasks


def test_calls_during_a_batch_form_the_next_one() -> None:
    async def main() -> None:
        recorder = Recorder()
        batcher: ThreadBatcher[int, int] = ThreadBatcher(recorder)
        first = await block(batcher, recorder)
        others = await start(batcher, 1, 2, 3)
        recorder.gate.set()
        assert await asyncio.gather(first, *others) == [0, 2, 4, 6]
        assert recorder.batches == [[0], [1, 2, 3]]
        assert await batcher.submit(7) == 14
        assert await batcher.submit_many([8, 9]) == [16, 18]
        await batcher.close()
        assert len(recorder.threads) == 1
        assert threading.get_ident() not in recorder.threads

    asyncio.run(main())


def test_a_batch_has_a_largest_size_and_a_larger_call_is_alone() -> None:
    async def main() -> None:
        recorder = Recorder()
        batcher: ThreadBatcher[int, int] = ThreadBatcher(recorder, most=2)
        first = await block(batcher, recorder)
        others = await start(batcher, 1, 2, 3)
        large = asyncio.create_task(batcher.submit_many([4, 5, 6]))
        await asyncio.sleep(0)
        recorder.gate.set()
        await asyncio.gather(first, *others)
        assert await large == [8, 10, 12]
        await batcher.close()
        assert recorder.batches == [[0], [1, 2], [3], [4, 5, 6]]

    asyncio.run(main())


def test_a_call_that_wants_to_be_alone_waits_for_its_turn_and_is() -> None:
    async def main() -> None:
        recorder = Recorder()
        batcher: ThreadBatcher[int, int] = ThreadBatcher(recorder)
        first = await block(batcher, recorder)
        before = await start(batcher, 1, 2)
        alone = [asyncio.create_task(batcher.submit_many([n], alone=True)) for n in (3, 4)]
        await asyncio.sleep(0)
        after = await start(batcher, 5, 6)
        recorder.gate.set()
        await asyncio.gather(first, *before, *alone, *after)
        await batcher.close()
        assert recorder.batches == [[0], [1, 2], [3], [4], [5, 6]]

    asyncio.run(main())


def test_a_failed_batch_fails_its_callers_and_no_others() -> None:
    async def main() -> None:
        recorder = Recorder()
        batcher: ThreadBatcher[int, int] = ThreadBatcher(recorder)
        first = await block(batcher, recorder)
        others = await start(batcher, -1, 2)
        recorder.gate.set()
        assert await first == 0
        for task in others:
            with pytest.raises(OSError, match="broken"):
                await task
        assert await batcher.submit(3) == 6
        await batcher.close()

    asyncio.run(main())


def test_a_cancelled_caller_withdraws_what_still_waits() -> None:
    async def main() -> None:
        recorder = Recorder()
        batcher: ThreadBatcher[int, int] = ThreadBatcher(recorder, undo=undo)
        first = await block(batcher, recorder)
        one, two, three = await start(batcher, 1, 2, 3)
        two.cancel()
        await asyncio.sleep(0)
        recorder.gate.set()
        assert [await task for task in (first, one, three)] == [0, 2, 6]
        assert two.cancelled()
        await batcher.close()
        assert recorder.batches == [[0], [1, 3]]

    asyncio.run(main())


def test_an_answer_that_nobody_waits_for_is_undone() -> None:
    async def main() -> None:
        recorder = Recorder()
        batcher: ThreadBatcher[int, int] = ThreadBatcher(recorder, undo=undo)
        first = await block(batcher, recorder)
        first.cancel()
        await asyncio.sleep(0)
        recorder.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await first
        await batcher.close()
        assert recorder.batches == [[0], [1000]]

    asyncio.run(main())


def test_an_answer_that_comes_together_with_the_cancellation_is_undone() -> None:
    async def main() -> None:
        recorder = Recorder()
        batcher: ThreadBatcher[int, int] = ThreadBatcher(recorder, undo=undo)
        task = asyncio.create_task(batcher.submit(5))
        hand_out = batcher._hand_out

        def hand_out_and_cancel(outcomes: list[object]) -> None:
            hand_out(outcomes)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            task.cancel()

        batcher._hand_out = hand_out_and_cancel  # type: ignore[method-assign,assignment]  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(asyncio.CancelledError):
            await task
        await batcher.close()
        assert recorder.batches == [[5], [1005]]

    asyncio.run(main())


def test_closing_finishes_what_waits_and_refuses_what_comes_later() -> None:
    async def main() -> None:
        ends: list[int] = []
        recorder = Recorder()
        batcher: ThreadBatcher[int, int] = ThreadBatcher(
            recorder, name="thing", at_end=lambda: ends.append(threading.get_ident())
        )
        first = await block(batcher, recorder)
        (other,) = await start(batcher, 1)
        closing = [asyncio.create_task(batcher.close()) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(StoreClosedError, match="the thing is closed"):
            await batcher.submit(2)
        assert not closing[0].done()
        recorder.gate.set()
        await asyncio.gather(*closing)
        assert [await first, await other] == [0, 2]
        assert ends == list(recorder.threads)
        await batcher.close()
        with pytest.raises(StoreClosedError):
            await batcher.submit(2)

    asyncio.run(main())


def test_closing_an_unused_batcher_starts_no_thread() -> None:
    async def main() -> None:
        ends: list[int] = []
        batcher: ThreadBatcher[int, int] = ThreadBatcher(Recorder(), at_end=lambda: ends.append(1))
        await batcher.close()
        await batcher.close()
        assert ends == [1]
        assert batcher._thread is None

    asyncio.run(main())


def test_an_event_loop_that_has_gone_loses_nothing_for_others() -> None:
    recorder = Recorder()
    batcher: ThreadBatcher[int, int] = ThreadBatcher(recorder, undo=undo)

    async def leave() -> None:
        task = await block(batcher, recorder)
        task.cancel()

    asyncio.run(leave())
    recorder.gate.set()

    async def stay() -> None:
        assert await batcher.submit(1) == 2
        await batcher.close()

    asyncio.run(stay())
    assert sorted(request for batch in recorder.batches for request in batch) == [0, 1, 1000]


def test_what_cannot_be_undone_is_tried_again_with_the_next_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = Recorder()
    away = True

    def apply(requests: list[int]) -> list[int]:
        answers = recorder(requests)
        if away and 1000 in requests:
            raise OSError("away")
        return answers

    async def main() -> None:
        nonlocal away
        batcher: ThreadBatcher[int, int] = ThreadBatcher(apply, name="thing", undo=undo)
        first = await block(batcher, recorder)
        first.cancel()
        await asyncio.sleep(0)
        recorder.gate.set()
        while not batcher._unwanted:
            await asyncio.sleep(0.001)
        away = False
        assert await batcher.submit(1) == 2
        await batcher.close()
        assert not batcher._unwanted

    asyncio.run(main())
    assert recorder.batches[:2] == [[0], [1000]]
    assert sorted(request for batch in recorder.batches for request in batch) == [0, 1, 1000, 1000]
    assert "the thing cannot take back 1 answers whose callers have gone: away" in caplog.text


def test_answers_on_their_way_to_an_event_loop_that_is_closed_are_undone() -> None:
    """It took them, and was closed before it had a turn to hand them out."""
    recorder = Recorder()
    batcher: ThreadBatcher[int, int] = ThreadBatcher(recorder, undo=undo)
    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(block(batcher, recorder))
    recorder.gate.set()
    while not batcher._undelivered:
        time.sleep(0.001)
    loop.close()

    async def stay() -> None:
        assert await batcher.submit(1) == 2
        await batcher.close()

    asyncio.run(stay())
    assert recorder.batches == [[0], [1], [1000]]
    assert not task.done()
    setattr(task, "_log_destroy_pending", False)  # noqa: B010  # type checkers do not know it


def test_many_event_loops_share_one_batcher() -> None:
    recorder = Recorder()
    batcher: ThreadBatcher[int, int] = ThreadBatcher(recorder)
    wrong: list[int] = []

    async def call(start: int) -> None:
        numbers = range(start, start + 200)
        answers = await asyncio.gather(*(batcher.submit(number) for number in numbers))
        wrong.extend(n for n, a in zip(numbers, answers, strict=True) if a != 2 * n)

    threads = [
        threading.Thread(target=lambda s=start: asyncio.run(call(s)))
        for start in range(0, 2000, 200)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(batcher.close())
    assert not wrong
    assert sum(map(len, recorder.batches)) == 2000
    assert len(recorder.threads) == 1


class HereRecorder(Recorder):
    """Applies batches in the event loop, but for those with an odd number or that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.here: list[list[int]] = []
        self.willing = True

    def apply_here(self, requests: list[int]) -> list[int] | None:
        if not self.willing or any(request % 2 for request in requests if request > 0):
            return None
        self.here.append(list(requests))
        if -1 in requests:
            raise OSError("broken")
        return [2 * request for request in requests]

    def batcher(self) -> ThreadBatcher[int, int]:
        return ThreadBatcher(self, apply_here=self.apply_here, undo=undo)


def test_a_lone_call_is_applied_in_the_event_loop_and_needs_no_thread() -> None:
    async def main() -> None:
        recorder = HereRecorder()
        batcher = recorder.batcher()
        assert [await batcher.submit(2), await batcher.submit(4)] == [4, 8]
        assert (recorder.here, recorder.batches) == ([[2], [4]], [])
        assert batcher._thread is None
        await batcher.close()
        with pytest.raises(StoreClosedError):
            await batcher.submit(2)

    asyncio.run(main())


def test_an_event_loop_runs_between_calls_that_it_applies_itself() -> None:
    async def main() -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        batcher = HereRecorder().batcher()
        counting = asyncio.create_task(count())
        for _ in range(10):
            await batcher.submit(2)
        assert turns >= 10
        counting.cancel()
        await batcher.close()

    asyncio.run(main())


def test_calls_of_one_turn_are_one_batch_in_the_event_loop() -> None:
    async def main() -> None:
        recorder = HereRecorder()
        batcher = recorder.batcher()
        assert await asyncio.gather(*(batcher.submit(n) for n in (2, 4, 6))) == [4, 8, 12]
        assert (recorder.here, recorder.batches) == ([[2, 4, 6]], [])
        await batcher.close()

    asyncio.run(main())


def test_what_the_event_loop_does_not_apply_goes_to_the_thread_in_order() -> None:
    async def main() -> None:
        recorder = HereRecorder()
        batcher = recorder.batcher()
        recorder.gate.clear()
        tasks = await start(batcher, 1, 2)
        await recorder.has_begun()
        tasks += await start(batcher, 4)  # the thread is busy: it does not overtake
        await asyncio.sleep(0.01)
        assert recorder.here == []
        recorder.gate.set()
        assert await asyncio.gather(*tasks) == [2, 4, 8]
        assert recorder.batches == [[1, 2], [4]]
        while not batcher._idle:
            await asyncio.sleep(0.001)
        assert await batcher.submit(6) == 12
        assert recorder.here == [[6]]
        await batcher.close()

    asyncio.run(main())


def test_a_call_that_wants_to_be_alone_goes_to_the_thread() -> None:
    async def main() -> None:
        recorder = HereRecorder()
        batcher = recorder.batcher()
        before, alone = batcher.submit(2), batcher.submit_many((4, 6), alone=True)
        assert list(await asyncio.gather(before, alone)) == [4, [8, 12]]
        assert (recorder.here, recorder.batches) == ([], [[2], [4, 6]])
        await batcher.close()

    asyncio.run(main())


def test_a_failure_in_the_event_loop_goes_to_the_callers() -> None:
    async def main() -> None:
        recorder = HereRecorder()
        batcher = recorder.batcher()
        answers = await asyncio.gather(
            batcher.submit(-1), batcher.submit(2), return_exceptions=True
        )
        assert [str(answer) for answer in answers] == ["broken", "broken"]
        assert await batcher.submit(2) == 4
        await batcher.close()

    asyncio.run(main())


def test_a_caller_that_goes_before_the_event_loop_applies_its_call_withdraws_it() -> None:
    async def main() -> None:
        recorder = HereRecorder()
        batcher = recorder.batcher()
        tasks = await start(batcher, 2, 4)
        tasks[0].cancel()
        assert await tasks[1] == 8
        # A caller that goes together with the answer has not got it: it is undone.
        (task,) = await start(batcher, 6)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await batcher.close()
        assert recorder.here in ([[2, 4], [6]], [[4], [6]])
        assert recorder.batches[-1][-1] == 1006

    asyncio.run(main())


def test_closing_finishes_what_the_event_loop_was_about_to_apply() -> None:
    async def main() -> None:
        recorder = HereRecorder()
        batcher = recorder.batcher()
        tasks = [asyncio.create_task(batcher.submit(2))]
        loop = asyncio.get_running_loop()
        closing: list[asyncio.Task[None]] = []
        loop.call_soon(lambda: closing.append(asyncio.create_task(batcher.close())))
        assert await asyncio.gather(*tasks) == [4]
        await asyncio.gather(*closing)

    asyncio.run(main())


def test_closing_waits_for_an_answer_that_came_together_with_the_cancellation() -> None:
    async def main() -> None:
        recorder = HereRecorder()
        batcher = recorder.batcher()
        (task,) = await start(batcher, 2)
        await asyncio.sleep(0)
        assert recorder.here == [[2]]
        task.cancel()
        await batcher.close()
        assert recorder.batches == [[1002]]

    asyncio.run(main())


def test_event_loops_of_several_threads_apply_one_batch_at_a_time() -> None:
    inside = 0
    most = 0
    applied: list[int] = []

    def apply(requests: list[int]) -> list[int]:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.0005)
        applied.extend(requests)
        inside -= 1
        return list(requests)

    batcher: ThreadBatcher[int, int] = ThreadBatcher(apply, apply_here=apply)

    async def main(first: int) -> None:
        for number in range(first, first + 40):
            assert await batcher.submit(number) == number

    threads = [threading.Thread(target=asyncio.run, args=(main(40 * n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(batcher.close())
    assert most == 1
    assert sorted(applied) == list(range(160))


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("willing", [False, True])
def test_closing_waits_for_a_batch_that_another_event_loop_applies(
    used: bool, willing: bool
) -> None:
    begun, gate = threading.Event(), threading.Event()
    events: list[str] = []

    def apply_here(requests: list[int]) -> list[int] | None:
        if requests == [0]:
            return None
        begun.set()
        assert gate.wait(10)
        events.append("applied" if willing else "refused")
        return requests if willing else None

    def apply(requests: list[int]) -> list[int]:
        if requests != [0]:
            events.append("applied by the thread")
        return requests

    batcher: ThreadBatcher[int, int] = ThreadBatcher(
        apply, apply_here=apply_here, at_end=lambda: events.append("ended")
    )
    answers: list[int] = []

    async def call() -> None:
        async with asyncio.timeout(5):
            answers.append(await batcher.submit(2))

    async def close() -> None:
        if used:
            await batcher.submit(0)
            while not batcher._idle:
                await asyncio.sleep(0.001)
        other = threading.Thread(target=asyncio.run, args=(call(),), daemon=True)
        other.start()
        assert await asyncio.to_thread(begun.wait, 10)
        closing = asyncio.create_task(batcher.close())
        await asyncio.sleep(0.05)
        assert events == []
        gate.set()
        await closing
        await asyncio.to_thread(other.join)

    asyncio.run(close())
    assert answers == [2]
    assert events == (["applied"] if willing else ["refused", "applied by the thread"]) + ["ended"]


def test_an_answer_of_the_event_loop_whose_caller_goes_as_the_batcher_closes_is_undone() -> None:
    async def main() -> None:
        recorder = HereRecorder()
        batcher = recorder.batcher()
        (task,) = await start(batcher, 2)
        await asyncio.sleep(0)
        assert recorder.here == [[2]]
        assert not task.done()
        task.cancel()
        await batcher.close()
        assert task.cancelled()
        assert recorder.batches == [[1002]]

    asyncio.run(main())


def test_a_batcher_is_not_ended_by_a_forked_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        ended: list[bool] = []
        recorder = HereRecorder()
        batcher: ThreadBatcher[int, int] = ThreadBatcher(
            recorder, apply_here=recorder.apply_here, at_end=lambda: ended.append(True)
        )
        assert await batcher.submit(2) == 4
        monkeypatch.setattr("os.getpid", lambda: -1)
        await batcher.close()
        assert ended == []

    asyncio.run(main())
