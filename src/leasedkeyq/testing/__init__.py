"""Tools for testing programs that use leasedkeyq, and stores that implement its contract."""

from leasedkeyq.testing.virtual_time import DeadlockError, VirtualTimeLoop

__all__ = ["DeadlockError", "VirtualTimeLoop"]
