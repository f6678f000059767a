"""The verbs of `Store`, around those of an engine."""

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from leasedkeyq import (
    MemoryStore,
    QueueFullError,
    Store,
    StoreClosedError,
    StoreDamagedError,
    StoreError,
    UnstorableError,
)
from leasedkeyq.model.requests import (
    Ack,
    Answer,
    Bury,
    Cancel,
    Cap,
    Change,
    Claim,
    Claimed,
    Counts,
    Discard,
    Extend,
    Placed,
    Purge,
    Put,
    Release,
    Requeue,
    StoredItem,
    StoredState,
)
from leasedkeyq.stores import store as store_module
from leasedkeyq.telemetry import StoreCall, StoreInstrument

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

    async def fails(*_: Any, **__: Any) -> StoreError:
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
    assert (answers[1], answers[3]) == ((Placed(1, "added"),), (Placed(2, "added"),))


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
        store.edit("q", nothing, keys=["a", name]),
    ]
    for call in calls:
        with pytest.raises(UnstorableError, match="without NUL characters and lone surrogates"):
            await call
    with pytest.raises(UnstorableError):
        store.watch(name, lambda: None)


@pytest.mark.parametrize("name", ["a\0b", "\ud800", 7])
async def test_a_claim_of_names_that_no_store_can_have_leases_nothing(name: Any) -> None:
    store = MemoryStore()
    await store.put([ONE])
    good = Claim((("q", 1),))
    for bad in (
        Claim((("q", 1), (name, 1))),
        Claim((("q", 1),), key=name),
        Claim((("q", 1),), kinds=("", name)),
        Claim((("q", 1),), caps=(Cap(name, in_flight=1),)),
    ):
        with pytest.raises(UnstorableError, match="Claim: a name is text without NUL characters"):
            await store.claim([good, bad])
    assert (await store.count())["q"] == Counts(available=1)


@pytest.mark.parametrize("name", ["a\0b", "\ud800", 7])
async def test_names_that_no_store_can_have_are_refused_in_their_requests(name: Any) -> None:
    store = MemoryStore()
    setattr(store, "do_settle", Failing.do_settle.__get__(Failing()))  # noqa: B010  # answers none
    requests: list[Change] = [Purge(name), Discard(name, 1), Requeue(name, 1), Cancel(name, "a")]
    requests.append(Cancel("q", name))
    for bad in ((name, "a", "token"), ("q", name, "token"), ("q", "a", name)):
        requests += [Ack(*bad), Release(*bad), Extend(*bad), Bury(*bad)]
    for request, answer in zip(requests, await store.settle(requests), strict=True):
        assert isinstance(answer, UnstorableError)
        assert type(request).__name__ in str(answer)
        with pytest.raises((UnstorableError, ValueError)):
            await store.edit("q", Changes(request))


async def test_what_is_no_request_to_settle_is_raised_before_anything_happens() -> None:
    store = MemoryStore()
    await store.put([ONE])
    claim: Any = Claim((("q", 1),))
    with pytest.raises(TypeError, match="Claim is no request to put or settle something"):
        await store.settle([Cancel("q", "a"), claim])
    assert (await store.count())["q"] == Counts(available=1)


class Changes:
    """The work of an edit that wants these changes."""

    def __init__(self, *changes: Change) -> None:
        self.changes = changes

    def __call__(self, _: Sequence[StoredItem]) -> list[Put | Change]:
        return list(self.changes)


class DriverError(Exception):
    """What the driver of an engine raises."""


FAILURES: tuple[BaseException, ...] = (OSError(28, "No space left on device"), DriverError("gone"))


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("verb", [*CALLS, "close"])
async def test_what_an_engine_raises_is_the_cause_of_a_store_error(
    verb: str, failure: BaseException
) -> None:
    store = MemoryStore()

    async def fails(*_: Any, **__: Any) -> None:
        raise failure

    call = CALLS.get(verb, MemoryStore.close)
    setattr(store, f"do_{verb}", fails)
    with pytest.raises(StoreError, match=f"^{verb}: the memory store failed: ") as caught:
        await call(store)
    assert caught.value.__cause__ is failure
    assert f"{type(failure).__name__}: {failure}" in str(caught.value)


