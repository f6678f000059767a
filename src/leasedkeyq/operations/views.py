"""What an operator sees: plain data, made by `Operator`, for the command line and the web page.

Every view can be written as JSON by msgspec. Moments are Unix times by the clock of the store,
spans are seconds. Values are shown as they are stored: JSON text, or the bytes of another program.
"""

from typing import Any, Literal, TypeAlias

import msgspec

from leasedkeyq.model.requests import Attempt, Durability, ResultOutcome, StoredState

QueueKind: TypeAlias = Literal["queue", "lane", "internal"]
"""What a queue is for: a plain queue, a lane or a partition of one, or leasedkeyq itself."""


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue at a glance. A lane with partitions is one queue for each of them."""

    name: str
    kind: QueueKind = "queue"
    lane: str | None = None
    """The lane that it belongs to, if a worker has told of one."""
    available: int = 0
    scheduled: int = 0
    in_flight: int = 0
    buried: int = 0
    held: int = 0
    done: int = 0
    done_failed: int = 0
    done_cancelled: int = 0
    oldest: float | None = None
    """For how many seconds the item that is next has been there; None if none waits."""
    paused: bool = False


class ItemFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which items of a queue are meant. What is empty or None lets everything pass.

    Attributes:
        states: The states; all by default.
        key_prefix: How the key begins.
        key: The whole key.
        kind: The command type of a command, or the kind of an item.
        error: A part of the error: of a buried item, or of the last attempt of another. Letter
            case does not count.
        older_than: Items that were put at least so many seconds ago.
        newer_than: Items that were put at most so many seconds ago.
        outcome: How an item that is done has ended.
        error_group: Buried items of a group of errors, as `ErrorGroup.error` names it.
    """

    states: tuple[StoredState, ...] = ()
    key_prefix: str = ""
    key: str = ""
    kind: str = ""
    error: str = ""
    older_than: float | None = None
    newer_than: float | None = None
    outcome: ResultOutcome | None = None
    error_group: str = ""


class ItemView(msgspec.Struct, frozen=True, kw_only=True):
    """An item of a queue, or a command of a lane.

    Attributes:
        id: The number of the item in its queue.
        command_id: The id of the command, as `Handle.id` tells it; "" for an item that is none.
        queue: Its queue.
        lane: Its lane, if its queue is one of a lane.
        key: Its key.
        state: Its state.
        kind: The command type, or the kind of a plain item.
        value: The value, decoded from JSON: the arguments of a command, or the value of an item.
            None if it cannot be decoded; then `raw` has it.
        raw: The value as text, exactly as it is stored (the arguments, for a command), with large
            numbers and the order of keys as they are. What is no text is shown with escapes.
        readable: Whether `raw` is JSON.
        size: Bytes of the stored value.
        priority: As stores have it: higher goes first. Lanes show the opposite number.
        attempt: How often it was leased.
        put_at: When it was put.
        due: When it becomes available, its lease expires, or its result is forgotten.
        error: Why it was buried, or how the last attempt failed.
        history: Past attempts, oldest first.
        leased_at: When its lease began.
        holder: Who has leased it: host, process and name, as the store noted it; "" if nobody, or
            not known.
        worker: The id of the living worker that runs it, if one tells so.
        deadline: By when it should be leased.
        outcome: How it ended, if it is done.
        ended_at: When it ended.
        result: The result of a command that is done, decoded; or of an item, as it is.
        raw_result: The result as text.
        progress: How far it has come, decoded; None if it did not tell.
        holds: Whether it is buried and its line waits for it.
        submitted_at: When a command was submitted.
        trace_id: The trace id of the submission, if it was traced.
        timeout: How long the command may run, if it says.
        workflow: What part it has in a chain or a gather, in words; "" if none.
    """

    id: int
    command_id: str = ""
    queue: str
    lane: str | None = None
    key: str
    state: StoredState
    kind: str = ""
    value: Any = None
    raw: str = ""
    readable: bool = True
    size: int = 0
    priority: int = 0
    attempt: int = 0
    put_at: float = 0.0
    due: float | None = None
    error: str = ""
    history: tuple[Attempt, ...] = ()
    leased_at: float | None = None
    holder: str = ""
    worker: str = ""
    deadline: float | None = None
    outcome: ResultOutcome | None = None
    ended_at: float | None = None
    result: Any = None
    raw_result: str = ""
    progress: Any = None
    holds: bool = False
    submitted_at: float | None = None
    trace_id: str = ""
    timeout: float | None = None
    workflow: str = ""


class ItemPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a listing.

    A filter that the store cannot look up is searched for, a bounded number of items per page: a
    page may have few items, or none, and still be followed by others.

    Attributes:
        items: The items.
        cursor: Where the next page begins; None at the end.
        searched: How many items were looked at for this page.
    """

    items: tuple[ItemView, ...] = ()
    cursor: str | None = None
    searched: int = 0


class ErrorGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters with the same error, but for the numbers and names in it."""

    error: str
    """The error, with what differs between the letters left out: what they are grouped by."""
    example: str
    kinds: dict[str, int]
    count: int
    first: float
    last: float
    queues: dict[str, int]


class ErrorGroups(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters by their errors.

    Attributes:
        groups: The groups, the largest first.
        letters: How many letters were looked at.
        complete: Whether these were all; False if there are more than are looked at.
    """

    groups: tuple[ErrorGroup, ...] = ()
    letters: int = 0
    complete: bool = True


class MatchCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many items match a filter.

    Attributes:
        count: How many were found.
        searched: How many items were looked at.
        complete: Whether these were all; False: there are at least `count`.
    """

    count: int
    searched: int
    complete: bool = True


class StoreStats(msgspec.Struct, frozen=True, kw_only=True):
    """A store at a glance. The counts are those of all queues but the internal ones.

    Attributes:
        store: What errors call the store.
        durability: What an acknowledged put survives.
        queues: How many queues hold anything.
        lanes: How many lanes are known.
        workers: How many workers live.
        schedules: How many schedules there are.
        paused: The lanes that are paused.
        available: How many items wait. So with the others.
        oldest: For how many seconds the item has been there that is next in its queue, the longest
            of all queues; None if none waits.
        internal: How many items leasedkeyq has for itself, in all states.
    """

    store: str
    durability: Durability
    queues: int = 0
    lanes: int = 0
    workers: int = 0
    schedules: int = 0
    paused: tuple[str, ...] = ()
    available: int = 0
    scheduled: int = 0
    in_flight: int = 0
    buried: int = 0
    held: int = 0
    done: int = 0
    done_failed: int = 0
    done_cancelled: int = 0
    oldest: float | None = None
    internal: int = 0


class RunningView(msgspec.Struct, frozen=True, kw_only=True):
    """A command that a worker runs, as the worker told it last."""

    command_id: str
    queue: str
    key: str
    kind: str
    since: float
    """When it was started, as Unix time."""
    attempt: int = 1


class WorkerLane(msgspec.Struct, frozen=True, kw_only=True):
    """A lane of a worker."""

    lane: str
    max_concurrency: int
    min_concurrency: int = 0
    active: int = 0
    partitions: tuple[int, ...] = ()
    """Which of its partitions are run here; empty: all."""


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker: a manager that runs lanes of this store, in some process."""

    id: str
    host: str
    pid: int
    version: str
    """Of leasedkeyq."""
    started_at: float
    seen_at: float
    """When it last told that it lives."""
    expires_at: float | None
    """When it is taken for dead, if it does not tell again."""
    alive: bool = True
    python: str = ""
    memory: int = 0
    """Resident bytes of its process."""
    lanes: tuple[WorkerLane, ...] = ()
    types: tuple[str, ...] = ()
    running: tuple[RunningView, ...] = ()
    """At most some hundred; `running_count` says how many there are."""
    running_count: int = 0
    blocked: float | None = None
    """For how many seconds its event loop has been blocked, if it is."""


class LaneView(msgspec.Struct, frozen=True, kw_only=True):
    """A lane: what a worker has told of it, and how things stand.

    Attributes:
        name: Its name.
        priority: Lower goes first.
        queues: Its queues: one, or one for each partition.
        max_concurrency: In one worker.
        min_concurrency: In one worker.
        limits: Its limits in words, such as ``"100 per second, burst 10"``.
        held_back: What holds commands back right now, in words; empty if nothing does.
        paused: Whether it is paused.
        workers: The ids of the living workers that run it.
        seen_at: When a worker last told of it.
        available: How many commands wait, in all its queues together. So with the others.
    """

    name: str
    priority: int = 0
    queues: tuple[str, ...] = ()
    max_concurrency: int = 1
    min_concurrency: int = 0
    limits: tuple[str, ...] = ()
    held_back: tuple[str, ...] = ()
    paused: bool = False
    workers: tuple[str, ...] = ()
    seen_at: float | None = None
    available: int = 0
    scheduled: int = 0
    in_flight: int = 0
    buried: int = 0
    held: int = 0
    oldest: float | None = None


class ParameterView(msgspec.Struct, frozen=True, kw_only=True):
    """An argument of a command type."""

    name: str
    required: bool = True
    default: str = ""
    """The default value as JSON text; "" if there is none, or none that JSON has."""


class TypeView(msgspec.Struct, frozen=True, kw_only=True):
    """A command type that a worker has told of.

    Attributes:
        name: Its name.
        doc: The first line of its documentation.
        lane: The lane of its commands where none is given, if it has one.
        run_in: Where it runs: ``"loop"``, ``"thread"``, ``"process"`` or ``"batch"``.
        parameters: Its arguments, in order.
        schema: The JSON schema of its arguments, which are an object; None if that is not known.
        timeout: How long a command may run, if the type says.
        seen_at: When a worker last told of it.
    """

    name: str
    doc: str = ""
    lane: str | None = None
    run_in: str = "loop"
    parameters: tuple[ParameterView, ...] = ()
    schema: dict[str, Any] | None = None
    timeout: float | None = None
    seen_at: float | None = None


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule."""

    name: str
    lane: str
    kind: str
    """The command type."""
    expression: str | None = None
    every: float | None = None
    tz: str = "UTC"
    words: str = ""
    """When it is due, in words: ``"weekdays at 3:00, Europe/Berlin"``."""
    paused: bool = False
    next_runs: tuple[float, ...] = ()
    """The next moments, at most five."""
    last_run: float | None = None
    runs: int = 0
    missed: str = "once"
    jitter: float = 0.0
    key: str | None = None
    declared_at: float | None = None
    arguments: str = ""
    """The arguments of its command, as JSON text."""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a stack."""

    file: str
    line: int
    function: str
    source: str = ""


class StackView(msgspec.Struct, frozen=True, kw_only=True):
    """What a command does right now: the answer of its worker.

    Attributes:
        command_id: The command.
        worker: The worker.
        where: ``"task"``, ``"thread"`` or ``"process"``.
        frames: The stack, the outermost frame first.
        unchanged_for: For how many seconds the innermost frames have been the same, as far as the
            worker has looked.
        running_for: For how many seconds the command has run.
        memory: Resident bytes of the process.
        at: When that was, as Unix time.
        note: What else is to be said, such as that the event loop is blocked.
    """

    command_id: str
    worker: str
    where: str
    frames: tuple[Frame, ...]
    unchanged_for: float | None = None
    running_for: float = 0.0
    memory: int = 0
    at: float = 0.0
    note: str = ""


class ActionReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an action.

    Attributes:
        action: What was done, as a verb: ``"requeue"``.
        done: How many items it was done to.
        matched: How many it was meant for.
        failed: Those to which it could not be done, with the reason, at most 100: queue, id or key,
            reason.
        failed_count: How many these are.
        dry_run: Nothing was changed: `done` is how many there would be.
        complete: Whether all that match were dealt with; False if it was stopped.
        note: What else is to be said.
        id: The id of the item that was put, or to which it was done, if that is one.
        command_id: The id of the command that was submitted.
    """

    action: str
    done: int = 0
    matched: int = 0
    failed: tuple[tuple[str, str, str], ...] = ()
    failed_count: int = 0
    dry_run: bool = False
    complete: bool = True
    note: str = ""
    id: int | None = None
    command_id: str = ""


class LaneSeries(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a lane, in equal steps of time; made by `SeriesReader.lane`.

    All tuples have one value for each step. Quantiles are in seconds and within about 10 %; they
    are None where nothing was measured. Gauges are those of the end of a step; they are None where
    no worker has told of them.

    Attributes:
        lane: Its name.
        begin: When the first step begins.
        step: Seconds of a step.
        submitted: Commands that were submitted by workers. Other processes do not tell.
        started: Attempts that were started.
        completed: Commands that were done.
        failed: Commands that were given up.
        retried: Attempts that failed and were followed by another.
        timed_out: Attempts that ran too long.
        cancelled: Commands that were cancelled.
        dead_lettered: Commands that went to the dead letters.
        waiting: How many commands waited.
        scheduled: How many were scheduled.
        in_flight: How many were leased by workers.
        buried: How many dead letters there were.
        oldest: For how many seconds the command that was next had been there.
        wait_p50: How long first attempts had waited. So with the other quantiles.
        run_p50: How long attempts ran. So with the other quantiles.
    """

    lane: str
    begin: float
    step: int
    submitted: tuple[int, ...] = ()
    started: tuple[int, ...] = ()
    completed: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    retried: tuple[int, ...] = ()
    timed_out: tuple[int, ...] = ()
    cancelled: tuple[int, ...] = ()
    dead_lettered: tuple[int, ...] = ()
    waiting: tuple[int | None, ...] = ()
    scheduled: tuple[int | None, ...] = ()
    in_flight: tuple[int | None, ...] = ()
    buried: tuple[int | None, ...] = ()
    oldest: tuple[float | None, ...] = ()
    wait_p50: tuple[float | None, ...] = ()
    wait_p95: tuple[float | None, ...] = ()
    wait_p99: tuple[float | None, ...] = ()
    run_p50: tuple[float | None, ...] = ()
    run_p95: tuple[float | None, ...] = ()
    run_p99: tuple[float | None, ...] = ()


class LaneTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a lane over some time up to now; made by `SeriesReader.totals`.

    Attributes:
        lane: Its name; None for all lanes together.
        seconds: How long that time is.
        submitted: As `LaneSeries` has it, added up. So with the other counts.
        throughput: Commands that were done per second.
        failure_rate: Of the commands that were done or given up, the share that was given up.
        wait_mean: How long first attempts had waited, on average; None if there were none. So with
            the quantiles, which are within about 10 %.
        run_mean: How long attempts ran, on average.
    """

    lane: str | None
    seconds: float
    submitted: int = 0
    started: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0
    timed_out: int = 0
    cancelled: int = 0
    dead_lettered: int = 0
    throughput: float = 0.0
    failure_rate: float = 0.0
    wait_mean: float | None = None
    wait_p50: float | None = None
    wait_p95: float | None = None
    wait_p99: float | None = None
    run_mean: float | None = None
    run_p50: float | None = None
    run_p95: float | None = None
    run_p99: float | None = None


FeedOutcome: TypeAlias = Literal[
    "submitted",
    "started",
    "completed",
    "retry",
    "failed",
    "timeout",
    "cancelled",
    "dead_lettered",
    "ended",
    "pressure",
    "idle",
    "shutdown",
    "dropped",
]
"""What happened, as a `Feed` tells it.

``"ended"``: an item of a plain queue is gone, and nothing tells how. ``"pressure"``, ``"idle"``:
many commands wait in a lane, or none any more. ``"shutdown"``: a worker takes no more commands.
``"dropped"``: so many events are not told, as there were too many.
"""


class FeedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened in a queue or a lane; made by `Feed`.

    Attributes:
        at: When it happened, by the clock of the store; for what was seen by a look, when it was
            looked at.
        outcome: What happened.
        queue: The queue; the lane, for what a worker tells.
        lane: The lane, if it is one.
        key: The key of the item.
        kind: The command type, or the kind of a plain item.
        command_id: The id of the command; "" for an item that is none.
        id: The number of a plain item in its queue.
        attempt: The number of the attempt.
        error: How it failed, in one line.
        delay: Seconds until the next attempt.
        count: How many commands wait, or how many events were dropped.
        worker: Tells the workers apart that tell of it; "" if it was seen by a look.
    """

    at: float
    outcome: FeedOutcome
    queue: str = ""
    lane: str | None = None
    key: str = ""
    kind: str = ""
    command_id: str = ""
    id: int | None = None
    attempt: int = 0
    error: str = ""
    delay: float | None = None
    count: int | None = None
    worker: str = ""
