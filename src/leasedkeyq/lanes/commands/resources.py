"""Resources: what a lifespan opens once per worker, and commands use."""

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from itertools import repeat
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from leasedkeyq.errors import describe
from leasedkeyq.lanes.errors import ResourceError

T = TypeVar("T")

Lifespan: TypeAlias = (
    Callable[[], AbstractAsyncContextManager[Any]] | Callable[[], AsyncIterator[Any]]
)
"""What opens resources and closes them: a function that returns an async context manager, or an
async generator function with one ``yield``."""


class ResourceMarker:
    """The default of a parameter that is given a resource. Made by `resource`."""

    def __repr__(self) -> str:
        return "resource()"


_MARKER: Final = ResourceMarker()


def resource() -> Any:
    """Mark a parameter that the worker gives a resource to, by its default.

    In ``async def report(month: int, pool: Pool = resource())``, `pool` is no argument of the
    command: it is not stored, and callers leave it out. The worker passes what a lifespan has
    yielded of the type of the annotation: under the name of the parameter, if there is one of
    that name and type, or else the only one of the type.
    """
    return _MARKER


class ResourceParameter(NamedTuple):
    """A parameter of a function that is given a resource."""

    name: str
    kind: Any

    def __str__(self) -> str:
        return self.name if self.kind is Any else f"{self.name}: {_shown(self.kind)}"


class Resources:
    """What the lifespans of a worker have yielded, by type or by name.

    ``resources[Pool]`` is the one that is a `Pool`; of several, the one whose class is that and no
    subclass. ``resources["pool"]`` is the one of that name,
    where a lifespan has yielded a mapping of names: ``yield {"pool": pool}``.
    """

    def __init__(self) -> None:
        self._values: list[tuple[str, Any]] = []
        self._found: dict[ResourceParameter, Any] = {}

    def add(self, yielded: Any) -> None:
        """Add what a lifespan has yielded: one, a tuple of them, a mapping of names, or None."""
        if isinstance(yielded, Mapping):
            self._values += cast("Mapping[str, Any]", yielded).items()
        elif isinstance(yielded, tuple):
            self._values += zip(repeat(""), cast("Iterable[Any]", yielded), strict=False)
        elif yielded is not None:
            self._values.append(("", yielded))
        self._found.clear()

    @overload
    def __getitem__(self, wanted: type[T]) -> T: ...

    @overload
    def __getitem__(self, wanted: str) -> Any: ...

    def __getitem__(self, wanted: Any) -> Any:
        """The resource of a type, or of a name.

        Raises:
            ResourceError: No lifespan has yielded it, or several of the type were yielded.
        """
        if isinstance(wanted, str):
            return self.of(ResourceParameter(wanted, Any))
        return self.of(ResourceParameter("", wanted))

    def __contains__(self, wanted: object) -> bool:
        try:
            self[cast("Any", wanted)]
        except ResourceError:
            return False
        return True

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        """The resources themselves, in the order in which they were yielded."""
        return iter([value for _, value in self._values])

    def of(self, parameter: ResourceParameter) -> Any:
        """The resource for a parameter.

        Raises:
            ResourceError: There is none for it, or several.
        """
        try:
            return self._found[parameter]
        except KeyError:
            pass
        found = self._found[parameter] = self._find(parameter)
        return found

    def _find(self, parameter: ResourceParameter) -> Any:
        name, kind = parameter
        fitting = [(called, value) for called, value in self._values if _fits(value, kind)]
        named = [value for called, value in fitting if called and called == name]
        exact = [value for _, value in fitting if type(value) is kind]
        alone = [] if kind is Any else [value for _, value in fitting]
        for found in (named, exact, alone):
            if len(found) == 1:
                return found[0]
        what = f"of the name {name!r}" if kind is Any else f"of the type {_shown(kind)}"
        if len(alone) > 1:
            raise ResourceError(
                f"there are several resources {what}; let the lifespan yield them by name, as "
                "yield {'name': ...}, and name the parameter so, or use resources['name']"
            )
        raise ResourceError(f"no lifespan provides a resource {what}; there are: {self}")

    def __str__(self) -> str:
        shown = [
            f"{name}: {type(value).__name__}" if name else type(value).__name__
            for name, value in self._values
        ]
        return ", ".join(shown) or "none"

    def __repr__(self) -> str:
        return f"<Resources: {self}>"


