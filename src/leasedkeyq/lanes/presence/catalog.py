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

from leasedkeyq.lanes.commands.command import CommandClass, CommandRegistry, Registered
from leasedkeyq.lanes.policies.rate_limit import RateLimitConfig
from leasedkeyq.lanes.policies.retry import RetryPolicy
from leasedkeyq.lanes.presence.catalog_records import (
    AT_A_TIME,
    CATALOG_QUEUE,
    LANE,
    RECORD_KEPT,
    TYPE,
    KeyLimitRecord,
    LaneRecord,
    ParameterRecord,
    RateRecord,
    TypeRecord,
    rate_words,
    read_records,
    told_at,
)
from leasedkeyq.lanes.running.lane import Lane
from leasedkeyq.model.requests import Cancel, Change, Discard, Put, StoredItem
from leasedkeyq.stores.store import Store

RECORD_FRESH = 3600.0
"""Seconds for which a record that is the same is not written again."""


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
    fields: Sequence[Any]
    try:
        info: Any = msgspec.inspect.type_info(arguments)
        fields = info.fields
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
    return item is not None and item.value == value and told_at(item) > now - RECORD_FRESH


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
