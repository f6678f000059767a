"""Lanes: the scheduler. A lane is a leased key queue with a policy.

What people touch is here: `builder`, `manager`, `config`, `command`, `events`, `dead_letters`,
`storage`, and `policies`. What runs commands is in `running`; `memory` has the engine for lanes in
memory, `durable` the one for lanes on a store; `sync` is for programs without an event loop. Lanes
use the contract of stores, and any store; two modules know an engine: `storage`, as a
`LocalStorage` is a SQLite file, and `storage_store`, which is the memory store plus somebody's
`Storage`.

Programs import the names below. In the package, only `cli` and `testing` may import lanes.
Begin with `manager`, then `running.engine`.
"""

from leasedkeyq.lanes.builder import DEFAULT_LANES, QueueManagerBuilder
from leasedkeyq.lanes.command import (
    BatchFunction,
    Command,
    CommandCall,
    CommandFunction,
    CommandRegistry,
)
from leasedkeyq.lanes.command_options import CommandOptions, RunIn
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
from leasedkeyq.lanes.resources import Lifespan, Resources, resource
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
from leasedkeyq.lanes.schedule import Schedule
from leasedkeyq.lanes.storage import (
    CommandStorage,
    LocalStorage,
    Storage,
    StoredCommand,
    StoredDeadLetter,
)
from leasedkeyq.lanes.sync import SyncHandle, SyncManager
from leasedkeyq.lanes.timetable import Cron, Every, MissedPolicy
from leasedkeyq.lanes.track import track
from leasedkeyq.lanes.workflow.outcome import GatherOutcome, GatherStatus
from leasedkeyq.telemetry.stats import LaneStats, QueueStats

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
