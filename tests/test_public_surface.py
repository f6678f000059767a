"""`__all__`, the reference, mypy and pyright agree on what is public, and all is explained."""

import ast
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import distribution
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import leasedkeyq
from leasedkeyq import LeasedKeyQError, LeasedKeyQueue, QueueClosedError

ROOT = Path(__file__).resolve().parent.parent
PUBLIC = set(leasedkeyq.__all__)
DIRECTIVE = re.compile(r"^::: +([\w.]+)$", re.MULTILINE)
# Modules that a program may import by themselves; everything in them is in the reference, too.
PUBLIC_MODULES = (
    "leasedkeyq.testing",
    "leasedkeyq.stores",
    "leasedkeyq.repository",
    "leasedkeyq.lanes",
    "leasedkeyq.operations",
    "leasedkeyq.telemetry",
    "leasedkeyq.telemetry.otel",
    "leasedkeyq.telemetry.prometheus",
    "leasedkeyq.model",
    "leasedkeyq.engines.file",
    "leasedkeyq.web",
)


def documented() -> list[str]:
    """The names in the reference, as the reference has them."""
    pages = sorted((ROOT / "docs/reference").glob("*.md"))
    return [name for page in pages for name in DIRECTIVE.findall(page.read_text(encoding="utf-8"))]


def defined_in(module: ModuleType) -> set[str]:
    """The public classes and functions that a module defines itself, or a package exports."""
    exported: list[str] | None = getattr(module, "__all__", None)
    if exported is not None:
        # What leasedkeyq itself exports has its place in the reference under that name.
        return {
            name
            for name in exported
            if getattr(module, name) is not getattr(leasedkeyq, name, None)
        }
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
        if inspect.isclass(value) or inspect.isfunction(value)
    }


# What is public


def test_all_is_what_a_star_import_brings() -> None:
    assert len(leasedkeyq.__all__) == len(PUBLIC), "a name is there twice"
    namespace: dict[str, object] = {}
    exec("from leasedkeyq import *", namespace)
    assert set(namespace) - {"__builtins__"} == PUBLIC


WITHOUT_EXTRAS = """
import inspect, sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("asyncpg", "redis", "ruamel", "filelock"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
import leasedkeyq
from leasedkeyq import *

assert dict(inspect.getmembers(leasedkeyq)).keys() >= set(leasedkeyq.__all__)
for name in leasedkeyq.__all__:
    assert hasattr(leasedkeyq, name), name
assert not isinstance(MemoryStore(), (PostgresStore, PostgresQueue, RedisStore))
for use, extra in [
    (lambda: PostgresStore("postgresql://host/db"), "postgres"),
    (lambda: leasedkeyq.PostgresQueue(), "postgres"),
    (lambda: connect("postgresql://host/db"), "postgres"),
    (lambda: type("Mine", (PostgresStore,), {}), "postgres"),
    (lambda: RedisStore("redis://host"), "redis"),
    (lambda: connect("redis://host"), "redis"),
]:
    try:
        use()
    except ModuleNotFoundError as error:
        assert f'pip install "leasedkeyq[{extra}]"' in str(error), error
    else:
        raise AssertionError(extra)
"""


def test_all_names_are_there_without_the_drivers() -> None:
    """A name whose driver is not installed says so when it is used, and not before."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_the_extras_all_and_dev_are_what_they_say() -> None:
    """`all` is every extra of users; `dev` is what the files in requirements/ list."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = about["optional-dependencies"]
    (every,) = extras["all"]
    assert every == f"leasedkeyq[{','.join(name for name in extras if name not in ('all', 'dev'))}]"
    listed: dict[str, None] = {}
    for name in ("test", "browser", "check", "build"):
        lines = (ROOT / f"requirements/{name}.txt").read_text(encoding="utf-8").splitlines()
        wanted = [line.partition("#")[0].strip() for line in lines]
        listed |= dict.fromkeys(line for line in wanted if line and not line.startswith("-r"))
    assert extras["dev"] == list(listed)
    for name in set(extras) - {"all", "dev"}:
        assert all(requirement in extras["dev"] for requirement in extras[name]), name