@pytest.mark.parametrize("failure", FAILURES)
async def test_an_engine_that_fails_before_it_waits_and_one_that_cannot_watch(
    failure: BaseException,
) -> None:
    store = MemoryStore()

    def fails(*_: Any, **__: Any) -> None:
        raise failure

    for verb, call in CALLS.items():
        setattr(store, f"do_{verb}", fails)
        with pytest.raises(StoreError, match=f"{verb}: the memory store failed"):
            await call(store)
    setattr(store, "do_watch", fails)  # noqa: B010  # type checkers know that it is a method
    with pytest.raises(StoreError, match="watch: the memory store failed") as caught:
        store.watch("q", lambda: None)
    assert caught.value.__cause__ is failure


@pytest.mark.parametrize("verb", CALLS)
async def test_errors_of_the_contract_and_cancellations_pass_as_they_are(verb: str) -> None:
    store = MemoryStore()
    for error in (BROKEN, StoreDamagedError("torn"), QueueFullError("full"), CancelledError()):

        async def fails(*_: Any, error: BaseException = error, **__: Any) -> None:
            raise error

        setattr(store, f"do_{verb}", fails)
        with pytest.raises(type(error)) as caught:
            await CALLS[verb](store)
        assert caught.value is error
        assert caught.value.__cause__ is None


async def test_what_the_work_of_an_edit_raises_is_nobody_elses_failure() -> None:
    def work(_: Sequence[StoredItem]) -> list[Put | Change]:
        raise FAILURES[0]

    with pytest.raises(OSError, match="No space left"):
        await MemoryStore().edit("q", work)


async def test_a_store_without_joint_edits_refuses_other_queues() -> None:
    called: list[int] = []

    def work(_: Sequence[StoredItem]) -> list[Put | Change]:
        called.append(1)
        return []

    store = MemoryStore()
    store.capabilities = msgspec.structs.replace(store.capabilities, joint_edits=False)
    with pytest.raises(StoreError, match="cannot change several queues in one step"):
        await store.edit("q", work, others=["other"])
    await store.edit("q", work, others=["q"])
    assert called == [1]
    with pytest.raises(ValueError, match="cannot change queue 'third'"):
        await MemoryStore().edit("q", lambda _: [Put("third", ())], others=["other"])


async def test_a_call_in_the_place_of_a_verb_is_checked_and_observed_as_that_verb() -> None:
    store = MemoryStore()
    told: list[StoreCall] = []

    class Instrument(StoreInstrument):
        def called(self, call: StoreCall) -> None:
            told.append(call)

    async def put(requests: Sequence[Put]) -> list[tuple[int, ...]]:
        if len(requests) > 1:
            raise FAILURES[0]
        return [(1,)]

    assert await store.call_as("put", put, [ONE]) == [(1,)]
    store.instrument(Instrument())
    assert await store.call_as("put", put, [ONE]) == [(1,)]
    with pytest.raises(StoreError, match="No space left"):
        await store.call_as("put", put, [ONE, ONE])
    await store.close()
    with pytest.raises(StoreClosedError):
        await store.call_as("put", put, [ONE])
    assert [(call.verb, call.queues, call.items, type(call.error)) for call in told] == [
        ("put", ("q",), {"q": {"put": 1}}, type(None)),
        ("put", ("q",), {}, StoreError),
        ("put", ("q",), {}, StoreClosedError),
    ]


class Forwards(MemoryStore):
    """Knows nothing of `newest_first`."""

    # As a store that was written before there was such an argument.
    async def do_browse(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self, queue: str, states: Sequence[StoredState], prefix: str, after: int, limit: int, /
    ) -> list[StoredItem]:
        return await super().do_browse(queue, states, prefix, after, limit, newest_first=False)


@pytest.mark.parametrize("at_once", [2, 500])
async def test_a_store_that_cannot_list_backwards_is_walked_through(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "WALKED_AT_ONCE", at_once)
    store = Forwards()
    await store.put([Put("q", tuple((f"k{n}", b"") for n in range(7)))])
    page = await store.browse("q", limit=3)
    assert [item.key for item in page.items] == ["k0", "k1", "k2"]
    told: list[str] = []
    cursor: str | None = None
    for _ in range(3):
        page = await store.browse("q", limit=3, cursor=cursor, newest_first=True)
        told += [item.key for item in page.items]
        cursor = page.cursor
    assert (told, cursor) == (["k6", "k5", "k4", "k3", "k2", "k1", "k0"], None)
