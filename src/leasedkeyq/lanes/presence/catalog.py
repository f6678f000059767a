"""The catalog of a store: the lanes and command types that its workers have had of late.

A record is a kept result, so that it ends by itself when no worker has told of it for a month. A
worker writes what is not there yet, or is old, when it starts. The records outlive the workers:
they tell of lanes that have none, and what arguments a command takes.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from leasedkeyq.lanes.command import CommandClass, CommandRegistry, Registered
from leasedkeyq.lanes.policies.rate_limit import RateLimitConfig
from leasedkeyq.lanes.policies.retry import RetryPolicy
from leasedkeyq.lanes.running.lane import Lane
from leasedkeyq.model.requests import Cancel, Change, Discard, Put, StoredItem
from leasedkeyq.stores.store import Store

CATALOG_QUEUE = "leasedkeyq.catalog"
"""The queue of the store that has the records."""
LANE = "lane:"
TYPE = "type:"
"""How the keys in it begin."""
RECORD_KEPT = 30 * 86400.0
"""Seconds for which a record is kept that no worker has told of again."""
RECORD_FRESH = 3600.0
"""Seconds for which a record that is the same is not written again."""
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


# What is written down


def lane_record(lane: Lane) -> LaneRecord:
    """What is told of a lane."""
    config = lane.config
    record = LaneRecord(
        name=lane.id,
        priority=lane.priority,
        min_concurrency=config.min_concurrency,
        max_concurrency=config.max_concurrency,
        global_concurrency=config.global_concurrency,
        rate_limit=_rate(config.rate_limit),
        key_rate_limit=_rate(config.key_rate_limit),
        key_limits=tuple(
            KeyLimitRecord(limit.pattern, limit.max_concurrency, _rate(limit.rate_limit))
            for limit in config.key_limits
        ),
        partitions=config.partitions,
        lease_time=lane.lease_time,
        timeout=lane.timeout,
        retry=_retry_words(config.retry_policy),
        max_attempts=config.max_attempts,
        keep_results=lane.keep_results,
        on_dead_letter=config.on_dead_letter,
    )
    return msgspec.structs.replace(record, limits=tuple(_limit_words(record)))


def type_record(registered: Registered) -> TypeRecord:
    """What is told of a command type."""
    if isinstance(registered, CommandClass):
        source: Any = registered.cls
        run_in = "loop"
    else:
        source = registered.function
        run_in = registered.run_in
    options = registered.options
    timeout = options.timeout if isinstance(options.timeout, float) else None
    return TypeRecord(
        name=registered.command_type,
        doc=(inspect.getdoc(source) or "").strip().partition("\n")[0][:200],
        lane=options.lane,
        run_in=run_in,
        parameters=_parameters(registered.arguments_type),
        schema=_schema(registered.arguments_type),
        timeout=timeout if timeout is not None and timeout < float("inf") else None,
    )


def _rate(limit: RateLimitConfig | None) -> RateRecord | None:
    return None if limit is None or limit.rate is None else RateRecord(limit.rate, limit.burst)


def rate_words(limit: RateRecord) -> str:
    """A rate limit in words, such as ``"100 per second, burst 10"``."""
    for seconds, unit in ((1, "second"), (60, "minute"), (3600, "hour")):
        if limit.rate * seconds >= 1 or unit == "hour":
            return f"{limit.rate * seconds:.4g} per {unit}, burst {limit.burst}"
    raise AssertionError


def _limit_words(record: LaneRecord) -> Iterable[str]:
    if record.global_concurrency is not None:
        yield f"{record.global_concurrency} at a time in all workers"
    if record.rate_limit is not None:
        yield rate_words(record.rate_limit)
    if record.key_rate_limit is not None:
        yield f"each key: {rate_words(record.key_rate_limit)}"
    for limit in record.key_limits:
        if limit.max_concurrency is not None:
            yield f"keys {limit.pattern}: {limit.max_concurrency} at a time"
        if limit.rate_limit is not None:
            yield f"keys {limit.pattern}: {rate_words(limit.rate_limit)}"


def _retry_words(policy: object) -> str:
    if not isinstance(policy, RetryPolicy):
        return f"as {type(policy).__name__} decides"
    if not policy.max_retries:
        return "no retries"
    number = f"{policy.max_retries} retries" if policy.max_retries > 1 else "1 retry"
    words = f"{number}, after {policy.initial_delay:g} s"
    if policy.multiplier > 1 and policy.max_retries > 1:
        words += f", each {policy.multiplier:g} times as long, at most {policy.max_delay:g} s"
    return words


def _parameters(arguments: Any) -> tuple[ParameterRecord, ...]:
    """The fields of a msgspec struct or a dataclass."""
    try:
        fields = msgspec.inspect.type_info(arguments).fields  # type: ignore[attr-defined]  # of other types, there are none: that is caught
    except Exception:  # whatever msgspec makes of an annotation
        return ()
    return tuple(
        ParameterRecord(
            name=field.encode_name,
            required=field.required,
            default=_default(field.default, field.default_factory),
        )
        for field in fields
    )


def _default(value: Any, factory: Any) -> str:
    with suppress(Exception):  # a default may be anything, and JSON need not have it
        if factory is not msgspec.NODEFAULT:
            value = factory()
        if value is not msgspec.NODEFAULT:
            return msgspec.json.encode(value).decode()
    return ""


def _schema(arguments: Any) -> str:
    try:
        schema: dict[str, Any] = msgspec.json.schema(arguments)
        definitions: dict[str, Any] = schema.pop("$defs", {})
        name = str(schema.pop("$ref", "")).removeprefix("#/$defs/")
        if name in definitions and f"#/$defs/{name}" not in repr({**definitions, name: None}):
            schema = definitions.pop(name)
        elif name:
            schema["$ref"] = f"#/$defs/{name}"
        if definitions:
            schema["$defs"] = definitions
        return msgspec.json.encode(schema).decode()
    except Exception:  # an annotation that is beyond msgspec, such as a resource behind a decorator
        return ""


# Writing


class Catalog:
    """Writes the lanes and command types of one worker into the catalog of its store.

    Args:
        store: The store.
        lanes: The lanes of the worker.
        registry: Its command types.
    """

    def __init__(self, store: Store, lanes: Mapping[str, Lane], registry: CommandRegistry) -> None:
        self._store = store
        self._lanes = lanes
        self._registry = registry
        self._types: dict[str, tuple[Registered, bytes]] = {}
        """The records of types that were made before, with what they are made of."""

    @property
    def contents(self) -> tuple[frozenset[str], frozenset[str]]:
        """Which lanes and types there are to write."""
        lanes = frozenset(lane.id for lane in self._lanes.values() if _is_served(lane))
        return lanes, frozenset(self._registry.types)

    async def write(self, now: float) -> None:
        """Write down what the store does not know yet, or was told more than an hour ago.

        Args:
            now: The time of the store.
        """
        records = {
            LANE + lane.id: msgspec.json.encode(lane_record(lane))
            for lane in self._lanes.values()
            if _is_served(lane)
        }
        for name, registered in self._registry.types.items():
            made = self._types.get(name)
            if made is None or made[0] is not registered:
                made = registered, msgspec.json.encode(type_record(registered))
                self._types[name] = made
            records[TYPE + name] = made[1]
        limits = self._store.limits
        known = {item.key: item for item in await read_records(self._store)}
        names = [
            key
            for key, value in records.items()
            if len(key) <= limits.key_length and len(value) <= limits.value_size
            if not _is_fresh(known.get(key), value, now)
        ]
        for start in range(0, len(names), AT_A_TIME):
            some = {key: records[key] for key in names[start : start + AT_A_TIME]}
            await self._store.edit(CATALOG_QUEUE, _writing(some), keys=[*some])


def _is_served(lane: Lane) -> bool:
    return lane.runs_here or lane.shared


def _is_fresh(item: StoredItem | None, value: bytes, now: float) -> bool:
    return item is not None and item.value == value and _told_at(item) > now - RECORD_FRESH


def _told_at(item: StoredItem) -> float:
    return item.put_at if item.ended_at is None else item.ended_at


def _writing(records: Mapping[str, bytes]) -> Callable[[Sequence[StoredItem]], list[Put | Change]]:
    """The work of an edit that puts these records in the place of older ones."""

    def work(items: Sequence[StoredItem]) -> list[Put | Change]:
        changes: list[Put | Change] = [
            Discard(CATALOG_QUEUE, item.id) for item in items if item.state == "done"
        ]
        changes.append(Put(CATALOG_QUEUE, tuple((key, b"null") for key in records)))
        changes += [
            Cancel(CATALOG_QUEUE, key, value, RECORD_KEPT, outcome="completed")
            for key, value in records.items()
        ]
        return changes

    return work


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
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return msgspec.structs.replace(record, seen_at=_told_at(item))


def decode_type(item: StoredItem) -> TypeRecord | None:
    """The command type of an item of the catalog; None as in `decode_lane`."""
    try:
        record = msgspec.json.decode(item.value, type=TypeRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return msgspec.structs.replace(record, seen_at=_told_at(item))
