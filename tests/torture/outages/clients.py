"""Processes that work on a server which fails, and the words in which they are told what to do."""

import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from tests.torture.outages.client import (
    LAST_CALLS,
    Ask,
    Begin,
    Diary,
    Order,
    Progress,
    Settings,
    Stop,
)

ROOT: Final = Path(__file__).resolve().parents[3]
PATIENCE: Final = 60.0
"""Seconds for an answer to an order, on a machine however busy."""
NEW_CALLS: Final = 2
"""Calls of each task that must be answered after a fault has ended."""


class Client:
    """One process with a store of its own.

    Args:
        name: Begins the values that it puts.
        url: The store.
        options: For `connect`.
        log: Where its errors and the log of its store go.
    """

    def __init__(self, name: str, url: str, options: dict[str, Any], log: Path) -> None:
        settings = msgspec.json.encode(Settings(name=name, url=url, options=options)).decode()
        self.name = name
        self.log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.torture.outages.client", settings],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    def begin(self, seed: int) -> None:
        """Begin a round."""
        self._ask(Begin(seed), PATIENCE)

    def answered(self) -> list[int]:
        """How many calls of each task were answered in this round."""
        return msgspec.json.decode(self._ask(Ask(), PATIENCE), type=Progress).answered

    def end(self) -> Diary:
        """End the round, and return what was noted in it."""
        return msgspec.json.decode(self._ask(Stop(), PATIENCE + LAST_CALLS), type=Diary)

    def goes_on(self) -> bool:
        """Wait until all tasks have some more calls answered; False: one of them has not."""
        before = self.answered()
        deadline = time.monotonic() + PATIENCE
        while any(
            now < then + NEW_CALLS for now, then in zip(self.answered(), before, strict=True)
        ):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _ask(self, order: Order, seconds: float) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            said = self.log.read_text(errors="replace")[-4000:]
            how = "has ended" if ready else "does not answer"
            raise RuntimeError(f"the client {self.name} {how}: {said}")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
