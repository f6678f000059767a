"""`WorkflowStep`: a command of a workflow that lacks one argument, checked when it is submitted."""

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec

from leasedkeyq.errors import describe
from leasedkeyq.lanes.commands.command import (
    Command,
    CommandCall,
    CommandClass,
    CommandFunction,
    CommandRegistry,
    Registered,
)
from leasedkeyq.lanes.errors import CommandPayloadError, UnregisteredCommandError
from leasedkeyq.lanes.workflow.note import NextStep
from leasedkeyq.stores.finite import check_finite

StepTarget: TypeAlias = Callable[[Any], Command[Any]]
"""A registered command, or `functools.partial` of one: what is called with one more argument."""

_encoder = msgspec.json.Encoder()


class WorkflowStep:
    """A registered command that lacks one argument.

    Attributes:
        command_type: Its type.
        into: The parameter that takes the argument.
        given: Its other arguments, by name.
        lane: The lane in which it runs.
        priority: Its place in its lane, if that was said.

    Args:
        command_type: As the attribute, and so are `into` and `given`.
        target: What makes the command.
        written_names: How parameters are called in JSON, of those that have another name there.
    """

    __slots__ = (
        "_target",
        "_written_names",
        "command_type",
        "given",
        "into",
        "lane",
        "priority",
    )

    def __init__(
        self,
        command_type: str,
        target: Callable[..., Command[Any]],
        into: str,
        given: Mapping[str, Any],
        written_names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.command_type = command_type
        self._target = target
        self._written_names = written_names
        self.into = into
        self.given = given
        self.lane = ""
        self.priority: int | None = None

    def command(self, argument: Any) -> Command[Any]:
        """The command with its last argument.

        Raises:
            CommandPayloadError: The argument does not fit.
        """
        try:
            return self._target(**{**self.given, self.into: argument})
        except CommandPayloadError:
            raise
        except Exception as error:  # of a class, whose constructor may raise anything
            raise CommandPayloadError(
                f"command {self.command_type!r} does not take {describe(argument)}: {error}",
                command_type=self.command_type,
            ) from error

    def written(self) -> NextStep:
        """The step as a store keeps it.

        Raises:
            CommandPayloadError: Its arguments cannot be written down.
        """
        names = self._written_names
        arguments = {names.get(name, name): value for name, value in self.given.items()}
        given = write(arguments, self.command_type)
        into = names.get(self.into, self.into)
        return NextStep(self.command_type, self.lane, into, given, self.priority)


def write(value: Any, command_type: str, what: str = "an argument") -> msgspec.Raw:
    """A value as JSON.

    Raises:
        CommandPayloadError: It cannot be written down.
    """
    try:
        raw = _encoder.encode(value)
        check_finite(value, raw)
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError) as error:
        raise CommandPayloadError(
            f"{what} of command {command_type!r} cannot be written down: {error}; it must be what "
            "msgspec can encode",
            command_type=command_type,
        ) from error
    return msgspec.Raw(raw)


def full_payload(given: msgspec.Raw, into: str, argument: msgspec.Raw) -> msgspec.Raw:
    """All arguments of a step, as JSON."""
    arguments = msgspec.json.decode(given, type=dict[str, msgspec.Raw])
    arguments[into] = argument
    return msgspec.Raw(_encoder.encode(arguments))


def step_of(registry: CommandRegistry, target: object, what: str) -> WorkflowStep:
    """The step that a caller has named as `what`.

    Raises:
        TypeError: It is no command that waits for an argument.
        UnregisteredCommandError: It is not registered here.
        CommandPayloadError: It cannot take one more argument, or those that it has do not fit.
    """
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    given: Any = target
    if isinstance(target, functools.partial):
        args, kwargs, given = given.args, given.keywords, given.func
    if isinstance(target, CommandCall):
        raise TypeError(
            f"{what} is {given!r}, a command with all its arguments, and would not get a result; "
            f"give the command itself, or functools.partial({given.function.__name__}, ...) with "
            "all arguments but one"
        )
    command_type, registered = _registered(registry, given, what)
    if isinstance(registered, CommandFunction):
        function: CommandFunction[..., Any] = registered
        into, arguments = function.but_one(args, kwargs)
        return WorkflowStep(command_type, function, into, arguments)
    into, arguments = _but_one_field(registered, args, kwargs)
    names = {}
    cls: Any = registered.cls
    if issubclass(cls, msgspec.Struct):  # it may have rename=
        if cls.__struct_config__.array_like:
            raise CommandPayloadError(
                f"command {command_type!r} cannot take one argument: its class is array_like, and "
                "arguments of steps are kept by name; leave array_like out",
                command_type=command_type,
            )
        fields = msgspec.structs.fields(cls)
        names = {field.name: field.encode_name for field in fields}
    return WorkflowStep(command_type, registered.cls, into, arguments, names)


def _registered(registry: CommandRegistry, target: object, what: str) -> tuple[str, Registered]:
    command_type: Any = getattr(target, "command_type", None)
    given: Any = target
    if not isinstance(target, CommandFunction | type) or not isinstance(command_type, str):
        got = describe(repr(given))
        raise TypeError(
            f"{what} must be a registered command, to be called with one argument, got {got}; "
            "register it with @manager.command"
        )
    registered = registry.types.get(command_type)
    found: object = registered.cls if isinstance(registered, CommandClass) else registered
    if registered is None or found is not target:
        raise UnregisteredCommandError(
            f"{what} is of the command type {command_type!r}, which is not registered with this "
            f'manager; use @manager.command("{command_type}") on its function or class',
            command_type=command_type,
        )
    return command_type, registered


def _but_one_field(
    registered: CommandClass[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The field of a class of commands that takes one more argument, and the other arguments."""
    signature = inspect.signature(registered.cls)
    missing: Any = object()
    try:
        bound = signature.bind(*args, missing, **kwargs)
    except TypeError as error:
        raise CommandPayloadError(
            f"command {registered.command_type!r} cannot take one argument: {error}",
            command_type=registered.command_type,
        ) from error
    into = next(name for name, value in bound.arguments.items() if value is missing)
    return into, {name: value for name, value in bound.arguments.items() if name != into}
