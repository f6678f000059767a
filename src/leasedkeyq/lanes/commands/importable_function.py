"""Functions that another process can find by name."""

import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

MAIN = "__main__"


class ImportableFunction(NamedTuple):
    """Where a process finds a function that it is to call: it has no other way to have it."""

    module: str
    name: str
    main_path: str
    """The file of the main program, where the function is in that; otherwise ""."""

    @classmethod
    def of(cls, command_type: str, function: Callable[..., Any]) -> "ImportableFunction":
        """The place of a function.

        Raises:
            TypeError: No other process can find it: it has no name at the top of a module, its
                name is that of a function which it wraps, its module is a program without a file,
                or there are no such processes on this system.
        """
        module: str | None = getattr(function, "__module__", None)
        name: str | None = getattr(function, "__qualname__", None)
        if os.name != "posix":
            raise _refused(command_type, "it needs the processes of a POSIX system", "leave it out")
        if not module or not name:
            what = f"{type(function).__name__} has no name in a module"
            raise _refused(command_type, what, "wrap it in a def at the top of a module")
        if "<lambda>" in name:
            raise _refused(command_type, "it is a lambda", "write a def at the top of a module")
        if "<locals>" in name:
            what = f"{name.replace('.<locals>', '')} is defined inside a function"
            raise _refused(command_type, what, "move it to the top of its module")
        if inspect.ismethod(function) and not isinstance(function.__self__, type):
            what = f"{name} is a method of an object, which another process does not have"
            raise _refused(command_type, what, "write a def at the top of a module")
        if _wraps(function, _found(module, name)):
            what = f"by {name} it finds the function without what is wrapped around it"
            raise _refused(command_type, what, "decorate the function where it is defined")
        if module != MAIN:
            return cls(module, name, "")
        main: Any = sys.modules[MAIN]
        spec = getattr(main, "__spec__", None)
        if spec is not None and spec.name:
            return cls(spec.name, name, "")  # python -m: the program has a name as a module, too
        path = getattr(main, "__file__", None)
        if not path or not Path(path).is_file():
            what = f"{name} is in a program without a file, such as a prompt or a notebook"
            raise _refused(command_type, what, "move it to a module, and import it from there")
        return cls(module, name, str(Path(path).resolve()))


def _found(module: str, name: str) -> Any:
    """What has a name in a module now; None: nothing, maybe not yet."""
    place: Any = sys.modules.get(module)
    for part in name.split("."):
        place = getattr(place, part, None)
    return place


def _wraps(function: Any, other: Any) -> bool:
    """Whether a function wraps another one, as `functools.wraps` tells."""
    while (function := getattr(function, "__wrapped__", None)) is not None:
        if function is other:
            return True
    return False


def _refused(command_type: str, why: str, instead: str) -> TypeError:
    return TypeError(
        f"command {command_type!r}: run_in='process' calls the function in another process, which "
        f"has to import it by name, and {why}; {instead}"
    )
