"""`StoreCommand`: a command on a store, and `StoreSession`, what its function is given.

A command of that kind takes the URL of its store as its first word, or from ``--store`` or the
environment variable ``LEASEDKEYQ_URL``, and then words of its own.
"""

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from socket import gethostname
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import click
import msgspec
from click.shell_completion import CompletionItem

from leasedkeyq import connect
from leasedkeyq.cli.exit_codes import MISUSED, NO_STORE
from leasedkeyq.cli.hidden import HiddenSecrets

if TYPE_CHECKING:
    from leasedkeyq.operations import Operator
    from leasedkeyq.stores import Store

    _TextType = click.ParamType[str]
else:
    _TextType = click.ParamType  # older versions of click know no parameters of it

T = TypeVar("T")

URL_VARIABLE = "LEASEDKEYQ_URL"
ACTOR_VARIABLE = "LEASEDKEYQ_ACTOR"
COMPLETION_TIME = 1.0
"""Seconds that completion may take to ask the store for the names of its queues."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|(?:file|sqlite|unix|memory):")
_HARMLESS = re.compile(r"\w[\w.:@%+,/=#-]*")
"""A name that a shell takes as it is: completion puts it into the line of whoever types there."""
_WORDS = "words"
PATIENCE: dict[str, dict[str, Any]] = {
    "postgres": {"patience": 5.0},
    "redis": {"retry_for": 5.0},
    "valkey": {"retry_for": 5.0},
}
"""By scheme: a person waits less long for a server that is away than a worker does."""

hidden = HiddenSecrets()
"""The passwords of this process: nothing that is printed has them in it."""


class CommandFailedError(click.ClickException):
    """The command ends with a line of text and an exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Word(NamedTuple):
    """A word of a command that is no option."""

    name: str
    optional: bool
    several: bool

    @property
    def shown(self) -> str:
        """How the usage line has it."""
        text = self.name.upper() + ("..." if self.several else "")
        return f"[{text}]" if self.optional else text


class StoreSession:
    """What the function of a command is given: its store, and whom it acts for.

    Args:
        url: The URL of the store; None if there is none.
        options: What else the store is told.
    """

    def __init__(self, url: str | None, options: dict[str, Any]) -> None:
        self._url = url
        self._options = options

    @property
    def url(self) -> str:
        """The URL of the store, with its password: never print it."""
        if self._url is None:
            raise click.UsageError(
                f"no store: write its URL first, such as sqlite:///jobs.db, or set {URL_VARIABLE}"
            )
        return self._url

    @property
    def options(self) -> dict[str, Any]:
        """What the store is told beside its URL."""
        return dict(self._options)

    @property
    def actor(self) -> str:
        """Who acts, for the audit log: ``LEASEDKEYQ_ACTOR``, or the user of the system."""
        named = os.environ.get(ACTOR_VARIABLE)
        if named:
            return named
        import getpass  # noqa: PLC0415 - commands that only look need it not

        try:
            return getpass.getuser()
        except (KeyError, OSError, ImportError):
            return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"

    def open(self, *, create: bool = False) -> "Store":
        """Open the store; it has to be closed.

        Args:
            create: Whether a file that is not there may be made.
        """
        return open_store(self.url, self._options, create=create)

    def run(self, work: "Callable[[Operator], Awaitable[T]]", *, create: bool = False) -> T:
        """Open the store, do the work, and close it.

        Args:
            work: What to do.
            create: Whether a file that is not there may be made.
        """
        # The commands that need no store start without it.
        from leasedkeyq.operations import Operator  # noqa: PLC0415

        async def main() -> T:
            async with self.open(create=create) as store:
                return await work(Operator(store, changes_from=f"command line on {gethostname()}"))

        return asyncio.run(main())

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before something is destroyed.

        Args:
            question: What to ask, such as ``"Remove 12 items from queue 'mail'?"``.
            yes: Whether ``--yes`` was given.
        """
        if yes:
            return
        if not sys.stdin.isatty():
            raise CommandFailedError(
                f"{question} Not done: there is no terminal to answer; pass --yes", MISUSED
            )
        if not click.confirm(question, err=True):
            raise CommandFailedError("not done", MISUSED)


def open_store(url: str, options: dict[str, Any], *, create: bool = False) -> "Store":
    """The store of a URL, for commands: a file that is not there is not made by a look at it.

    Raises:
        CommandFailedError: There is no such file.
        click.UsageError: The URL or an option makes no sense.
    """
    hidden.add(url, options)
    scheme = url.partition(":")[0]
    for name in ("postgres", "redis", "valkey"):
        if scheme.startswith(name):
            options = PATIENCE[name] | options
    if not create:
        _check_file(url)
    try:
        # A look must not bring a store up to date that older programs still use.
        return connect(url, **({"migrate": create} | options))
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from error


def _check_file(url: str) -> None:
    """Refuse a file that does not exist: opening it would make an empty store."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return  # `connect` says what is wrong with it
    path = unquote(parts.path)
    if parts.netloc or parts.scheme not in ("sqlite", "file") or not path.strip("/"):
        return
    if parts.scheme == "sqlite" and url.partition(":")[2].startswith("//"):
        path = path[1:]  # behind an authority, which is empty, a path has a slash of its own
    if "\0" not in path and not os.path.exists(path):
        raise CommandFailedError(f"there is no file {path}", NO_STORE)


