"""The records of the catalog of a store, and how they are read; `catalog` writes them.

A record is a kept result, so that it ends by itself when no worker has told of it for a month. They
are apart from what makes them, so that a tool that reads them need not import all of lanes.
"""

import msgspec

from leasedkeyq.model.requests import StoredItem
from leasedkeyq.stores.codec import UNREADABLE
from leasedkeyq.stores.store import Store

CATALOG_QUEUE = "leasedkeyq.catalog"
"""The queue of the store that has the records."""
LANE = "lane:"
TYPE = "type:"
"""How the keys in it begin."""
RECORD_KEPT = 30 * 86400.0
"""Seconds for which a record is kept that no worker has told of again."""
AT_A_TIME = 500
"""Records that are read, or written, in one step."""
MOST_RECORDS = 20_000
"""Records that are read at most."""


class RateRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A rate limit."""

    rate: float
    """Starts per second."""
    burst: int


class KeyLimitRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A limit for some keys of a lane."""

    pattern: str
    max_concurrency: int | None = None
    rate_limit: RateRecord | None = None


class LaneRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A lane, as a worker has told of it. Durations are seconds.

    Attributes:
        name: Its name.
        priority: Lower goes first.
        partitions: How many it has.
        retry: What happens after a failure, in words.
        limits: Its limits in words.
        seen_at: When a worker told of it, by the clock of the store. It is not written down.
    """

    name: str
    priority: int = 0
    min_concurrency: int = 0
    max_concurrency: int = 1
    global_concurrency: int | None = None
    rate_limit: RateRecord | None = None
    key_rate_limit: RateRecord | None = None
    key_limits: tuple[KeyLimitRecord, ...] = ()
    partitions: int = 1
    lease_time: float = 30.0
    timeout: float | None = None
    retry: str = ""
    max_attempts: int = 100
    keep_results: float = 3600.0
    on_dead_letter: str = "continue"
    limits: tuple[str, ...] = ()
    seen_at: float = 0.0

    @property
    def queues(self) -> tuple[str, ...]:
        """Its queues in the store: one, or one for each partition."""
        if self.partitions == 1:
            return (self.name,)
        return tuple(f"{self.name}#{part}" for part in range(self.partitions))


class ParameterRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An argument of a command.

    Attributes:
        name: Its name.
        required: Whether it has to be given.
        default: Its default value as JSON text; "" if it has none, or none that JSON has.
    """

    name: str
    required: bool = True
    default: str = ""


class TypeRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A command type, as a worker has told of it.

    Attributes:
        name: Its name.
        doc: The first line of its documentation.
        lane: The lane of its commands where none is given, if it has one.
        run_in: Where it runs: ``"loop"``, ``"thread"``, ``"process"`` or ``"batch"``.
        parameters: Its arguments, in order.
        schema: The JSON schema of its arguments, which are an object; as JSON text. "" if msgspec
            cannot tell.
        timeout: How long a command may run, if the type says.
        seen_at: As in `LaneRecord`.
    """

    name: str
    doc: str = ""
    lane: str | None = None
    run_in: str = "loop"
    parameters: tuple[ParameterRecord, ...] = ()
    schema: str = ""
    timeout: float | None = None
    seen_at: float = 0.0


def rate_words(limit: RateRecord) -> str:
    """A rate limit in words, such as ``"100 per second, burst 10"``."""
    for seconds, unit in ((1, "second"), (60, "minute"), (3600, "hour")):
        if limit.rate * seconds >= 1 or unit == "hour":
            return f"{limit.rate * seconds:.4g} per {unit}, burst {limit.burst}"
    raise AssertionError


def told_at(item: StoredItem) -> float:
    """When a worker told what is in a record, by the clock of the store."""
    return item.put_at if item.ended_at is None else item.ended_at


# Reading


async def read_records(store: Store, prefix: str = "") -> list[StoredItem]:
    """The items of the catalog whose keys begin with `prefix`, in the order of their ids."""
    found: list[StoredItem] = []
    cursor: str | None = None
    while len(found) < MOST_RECORDS:
        page = await store.browse(
            CATALOG_QUEUE, states=("done",), prefix=prefix, cursor=cursor, limit=AT_A_TIME
        )
        found += page.items
        cursor = page.cursor
        if cursor is None:
            break
    return found


def decode_lane(item: StoredItem) -> LaneRecord | None:
    """The lane of an item of the catalog; None: another version has written it in another way."""
    try:
        record = msgspec.json.decode(item.value, type=LaneRecord)
    except UNREADABLE:
        return None
    return msgspec.structs.replace(record, seen_at=told_at(item))


def decode_type(item: StoredItem) -> TypeRecord | None:
    """The command type of an item of the catalog; None as in `decode_lane`."""
    try:
        record = msgspec.json.decode(item.value, type=TypeRecord)
    except UNREADABLE:
        return None
    return msgspec.structs.replace(record, seen_at=told_at(item))
