"""Commands: what lanes run, and how commands are written down and read back.

A command is any object with ``async execute()`` and a `command_type`, or a function with its
arguments: an async function runs in the event loop, a plain one in a thread. A store that outlives
the process keeps only the type and the arguments, so there the type must be registered: a function
with `CommandRegistry.register`, or a class whose fields msgspec can encode.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from enum import Enum
from functools import partial
from inspect import CO_COROUTINE
from types import BuiltinFunctionType, FunctionType, NoneType, SimpleNamespace, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)
from weakref import WeakSet

import msgspec

from leasedkeyq import checks
from leasedkeyq.errors import describe
from leasedkeyq.lanes.commands.command_options import (
    NO_OPTIONS,
    CommandKeywords,
    CommandOptions,
    RunIn,
    check_key_function,
)
from leasedkeyq.lanes.commands.importable_function import ImportableFunction
from leasedkeyq.lanes.commands.resources import (
    RESOURCES,
    ResourceParameter,
    plain_type,
    takes_resource,
)
from leasedkeyq.lanes.errors import (
    AnnotationWarning,
    CommandPayloadError,
    LaneConfigError,
    RemoteCommandError,
    UnregisteredCommandError,
    warn,
)
from leasedkeyq.stores.finite import check_finite
from leasedkeyq.types import Duration

if TYPE_CHECKING:
    from leasedkeyq.lanes.running.job import Handle

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
C = TypeVar("C")
T = TypeVar("T")

ITEM = "item"
"""The name of the one argument of a command that is handled in a batch."""

_encoder = msgspec.json.Encoder()


class Command(Protocol[R_co]):
    """Something that a lane can run."""

    @property
    def command_type(self) -> str:
        """The name of this kind of command, for workers, logs and metrics."""
        ...

    def execute(self) -> Awaitable[R_co]:
        """Do the work. What it returns or raises is what awaiting the handle returns or raises."""
        ...


class CommandManager(Protocol):
    """What a registered function needs of its manager, to submit its commands."""

    async def submit(self, command: Command[R], /) -> "Handle[R]":
        """Submit a command to its default lane."""
        ...

    def is_shutting_down(self) -> bool:
        """Whether it takes no more commands."""
        ...


class CommandCall(Generic[R]):
    """A registered function with its arguments: a command, made by calling the function."""

    __slots__ = ("arguments", "command_type", "function")

    def __init__(
        self, function: "CommandFunction[..., R]", command_type: str, arguments: msgspec.Struct
    ) -> None:
        self.function = function
        self.command_type = command_type
        self.arguments = arguments

    def execute(self) -> Awaitable[R]:
        """Call the function; a plain one in a thread."""
        if not self.function.plain:
            return self.function.call(self.arguments)
        return asyncio.to_thread(cast("Any", self.function.call), self.arguments)

    def __repr__(self) -> str:
        return f"<{self.command_type} {self.arguments!r}>"


class CommandFunction(Generic[P, R]):
    """A function as a type of command. Calling it makes a command, and runs nothing.

    An async function runs in the event loop of the manager. A plain one runs in a thread, with the
    context variables that a task would have. A plain function that is annotated to return something
    to await is called in the event loop.

    The arguments are checked against the annotations of the function. A parameter whose annotation
    cannot be resolved is not checked, and an `AnnotationWarning` says so.

    Attributes:
        command_type: The name under which it is registered.
        function: The function itself, to be called directly.
        options: What it says for all its commands.
        plain: Whether calling it does the work, and returns the result.
        run_in: Where it runs.
        resources: Its parameters that the worker gives resources to. They are no arguments.
        module: The name of its module.
        importable: Where a process finds it that is to call it.
    """

    def __init__(
        self,
        command_type: str,
        function: Callable[P, Awaitable[R]] | Callable[P, R],
        options: CommandOptions = NO_OPTIONS,
        manager: "Callable[[], CommandManager] | None" = None,
        provided: Sequence[Any] = (),
    ) -> None:
        self.command_type = command_type
        self.function = function
        self.options = options
        self._manager = manager
        self._hints = hints = _hints(command_type, function)
        self.returns: Any = hints.get("return", Any)
        self.plain = not _is_async(function) and not _is_awaited(self.returns)
        self.run_in: RunIn | Literal["batch"] = _place(command_type, self.plain, options.run_in)
        self.module = str(getattr(inspect.unwrap(function), "__module__", "") or "")
        if self.run_in == "process":
            self.importable = ImportableFunction.of(command_type, function)
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", command_type)
        self.__wrapped__ = function
        if not self.plain and not _is_async(function):
            self.returns = (get_args(self.returns) or (Any,))[-1]  # what comes of awaiting it
        self._results: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
        if self.run_in == "process":
            with suppress(TypeError, NameError):  # an annotation that is beyond msgspec
                self._results = msgspec.json.Decoder(self.returns)
        self._parameters = self._read_parameters()
        self.set_resources(provided)
        if options.key is not None:
            by_position, named = self._names[: self._by_position], self._names[self._by_position :]
            check_key_function(command_type, options.key, *by_position, **dict.fromkeys(named))

    def _read_parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters that a command has; their annotations are in `_hints`."""
        return _parameters(self.command_type, self.function)

    def set_resources(self, provided: Sequence[Any]) -> None:
        """Take the parameters for resources that say so, or whose type lifespans provide.

        Raises:
            TypeError: A parameter cannot be written down, and is given no resource.
        """
        fields: list[Any] = []
        kinds: list[Any] = []
        resources: list[ResourceParameter] = []
        for name, parameter in self._parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise TypeError(
                    f"command {self.command_type!r}: {parameter} cannot be written down; "
                    "name the parameters of the function"
                )
            hint = self._hints.get(name, Any)
            if takes_resource(hint, parameter.default, provided):
                if parameter.kind is parameter.POSITIONAL_ONLY:
                    raise TypeError(
                        f"command {self.command_type!r}: a resource is passed by name, and "
                        f"{name} can only be passed by position"
                    )
                if self.run_in == "process":
                    raise TypeError(
                        f"command {self.command_type!r}: {name} is a resource of the worker, and "
                        "run_in='process' calls the function in another process, which has none; "
                        "open it in the function"
                    )
                resources.append(ResourceParameter(name, plain_type(hint)))
            else:
                fields.append(_field(name, hint, parameter.default))
                kinds.append(parameter.kind)
        self.resources = tuple(resources)
        self._names = tuple(field[0] for field in fields)
        self._by_position = len(kinds) - kinds.count(inspect.Parameter.KEYWORD_ONLY)
        self._positional = kinds.count(inspect.Parameter.POSITIONAL_ONLY)
        self._struct: type[msgspec.Struct] = msgspec.defstruct(
            "Arguments", fields, kw_only=True, forbid_unknown_fields=True
        )
        self._nothing = None if fields else self._struct()
        self._bare = None if resources else self._nothing
        """The arguments with which the function is called without any parameter."""
        self._decoder = msgspec.json.Decoder(self._struct)

    @property
    def arguments_type(self) -> type[msgspec.Struct]:
        """What the arguments of its commands are: a struct with a field for each parameter."""
        return self._struct

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> CommandCall[R]:
        """A command that calls the function with these arguments.

        Raises:
            CommandPayloadError: The arguments do not fit the function.
        """
        if self._nothing is not None and not args and not kwargs:
            return CommandCall(self, self.command_type, self._nothing)
        command = CommandCall(self, self.command_type, self._check(args, kwargs))
        if self.run_in == "process":
            self._check_writable(command)
        return command

    def _check_writable(self, command: CommandCall[R]) -> None:
        """Refuse arguments that cannot be sent to a process, before the command is submitted."""
        try:
            self.encode(command)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise CommandPayloadError(
                f"command {self.command_type!r} runs in another process, and its arguments cannot "
                f"be written down: {error}",
                command_type=self.command_type,
            ) from error

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> "Handle[R]":
        """Submit a command that calls the function with these arguments, to its default lane.

        The same as ``manager.submit(function(...))``, for the manager with whose ``command`` the
        function was registered, or the one that uses the registry. `QueueManager.submit` takes
        more: a lane, a key, a delay.

        Raises:
            CommandPayloadError: The arguments do not fit the function.
            LaneConfigError: There is no default lane, or it is not clear which manager is meant.
            LaneError: As `QueueManager.submit`.
        """
        command = self(*args, **kwargs)
        if self._manager is None:
            raise LaneConfigError(
                f"command {self.command_type!r} belongs to no manager; write "
                f"manager.submit({self.__name__}(...))"
            )
        return await self._manager().submit(command)

    def _check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> msgspec.Struct:
        if args:
            if len(args) > self._by_position:
                most = self._by_position
                raise self._wrong(TypeError(f"at most {most} without a name, got {len(args)}"))
            given = dict(zip(self._names, args, strict=False))
            twice = given.keys() & kwargs.keys()
            if twice:
                raise self._wrong(TypeError(f"{', '.join(sorted(twice))} given twice"))
            kwargs = {**given, **kwargs}
        for name, _ in self.resources:
            if name in kwargs:
                raise self._wrong(TypeError(f"{name} is a resource, which the worker passes"))
        try:
            return msgspec.convert(kwargs, self._struct)
        except (msgspec.ValidationError, TypeError) as error:
            raise self._wrong(error, self._resource_hint(kwargs)) from error

    def _wrong(self, error: Exception, hint: str = "") -> CommandPayloadError:
        return CommandPayloadError(
            f"the arguments of command {self.command_type!r} do not fit: {error}{hint}",
            command_type=self.command_type,
        )

    def _resource_hint(self, given: Mapping[str, Any]) -> str:
        """What to write, if an argument is missing that seems to be a resource."""
        for name in self._names:
            kind = plain_type(self._hints.get(name, Any))
            required = self._parameters[name].default is inspect.Parameter.empty
            if required and name not in given and kind is not Any and not _is_written(kind):
                shown = kind.__name__
                return (
                    f"; if {name} is a resource, write {name}: {shown} = resource(), or let the "
                    f"lifespan say what it yields, as in -> AsyncIterator[{shown}]"
                )
        return ""

    def but_one(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """The parameter that takes one more argument behind `args`, and the other arguments.

        Raises:
            CommandPayloadError: There is none, or the other arguments do not fit the function.
        """
        if len(args) >= self._by_position:
            raise self._wrong(TypeError("no parameter is left that could take a result"))
        into = self._names[len(args)]
        given = dict(zip(self._names, args, strict=False))
        twice = {into, *given} & kwargs.keys()
        if twice:
            raise self._wrong(TypeError(f"{', '.join(sorted(twice))} given twice"))
        given |= kwargs
        fields = {field.name: field for field in msgspec.structs.fields(self._struct)}
        unknown = given.keys() - fields.keys()
        if unknown:
            raise self._wrong(TypeError(f"there is no parameter {', '.join(sorted(unknown))}"))
        missing = [
            name
            for name, field in fields.items()
            if field.required and name != into and name not in given
        ]
        if missing:
            raise self._wrong(
                TypeError(
                    f"{into} takes the result, and {', '.join(missing)} has no value; give it with "
                    f"functools.partial({self.__name__}, {missing[0]}=...)"
                )
            )
        try:
            return into, {
                name: msgspec.convert(value, fields[name].type) for name, value in given.items()
            }
        except (msgspec.ValidationError, TypeError) as error:
            raise self._wrong(error) from error

    def call(self, arguments: msgspec.Struct) -> Awaitable[R]:
        """Call the function with arguments that were checked, and with the resources it takes.

        A plain one returns its result.

        Raises:
            ResourceError: No lifespan provides one of them, or this is not called by a worker.
        """
        if arguments is self._bare:
            return cast("Callable[[], Awaitable[R]]", self.function)()
        names = self._names
        positional = [getattr(arguments, name) for name in names[: self._positional]]
        named = {name: getattr(arguments, name) for name in names[self._positional :]}
        if self.resources:
            available = RESOURCES.get()
            named |= {parameter.name: available.of(parameter) for parameter in self.resources}
        function = cast("Callable[..., Awaitable[R]]", self.function)
        return function(*positional, **named)

    def key_of(self, key: Callable[..., str], command: Any) -> str:
        """What a key function says of a command."""
        values = [getattr(command.arguments, name) for name in self._names]
        named = dict(zip(self._names, values, strict=True))
        for name in self._names[: self._by_position]:
            del named[name]
        return key(*values[: self._by_position], **named)

    def encode(self, command: Any) -> bytes:
        """The arguments of a command as JSON."""
        raw = _encoder.encode(command.arguments)
        check_finite(command.arguments, raw)
        return raw

    def decode(self, payload: bytes) -> CommandCall[R]:
        """The command that was written down as `payload`."""
        try:
            return CommandCall(self, self.command_type, self._decoder.decode(payload))
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise self._wrong(error) from error

    def decode_result(self, raw: msgspec.Raw) -> R:
        """What the function has returned in another process, as its annotation says.

        Raises:
            RemoteCommandError: It is something else.
        """
        try:
            result: R = self._results.decode(raw)
        except msgspec.ValidationError as error:
            raise RemoteCommandError(
                f"command {self.command_type!r} is done, but its result does not fit the "
                f"annotation of {self.__name__}: {error}",
                command_type=self.command_type,
                error_type=type(error).__name__,
            ) from error
        return result


class BatchFunction(CommandFunction[[T], R]):
    """A function that handles many commands at once. Calling it makes a command with one item.

    Attributes:
        blocks: Whether it is a plain function, which is called in a thread.
        size: How many items it is called with, at most.
        within: Seconds for which the first item waits for more.
    """

    def __init__(
        self,
        command_type: str,
        function: Callable[..., Any],
        options: CommandOptions,
        manager: "Callable[[], CommandManager]",
        provided: Sequence[Any],
        *,
        size: int,
        within: float,
    ) -> None:
        self.size = size
        self.within = within
        self._items = ""
        super().__init__(command_type, function, options, manager, provided)
        self.blocks = self.plain
        self.plain = False
        self.run_in = "batch"
        self.returns = _each_result(self.returns)

    def _read_parameters(self) -> Mapping[str, inspect.Parameter]:
        """The item of a command, in place of the items of the function; and its resources."""
        parameters = dict(super()._read_parameters())
        self._items = next(iter(parameters), "")
        items = parameters.pop(self._items, None)
        if items is None or items.default is not items.empty:
            raise self._wrong_parameters("its first parameter is the list of items")
        if items.kind not in (items.POSITIONAL_ONLY, items.POSITIONAL_OR_KEYWORD):
            raise self._wrong_parameters("its first parameter is passed by position")
        if ITEM in parameters:
            raise self._wrong_parameters(f"a parameter cannot be named {ITEM!r}")
        hint = self._hints.get(self._items, Any)
        if hint is not Any:
            kinds = get_args(hint)
            if get_origin(hint) not in (list, Sequence, Collection, Iterable) or len(kinds) != 1:
                raise self._wrong_parameters(f"{self._items} is annotated as {hint}")
            hint = kinds[0]
        self._hints[ITEM] = hint
        return {ITEM: items.replace(name=ITEM, kind=items.POSITIONAL_OR_KEYWORD)} | parameters

    def _wrong_parameters(self, why: str) -> TypeError:
        return TypeError(
            f"batch {self.command_type!r}: {why}; write async def {self.__name__}"
            "(items: list[Item]), and give further parameters the default resource()"
        )

    def set_resources(self, provided: Sequence[Any]) -> None:
        """As `CommandFunction.set_resources`.

        Raises:
            TypeError: It has a parameter beyond its items that is given no resource.
        """
        super().set_resources(provided)
        if len(self._names) > 1:
            raise self._wrong_parameters(f"what is {self._names[1]} of each item?")

    def call(self, arguments: msgspec.Struct) -> Awaitable[R]:
        """Handle one item by itself."""
        return self._call_for_one(arguments)

    async def _call_for_one(self, arguments: Any) -> R:
        returned = self.call_batch([arguments.item])
        if inspect.isawaitable(returned):
            returned = await returned
        [outcome] = self.outcomes(returned, 1)
        if isinstance(outcome, BaseException):
            raise outcome
        return cast("R", outcome)

    def call_batch(self, items: list[Any]) -> Any:
        """Call the function with the items of several commands, and with its resources.

        Raises:
            ResourceError: As `CommandFunction.call`.
        """
        available = RESOURCES.get()
        named = {parameter.name: available.of(parameter) for parameter in self.resources}
        return cast("Callable[..., Any]", self.function)(items, **named)

    def outcomes(self, returned: Any, number: int) -> Sequence[Any]:
        """What came of each of so many items: its result, or an exception.

        Raises:
            TypeError: The function has returned something else than one of them for each item.
        """
        if returned is None:
            return [None] * number
        if not isinstance(returned, list | tuple):
            raise TypeError(
                f"batch {self.command_type!r} returned {describe(returned)} for {number} items; "
                "return a list with a result or an exception for each, or None if all are done"
            )
        outcomes = cast("Sequence[Any]", returned)
        if len(outcomes) != number:
            raise TypeError(
                f"batch {self.command_type!r} returned {len(outcomes)} results for {number} items; "
                "return one for each, in order, or None if all are done"
            )
        return outcomes


class CommandClass(Generic[C]):
    """A class of commands: its instances are written down by their fields."""

    def __init__(
        self, command_type: str, cls: type[C], options: CommandOptions = NO_OPTIONS
    ) -> None:
        self.command_type = command_type
        self.cls = cls
        self.options = options
        self.resources: tuple[ResourceParameter, ...] = ()
        if options.run_in is not None:
            raise TypeError(
                f"command {command_type!r}: run_in is for functions, and {cls.__name__} is a "
                "class, whose execute runs in the event loop; register a function, or leave it out"
            )
        if options.key is not None:
            check_key_function(command_type, options.key, cls)
        execute = getattr(cls, "execute", None)
        if execute is None:
            raise TypeError(f"command {command_type!r}: {cls.__name__} has no method execute")
        if not returns_awaitable(execute):
            raise not_async(command_type, cls.__name__)
        self.returns: Any = _hints(command_type, execute, "return").get("return", Any)
        try:
            self._decoder = msgspec.json.Decoder(cls)
        except NameError as error:
            raise TypeError(
                f"command {command_type!r}: an annotation of {cls.__name__} cannot be resolved: "
                f"{error}; define what it names at the top of its module"
            ) from error
        except TypeError as error:
            raise TypeError(
                f"command {command_type!r}: msgspec cannot read {cls.__name__}: {error}; make it a "
                "dataclass or a msgspec.Struct"
            ) from error

    @property
    def arguments_type(self) -> type[C]:
        """What is written down of its commands: their fields."""
        return self.cls

    def key_of(self, key: Callable[..., str], command: Any) -> str:
        """What a key function says of a command."""
        return key(command)

    def encode(self, command: Any) -> bytes:
        """The fields of a command as JSON."""
        raw = _encoder.encode(command)
        check_finite(command, raw)
        return raw

    def decode(self, payload: bytes) -> C:
        """The command that was written down as `payload`."""
        try:
            return self._decoder.decode(payload)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise CommandPayloadError(
                f"the fields of command {self.command_type!r} do not fit: {error}",
                command_type=self.command_type,
            ) from error


Registered = CommandFunction[..., Any] | CommandClass[Any]


class CommandRegistry:
    """The types of commands that this process can read and run.

    Attributes:
        types: Every type by its name.
        options: What types say for all their commands, by name, of those that say anything.
    """

    def __init__(self) -> None:
        self.types: dict[str, Registered] = {}
        self.options: dict[str, CommandOptions] = {}
        self._managers: WeakSet[CommandManager] = WeakSet()
        self._provided: tuple[Any, ...] = ()

    @overload
    def register(
        self, command_type: str, target: None = None, **options: Unpack[CommandKeywords]
    ) -> "Decorator": ...

    @overload
    def register(
        self,
        command_type: str,
        target: Callable[P, Awaitable[R]],
        **options: Unpack[CommandKeywords],
    ) -> CommandFunction[P, R]: ...

    @overload
    def register(
        self,
        command_type: str,
        target: Callable[P, R],
        **options: Unpack[CommandKeywords],
    ) -> CommandFunction[P, R]: ...

    def register(
        self, command_type: str, target: Any = None, **options: Unpack[CommandKeywords]
    ) -> Any:
        """Register a function, or a class with ``async execute()``, under a name.

        Without `target` it returns a decorator. A function becomes a `CommandFunction`, whose
        calls are commands; a class stays what it is. `options` are the fields of `CommandOptions`.

        Raises:
            TypeError: It is neither a function nor a class whose `execute` is async, it is a
                generator function, or it has parameters that cannot be written down; or there is
                no such option, or one is not of its type.
            ValueError: An option has a value that makes no sense.
            LaneConfigError: The name is taken.
        """
        decorator = self.decorator(command_type, options, partial(self._only_manager, command_type))
        return decorator if target is None else decorator(target)

    def batch(
        self,
        command_type: str,
        *,
        size: int,
        within: Duration = 0.0,
        **options: Unpack[CommandKeywords],
    ) -> "BatchDecorator":
        """Register a function that handles many commands at once; see `QueueManager.batch`."""
        manager = partial(self._only_manager, command_type)
        return self.batch_decorator(command_type, size, within, options, manager)

    def batch_decorator(
        self,
        command_type: str,
        size: int,
        within: Duration,
        options: CommandKeywords,
        manager: Callable[[], CommandManager],
    ) -> "BatchDecorator":
        """A decorator that registers a batch; `manager` tells to whom its commands go."""
        decorator = self.decorator(command_type, options, manager)
        try:
            most = checks.whole("size", size, 1)
            seconds = checks.delay_time("within", within)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"batch {command_type!r}: {error}") from error
        return BatchDecorator(decorator, most, seconds)

    def add_batch(self, decorator: "Decorator", target: Any, size: int, within: float) -> Any:
        """Register a function that handles many commands at once."""
        command_type = decorator.command_type
        self._check_free(command_type)
        if isinstance(target, type):
            raise TypeError(f"batch {command_type!r}: a batch is handled by a function")
        if decorator.options.run_in == "process":
            raise TypeError(
                f"batch {command_type!r}: a batch cannot run in a process; leave run_in out, and "
                "let the function hand over what takes long to commands with run_in='process'"
            )
        target = _unregistered(target)
        _check_function(command_type, target)
        function: BatchFunction[Any, Any] = BatchFunction(
            command_type,
            target,
            decorator.options,
            decorator.manager,
            self._provided,
            size=size,
            within=within,
        )
        self._keep(function)
        return function

    def _check_free(self, command_type: str) -> None:
        if command_type in self.types:
            raise LaneConfigError(f"the command type {command_type!r} is registered already")

    def decorator(
        self,
        command_type: str,
        options: CommandKeywords,
        manager: Callable[[], CommandManager],
    ) -> "Decorator":
        """A decorator that registers its target; `manager` tells to whom its commands go."""
        if not isinstance(command_type, str) or not command_type:
            raise TypeError(f"a command type is a name, got {describe(command_type)}")
        return Decorator(self, command_type, CommandOptions.of(command_type, options), manager)

    def used_by(self, manager: CommandManager) -> None:
        """A manager takes its types of commands from this registry."""
        self._managers.add(manager)

    def _only_manager(self, command_type: str) -> CommandManager:
        """The manager that uses this registry.

        Raises:
            LaneConfigError: None does, or several do.
        """
        managers = [manager for manager in self._managers if not manager.is_shutting_down()]
        if len(managers) == 1:
            return managers[0]
        how_many = f"{len(managers)} managers use" if managers else "no manager uses"
        raise LaneConfigError(
            f"command {command_type!r}: {how_many} the registry that has it, so that it cannot "
            "submit itself; write manager.submit(...) with the manager that is meant, which takes "
            "its types of commands from a registry by with_commands"
        )

    def _add(
        self,
        command_type: str,
        target: Any,
        options: CommandOptions,
        manager: Callable[[], CommandManager],
    ) -> Any:
        self._check_free(command_type)
        if isinstance(target, type):
            self._keep(CommandClass(command_type, target, options))
            if getattr(target, "command_type", None) != command_type:
                target.command_type = command_type  # type: ignore[attr-defined]  # as `Command` asks for
            return target
        target = _unregistered(target)
        _check_function(command_type, target)
        function: CommandFunction[..., Any] = CommandFunction(
            command_type, target, options, manager, self._provided
        )
        self._keep(function)
        return function

    def _keep(self, registered: Registered) -> None:
        self.types[registered.command_type] = registered
        if registered.options is not NO_OPTIONS:
            self.options[registered.command_type] = registered.options

    def provide(self, kinds: Sequence[Any]) -> None:
        """Lifespans provide resources of these types: parameters of them are no arguments."""
        self._provided += tuple(kinds)
        if kinds:
            for registered in self.types.values():
                if isinstance(registered, CommandFunction):
                    registered.set_resources(self._provided)

    def default_lane(self, command_type: str) -> str:
        """The lane to which commands of a type go.

        Raises:
            LaneConfigError: Their type has none.
        """
        options = self.options.get(command_type)
        if options is None or options.lane is None:
            raise LaneConfigError(
                f"command {command_type!r} has no default lane: name the lane, "
                f"submit(lane, command), or give the command one where it is registered, "
                f"@manager.command({command_type!r}, lane=...)"
            )
        return options.lane

    def default_key(self, command_type: str, command: Any) -> str | None:
        """The key of a command, if its type says what that is.

        Raises:
            CommandPayloadError: The key function raised, or returned something else than a str.
        """
        options = self.options.get(command_type)
        if options is None or options.key is None:
            return None
        registered = self.types[command_type]
        if not isinstance(command, _class_of(registered)):
            return None  # in memory, another object may be a command of this type
        try:
            key: object = registered.key_of(options.key, command)
        except Exception as error:
            raise CommandPayloadError(
                f"command {command_type!r}: its key function raised {error!r}",
                command_type=command_type,
            ) from error
        if not isinstance(key, str) or not key:
            raise CommandPayloadError(
                f"command {command_type!r}: its key function must return a str that is not empty, "
                f"got {describe(key)}",
                command_type=command_type,
            )
        return key

    def encode(self, command: Command[Any], lane: str) -> bytes:
        """Write down a command.

        Raises:
            UnregisteredCommandError: Its type is not registered, or is that of another class.
            CommandPayloadError: It has something in it that msgspec cannot encode, or NaN or
                infinity, which JSON does not have.
        """
        kind = command_type_of(command)
        registered = self.types.get(kind)
        if registered is None or not isinstance(command, _class_of(registered)):
            raise UnregisteredCommandError(
                f"lane {lane!r} is on a store that outlives this process, so it takes registered "
                f"commands only, and {command!r} is of the type {kind!r}, which is not "
                f'registered for it; use @manager.command("{kind}") on its function or class',
                lane=lane,
                command_type=kind,
            )
        try:
            return registered.encode(command)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise CommandPayloadError(
                f"command {kind!r} cannot be written down: {error}", lane=lane, command_type=kind
            ) from error

    def decode(self, command_type: str, payload: bytes) -> Command[Any]:
        """Read a command that was written down."""
        return cast("Command[Any]", self.types[command_type].decode(payload))

    def rebuild(self, command_type: str, payload: Any) -> Command[Any]:
        """The command of a type with these arguments, as a letter shows them.

        Raises:
            UnregisteredCommandError: The type is not registered.
            CommandPayloadError: The arguments do not fit.
        """
        if command_type not in self.types:
            raise UnregisteredCommandError(
                f"the command type {command_type!r} is not registered", command_type=command_type
            )
        return self.decode(command_type, _encoder.encode(payload))

    def module_of(self, command_type: str) -> str:
        """The name of the module of a command, or "" where the type is not registered."""
        registered = self.types.get(command_type)
        if registered is None:
            return ""
        source: Any = (
            registered.cls if isinstance(registered, CommandClass) else registered.function
        )
        return str(getattr(inspect.unwrap(source), "__module__", "") or "")

    def returns(self, command_type: str) -> Any:
        """What a command of this type returns, as far as its annotation tells."""
        registered = self.types.get(command_type)
        return Any if registered is None else registered.returns


