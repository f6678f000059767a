"""Where payloads go on a store: each place uses one in a queue of its own, and takes it back."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from leasedkeyq.checks import storable
from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.lease import Lease
from leasedkeyq.model.requests import (
    STATES,
    Ack,
    Amend,
    Bury,
    Cancel,
    Cap,
    Claim,
    Claimed,
    Discard,
    Extend,
    Purge,
    Put,
    Release,
    Requeue,
)
from leasedkeyq.stores import Store, StoreQueue
from tests.torture.hostile.verdicts import SpoiledError, Verdict, answer_of, expect, shown


class Scene(NamedTuple):
    """A store, and the name of a queue that nobody else uses."""

    store: Store
    name: str

    def queue(self, **options: Any) -> StoreQueue[Any]:
        return self.store.queue(self.name, **options)

    async def leased(self, key: str = "k", value: bytes = b"1", **terms: Any) -> Claimed:
        """An item that is put and leased."""
        answer_of((await self.store.put([Put(self.name, ((key, value),), **terms)]))[0])
        [[claimed]] = await self.store.claim([Claim(((self.name, 1),), key=key, lease_time=600.0)])
        return claimed

    async def settle(self, change: Any) -> Any:
        return answer_of((await self.store.settle([change]))[0])


StorePlace: TypeAlias = Callable[[Scene, Any], Awaitable[Verdict]]


def as_json(value: Any) -> Any:
    """What JSON has of a value."""
    return msgspec.json.decode(msgspec.json.encode(value))


def as_bytes(value: Any) -> bytes:
    """A payload as the bytes that another program would store, JSON or not."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError, OverflowError):
        return repr(type(value)).encode()


# Names


async def key(scene: Scene, value: Any) -> Verdict:
    queue = scene.queue()
    await queue.put(value, 1)
    expect(await queue.contains(value), True, "contains")
    expect(await queue.peek(value), 1, "peek")
    expect(await queue.available_keys(), {value}, "available keys")
    got, _, lease = await queue.take(value, timeout=0)
    expect(got, value, "the key that was taken")
    await queue.release(lease)
    got, _, lease = await queue.get(timeout=0)
    expect(got, value, "the key that came")
    buried = await queue.bury(lease, "given up")
    expect(buried.key, value, "the key that was buried")
    await queue.requeue(buried)
    await queue.put(value, 2, if_present="append")
    expect([one.value async for one in queue.line(value)], [1, 2], "the line")
    expect(await queue.remove(value), True, "remove")
    expect(await queue.qsize(), 0, "what is left")
    return "kept"


async def key_asked_for(scene: Scene, value: Any) -> Verdict:
    queue = scene.queue()
    await queue.put("innocent", 1)
    try:
        found = await queue.contains(value), await queue.remove(value)
    finally:
        expect(await queue.remove("innocent"), True, "another key")
    return f"answered {found}"


async def queue_name(scene: Scene, value: Any) -> Verdict:
    queue = scene.store.queue(value)
    mine = f"key of {scene.name}"  # a payload may be the name of a queue that is in use
    await queue.put(mine, 1)
    expect((await scene.store.count([value]))[value].available >= 1, True, "count")
    expect(value in await scene.store.count(), True, "the names of all queues")
    got, _, lease = await queue.take(mine, timeout=0)
    await queue.ack(lease)
    expect(got, mine, "its key")
    return "kept"


async def kind(scene: Scene, value: Any) -> Verdict:
    answer_of((await scene.store.put([Put(scene.name, (("k", b"1"),), kind=value)]))[0])
    await scene.queue().put("other", 2)
    kinds = (value,) if value else ("",)
    claims = await scene.store.claim([Claim(((scene.name, 9),), 9, kinds=kinds, lease_time=600.0)])
    for one in claims[0]:
        await scene.settle(Ack(scene.name, one.key, one.token))
    await scene.settle(Purge(scene.name))
    if value:
        expect([one.kind for one in claims[0]], [value], "the kind")
    return "kept"


async def holder(scene: Scene, value: Any) -> Verdict:
    queue = scene.queue(holder=value)
    await queue.put("k", 1)
    _, _, lease = await queue.get(timeout=0)
    [[item]] = await scene.store.look(scene.name, ["k"])
    await queue.ack(lease)
    if value:
        expect(item.holder, value, "the holder")
    return "kept"


