"""Functions that the tests call in processes of a pool, which import this module."""

import asyncio
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leasedkeyq.lanes import current_command, resource
from leasedkeyq.lanes.running.job import WORKER
from tests.lanes.real_clock import PATIENCE


class ShopError(Exception):
    def __init__(self, shop: str, *, code: int) -> None:
        super().__init__(f"{shop} says {code}")
        self.code = code


@dataclass
class Point:
    x: int
    y: int = 0

    def shifted(self, by: int) -> int:
        return self.x + by


def square(number: int) -> int:
    return number * number


def counted(function: Callable[[int], int]) -> Callable[[int], int]:
    @functools.wraps(function)
    def call(number: int) -> int:
        return function(number) + 1

    return call


@counted
def counted_square(number: int) -> int:
    return number * number


async def square_later(number: int) -> int:
    await asyncio.sleep(0)
    return number * number


def moved(point: Point) -> Point:
    return Point(point.x + 1, point.y)


def about_me() -> dict[str, Any]:
    command = current_command()
    return {
        "lane": command.lane,
        "key": command.key,
        "type": command.command_type,
        "attempt": command.attempt,
        "timeout": command.timeout,
        "id": command.id,
        "cancelled": command.cancelled,
        "pid": os.getpid(),
        "own session": os.getsid(0) == os.getpid(),
        "deaf to Ctrl-C": signal.getsignal(signal.SIGINT) is not signal.default_int_handler,
    }


def fail(shop: str) -> None:
    raise ShopError(shop, code=7)


def fail_locally() -> None:
    class HiddenError(Exception):
        pass

    raise HiddenError("nobody can import it")


def leave() -> None:
    sys.exit(3)


def strange() -> Any:
    return object()


def wrong() -> int:
    number: Any = "no number"
    return number  # type: ignore[no-any-return]  # that is what is tested


def tell(parts: int) -> int:
    """Tells its worker how far it is."""
    assert WORKER.tell is not None
    for part in range(parts):
        WORKER.tell({"part": part, "of": parts})
    return parts


def takes_resource(number: int, pool: Point = resource()) -> int:
    return number + pool.x


def takes_anything(thing: Any) -> None:
    del thing


def crash(code: int) -> None:
    os._exit(code)


def crash_beside(how: str, code: int) -> None:
    """Ends at once, and leaves a process behind that it has started."""
    if how == "fork":
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
    else:
        os.posix_spawnp("sleep", ["sleep", "600"], os.environ)
    os._exit(code)


def killed_at_first(attempts: int) -> int:
    """Is killed so often, and then says which attempt this is."""
    attempt = current_command().attempt
    if attempt <= attempts:
        os.kill(os.getpid(), signal.SIGKILL)
    return attempt


def spin(pids: str) -> None:
    """Computes for ever, beside a process of its own, and writes down both."""
    program = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(program) as other:
        _write(Path(pids), f"{os.getpid()} {other.pid}")
        while True:
            pass


def await_file(path: str) -> int:
    """Waits until a file is there; returns the process."""
    deadline = time.monotonic() + PATIENCE
    while not Path(path).exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return os.getpid()


def _write(path: Path, text: str) -> None:
    whole = path.with_suffix(".new")
    whole.write_text(text)
    whole.rename(path)
