"""Processes that begin in some milliseconds: forked from one that has imported what they need."""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from tests.servers.valkey import die_with_parent

PATIENCE = 60.0
ENGINES = (
    "leasedkeyq.testing.processes",
    "leasedkeyq.engines.file.store",
    "leasedkeyq.engines.sqlite.store",
    "leasedkeyq.engines.postgres.store",
    "leasedkeyq.engines.redis.store",
    "leasedkeyq.lanes",
    "leasedkeyq.repository",
    "yaml",
)


def fork_server(*modules: str) -> ForkServerContext:
    """Of which to start processes, with the engines and these modules imported.

    To import the package takes a new process a quarter of a second, and a fork nothing. The modules
    are imported when the first process is started; later ones are each process's own matter.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*ENGINES, *modules, __name__])
    return context


class Forks:
    """Starts processes that call a function of a module, and ends those that are left.

    Args:
        modules: Imported once, before the first process is started.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._context = fork_server(*modules)
        self._started: list[ForkServerProcess] = []

    def start(self, function: Callable[..., None], *arguments: Any) -> ForkServerProcess:
        process = self._context.Process(target=_begin, args=(function, *arguments))
        process.start()
        self._started.append(process)
        return process

    def kill(self, process: ForkServerProcess) -> None:
        """Kill -9, and wait until it is dead. It may be dead already."""
        process.kill()
        process.join(PATIENCE)
        process.close()
        self._started.remove(process)

    def close(self) -> None:
        for process in list(self._started):
            self.kill(process)


class Program:
    """A module of the tests that runs as a program, in a process of its own, until it is killed.

    It is used as `subprocess.Popen` is, but takes a tenth of the time to start.

    Args:
        module: As for ``python -m``.
        folder: Where it runs, and finds modules; None: where the tests do.
        environment: Its variables, but for those that Python itself reads when it starts.
        errors: Whether `stdout` has what it prints to its standard error, too.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        errors: bool = False,
    ) -> None:
        context = fork_server()
        told, theirs = context.Pipe(duplex=False)
        variables = dict(os.environ if environment is None else environment)
        around = {"folder": folder, "environment": variables, "errors": errors}
        self._process = context.Process(
            target=_run, args=(module, arguments, theirs), kwargs=around, daemon=True
        )
        self._process.start()
        theirs.close()
        with told:
            self.stdout = os.fdopen(os.dup(told.fileno()), encoding="utf-8")
            """What it prints."""

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that has ended it; None while it runs."""
        return self._process.exitcode

    def wait(self, seconds: float) -> int:
        """Wait for its end.

        Raises:
            TimeoutError: It runs on.
        """
        self._process.join(seconds)
        code = self._process.exitcode
        if code is None:
            raise TimeoutError(f"process {self.pid} has not ended within {seconds} s")
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        self._process.join()


def _run(
    module: str,
    arguments: Sequence[str],
    told: "Connection[Any, Any]",
    *,
    folder: Path | None,
    environment: Mapping[str, str],
    errors: bool,
) -> None:
    """In the new process."""
    os.dup2(told.fileno(), 1)
    if errors:
        os.dup2(1, 2)
    told.close()
    _reopen_streams()
    os.environ.clear()
    os.environ.update(environment)
    if folder is not None:
        os.chdir(folder)
        sys.path.insert(0, str(folder))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


class Python(subprocess.Popen[str]):
    """As `subprocess.Popen` with ``[sys.executable, *arguments]``, but forked from the server.

    Args:
        arguments: ``-m module``, ``-c code`` or a file, and what the program finds in `sys.argv`;
            ``-W error`` may come first.
        options: Of `subprocess.Popen`: the standard streams, `cwd`, `env` and how text is encoded.
    """

    def __init__(self, *arguments: str | Path, **options: Any) -> None:
        options.setdefault("encoding", "utf-8")
        super().__init__([sys.executable, *arguments], **options)

    # `Popen` calls these when it has made the pipes, and to see how the process is.

    def _execute_child(self, *given: Any) -> None:
        [_, *arguments], _, _, _, _, folder, environment, *_ = given
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = given[10:16]
        streams: list[Connection[Any, Any] | None] = [
            None if stream == -1 else Connection(os.dup(stream))
            for stream in (p2cread, c2pwrite, errwrite)
        ]
        variables = dict(os.environ if environment is None else environment)
        self._process = fork_server().Process(
            target=_become, args=(arguments, streams, folder, variables), daemon=True
        )
        self._process.start()
        for stream in streams:
            if stream is not None:
                stream.close()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self._child_created = True
        close: Callable[..., None] = getattr(self, "_close_pipe_fds")  # noqa: B009 - a private one
        close(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _internal_poll(self, **_: Any) -> int | None:
        if self.returncode is None:
            code: Any = self._process.exitcode
            self.returncode = code
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        self._process.join(timeout)
        code = self._internal_poll()
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code


def _become(
    arguments: Sequence[str | Path],
    streams: "Sequence[Connection[Any, Any] | None]",
    folder: str | Path | None,
    environment: Mapping[str, str],
) -> None:
    """In the new process: run a program as a new interpreter does."""
    for number, stream in enumerate(streams):
        if stream is not None:
            os.dup2(stream.fileno(), number)
            stream.close()
    _reopen_streams()
    os.environ.clear()
    os.environ.update(environment)
    if folder is not None:
        os.chdir(folder)
    if arguments[:2] == ["-W", "error"]:
        warnings.simplefilter("error")
        arguments = arguments[2:]
    what, *rest = map(str, arguments)
    if what == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        code, *rest = rest
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest]
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), main.__dict__)
    else:
        sys.path.insert(0, str(Path(what).parent))
        sys.argv = [what, *rest]
        runpy.run_path(what, run_name="__main__")


def _reopen_streams() -> None:
    """Let `sys` know that its standard streams are other ones."""
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - it is open
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(  # noqa: SIM115
        2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
    )


def _begin(function: Callable[..., None], *arguments: Any) -> None:
    die_with_parent()
    function(*arguments)