async def prefix(scene: Scene, value: Any) -> Verdict:
    text = value if isinstance(value, str) else "x"
    keys = ["innocent", "%", "k_y", "[a]", "\\", "*", "zz"]
    if 0 < len(text) <= 500 and storable(text) == text:
        keys.append(f"{text}more")
    queue = scene.queue()
    await queue.put_many(dict.fromkeys(keys, 1))
    try:
        page = await scene.store.browse(scene.name, prefix=value)
        back = await scene.store.browse(scene.name, prefix=value, newest_first=True)
    finally:
        await scene.settle(Purge(scene.name))
    found = sorted(item.key for item in page.items)
    expect(found, sorted({one for one in keys if one.startswith(value)}), "keys by prefix")
    expect(sorted(item.key for item in back.items), found, "keys by prefix, backwards")
    return "kept"


async def cap_pattern(scene: Scene, value: Any) -> Verdict:
    cap = Cap(scene.name, value, in_flight=0)
    text = value if isinstance(value, str) else "x"
    keys = ["innocent", "a", "b*"]
    if 0 < len(text) <= 512 and storable(text) == text:
        keys.append(text)
    await scene.queue().put_many(dict.fromkeys(keys, 1))
    claim = Claim(((scene.name, 9),), 9, lease_time=600.0, caps=(cap,))
    try:
        [claimed] = await scene.store.claim([claim])
    finally:
        await scene.settle(Purge(scene.name))
    found = sorted(one.key for one in claimed)
    if text in found:
        raise SpoiledError(f"a key was leased in spite of a cap on it: {shown(text)}")
    return f"left {len(keys) - len(found)} of {len(keys)}"


async def token(scene: Scene, value: Any) -> Verdict:
    claimed = await scene.leased()
    answers: list[str] = []
    for change in (
        Ack(scene.name, "k", value),
        Release(scene.name, "k", value),
        Extend(scene.name, "k", value, 600.0),
        Bury(scene.name, "k", value, "x"),
    ):
        try:
            [answer] = await scene.store.settle([change])
        except LeasedKeyQError as error:
            answer = error
        answers.append(type(answer).__name__)
    await scene.settle(Ack(scene.name, "k", claimed.token))
    return f"answered {answers}"


async def lease(scene: Scene, value: Any) -> Verdict:
    queue = scene.queue()
    made_up: Lease[Any] = Lease(value, value)
    try:
        await queue.ack(made_up)
    except LeasedKeyQError as error:
        return f"answered {type(error).__name__}"
    raise SpoiledError("a lease that was made up was acknowledged")


async def cursor(scene: Scene, value: Any) -> Verdict:
    await scene.queue().put("k", 1)
    try:
        page = await scene.store.browse(scene.name, cursor=value)
    finally:
        await scene.settle(Purge(scene.name))
    return f"answered {len(page.items)} items" if value in ("", None) else "taken"


# Contents


async def value(scene: Scene, value: Any) -> Verdict:
    queue = scene.queue()
    await queue.put("k", value)
    wanted = as_json(value)
    expect(await queue.peek("k"), wanted, "the value that was peeked at")
    _, got, lease = await queue.get(timeout=0)
    expect(got, wanted, "the value that came")
    await queue.put("k", value, if_in_flight="buffer")
    await queue.release(lease)
    _, got, lease = await queue.get(timeout=0)
    expect(got, wanted, "the buffered value")
    buried = await queue.bury(lease, "given up")
    expect(buried.value, wanted, "the value that was buried")
    await queue.discard(buried)
    return "kept"


async def nested_value(scene: Scene, value: Any) -> Verdict:
    given: Any = {"in": [value, {"deeper": value}]}
    if isinstance(value, str):
        given[value] = value
    queue = scene.queue()
    await queue.put("k", given)
    _, got, lease = await queue.get(timeout=0)
    expect(got, as_json(given), "the value that came")
    await queue.ack(lease)
    return "kept"