class Decorator:
    """Registers what it decorates."""

    def __init__(
        self,
        registry: CommandRegistry,
        command_type: str,
        options: CommandOptions,
        manager: Callable[[], CommandManager],
    ) -> None:
        self.registry = registry
        self.command_type = command_type
        self.options = options
        self.manager = manager

    @overload
    def __call__(self, target: type[C]) -> type[C]: ...  # type: ignore[overload-overlap]  # a class is callable, too  # pyright: ignore[reportOverlappingOverload]

    @overload
    def __call__(self, target: Callable[P, Awaitable[R]]) -> CommandFunction[P, R]: ...

    @overload
    def __call__(self, target: Callable[P, R]) -> CommandFunction[P, R]: ...

    def __call__(self, target: Any) -> Any:
        """Register `target`."""
        return self.registry._add(self.command_type, target, self.options, self.manager)


class BatchDecorator:
    """Registers the function that it decorates, to handle many commands at once."""

    def __init__(self, decorator: Decorator, size: int, within: float) -> None:
        self._decorator = decorator
        self._size = size
        self._within = within

    @overload
    def __call__(self, target: Callable[[list[T]], Awaitable[None]]) -> BatchFunction[T, None]: ...

    @overload
    def __call__(
        self, target: Callable[[list[T]], Awaitable[Sequence[R | Exception]]]
    ) -> BatchFunction[T, R]: ...

    @overload
    def __call__(
        self, target: Callable[[list[T]], Awaitable[Sequence[R | Exception] | None]]
    ) -> BatchFunction[T, R | None]: ...

    @overload
    def __call__(self, target: Callable[[list[T]], None]) -> BatchFunction[T, None]: ...

    @overload
    def __call__(
        self, target: Callable[[list[T]], Sequence[R | Exception]]
    ) -> BatchFunction[T, R]: ...

    @overload
    def __call__(
        self, target: Callable[[list[T]], Sequence[R | Exception] | None]
    ) -> BatchFunction[T, R | None]: ...

    def __call__(self, target: Any) -> Any:
        """Register `target`."""
        decorator = self._decorator
        return decorator.registry.add_batch(decorator, target, self._size, self._within)


