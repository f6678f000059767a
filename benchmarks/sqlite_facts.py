"""How a connection to SQLite is set, which decides what a commit survives and what it costs."""

import sqlite3

NAMES = ("journal_mode", "synchronous", "wal_autocheckpoint", "cache_size")
LEVELS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}


def pragmas(connection: sqlite3.Connection) -> dict[str, str]:
    """The settings that count, as the connection itself says."""
    values = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in NAMES}
    values["synchronous"] = LEVELS[values["synchronous"]]
    return {name: str(value) for name, value in values.items()}