async def stored_bytes(scene: Scene, value: Any) -> Verdict:
    raw = as_bytes(value)
    claimed = await scene.leased(value=raw)
    expect(claimed.value, raw, "the bytes that came")
    await scene.settle(Release(scene.name, "k", claimed.token))
    page = await scene.store.browse(scene.name)
    expect([item.value for item in page.items], [raw], "the bytes that are listed")
    await scene.settle(Cancel(scene.name, "k"))
    return "kept"


async def amended_bytes(scene: Scene, value: Any) -> Verdict:
    raw = as_bytes(value)
    [placed] = answer_of((await scene.store.put([Put(scene.name, (("k", b"1"),))]))[0])
    try:
        answer_of((await scene.store.settle([Amend(scene.name, "k", placed.id, raw)]))[0])
        [[item]] = await scene.store.look(scene.name, ["k"])
        expect(item.value, raw, "the amended bytes")
    finally:
        await scene.settle(Cancel(scene.name, "k"))
    return "kept"


async def result(scene: Scene, value: Any) -> Verdict:
    raw = as_bytes(value)
    claimed = await scene.leased()
    try:
        await scene.settle(Ack(scene.name, "k", claimed.token, raw, 600.0))
        [item] = await scene.store.results(scene.name, [claimed.id])
        expect(None if item is None else item.value, raw, "the result")
    finally:
        await scene.settle(Purge(scene.name))
    return "kept"


async def progress(scene: Scene, value: Any) -> Verdict:
    raw = as_bytes(value)
    claimed = await scene.leased()
    try:
        await scene.settle(Extend(scene.name, "k", claimed.token, 600.0, raw))
        [[item]] = await scene.store.look(scene.name, ["k"])
        expect(item.progress, raw, "the progress")
    finally:
        await scene.settle(Purge(scene.name))
    return "kept"


async def error_of_burial(scene: Scene, value: Any) -> Verdict:
    queue = scene.queue()
    await queue.put("k", 1)
    _, _, lease = await queue.get(timeout=0)
    try:
        buried = await queue.bury(lease, value)
    except (TypeError, ValueError):
        await queue.ack(lease)
        raise
    expect(buried.error, storable(value), "the error")
    [item] = (await scene.store.browse(scene.name, states=STATES)).items
    await queue.discard(buried)
    expect(item.error, storable(value), "the error that is listed")
    return "kept"


async def error_of_release(scene: Scene, value: Any) -> Verdict:
    claimed = await scene.leased()
    try:
        await scene.settle(Release(scene.name, "k", claimed.token, error=value))
        [[item]] = await scene.store.look(scene.name, ["k"])
        expect(item.history[-1].error, value, "the error in the history")
        if not isinstance(value, str):
            raise SpoiledError("an error that is no text was stored")
    finally:
        await scene.settle(Purge(scene.name))
    return "kept"


# Numbers and times


async def priority(scene: Scene, value: Any) -> Verdict:
    queue = scene.queue()
    await queue.put("k", 1, priority=value)
    [item] = await queue.snapshot()
    expect(await queue.remove("k"), True, "remove")
    if value is not None:
        expect(item.priority, value, "the priority")
    return "kept"


async def delay(scene: Scene, value: Any) -> Verdict:
    queue = scene.queue()
    await queue.put("k", 1, delay=value)
    [item] = (await scene.store.browse(scene.name)).items
    expect(await queue.remove("k"), True, "remove")
    return f"kept: {item.state}"


async def lease_time(scene: Scene, value: Any) -> Verdict:
    queue = scene.queue()
    await queue.put("k", 1)
    try:
        _, _, lease = await queue.get(timeout=0, lease_timeout=value)
        try:
            await queue.extend(lease, value)
        finally:
            expect(await queue.remove("k"), True, "remove")
    finally:
        await scene.settle(Purge(scene.name))
    return "kept"


async def release_delay(scene: Scene, value: Any) -> Verdict:
    queue = scene.queue()
    await queue.put("k", 1)
    try:
        _, _, lease = await queue.get(timeout=0)
        await queue.release(lease, delay=value)
        [item] = (await scene.store.browse(scene.name)).items
    finally:
        await scene.settle(Purge(scene.name))
    return f"kept: {item.state}"


