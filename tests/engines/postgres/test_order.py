"""Concurrent calls of one event loop act in the order in which they were made."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import permutations
from typing import Any, cast

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.engines.postgres.batch import call_order
from leasedkeyq.engines.postgres.link import ReadInTurn
from leasedkeyq.engines.postgres.store import PostgresStore
from leasedkeyq.stores import Ack, Bury, Cancel, Claim, Counts, Extend, Purge, Put, Release, Store
from leasedkeyq.stores.batching import LoopBatcher
from tests.engines.postgres.test_races import with_store

Step = Callable[[Store, dict[str, Any]], Awaitable[Any]]

STEPS: dict[str, Step] = {
    "put": lambda store, _: store.put([Put("q", (("a", b"2"),))]),
    "put another": lambda store, _: store.put([Put("q", (("b", b"1"),))]),
    "reject": lambda store, _: store.put([Put("q", (("a", b"3"),), "reject")]),
    "bounded": lambda store, _: store.put([Put("q", (("c", b"3"),), max_items=1)]),
    "look": lambda store, _: store.look("q", ["a"]),
    "count": lambda store, _: store.count(["q"]),
    "cancel": lambda store, _: store.settle([Cancel("q", "a")]),
    "purge": lambda store, _: store.settle([Purge("q")]),
    "claim": lambda store, _: store.claim([Claim((("q", 1),), 1, None, 600.0)]),
    "take": lambda store, _: store.claim([Claim((("q", 1),), 1, "a", 600.0)]),
    "ack": lambda store, token: store.settle([Ack("q", "a", token["a"])]),
    "release": lambda store, token: store.settle([Release("q", "a", token["a"])]),
    "bury": lambda store, token: store.settle([Bury("q", "a", token["a"], "x")]),
    "extend": lambda store, token: store.settle([Extend("q", "a", token["a"], 600.0)]),
}


def told(answer: Any) -> Any:
    """An answer without the numbers and tokens that are the store's own."""
    if isinstance(answer, Exception):
        return type(answer).__name__
    if isinstance(answer, list | tuple):
        return [told(one) for one in answer]
    if hasattr(answer, "token"):
        return answer.key, answer.value, answer.attempt
    if isinstance(answer, dict):
        return dict(cast("dict[str, Any]", answer))
    return "a number" if isinstance(answer, int | float) else answer


async def trace(store: Store, names: tuple[str, ...], *, leased: bool) -> Any:
    """What calls answer that are made in one turn of the event loop, and what they leave."""
    await store.put([Put("q", (("a", b"1"),))])
    token = {"a": "none"}
    if leased:
        [[item]] = await store.claim([Claim((("q", 1),), 1, None, 600.0)])
        token["a"] = item.token
    calls = [STEPS[name](store, token) for name in names]
    answers = told(await asyncio.gather(*calls, return_exceptions=True))
    left = [(i.key, i.state, i.value, i.attempt) for i in (await store.browse("q")).items]
    counts = await store.count(["q"])
    await store.settle([Purge("q", "all")])
    return answers, left, counts["q"]


@pytest.mark.parametrize("connections", [1, 3])
@pytest.mark.parametrize("leased", [False, True])
def test_any_two_calls_act_in_their_order(*, leased: bool, connections: int) -> None:
    """As in the memory store, which knows no other order."""

    async def test(store: PostgresStore) -> None:
        model = MemoryStore()
        for names in permutations(STEPS, 2):
            expected = await trace(model, names, leased=leased)
            assert await trace(store, names, leased=leased) == expected, names
        await model.close()

    with_store(test, connections=connections)


@pytest.mark.parametrize("connections", [1, 3])
def test_a_put_and_a_removal_leave_nothing(connections: int) -> None:
    """While other batches are under way, too."""

    async def test(store: PostgresStore) -> None:
        queue = store.queue("q")
        for number in range(30):
            calls: list[Any] = []
            for key in range(20):
                calls += [queue.put(f"{number}.{key}", 1), queue.remove(f"{number}.{key}")]
                calls.append(asyncio.sleep(0.0005 * (key % 3)))
            await asyncio.gather(*calls)
        assert await store.count(["q"]) == {"q": Counts()}

    with_store(test, connections=connections)


def test_several_connections_keep_the_order_of_a_key() -> None:
    """A call that names a key waits for the batch under way that names it."""

    async def test(store: PostgresStore) -> None:
        async def change(key: str) -> None:
            for _ in range(20):
                await asyncio.gather(store.put([Put("q", ((key, b"1"),))]), asyncio.sleep(0.001))
                putting = asyncio.create_task(store.put([Put("q", ((key, b"2"),))]))
                await asyncio.sleep(0)
                cancelling = asyncio.create_task(store.settle([Cancel("q", key)]))
                await asyncio.gather(putting, cancelling)
                assert await store.look("q", [key]) == [()]

        await asyncio.gather(*(change(f"k{number}") for number in range(6)))

    with_store(test, connections=3)


def test_a_question_that_is_withdrawn_late_disturbs_no_other_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its caller goes when the answer is there already, and the next batch is under way."""
    reading: asyncio.Task[Any]
    hand_out = LoopBatcher[Any, Any, Any]._hand_out

    def and_withdraw(batcher: Any, outcomes: Any) -> None:
        told = list(outcomes)
        hand_out(batcher, told)
        if any(isinstance(request, ReadInTurn) for call, _ in told for request in call.requests):
            reading.cancel()

    monkeypatch.setattr(LoopBatcher, "_hand_out", and_withdraw)

    async def test(store: PostgresStore) -> None:
        nonlocal reading
        reading = asyncio.create_task(store.count(["q"]))
        await asyncio.sleep(0)
        putting = asyncio.create_task(store.put([Put("q", (("a", b"1"),))]))
        await asyncio.wait([reading, putting])
        assert reading.cancelled()
        assert len(await putting) == 1

    with_store(test, connections=1)


def test_acks_go_first_where_nobody_can_tell() -> None:
    """They are done at once, which is cheaper, unless a request before them names their key."""
    ack, other = Ack("q", "a", "t"), Ack("q", "b", "t")
    claim = Claim((("q", 1),))
    assert call_order([claim, ack]) == [1, 0]
    assert call_order([ack, other, claim]) is None
    put = Put("q", (("b", b"1"),))
    assert call_order([put, ack, claim, other]) == [1, 0, 2, 3]
    assert call_order([Purge("q"), ack]) is None
    assert call_order([Cancel("q", "c"), claim, ack]) == [0, 2, 1]
    assert call_order([Put("other", (("a", b"1"),)), ack]) == [1, 0]
