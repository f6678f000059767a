"""What a worker writes to standard error: lines for people, or one JSON object per line."""

import logging
from datetime import UTC, datetime
from typing import Any

import msgspec

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")

_OWN = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))
"""What every record has. Whatever else there is, is what the record tells."""


class JsonLines(logging.Formatter):
    """A record as a JSON object: time, level, logger, message, and what was passed as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in vars(record).items():
            if name not in _OWN:
                line.setdefault(name, value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        try:
            encoded = msgspec.json.encode(line, enc_hook=repr)
        except (TypeError, ValueError, RecursionError):
            encoded = msgspec.json.encode(
                {name: ascii(value) for name, value in line.items()}  # lone surrogates, and worse
            )
        return encoded.decode()


def set_up(form: str, level: str) -> None:
    """Let the root logger write to standard error."""
    handler = logging.StreamHandler()
    if form == "json":
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
