"""Lanes: the scheduler. A lane is a leased key queue with a policy.

What people touch is here: `builder`, `manager`, `config`, `commands`, `schedules`, `events`,
`dead_letters`, `storage`, and `policies`. What runs commands is in `running`; `memory` has the
engine for lanes in memory, `durable` the one for lanes on a store; `sync` is for programs without
an event loop. Lanes use the contract of stores, and any store; two modules know an engine:
`storage`, as a `LocalStorage` is a SQLite file, and `storage_store`, which is the memory store plus
somebody's `Storage`.

Programs import the names below. In the package, only `cli` and `testing` may import lanes.
Begin with `manager`, then `running.engine`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasedkeyq.lanes.builder import DEFAULT_LANES, QueueManagerBuilder
    from leasedkeyq.lanes.commands.command import (
        BatchFunction,
        Command,
        CommandCall,
        CommandFunction,
        CommandRegistry,
    )
    from leasedkeyq.lanes.commands.command_options import CommandOptions, RunIn
    from leasedkeyq.lanes.commands.resources import Lifespan, Resources, resource
    from leasedkeyq.lanes.config import LaneConfig
    from leasedkeyq.lanes.dead_letters import DeadLetter, DeadLetterQueue
    from leasedkeyq.lanes.errors import (
        AnnotationWarning,
        CommandCancelledError,
        CommandError,
        CommandExitError,
        CommandLostError,
        CommandPayloadError,
        CommandProcessError,
        CommandTimeoutError,
        DeadlineWarning,
        DrainTimeoutError,
        LaneConfigError,
        LaneError,
        LifespanError,
        ManagerClosedError,
        ManagerFailedError,
        RemoteCommandError,
        ResourceError,
        ScheduleError,
        ShuttingDownError,
        SubscriptionClosedError,
        UnknownCommandError,
        UnknownLaneError,
        UnknownScheduleError,
        UnregisteredCommandError,
    )
    from leasedkeyq.lanes.events import (
        COMMAND_CANCELLED,
        COMMAND_COMPLETED,
        COMMAND_DEAD_LETTERED,
        COMMAND_FAILED,
        COMMAND_RETRY,
        COMMAND_STARTED,
        COMMAND_SUBMITTED,
        COMMAND_TIMEOUT,
        LANE_IDLE,
        LANE_PRESSURE,
        SHUTDOWN_STARTED,
        EventEmitter,
        LaneEvent,
        Subscription,
    )
    from leasedkeyq.lanes.manager import QueueManager
    from leasedkeyq.lanes.monitor import MonitorConfig, QueueMonitor
    from leasedkeyq.lanes.policies.alerts import (
        Alert,
        AlertCallback,
        AlertLevel,
        AlertManager,
        AlertRule,
    )
    from leasedkeyq.lanes.policies.boost import PriorityBoostConfig
    from leasedkeyq.lanes.policies.key_limit import KeyLimit
    from leasedkeyq.lanes.policies.rate_limit import RateLimitConfig
    from leasedkeyq.lanes.policies.retry import RetryDecider, RetryPolicy
    from leasedkeyq.lanes.queue import CommandQueue
    from leasedkeyq.lanes.running.job import (
        CommandStatus,
        Handle,
        RunningCommand,
        current_batch,
        current_command,
    )
    from leasedkeyq.lanes.running.lane import Lane
    from leasedkeyq.lanes.running.middleware import CallNext, Middleware
    from leasedkeyq.lanes.running.progress import Progress
    from leasedkeyq.lanes.schedules.schedule import Schedule
    from leasedkeyq.lanes.storage import (
        CommandStorage,
        LocalStorage,
        Storage,
        StoredCommand,
        StoredDeadLetter,
    )
    from leasedkeyq.lanes.sync import SyncHandle, SyncManager
    from leasedkeyq.lanes.timetable import Cron, Every, MissedPolicy
    from leasedkeyq.lanes.tracking import track
    from leasedkeyq.lanes.workflow.outcome import GatherOutcome, GatherStatus
    from leasedkeyq.telemetry.stats import LaneStats, QueueStats
else:
    # A tool that only reads what lanes have stored does not wait for all that runs commands.
    _LAZY = {
        "DEFAULT_LANES": "lanes.builder",
        "QueueManagerBuilder": "lanes.builder",
        "BatchFunction": "lanes.commands.command",
        "Command": "lanes.commands.command",
        "CommandCall": "lanes.commands.command",
        "CommandFunction": "lanes.commands.command",
        "CommandRegistry": "lanes.commands.command",
        "CommandOptions": "lanes.commands.command_options",
        "RunIn": "lanes.commands.command_options",
        "LaneConfig": "lanes.config",
        "DeadLetter": "lanes.dead_letters",
        "DeadLetterQueue": "lanes.dead_letters",
        "AnnotationWarning": "lanes.errors",
        "CommandCancelledError": "lanes.errors",
        "CommandError": "lanes.errors",
        "CommandExitError": "lanes.errors",
        "CommandLostError": "lanes.errors",
        "CommandPayloadError": "lanes.errors",
        "CommandProcessError": "lanes.errors",
        "CommandTimeoutError": "lanes.errors",
        "DeadlineWarning": "lanes.errors",
        "DrainTimeoutError": "lanes.errors",
        "LaneConfigError": "lanes.errors",
        "LaneError": "lanes.errors",
        "LifespanError": "lanes.errors",
        "ManagerClosedError": "lanes.errors",
        "ManagerFailedError": "lanes.errors",
        "RemoteCommandError": "lanes.errors",
        "ResourceError": "lanes.errors",
        "ScheduleError": "lanes.errors",
        "ShuttingDownError": "lanes.errors",
        "SubscriptionClosedError": "lanes.errors",
        "UnknownCommandError": "lanes.errors",
        "UnknownLaneError": "lanes.errors",
        "UnknownScheduleError": "lanes.errors",
        "UnregisteredCommandError": "lanes.errors",
        "COMMAND_CANCELLED": "lanes.events",
        "COMMAND_COMPLETED": "lanes.events",
        "COMMAND_DEAD_LETTERED": "lanes.events",
        "COMMAND_FAILED": "lanes.events",
        "COMMAND_RETRY": "lanes.events",
        "COMMAND_STARTED": "lanes.events",
        "COMMAND_SUBMITTED": "lanes.events",
        "COMMAND_TIMEOUT": "lanes.events",
        "LANE_IDLE": "lanes.events",
        "LANE_PRESSURE": "lanes.events",
        "SHUTDOWN_STARTED": "lanes.events",
        "EventEmitter": "lanes.events",
        "LaneEvent": "lanes.events",
        "Subscription": "lanes.events",
        "QueueManager": "lanes.manager",
        "MonitorConfig": "lanes.monitor",
        "QueueMonitor": "lanes.monitor",
        "Alert": "lanes.policies.alerts",
        "AlertCallback": "lanes.policies.alerts",
        "AlertLevel": "lanes.policies.alerts",
        "AlertManager": "lanes.policies.alerts",
        "AlertRule": "lanes.policies.alerts",
        "PriorityBoostConfig": "lanes.policies.boost",
        "KeyLimit": "lanes.policies.key_limit",
        "RateLimitConfig": "lanes.policies.rate_limit",
        "RetryDecider": "lanes.policies.retry",
        "RetryPolicy": "lanes.policies.retry",
        "CommandQueue": "lanes.queue",
        "Lifespan": "lanes.commands.resources",
        "Resources": "lanes.commands.resources",
        "resource": "lanes.commands.resources",
        "CommandStatus": "lanes.running.job",
        "Handle": "lanes.running.job",
        "RunningCommand": "lanes.running.job",
        "current_batch": "lanes.running.job",
        "current_command": "lanes.running.job",
        "Lane": "lanes.running.lane",
        "CallNext": "lanes.running.middleware",
        "Middleware": "lanes.running.middleware",
        "Progress": "lanes.running.progress",
        "Schedule": "lanes.schedules.schedule",
        "CommandStorage": "lanes.storage",
        "LocalStorage": "lanes.storage",
        "Storage": "lanes.storage",
        "StoredCommand": "lanes.storage",
        "StoredDeadLetter": "lanes.storage",
        "SyncHandle": "lanes.sync",
        "SyncManager": "lanes.sync",
        "Cron": "lanes.timetable",
        "Every": "lanes.timetable",
        "MissedPolicy": "lanes.timetable",
        "track": "lanes.tracking",
        "GatherOutcome": "lanes.workflow.outcome",
        "GatherStatus": "lanes.workflow.outcome",
        "LaneStats": "telemetry.stats",
        "QueueStats": "telemetry.stats",
    }

    def __getattr__(name):
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = getattr(import_module(f"leasedkeyq.{_LAZY[name]}"), name)
        return globals()[name]

    def __dir__():
        return sorted({*globals(), *_LAZY})


__all__ = [
    # Running commands
    "QueueManager",
    "QueueManagerBuilder",
    "DEFAULT_LANES",
    "CommandQueue",
    "Lane",
    "Handle",
    "CommandStatus",
    # Without an event loop
    "SyncManager",
    "SyncHandle",
    # Commands
    "Command",
    "CommandFunction",
    "CommandRegistry",
    "CommandCall",
    "CommandOptions",
    "RunIn",
    "BatchFunction",
    "current_batch",
    "current_command",
    "RunningCommand",
    "Progress",
    "track",
    "GatherOutcome",
    "GatherStatus",
    # Around commands
    "Middleware",
    "CallNext",
    "Lifespan",
    "Resources",
    "resource",
    # Schedules
    "Schedule",
    "MissedPolicy",
    "Cron",
    "Every",
    # Policies
    "LaneConfig",
    "RetryPolicy",
    "RetryDecider",
    "RateLimitConfig",
    "KeyLimit",
    "PriorityBoostConfig",
    # Dead letters and storage
    "DeadLetter",
    "DeadLetterQueue",
    "Storage",
    "LocalStorage",
    "CommandStorage",
    "StoredCommand",
    "StoredDeadLetter",
    # Seeing what happens
    "EventEmitter",
    "COMMAND_SUBMITTED",
    "COMMAND_STARTED",
    "COMMAND_COMPLETED",
    "COMMAND_RETRY",
    "COMMAND_DEAD_LETTERED",
    "COMMAND_FAILED",
    "COMMAND_TIMEOUT",
    "COMMAND_CANCELLED",
    "LANE_PRESSURE",
    "LANE_IDLE",
    "SHUTDOWN_STARTED",
    "LaneEvent",
    "Subscription",
    "QueueMonitor",
    "MonitorConfig",
    "QueueStats",
    "LaneStats",
    "Alert",
    "AlertCallback",
    "AlertLevel",
    "AlertManager",
    "AlertRule",
    # Errors
    "LaneError",
    "LaneConfigError",
    "UnknownLaneError",
    "ScheduleError",
    "UnknownScheduleError",
    "ShuttingDownError",
    "ManagerClosedError",
    "ManagerFailedError",
    "DrainTimeoutError",
    "SubscriptionClosedError",
    "CommandError",
    "UnknownCommandError",
    "UnregisteredCommandError",
    "CommandPayloadError",
    "CommandTimeoutError",
    "CommandCancelledError",
    "CommandExitError",
    "CommandProcessError",
    "CommandLostError",
    "RemoteCommandError",
    "LifespanError",
    "ResourceError",
    "AnnotationWarning",
    "DeadlineWarning",
]
