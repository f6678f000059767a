"""The driver for PostgreSQL, or an error that says how to get it."""

try:
    import asyncpg
except ModuleNotFoundError as error:
    if error.name != "asyncpg":
        raise
    raise ModuleNotFoundError(
        'the PostgreSQL store needs asyncpg: pip install "leasedkeyq[postgres]"', name=error.name
    ) from error

__all__ = ["asyncpg"]