def store_option(text: str) -> tuple[str, Any]:
    """An option for a store: its value is JSON, or else text.

    Raises:
        click.UsageError: It is not of the form NAME=VALUE.
    """
    name, separator, value = text.partition("=")
    if not name.isidentifier() or not separator:
        raise click.UsageError(f"--store-option is NAME=VALUE, got {name!r} and no value")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value


class StoreCommand(click.Command):
    """A command on a store. Its function is called with a `StoreSession` as ``session``.

    Args:
        words: What follows the store, such as ``"QUEUE [KEY]"`` or ``"QUEUE ID..."``; the function
            is given each by its name in lower case.
        settings: As for `click.Command`.
    """

    def __init__(self, *, words: str = "", **settings: Any) -> None:
        super().__init__(**settings)
        self.words = [_word(text) for text in words.split()]
        self.params = [
            click.Argument([_WORDS], nargs=-1, type=_StoreWords(self.words)),
            *self.params,
            click.Option(
                ["--store", "store_url"],
                metavar="URL",
                help=f"The store, where it is not the first word. Also: {URL_VARIABLE}.",
            ),
            click.Option(
                ["--store-option"],
                multiple=True,
                metavar="NAME=VALUE",
                help="An option for the store, such as schema=shop.",
            ),
            click.Option(["--debug"], is_flag=True, help="Show the traceback of an error."),
        ]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The usage line: the store comes first."""
        del ctx
        return ["[OPTIONS]", "[STORE]", *(word.shown for word in self.words)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Find the store and the words among what was written."""
        rest = super().parse_args(ctx, args)
        if ctx.resilient_parsing:
            return rest
        written: tuple[str, ...] = ctx.params.pop(_WORDS) or ()
        url: str | None = ctx.params.pop("store_url")
        options: Sequence[str] = ctx.params.pop("store_option")
        del ctx.params["debug"]  # `leasedkeyq.cli.app.main` has looked for it
        url, left = self.split(url or os.environ.get(URL_VARIABLE) or None, written)
        if url is not None:
            hidden.add(url)
        named = dict(map(store_option, options))
        if url is not None:
            hidden.add(url, named)
        ctx.params |= self._distributed(ctx, left)
        ctx.params["session"] = StoreSession(url, named)
        return rest

    def split(self, url: str | None, written: Sequence[str]) -> tuple[str | None, Sequence[str]]:
        """The URL of the store, and the words behind it."""
        if not written:
            return url, written
        first, *rest = written
        least = sum(not word.optional for word in self.words)
        if _URL.match(first) and (url is None or len(rest) >= least):
            return first, rest
        return url, written

    def _distributed(self, ctx: click.Context, written: Sequence[str]) -> dict[str, Any]:
        left = list(written)
        found: dict[str, Any] = {}
        for word in self.words:
            if word.several:
                found[word.name], left = tuple(left), []
            else:
                found[word.name] = left.pop(0) if left else None
            if not word.optional and not found[word.name]:
                raise click.UsageError(f"{word.name.upper()} is missing: {self._usage()}", ctx)
        if left:
            raise click.UsageError(f"{left[0]!r} is one word too many: {self._usage()}", ctx)
        return found

    def _usage(self) -> str:
        return " ".join([str(self.name), "[STORE]", *(word.shown for word in self.words)])


class _StoreWords(_TextType):
    """The words of a command; completes the names of queues."""

    name = "words"

    def __init__(self, words: Sequence[Word]) -> None:
        self._words = words

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The names of the queues of the store that begin so."""
        del param
        command = ctx.command
        if not isinstance(command, StoreCommand) or not self._words:
            return []
        written: tuple[str, ...] = ctx.params.get(_WORDS) or ()
        given = ctx.params.get("store_url") or os.environ.get(URL_VARIABLE) or None
        url = given
        if written and _URL.match(written[0]):
            url, *written_behind = written
        else:
            written_behind = list(written)
        if url is None or len(written_behind) >= len(self._words):
            return []
        word = self._words[len(written_behind)]
        if word.name not in ("queue", "lane"):
            return []
        names = _queue_names(url, dict(map(store_option, ctx.params.get("store_option") or ())))
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _queue_names(url: str, options: dict[str, Any]) -> list[str]:
    """The names of the queues of a store; none if it does not answer at once."""

    async def names() -> list[str]:
        async with asyncio.timeout(COMPLETION_TIME), open_store(url, options) as store:
            return sorted(
                name
                for name in await store.count()
                if not name.startswith("leasedkeyq.") and _HARMLESS.fullmatch(name)
            )

    try:
        return asyncio.run(names())
    except Exception:
        return []  # a shell has no place for an error while it completes


def _word(text: str) -> Word:
    optional = text.startswith("[")
    name = text.strip("[]")
    several = name.endswith("...")
    return Word(name.removesuffix("...").lower(), optional, several)