def test_all_is_what_the_package_imports() -> None:
    """Nothing is imported for users and then left out of `__all__`."""
    source = Path(leasedkeyq.__file__).read_text(encoding="utf-8")
    imported = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("leasedkeyq.")
        for alias in node.names
    }
    assert imported == PUBLIC


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(AttributeError, match="module 'leasedkeyq' has no attribute 'nonsense'"):
        getattr(leasedkeyq, "nonsense")  # noqa: B009 - type checkers know that it is not there
    assert set(dir(leasedkeyq)) >= PUBLIC


def test_the_queue_in_memory_does_not_wait_for_the_stores() -> None:
    code = """
import sys
import leasedkeyq
heavy = ("leasedkeyq.stores", "leasedkeyq.engines", "msgspec")
assert not {name for name in sys.modules if name.startswith(heavy)}
store = leasedkeyq.connect("memory://")
assert isinstance(store, leasedkeyq.MemoryStore)
assert "leasedkeyq.engines.sqlite.store" not in sys.modules
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=environment, timeout=60, check=True)


def test_names_of_0_0_7_are_still_there() -> None:
    old = (
        "InFlightPolicy InvalidLeaseError KeyAlreadyInFlightError Lease LeaseRecord"
        " LeaseAlreadyAcknowledgedError LeasedKeyQError LeasedKeyQueue QueueClosedError"
    )
    assert set(old.split()) <= PUBLIC


def test_reference_has_every_public_name_once() -> None:
    names = documented()
    assert len(names) == len(set(names)), "a name is in the reference twice"
    assert {name for name in names if name.count(".") == 1} == {
        f"leasedkeyq.{name}" for name in PUBLIC
    }


@pytest.mark.parametrize("module_name", PUBLIC_MODULES)
def test_reference_has_every_name_of_the_public_modules(module_name: str) -> None:
    in_reference = {name for name in documented() if name.rpartition(".")[0] == module_name}
    module = importlib.import_module(module_name)
    assert in_reference == {f"{module_name}.{name}" for name in defined_in(module)}


def test_reference_has_nothing_else() -> None:
    modules = {name.rpartition(".")[0] for name in documented()}
    assert modules == {"leasedkeyq", *PUBLIC_MODULES}


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = sorted((ROOT / "examples").rglob("*.py"))
IMPORT = re.compile(r"^ *from (leasedkeyq[\w.]*) import (\([^)]*\)|[^\n#]+)", re.MULTILINE)


@pytest.mark.parametrize("path", [*PAGES, *PROGRAMS], ids=lambda path: path.name)
def test_readers_are_shown_public_names_only(path: Path) -> None:
    for module_name, names in IMPORT.findall(path.read_text(encoding="utf-8")):
        assert module_name in {"leasedkeyq", *PUBLIC_MODULES}
        module = importlib.import_module(module_name)
        exported = getattr(module, "__all__", None) or defined_in(module)
        for name in names.strip("()").split(","):
            if name.strip():
                assert name.split()[0] in {*exported, "__version__"}, name


def test_py_typed_is_in_the_wheel() -> None:
    files = distribution("leasedkeyq").files or []
    assert "leasedkeyq/py.typed" in {file.as_posix() for file in files}
    assert (Path(leasedkeyq.__file__).parent / "py.typed").is_file()


# What type checkers see

PROGRAM = '''\
"""Types as a user sees them. Both type checkers must agree with every line."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import assert_type

from leasedkeyq import (
    BuriedItem,
    ItemSnapshot,
    Lease,
    LeasedItem,
    LeasedKeyQueue,
    QueueObserver,
)


class Counter(QueueObserver[str]):
    count = 0

    def on_put(self, key: str) -> None:
        self.count += 1


