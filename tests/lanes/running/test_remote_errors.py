"""What a command raises in another process is caught by what one would catch here."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from decimal import InvalidOperation
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.lanes import (
    CommandCancelledError,
    CommandExitError,
    CommandTimeoutError,
    Handle,
    LaneConfig,
    RemoteCommandError,
)
from leasedkeyq.lanes.running.remote_errors import LONGEST, MARK, failure, join, split
from tests.lanes.support import clock, in_memory


class ShopError(Exception):
    """An error with data, and a constructor that a message alone does not satisfy."""

    def __init__(self, shop: str, *, code: int) -> None:
        super().__init__(f"{shop} says {code}")
        self.shop = shop
        self.code = code
        self.connection = object()


class Outer:
    class InnerError(ShopError):
        """An error in a class."""


class HasFancyTextError(Exception):
    def __init__(self, thing: object) -> None:
        super().__init__()
        self.thing = thing

    def __str__(self) -> str:
        return f"about {self.thing}"


class QuietError(LookupError):
    def __init__(self) -> None:
        raise AssertionError("the constructor is not called")


def raising(error: BaseException) -> Callable[[], Awaitable[None]]:
    async def fail() -> None:
        raise error

    fail.__module__ = __name__
    return fail


async def awaited(
    function: Callable[..., Awaitable[Any]], **options: Any
) -> tuple[Handle[Any], BaseException]:
    """How a command ends for its submitter, while another manager runs it."""
    store = MemoryStore(clock=clock)
    config = LaneConfig(0, 1)
    here = in_memory().with_storage(store).with_lane("x", config, 0).build()
    there = in_memory().with_storage(store).with_lane("x", config, 0).build()
    command = here.command("work", function)
    there.command("work", function)
    handle = await here.submit("x", command(), **options)
    async with there:
        try:
            await handle
        except BaseException as error:
            return handle, error
        finally:
            [letter] = await here.dlq.list()
            assert MARK not in letter.traceback
            assert letter.error.partition(":")[0] in letter.traceback
            await here.close()
    raise AssertionError("it did not fail")


async def test_a_time_out_is_a_time_out_everywhere() -> None:
    async def slow() -> None:
        await asyncio.sleep(60)

    handle, error = await awaited(slow, timeout=3)
    assert isinstance(error, CommandTimeoutError)
    assert isinstance(error, TimeoutError)
    assert handle.status == "timed_out"
    assert str(error).endswith("ran longer than 3.0 s")
    assert (error.lane, error.command_type, error.key) == ("x", "work", handle.key)


async def test_a_time_out_that_the_command_raised_itself_is_a_failure() -> None:
    handle, error = await awaited(raising(CommandTimeoutError("of somebody else", lane="y")))
    assert type(error) is CommandTimeoutError
    assert (handle.status, error.lane, str(error)) == ("failed", "y", "of somebody else")


@pytest.mark.parametrize(
    "raised",
    [
        ValueError("bad"),
        KeyError("name"),
        KeyError(),
        FileNotFoundError(2, "no such file", "x.txt"),
        ZeroDivisionError(),
        TimeoutError("of its own"),
        CommandCancelledError("by itself", key="k"),
        LeasedKeyQError("ours"),
        InvalidOperation("1/0"),  # imported by name in the module of the command
    ],
)
async def test_errors_that_can_be_imported_come_back(raised: Exception) -> None:
    handle, error = await awaited(raising(raised))
    assert type(error) is type(raised)
    assert error.args == raised.args
    assert str(error) == str(raised)
    assert handle.status == "failed"
    remote = error.__cause__
    assert isinstance(remote, RemoteCommandError)
    assert remote.error_type == type(raised).__name__
    assert "in fail" in remote.traceback
    assert MARK not in remote.traceback


@pytest.mark.parametrize("kind", [ShopError, Outer.InnerError])
async def test_errors_of_the_own_module_have_their_attributes(kind: type[ShopError]) -> None:
    _, error = await awaited(raising(kind("A&B", code=429)))
    assert type(error) is kind
    assert (error.shop, error.code, str(error)) == ("A&B", 429, "A&B says 429")
    assert not hasattr(error, "connection")


async def test_no_constructor_is_called() -> None:
    _, error = await awaited(raising(QuietError.__new__(QuietError, "shh")))
    assert type(error) is QuietError
    assert error.args == ("shh",)


async def test_an_end_of_the_program_is_a_command_exit_error() -> None:
    handle, error = await awaited(raising(SystemExit(3)))
    assert type(error) is CommandExitError
    assert "raised SystemExit(3)" in str(error)
    assert handle.status == "failed"


class Local(Exception):  # noqa: N818 - for its name
    """Another class than the one that was raised."""


async def test_what_remains_is_a_remote_command_error() -> None:
    class OfNoModuleError(Exception):
        pass

    namesake = type("Local", (Exception,), {"__module__": "elsewhere"})
    for raised in (
        OfNoModuleError("x"),
        namesake("x"),
        HasFancyTextError(object()),
        ExceptionGroup("many", [ValueError(1), TypeError(2)]),
    ):
        handle, error = await awaited(raising(raised))
        assert type(error) is RemoteCommandError, raised
        assert error.error_type == type(raised).__name__
        assert handle.status == "failed"
        assert error.__cause__ is None


@pytest.mark.parametrize("text", ["\udcff.txt", "a\x00b", "\ud800"])
async def test_an_error_that_cannot_be_written_down_does_not_end_the_worker(text: str) -> None:
    """As the name of a file may be that is not UTF-8."""
    error = FileNotFoundError(2, "No such file", text)
    setattr(error, text, text)
    for raised in (error, RuntimeError(text)):
        handle, _ = await awaited(raising(raised))
        assert handle.status == "failed"


def test_what_is_nested_too_deep_is_a_part_of_the_text() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    text = f'Oops: it{MARK}{{"type": "builtins:ValueError", "args": [], "more": {deep}}}'
    error, _ = failure(text, __name__, lane="x", command_type="c", key="k")
    assert type(error) is RemoteCommandError


@pytest.mark.parametrize(
    "name",
    [
        "builtins:eval",
        "builtins:SystemExit",
        "builtins:BaseException",
        "builtins:object",
        "builtins:ExceptionGroup",
        "builtins:StopIteration",
        "builtins:ValueError.__init__",
        "builtins:",
        ":",
        "os:system",
        "antigravity:Anything",
        "asyncio:CancelledError",
        "subprocess:CalledProcessError",
        f"{__name__}:failure",
        f"{__name__}:sys.exit",
        f"{__name__}:pytest.fail.Exception",
        "leasedkeyq.lanes.errors:LeasedKeyQError",
        "leasedkeyq.lanes.running.engine:LaneEngine",
    ],
)
def test_a_store_cannot_name_anything_else(name: str) -> None:
    text = f'Oops: it\nTraceback{MARK}{{"type": "{name}", "args": ["x"]}}'
    error, timed_out = failure(text, __name__, lane="x", command_type="c", key="k")
    assert type(error) is RemoteCommandError
    assert not timed_out
    assert str(error) == "lane 'x': command 'c' of key 'k' failed: Oops: it"
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("form", ["{", "[]", "null", '{"type": 1, "args": []}', '{"type": "x"}'])
def test_what_somebody_else_has_written_is_text(form: str) -> None:
    text = f"Oops: it\nTraceback{MARK}{form}"
    assert split(text) == ("Oops: it", f"Traceback{MARK}{form}", None)
    error, _ = failure(text, __name__, lane="x", command_type="c", key="k")
    assert type(error) is RemoteCommandError


def test_what_is_written_down_has_a_limit() -> None:
    error = ShopError("x", code=1)
    for number in range(100):
        setattr(error, f"more_{number}", "y" * 900)
    _, _, raised = split(join("ShopError: x", "", error, timed_out=False))
    assert raised is not None
    assert raised.attributes == {}
    long = ValueError("z" * 100_000, "\udc80", float("nan"))
    text = join("ValueError: z", "trace", long, timed_out=True)
    assert len(text) < LONGEST
    _, trace, raised = split(text)
    assert raised is not None
    assert (trace, raised.args, raised.timed_out) == ("trace", ["z"], True)


def test_attributes_of_python_itself_are_not_taken_from_a_store() -> None:
    attributes = {"__notes__": "x", "code": 5}
    raised = json.dumps({"type": f"{__name__}:Odd", "args": ["no"], "attributes": attributes})
    about = {"lane": "x", "command_type": "odd", "key": "k"}
    error, _ = failure(f"Odd: no{MARK}{raised}", __name__, **about)
    error.add_note("of the one who waits")
    assert (type(error), vars(error)["code"]) == (Odd, 5)


class Odd(Exception):  # noqa: N818
    """An error of a command."""
