"""Where payloads go in a `LeasedKeyQueue`: it takes any key that can be hashed, and any value."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from leasedkeyq import LeasedKeyQueue
from tests.torture.hostile.verdicts import SpoiledError, Verdict, expect

LocalPlace: TypeAlias = Callable[[Any], Awaitable[Verdict]]


async def local_key(value: Any) -> Verdict:
    queue: LeasedKeyQueue[Any, int] = LeasedKeyQueue()
    await queue.put(value, 1)
    got, _, lease = await queue.take(value, timeout=0)
    _same(got, value)
    await queue.release(lease)
    got, _, lease = await queue.get(timeout=0)
    _same(got, value)
    await queue.ack(lease)
    expect(await queue.qsize(), 0, "what is left")
    return "kept"


async def local_value(value: Any) -> Verdict:
    queue: LeasedKeyQueue[str, Any] = LeasedKeyQueue()
    await queue.put("k", value)
    _, got, lease = await queue.get(timeout=0)
    _same(got, value)
    buried = await queue.bury(lease, "given up")
    _same(buried.value, value)
    return "kept"


async def local_error(value: Any) -> Verdict:
    queue: LeasedKeyQueue[str, int] = LeasedKeyQueue()
    await queue.put("k", 1)
    _, _, lease = await queue.get(timeout=0)
    expect((await queue.bury(lease, value)).error, value, "the error")
    return "kept"


async def local_delay(value: Any) -> Verdict:
    queue: LeasedKeyQueue[str, int] = LeasedKeyQueue()
    await queue.put("k", 1, delay=value)
    await queue.put("k", 1, delay=0, priority=value if isinstance(value, int) else 0)
    _, _, lease = await queue.get(timeout=0, lease_timeout=value or None)
    await queue.close()
    return f"kept: {lease.expires_at is None}"


def _same(given: object, wanted: object) -> None:
    if given is not wanted:
        raise SpoiledError("another object came out")


LOCAL_PLACES: Final[dict[str, LocalPlace]] = {
    "a key of a LeasedKeyQueue": local_key,
    "a value of a LeasedKeyQueue": local_value,
    "an error in a LeasedKeyQueue": local_error,
    "a time of a LeasedKeyQueue": local_delay,
}