async def main() -> None:
    queue = LeasedKeyQueue[str, int](default_lease_timeout=timedelta(minutes=1), observer=Counter())
    async with queue as entered:
        assert_type(entered, LeasedKeyQueue[str, int])
    await queue.put("a", 1, if_in_flight="buffer", priority=1, delay=0.5)
    await queue.put_many({"a": 1})
    await queue.put_many([("a", 1)])
    assert_type(await queue.get(timeout=1), tuple[str, int, Lease[str]])
    assert_type(await queue.take("a", 1, lease_timeout=30), tuple[str, int, Lease[str]])
    assert_type(queue.get_nowait(), tuple[str, int, Lease[str]])
    assert_type(queue.take_nowait("a"), tuple[str, int, Lease[str]])
    assert_type(await queue.get_many(5), list[tuple[str, int, Lease[str]]])
    assert_type(aiter(queue), AsyncIterator[tuple[str, int, Lease[str]]])
    async for key, value, lease in queue:
        assert_type(key, str)
        assert_type(value, int)
        assert_type(lease.key, str)
        assert_type(lease.expires_at, float | None)
        await queue.release(lease, delay=timedelta(seconds=1))
        assert_type(await queue.bury(lease, "reason"), BuriedItem[str, int])
    async with queue.lease() as item:
        assert_type(item, LeasedItem[str, int])
        assert_type(item.value, int)
    assert_type(await queue.peek("a"), int | None)
    assert_type(await queue.available_keys(), set[str])
    assert_type(await queue.snapshot(), list[ItemSnapshot[str, int]])
    assert_type(await queue.remove("a"), bool)
    assert_type(queue.closed, bool)


