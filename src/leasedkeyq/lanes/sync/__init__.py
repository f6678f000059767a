"""Lanes for programs without an event loop: `manager.sync`, its handles, and what carries calls.

`manager` is what programs call, `handle` a command that was submitted. `calls` carries the calls of
threads into an event loop and back, `session` has a manager open in the background loop of the
process. The manager of lanes imports it. Begin with `manager`.
"""

from leasedkeyq.lanes.sync.handle import SyncHandle
from leasedkeyq.lanes.sync.manager import SyncManager

__all__ = ["SyncHandle", "SyncManager"]
