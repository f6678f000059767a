"""The driver for PostgreSQL, or an error that says how to get it, and what its errors mean."""

from typing import Final

try:
    import asyncpg
except ModuleNotFoundError as error:
    if error.name != "asyncpg":
        raise
    raise ModuleNotFoundError(
        'the PostgreSQL store needs asyncpg: pip install "leasedkeyq[postgres]"', name=error.name
    ) from error

__all__ = ["LOST", "REPEATABLE", "UNDONE", "UNSTORABLE", "asyncpg"]

REPEATABLE: Final = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
"""The server has undone all of it, and it may be tried again."""
LOST: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,
)
"""The server or the way to it has gone, maybe for a moment."""
UNDONE: Final = (
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
)
"""Those of them with which a server says that it has done nothing."""
UNSTORABLE: Final = (asyncpg.DataError, TypeError, ValueError, OverflowError, UnicodeError)
"""A request cannot be stored at all, whatever is done with the others of its batch."""