def _class_of(registered: Registered) -> type[Any]:
    """The class of the commands of a type."""
    return registered.cls if isinstance(registered, CommandClass) else CommandCall


def command_type_of(command: Any) -> str:
    """The type of a command; a method that tells it will do.

    Raises:
        TypeError: It is no command, or its `execute` is not async.
    """
    if type(command) is CommandCall:
        return command.command_type
    kind = getattr(command, "command_type", None)
    if isinstance(command, CommandFunction):
        raise TypeError(
            f"{kind!r} is a type of command; call it with its arguments to have a command: "
            f"{cast('CommandFunction[..., Any]', command).__name__}(...)"
        )
    is_class = isinstance(command, type)
    if callable(kind) and not is_class:
        kind = kind()
    execute = getattr(command, "execute", None)
    if not isinstance(kind, str) or not kind or not callable(execute) or is_class:
        raise TypeError(
            "a command has an attribute command_type and a method async execute(), or is made by "
            f"calling a registered function; got {describe(command)}"
        )
    if not returns_awaitable(execute):
        raise not_async(kind, type(command).__name__)
    return kind


def returns_awaitable(execute: Any) -> bool:
    """Whether what it returns can be awaited, as far as one can tell without calling it.

    A plain function can return something to await. It has to say so by its annotation, unless it
    is a lambda, which can have none.
    """
    function = getattr(execute, "__func__", execute)
    code = getattr(function, "__code__", None)
    if code is not None and code.co_flags & CO_COROUTINE:
        return True  # the usual case, at once
    function = inspect.unwrap(function)
    if isinstance(function, BuiltinFunctionType):
        return False
    if not isinstance(function, FunctionType) or function.__name__ == "<lambda>":
        return True
    if inspect.iscoroutinefunction(function):
        return True
    returns = function.__annotations__.get("return")
    name = returns if isinstance(returns, str) else repr(returns)
    return any(word in name for word in ("Awaitable", "Coroutine", "Future", "Task"))


