"""Workers, lanes and command types of a store, as an operator sees them."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from leasedkeyq.lanes.presence.catalog_records import LaneRecord, TypeRecord, rate_words
from leasedkeyq.lanes.presence.directory import WorkerRecord, read_types, read_workers
from leasedkeyq.lanes.presence.records import LaneLoad
from leasedkeyq.lanes.presence.stack_asks import ask_stack
from leasedkeyq.lanes.running.command_id import command_id
from leasedkeyq.operations.views import (
    Frame,
    LaneView,
    ParameterView,
    RunningView,
    StackView,
    TypeView,
    WorkerLane,
    WorkerView,
)
from leasedkeyq.stores.codec import UNREADABLE
from leasedkeyq.stores.store import Store

NO_LOAD = LaneLoad(0)
NOTICED = 1.0
"""Seconds for which commands have waited before a rate limit is named as the reason."""


async def worker_views(store: Store) -> list[WorkerView]:
    """The workers of a store, those that live first, oldest first; then those that died of late."""
    views = [worker_view(record) for record in await read_workers(store)]
    return sorted(views, key=lambda view: (not view.alive, view.started_at, view.id))


def worker_view(record: WorkerRecord) -> WorkerView:
    """A worker, as it told of itself last."""
    member, presence = record.member, record.presence
    return WorkerView(
        id=record.id,
        host=member.host,
        pid=member.pid,
        version=member.version,
        started_at=member.started_at,
        seen_at=record.seen_at,
        expires_at=record.expires_at,
        alive=record.alive,
        python=member.python,
        memory=presence.memory,
        lanes=tuple(
            WorkerLane(
                lane=lane.lane,
                max_concurrency=lane.max_concurrency,
                min_concurrency=lane.min_concurrency,
                active=(load := presence.loads.get(lane.lane, NO_LOAD)).active,
                partitions=load.partitions or (),
            )
            for lane in member.serves
        ),
        types=member.commands,
        running=tuple(
            RunningView(
                command_id=command_id(running.id, running.queue, running.key),
                queue=running.queue,
                key=running.key,
                kind=running.kind,
                since=running.since,
                attempt=running.attempt,
            )
            for running in presence.running
        ),
        running_count=presence.count,
        blocked=presence.blocked if record.alive else None,
    )


def told_lane(view: LaneView, record: LaneRecord, workers: Iterable[WorkerView]) -> LaneView:
    """A lane with what workers have told of it, and with what holds its commands back right now.

    Args:
        view: The lane, as the store alone shows it.
        record: What a worker told of it.
        workers: The workers of the store.
    """
    serving = [
        (worker, lane)
        for worker in workers
        if worker.alive
        for lane in worker.lanes
        if lane.lane == record.name
    ]
    return msgspec.structs.replace(
        view,
        priority=record.priority,
        max_concurrency=record.max_concurrency,
        min_concurrency=record.min_concurrency,
        limits=record.limits,
        held_back=tuple(_held_back(view, record, serving)),
        workers=tuple(worker.id for worker, _ in serving),
        seen_at=max([record.seen_at, *(worker.seen_at for worker, _ in serving)]),
    )


def _held_back(
    view: LaneView, record: LaneRecord, serving: Sequence[tuple[WorkerView, WorkerLane]]
) -> Iterable[str]:
    if view.paused:
        yield "it is paused"
    if view.held:
        yield f"{view.held} commands wait behind dead letters that hold their keys"
    if not view.available:
        return
    if not serving:
        yield "no worker runs it"
        return
    for worker, _ in serving:
        if worker.blocked is not None:
            yield (
                f"the event loop of worker {worker.id} (process {worker.pid} on {worker.host}) "
                f"has been blocked for {worker.blocked:.0f} s"
            )
    slots = sum(lane.max_concurrency for _, lane in serving)
    most = record.global_concurrency
    if most is not None and view.in_flight >= most:
        yield f"its limit of {most} at a time in all workers is reached"
    elif view.in_flight >= slots:
        workers = "its worker" if len(serving) == 1 else f"its {len(serving)} workers"
        if slots == 1:
            yield f"the only slot of {workers} is taken"
        else:
            yield f"all {slots} slots of {workers} are taken"
    elif record.rate_limit is not None and not view.paused and (view.oldest or 0.0) >= NOTICED:
        yield f"its rate limit: {rate_words(record.rate_limit)}"


async def stack_view(store: Store, command_id: str, timeout: float = 5.0) -> StackView:
    """Where a running command is, as its worker says; raises as `ask_stack`."""
    answer = await ask_stack(store, command_id, timeout)
    return StackView(
        command_id=command_id,
        worker=answer.worker,
        where=answer.where,
        frames=tuple(
            Frame(file=one.file, line=one.line, function=one.function, source=one.source)
            for one in answer.frames
        ),
        unchanged_for=answer.unchanged_for,
        running_for=answer.running_for,
        memory=answer.memory,
        at=answer.at,
        note=answer.note,
    )


async def type_views(store: Store) -> list[TypeView]:
    """The command types that workers of a store have told of, by name."""
    return [type_view(record) for record in await read_types(store)]


def type_view(record: TypeRecord) -> TypeView:
    """A command type, as a worker told of it."""
    schema: dict[str, Any] | None = None
    if record.schema:
        # Where somebody else has written, the type has no form.
        with suppress(*UNREADABLE):
            schema = msgspec.json.decode(record.schema, type=dict[str, Any])
    return TypeView(
        name=record.name,
        doc=record.doc,
        lane=record.lane,
        run_in=record.run_in,
        parameters=tuple(
            ParameterView(name=one.name, required=one.required, default=one.default)
            for one in record.parameters
        ),
        schema=schema,
        timeout=record.timeout,
        seen_at=record.seen_at,
    )
