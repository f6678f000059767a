"""A batch in which one request cannot be stored: each request alone, with both drivers."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from leasedkeyq.errors import StoreError, StoreUnavailableError, UnstorableError
from leasedkeyq.stores.batching import (
    BatchEngine,
    Batcher,
    Done,
    LoopBatcher,
    SpoiledBatchError,
    ThreadBatcher,
)

Answers: TypeAlias = list[Any] | BaseException


class Shop:
    """Takes numbers, and doubles them; text cannot be stored, and the server may go away."""

    def __init__(self, stops: Callable[[], bool]) -> None:
        self.stops = stops
        self.batches: list[list[Any]] = []

    def apply(self, requests: list[Any]) -> list[Any]:
        self.batches.append(requests)
        if "bug" in requests and len(requests) == 1:
            raise RuntimeError("a bug")
        if any(isinstance(request, str) for request in requests):
            raise SpoiledBatchError("the shop", TypeError("text"), stops=self.stops)
        if 0 in requests:
            raise StoreError("the shop has gone")
        return [2 * request for request in requests]


class ShopEngine(BatchEngine):
    def __init__(self, shop: Shop) -> None:
        self._shop = shop

    def apply(self, requests: list[Any], done: Done) -> None:
        answers: Answers
        try:
            answers = self._shop.apply(requests)
        except Exception as error:
            answers = error
        asyncio.get_running_loop().call_soon(done, answers)

    def abandon(self) -> None:
        pass


def in_thread(shop: Shop) -> Batcher[Any, Any]:
    return ThreadBatcher(shop.apply)


def in_loop(shop: Shop) -> Batcher[Any, Any]:
    return LoopBatcher(lambda: ShopEngine(shop), name="shop")


both = pytest.mark.parametrize("driver", [in_thread, in_loop])


def asked(driver: Callable[[Shop], Batcher[Any, Any]], shop: Shop, *requests: Any) -> list[Any]:
    """The answers to requests of one call, and that to a call behind it."""

    async def main() -> list[Any]:
        batcher = driver(shop)
        try:
            mine, behind = await asyncio.gather(batcher.submit_many(requests), batcher.submit(8))
        finally:
            await batcher.close()
        assert behind == 16
        return list(mine)

    return asyncio.run(main())


@both
def test_what_can_be_stored_is_stored(driver: Callable[[Shop], Batcher[Any, Any]]) -> None:
    shop = Shop(lambda: False)
    first, refused, last = asked(driver, shop, 1, "text", 3)
    assert (first, last) == (2, 6)
    assert isinstance(refused, UnstorableError)
    assert str(refused) == "the shop: the request cannot be stored: text"
    assert isinstance(refused.__cause__, TypeError)
    assert [1] in shop.batches
    assert ["text"] in shop.batches


@both
def test_alone_it_is_not_asked_again(driver: Callable[[Shop], Batcher[Any, Any]]) -> None:
    shop = Shop(lambda: True)

    async def main() -> None:
        batcher = driver(shop)
        assert isinstance(await batcher.submit("text"), UnstorableError)
        await batcher.close()

    asyncio.run(main())
    assert shop.batches == [["text"]]


@both
def test_a_failure_is_the_answer_to_its_own_request(
    driver: Callable[[Shop], Batcher[Any, Any]],
) -> None:
    first, refused, failed, last = asked(driver, Shop(lambda: False), 1, "text", 0, 4)
    assert (first, last) == (2, 8)
    assert isinstance(refused, UnstorableError)
    assert str(failed) == "the shop has gone"


@both
def test_those_behind_a_failure_are_not_sent_if_the_engine_says_so(
    driver: Callable[[Shop], Batcher[Any, Any]],
) -> None:
    shop = Shop(lambda: True)

    async def main() -> list[Any]:
        batcher = driver(shop)
        answers = await batcher.submit_many(["text", 1, 0, 4, 5])
        await batcher.close()
        return answers

    refused, first, failed, *unsent = asyncio.run(main())
    assert isinstance(refused, UnstorableError), "that is no reason to stop"
    assert first == 2
    assert str(failed) == "the shop has gone"
    assert [str(error) for error in unsent] == ["not sent, as others failed: the shop has gone"] * 2
    assert all(isinstance(error, StoreUnavailableError) for error in unsent)
    assert [4] not in shop.batches


@both
def test_a_bug_of_the_engine_is_for_the_whole_batch(
    driver: Callable[[Shop], Batcher[Any, Any]],
) -> None:
    shop = Shop(lambda: False)

    async def main() -> None:
        batcher = driver(shop)
        with pytest.raises(RuntimeError, match="a bug"):
            await batcher.submit_many([1, "bug"])
        assert await batcher.submit(2) == 4
        await batcher.close()

    asyncio.run(main())