def _is_awaited(returns: Any) -> bool:
    """Whether an annotation is that of something to await, such as ``Awaitable[int]``."""
    kind: Any = get_origin(returns) or returns
    return isinstance(kind, type) and issubclass(kind, Awaitable)


def not_async(command_type: str, name: str) -> TypeError:
    """The refusal of a command that cannot be awaited."""
    return TypeError(
        f"command {command_type!r}: {name}.execute is not async, so it would block all lanes and "
        "cannot be awaited; write async def execute, or register a plain function, which runs in a "
        "thread"
    )


def _each_result(returns: Any) -> Any:
    """What a batch returns for each item, as far as its annotation tells: no exceptions."""
    kinds = get_args(returns) if get_origin(returns) in {Union, UnionType} else (returns,)
    each: list[Any] = []
    for kind in kinds:
        if kind is NoneType or kind is None:
            each.append(None)
        elif get_origin(kind) in {list, tuple, Sequence} and get_args(kind):
            result = get_args(kind)[0]
            several = get_args(result) if get_origin(result) in {Union, UnionType} else (result,)
            each += [one for one in several if not _is_exception(one)]
        else:
            return Any
    return Union[tuple(each)] if each else Any  # noqa: UP007  # made of a tuple


def _is_exception(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


def _field(name: str, kind: Any, default: Any) -> Any:
    if default is inspect.Parameter.empty:
        return name, kind
    if isinstance(default, list | dict | set):
        default = msgspec.field(default_factory=_copier(cast("Any", default)))
    return name, kind, default


def _copier(default: Any) -> Callable[[], Any]:
    copy: Callable[[], Any] = default.copy
    return copy


def _hints(command_type: str, function: Callable[..., Any], *names: str) -> dict[str, Any]:
    """The annotations, or those with these names; a warning tells of what cannot be resolved."""
    try:
        return get_type_hints(function, include_extras=True)
    except Exception:
        pass  # one of them cannot be resolved: then each by itself
    plain: Any = inspect.unwrap(function)
    annotations: dict[str, Any] = getattr(plain, "__annotations__", {})
    known: dict[str, Any] = getattr(plain, "__globals__", {})
    hints: dict[str, Any] = {}
    for name in names or annotations:
        if name not in annotations:
            continue
        alone: Any = SimpleNamespace(__annotations__={name: annotations[name]})
        try:
            hints |= get_type_hints(alone, globalns=known, include_extras=True)
        except Exception as error:
            what, harm = f"parameter {name!r}", "values for it are not checked"
            if name == "return":
                what, harm = "the result", "results are read back as plain JSON values"
            warn(
                f"command {command_type!r}: the annotation {annotations[name]!r} of {what} cannot "
                f"be resolved ({error}), so {harm}; define what it names at the top of its module, "
                "not inside a function and not under TYPE_CHECKING",
                AnnotationWarning,
            )
    return hints


def _is_written(kind: type[Any]) -> bool:
    """Whether values of a class can be written down, and so are arguments rather than resources."""
    own = kind.__module__ in {"builtins", "datetime", "decimal", "uuid"}
    return own or is_dataclass(kind) or issubclass(kind, msgspec.Struct | Enum)


def _unregistered(target: Any) -> Any:
    """The function itself of one that is registered elsewhere, which would only make commands."""
    if isinstance(target, CommandFunction):
        return cast("CommandFunction[..., Any]", target).function
    return target


def _check_function(command_type: str, function: Any) -> None:
    """Refuse what cannot be called, and what would only begin when its result is iterated."""
    kind = getattr(function, "__name__", type(function).__name__)
    if not callable(function):
        raise TypeError(
            f"command {command_type!r}: {kind} is neither a function nor a class with async "
            "execute()"
        )
    plain = inspect.unwrap(function)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise TypeError(
            f"command {command_type!r}: {kind} is a generator, and calling it would run nothing of "
            "it; let it return what it yields"
        )


def _place(command_type: str, plain: bool, run_in: RunIn | None) -> RunIn:
    """Where a function runs, if nothing or something is said about it."""
    usual: RunIn = "thread" if plain else "loop"
    if run_in is None or run_in in {usual, "process"}:
        return run_in or usual
    if plain:
        raise TypeError(
            f"command {command_type!r}: a plain function would block the event loop; write "
            "async def, or leave run_in out: then it runs in a thread"
        )
    raise TypeError(
        f"command {command_type!r}: an async function runs in the event loop; write def, or leave "
        "run_in out"
    )


def _parameters(command_type: str, function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except ValueError as error:  # a function of an extension module
        raise TypeError(
            f"command {command_type!r}: {error}; call it from a function with named parameters"
        ) from error


def _is_async(function: Any) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004  # an object whose call is async
    return inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(
        call
    )