async def number_of_value(scene: Scene, value: Any) -> Verdict:
    queue = scene.queue()
    await queue.put("k", 1)
    try:
        removed = await queue.remove("k", id=value)
    finally:
        await scene.settle(Purge(scene.name))
    return f"answered {removed}"


def _request(make: Callable[[str, str, Any], Any]) -> StorePlace:
    """A field of a request, as somebody who calls the store itself may set it."""

    async def place(scene: Scene, value: Any) -> Verdict:
        claimed = await scene.leased()
        try:
            answer = await scene.settle(make(scene.name, claimed.token, value))
        finally:
            await scene.settle(Purge(scene.name))
        return f"answered {type(answer).__name__}"

    return place


def _put_field(make: Callable[[str, Any], Put]) -> StorePlace:
    async def place(scene: Scene, value: Any) -> Verdict:
        try:
            answer_of((await scene.store.put([make(scene.name, value)]))[0])
            [[item]] = await scene.store.look(scene.name, ["k"])
        finally:
            await scene.settle(Purge(scene.name))
        return f"kept: {item.state}"

    return place


def _claim_field(make: Callable[[str, Any], Claim]) -> StorePlace:
    async def place(scene: Scene, value: Any) -> Verdict:
        await scene.queue().put("k", 1)
        try:
            [claimed] = await scene.store.claim([make(scene.name, value)])
        finally:
            await scene.settle(Purge(scene.name))
        return f"leased {len(claimed)}"

    return place


async def looked_up(scene: Scene, value: Any) -> Verdict:
    found = await scene.store.results(scene.name, [value])
    return f"answered {found}"


TEXT_PLACES: Final[dict[str, StorePlace]] = {
    "a key": key,
    "a key that is asked for": key_asked_for,
    "the name of a queue": queue_name,
    "a kind": kind,
    "a holder": holder,
    "a prefix": prefix,
    "the pattern of a cap": cap_pattern,
    "a token": token,
    "a lease": lease,
    "a cursor": cursor,
    "the error of a burial": error_of_burial,
    "the error of a release": error_of_release,
}
"""For payloads of all kinds, which are texts or are none."""
CONTENT_PLACES: Final[dict[str, StorePlace]] = {
    "a value": value,
    "inside a value": nested_value,
    "the bytes of a value": stored_bytes,
    "the bytes of an amended value": amended_bytes,
    "a result": result,
    "progress": progress,
}
NUMBER_PLACES: Final[dict[str, StorePlace]] = {
    "a priority": priority,
    "a delay": delay,
    "a lease time": lease_time,
    "the delay of a release": release_delay,
    "the number of a value": number_of_value,
    "Ack.keep": _request(lambda name, token, value: Ack(name, "k", token, b"1", value)),
    "Cancel.keep": _request(lambda name, _, value: Cancel(name, "k", b"1", value)),
    "Cancel.id": _request(lambda name, _, value: Cancel(name, "k", id=value)),
    "Release.delay": _request(lambda name, token, value: Release(name, "k", token, delay=value)),
    "Extend.lease_time": _request(lambda name, token, value: Extend(name, "k", token, value)),
    "Amend.id": _request(lambda name, _, value: Amend(name, "k", value, b"2")),
    "Requeue.id": _request(lambda name, _, value: Requeue(name, value)),
    "Requeue.max_items": _request(lambda name, _, value: Requeue(name, 1, max_items=value)),
    "Discard.id": _request(lambda name, _, value: Discard(name, value)),
    "Put.priority": _put_field(lambda name, value: Put(name, (("k", b"1"),), priority=value)),
    "Put.delay": _put_field(lambda name, value: Put(name, (("k", b"1"),), delay=value)),
    "Put.deadline": _put_field(lambda name, value: Put(name, (("k", b"1"),), deadline=value)),
    "Put.max_items": _put_field(lambda name, value: Put(name, (("k", b"1"),), max_items=value)),
    "Put.unique_for": _put_field(
        lambda name, value: Put(name, (("k", b"1"),), "skip", unique_for=value)
    ),
    "Claim.limit": _claim_field(lambda name, value: Claim(((name, value),), value)),
    "Claim.lease_time": _claim_field(lambda name, value: Claim(((name, 1),), 1, None, value)),
    "an id that is looked up": looked_up,
}
"""For payloads that are numbers or times, and for some that are none."""
