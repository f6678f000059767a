"""The verbs of `Store`, around those of an engine."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from leasedkeyq import MemoryStore, Store, StoreClosedError, StoreError, UnstorableError
from leasedkeyq.model.requests import Ack, Answer, Change, Claim, Claimed, Put, StoredItem

ONE = Put("q", (("a", b"1"),))
BROKEN = StoreError("the disk is full")


def nothing(_: Sequence[StoredItem]) -> list[Put | Change]:
    return []


CALLS: dict[str, Callable[[Store], Awaitable[Any]]] = {
    "put": lambda store: store.put([ONE]),
    "claim": lambda store: store.claim([Claim((("q", 1),))]),
    "settle": lambda store: store.settle([Ack("q", "a", "token")]),
    "edit": lambda store: store.edit("q", nothing),
    "sweep": lambda store: store.sweep(["q"]),
    "count": lambda store: store.count(),
    "heads": lambda store: store.heads(["q"]),
    "look": lambda store: store.look("q", ["a"]),
    "browse": lambda store: store.browse("q"),
    "results": lambda store: store.results("q", [1]),
}


@pytest.mark.parametrize("verb", CALLS)
async def test_a_store_that_was_carried_over_a_fork_is_refused(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(StoreError, match="the memory store was opened before a fork"):
        await CALLS[verb](store)
    with pytest.raises(StoreError, match="fork"):
        store.watch("q", lambda: None)


async def test_closing_after_a_fork_leaves_alone_what_is_the_parents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    setattr(store, "do_close", None)  # noqa: B010  # type checkers know that it is a method
    monkeypatch.setattr("os.getpid", lambda: -1)
    await store.close()
    with pytest.raises(StoreClosedError):
        await store.count()


@pytest.mark.parametrize("verb", CALLS)
async def test_a_closed_store_does_not_ask_its_engine(verb: str) -> None:
    store = MemoryStore()
    await store.close()
    setattr(store, f"do_{verb}", None)
    with pytest.raises(StoreClosedError, match="the memory store is closed"):
        await CALLS[verb](store)
    with pytest.raises(StoreClosedError):
        store.watch("q", lambda: None)


@pytest.mark.parametrize("verb", [verb for verb in CALLS if verb not in ("put", "settle", "claim")])
async def test_a_failure_in_place_of_the_answer_is_raised(verb: str) -> None:
    store = MemoryStore()

    async def fails(*_: Any) -> StoreError:
        return BROKEN

    setattr(store, f"do_{verb}", fails)
    with pytest.raises(StoreError, match="the disk is full"):
        await CALLS[verb](store)


class Failing(MemoryStore):
    """Answers requests with what it is told to."""

    answers: tuple[Any, ...] = ()

    async def do_put(self, requests: Sequence[Put]) -> list[Any]:
        return list(self.answers)

    async def do_claim(self, requests: Sequence[Claim]) -> list[Any]:
        return list(self.answers)

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        return list(self.answers)


async def test_a_failure_at_a_request_is_raised_and_a_refusal_is_not() -> None:
    store = Failing()
    refusal = UnstorableError("not this one")
    store.answers = ((1,), refusal)
    assert await store.put([ONE, ONE]) == [(1,), refusal]
    assert await store.settle([Ack("q", "a", "t")] * 2) == [(1,), refusal]
    store.answers = ((1,), BROKEN)
    with pytest.raises(StoreError, match="full"):
        await store.put([ONE, ONE])
    with pytest.raises(StoreError, match="full"):
        await store.settle([Ack("q", "a", "t")] * 2)


async def test_what_was_claimed_reaches_its_caller_though_something_failed() -> None:
    store = Failing()
    item = Claimed("q", "a", b"1", 1, "token", 1, 1, 0, None, 0.0)
    claim = Claim((("q", 1),))
    store.answers = (BROKEN, (item,))
    assert await store.claim([claim, claim]) == [(), (item,)]
    store.answers = (BROKEN, ())
    with pytest.raises(StoreError, match="full"):
        await store.claim([claim, claim])


async def test_refusals_are_in_the_places_of_their_requests() -> None:
    store = MemoryStore()
    empty, long = Put("q", (("", b"1"),)), Put("q", (("k" * 2000, b"1"),))
    answers = await store.put([empty, ONE, long, Put("q", (("b", b"1"),)), empty])
    assert [isinstance(answer, Exception) for answer in answers] == [True, False, True, False, True]
    assert (answers[1], answers[3]) == ((1,), (2,))


@pytest.mark.parametrize("name", ["a\0b", "\ud800", 7])
async def test_names_that_no_store_can_have_are_not_asked_for(name: Any) -> None:
    store = MemoryStore()
    calls: list[Awaitable[Any]] = [
        store.sweep(["q", name]),
        store.count([name]),
        store.heads([name]),
        store.look(name, ["a"]),
        store.look("q", ["a", name]),
        store.browse(name),
        store.results(name, [1]),
        store.edit(name, nothing),
    ]
    for call in calls:
        with pytest.raises(UnstorableError, match="without NUL characters and lone surrogates"):
            await call
    with pytest.raises(UnstorableError):
        store.watch(name, lambda: None)
