"""Commands that note when they start and end."""

import asyncio

from leasedkeyq.lanes import QueueManager
from tests.lanes.support import now


class Diary:
    """Commands that note when they start and end."""

    def __init__(self, manager: QueueManager) -> None:
        self.lines: list[tuple[float, str]] = []
        self.running = 0
        self.most = 0

        @manager.command("note")
        async def note(name: str, seconds: float = 0.0) -> str:
            self.lines.append((round(now(), 3), name))
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await asyncio.sleep(seconds)
            finally:
                self.running -= 1
            return name

        self.note = note
        self.failures = 0

        @manager.command("flaky")
        async def flaky(times: int) -> str:
            self.lines.append((round(now(), 3), f"attempt {self.failures + 1}"))
            if self.failures < times:
                self.failures += 1
                raise ValueError(f"failure {self.failures}")
            return "at last"

        self.flaky = flaky

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.lines]