asyncio.run(main())
'''

MISTAKES = """\
import asyncio

from leasedkeyq import LeasedKeyQueue


async def main() -> None:
    queue = LeasedKeyQueue[str, int]()
    await queue.put(1, 1)  # wrong
    await queue.put("a", "b")  # wrong
    await queue.put("a", 1, if_in_flight="wait")  # wrong
    await queue.take(1)  # wrong
    await queue.ack("a")  # wrong
    await queue.put("a", 1, priority="high")  # wrong
    LeasedKeyQueue[str, int](maxsize="1")  # wrong


asyncio.run(main())
"""


def run(*command: str, folder: Path) -> str:
    """What a type checker prints about `folder`, which is far from the configuration here."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    # pyright looks for the packages of the first `python` that it finds.
    environment["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment["PYRIGHT_PYTHON_IGNORE_WARNINGS"] = "1"
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=100,
        check=False,
    )
    print(done.stdout)
    assert done.returncode in {0, 1}, done.stderr
    assert "No module named" not in done.stderr, done.stderr
    return done.stdout


def mypy(folder: Path) -> set[tuple[str, int]]:
    """The file and the line of each error that mypy finds."""
    options = ("--strict", "--config-file=", "--cache-dir=cache", "--no-error-summary")
    said = run("mypy", *options, "imports.py", "program.py", "mistakes.py", folder=folder)
    found = re.findall(r"^(\w+\.py):(\d+): error: ", said, re.MULTILINE)
    return {(name, int(line)) for name, line in found}


def pyright(folder: Path) -> set[tuple[str, int]]:
    """The file and the line of each error that pyright finds."""
    config = {"typeCheckingMode": "strict", "pythonVersion": "3.11"}
    (folder / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    said = run("pyright", "--outputjson", folder=folder)
    return {
        (Path(found["file"]).name, found["range"]["start"]["line"] + 1)
        for found in json.loads(said)["generalDiagnostics"]
        if found["severity"] == "error"
    }


@pytest.mark.parametrize("type_checker", [mypy, pyright])
def test_type_checkers_agree(
    type_checker: Callable[[Path], set[tuple[str, int]]], tmp_path: Path
) -> None:
    found = {
        name
        for name, value in vars(leasedkeyq).items()
        if not name.startswith("__") and not inspect.ismodule(value)
    }
    names = sorted(found | PUBLIC)
    imports = "".join(f"from leasedkeyq import {name} as {name}\n" for name in names)
    for name, text in (("imports", imports), ("program", PROGRAM), ("mistakes", MISTAKES)):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")

    errors = type_checker(tmp_path)
    assert {
        name for line, name in enumerate(names, 1) if ("imports.py", line) not in errors
    } == PUBLIC
    assert {line for file, line in errors if file == "program.py"} == set()
    wrong = {n for n, text in enumerate(MISTAKES.splitlines(), 1) if text.endswith("# wrong")}
    assert {line for file, line in errors if file == "mistakes.py"} == wrong


def test_pyright_knows_every_public_type(tmp_path: Path) -> None:
    options = ("--verifytypes", "leasedkeyq", "--ignoreexternal", "--outputjson")
    report = json.loads(run("pyright", *options, folder=tmp_path))["typeCompleteness"]
    assert report["pyTypedPath"], "the package is found, with its py.typed"
    exported = {s["name"]: s for s in report["symbols"] if s["isExported"]}
    assert {name for name in exported if name.count(".") == 1} == {
        f"leasedkeyq.{name}" for name in PUBLIC
    }
    for name in PUBLIC:
        value = getattr(leasedkeyq, name)
        home = f"{value.__module__}.{name}" if inspect.isclass(value) else f"leasedkeyq.{name}"
        for symbol in exported.values():
            if symbol["name"] == home or symbol["name"].startswith(f"{home}."):
                assert symbol["isTypeKnown"], symbol
                assert not symbol["isTypeAmbiguous"], symbol


# What is explained


@cache
def docstrings_of_aliases() -> dict[str, str]:
    """The strings below assignments, which tools read and Python forgets."""
    return {
        node.target.id: below.value.value
        for source in Path(leasedkeyq.__file__).parent.rglob("*.py")
        for node, below in pairwise(ast.parse(source.read_text(encoding="utf-8")).body)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


def resolve(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("path", documented())
def test_name_has_a_docstring(path: str) -> None:
    value = resolve(path)
    if inspect.isfunction(value):
        assert value.__doc__
        return
    if not inspect.isclass(value):
        assert docstrings_of_aliases().get(path.rpartition(".")[2])
        return
    # Not the one that it inherits, nor the signature that a dataclass makes up.
    own = vars(value).get("__doc__")
    assert own
    assert not own.startswith(f"{value.__name__}(")


def members() -> Iterator[tuple[str, Callable[..., object] | property]]:
    for path in documented():
        value = resolve(path)
        if inspect.isclass(value):
            for name, member in vars(value).items():
                if isinstance(member, classmethod | staticmethod):
                    member = member.__func__  # noqa: PLW2901 - what it wraps
                if not name.startswith("_") and (
                    inspect.isfunction(member) or isinstance(member, property)
                ):
                    yield f"{path}.{name}", member


MEMBERS = dict(members())


@pytest.mark.parametrize("path", MEMBERS)
def test_method_has_a_docstring(path: str) -> None:
    assert (MEMBERS[path].__doc__ or "").strip()


METHODS = {
    path.rpartition(".")[2]: member
    for path, member in MEMBERS.items()
    if path.startswith("leasedkeyq.LeasedKeyQueue.") and not isinstance(member, property)
}
ARGUMENTS: dict[str, tuple[object, ...]] = {
    "put": ("key", 1),
    "put_nowait": ("key", 1),
    "put_many": ({"key": 1},),
    "get_many": (1,),
    "take": ("key",),
    "take_nowait": ("key",),
    "ack": (leasedkeyq.Lease("token", "key"),),
    "release": (leasedkeyq.Lease("token", "key"),),
    "extend": (leasedkeyq.Lease("token", "key"),),
    "bury": (leasedkeyq.Lease("token", "key"),),
    "requeue": (leasedkeyq.BuriedItem(99, "key", 1, 0, 1, "", 0.0),),
    "discard": (leasedkeyq.BuriedItem(99, "key", 1, 0, 1, "", 0.0),),
    "remove": ("key",),
    "purge_line": ("key",),
    "line": ("key",),
    "peek": ("key",),
    "contains": ("key",),
}


def explained(method: str) -> str:
    """The docstring of a method, with that of the method whose errors it says are its own, too."""
    text = METHODS[method].__doc__ or ""
    other = re.search(r"errors are those of `(\w+)`", text)
    return text + (explained(other[1]) if other else "")


async def call(
    queue: LeasedKeyQueue[str, int], method: str, *arguments: object, **options: object
) -> None:
    result: Any = getattr(queue, method)(*arguments, **options)
    if method == "lease":
        async with result:
            return
    if inspect.isasyncgen(result):
        result = anext(result, None)
    if inspect.isawaitable(result):
        await result


@pytest.mark.parametrize("method", METHODS)
async def test_method_says_what_it_raises_when_closed(method: str) -> None:
    queue = LeasedKeyQueue[str, int]()
    await queue.put("left", 1)
    await queue.close()
    try:
        await call(queue, method, *ARGUMENTS.get(method, ()))
    except QueueClosedError:
        assert "QueueClosedError: " in explained(method)
    else:
        assert "QueueClosedError: " not in explained(method)


@pytest.mark.parametrize("method", ["ack", "bury", "extend", "release"])
@pytest.mark.parametrize("end", ["acknowledged", "expired", "released", "unknown"])
async def test_method_says_what_it_raises_for_a_lease(method: str, end: str) -> None:
    queue = LeasedKeyQueue[str, int]()
    await queue.put("key", 1)
    _, _, lease = await queue.get(lease_timeout=30)
    if end == "acknowledged":
        await queue.ack(lease)
    elif end == "released":
        await queue.release(lease)
    elif end == "expired":
        await queue.get()
    else:
        lease = leasedkeyq.Lease("token", "key")
    with pytest.raises(LeasedKeyQError) as raised:
        await call(queue, method, lease)
    assert f"{type(raised.value).__name__}: " in explained(method)


@pytest.mark.parametrize(
    "method, arguments, error",
    [
        ("put", ("leased", 2), leasedkeyq.KeyAlreadyInFlightError),
        ("put_nowait", ("leased", 2), leasedkeyq.KeyAlreadyInFlightError),
        ("put_nowait", ("new", 2), leasedkeyq.QueueFullError),
        ("put_many", ({"leased": 2},), leasedkeyq.KeyAlreadyInFlightError),
        ("put_many", ({"x": 1, "y": 2},), leasedkeyq.QueueFullError),
        ("requeue", ("buried",), leasedkeyq.KeyAlreadyInFlightError),
        ("requeue", ARGUMENTS["requeue"], KeyError),
        ("get", (0,), TimeoutError),
        ("get_many", (1, 0), TimeoutError),
        ("get_nowait", (), leasedkeyq.QueueEmptyError),
        ("take", ("leased", 0), TimeoutError),
        ("take_nowait", ("leased",), leasedkeyq.KeyNotAvailableError),
        ("lease", (None, 0), TimeoutError),
    ],
)
async def test_method_says_what_else_it_raises(
    method: str, arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    queue = LeasedKeyQueue[str, int](maxsize=1)
    await queue.put("leased", 0)
    _, _, lease = await queue.get()
    buried = await queue.bury(lease)
    await queue.put("leased", 1)
    await queue.get()
    await queue.put("later", 1, delay=60)
    # Now the queue is full, nothing is available, and one key is leased that was buried once.
    arguments = (buried,) if arguments == ("buried",) else arguments
    takes_policy = "if_in_flight" in inspect.signature(METHODS[method]).parameters
    options = {"if_in_flight": "reject"} if takes_policy else {}
    with pytest.raises(error) as raised:
        await call(queue, method, *arguments, **options)
    assert raised.type is error
    assert f"{error.__name__}: " in explained(method)