NO_RESOURCES: Final = Resources()
RESOURCES: ContextVar[Resources] = ContextVar("leasedkeyq.resources", default=NO_RESOURCES)
"""The resources of the worker that runs the current command."""


def takes_resource(hint: Any, default: Any, provided: Sequence[Any]) -> bool:
    """Whether a parameter is given a resource, of those types that lifespans say they provide."""
    if default is _MARKER:
        return True
    return default is inspect.Parameter.empty and plain_type(hint) in provided


def plain_type(hint: Any) -> Any:
    """The class that an annotation names, or Any."""
    origin = get_origin(hint)
    if origin is Annotated:
        return plain_type(get_args(hint)[0])
    if origin in {Union, UnionType}:
        kinds = [kind for kind in get_args(hint) if kind is not NoneType]
        return plain_type(kinds[0]) if len(kinds) == 1 else Any
    kind = hint if origin is None else origin
    return kind if isinstance(kind, type) else Any


class NamedLifespan:
    """A lifespan with its name, and with what its annotation says that it yields.

    Args:
        function: As `Lifespan` says.

    Raises:
        TypeError: It is none: the message says what to write.
    """

    def __init__(self, function: Any) -> None:
        self.name = str(getattr(function, "__qualname__", None) or describe(function))
        self.provides: tuple[Any, ...] = ()
        if isinstance(function, AbstractAsyncContextManager) and not isinstance(function, type):
            raise TypeError(
                f"a lifespan is a function that opens the resources of a worker, and {self.name} "
                "is open already; give the function itself, without calling it"
            )
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise TypeError(
                f"lifespan {self.name}: it must be an async function with one yield, or a function "
                "that returns an async context manager"
            )
        _check_callable(self.name, function)
        plain: Any = inspect.unwrap(cast("Any", function))
        self.provides = _yields(plain)
        self._open: Any = function
        if inspect.isasyncgenfunction(function):
            self._open = asynccontextmanager(function)

    def open(self) -> AbstractAsyncContextManager[Any]:
        """The context manager that opens and closes the resources."""
        opened = self._open()
        if not hasattr(opened, "__aenter__") or not hasattr(opened, "__aexit__"):
            raise TypeError(
                f"it returned {describe(opened)}, which is no async context manager; decorate it "
                "with contextlib.asynccontextmanager"
            )
        return cast("AbstractAsyncContextManager[Any]", opened)


def _check_callable(name: str, function: Callable[..., Any]) -> None:
    try:
        inspect.signature(function).bind()
    except ValueError:
        return  # one that is written in C need not tell
    except TypeError as error:
        raise TypeError(f"lifespan {name}: it is called without arguments: {error}") from error


def _yields(function: Any) -> tuple[Any, ...]:
    """The types of the resources of a lifespan, as far as its annotation tells."""
    try:
        hint = get_type_hints(function).get("return")
    except Exception:
        return ()  # then a parameter has to say by its default that it is given a resource
    opens = (AsyncIterator, AsyncIterable, AsyncGenerator, AbstractAsyncContextManager)
    origin: Any = get_origin(hint)
    if origin not in opens:
        return ()
    yielded = get_args(hint)[0]
    each = get_args(yielded) if get_origin(yielded) is tuple else (yielded,)
    kinds = [plain_type(kind) for kind in each]
    # A str or an int that a lifespan yields does not make resources of the arguments of commands.
    return tuple(
        kind
        for kind in kinds
        if kind not in {Any, Mapping} and getattr(kind, "__module__", "") != "builtins"
    )


def _fits(value: Any, kind: Any) -> bool:
    kind = plain_type(kind)
    if kind is Any:
        return True
    try:
        return isinstance(value, kind)
    except TypeError:  # a protocol that cannot be checked at run time
        return False


def _shown(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)
