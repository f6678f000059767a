"""`connect`: from a URL to a store."""

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import SplitResult, quote, unquote, urlsplit

from leasedkeyq.errors import StoreError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

    # A program that uses the queue in memory does not wait for the stores and what they import.
    from leasedkeyq.stores.store import Store

LARGEST_PORT = 65535
GROUP = "leasedkeyq.stores"
"""The entry point group in which other packages register their schemes."""


def connect(url: str, *, migrate: bool = True, **options: Any) -> "Store":
    """Open the store that `url` names.

    - ``memory://``: in this process, gone with it.
    - ``file:///path/queue.yaml`` or ``.json``: one document that people can read and edit.
    - ``sqlite:///jobs.db``: a database file, shared by processes.
    - ``postgresql://user:password@host/database``: a server, shared by machines.
    - ``redis://user:password@host:port/db``: a Redis or Valkey server, shared by machines;
      ``rediss://`` with TLS, ``unix://``, ``redis+sentinel://`` and ``redis+cluster://`` as
      `RedisStore` says, and ``valkey`` in place of ``redis``.

    A path of ``sqlite:`` is relative after three slashes and absolute after four, as in SQLAlchemy:
    ``sqlite:///jobs.db`` is a file in the working directory, ``sqlite:////srv/jobs.db`` one in
    ``/srv``. A path of ``file:`` is absolute after three slashes, as RFC 8089 has it, and relative
    right after the colon, as in ``file:queue.yaml``.

    The store is closed at the end of ``async with connect(url) as store:``.

    Other packages add schemes by an entry point in the group ``leasedkeyq.stores`` whose name is
    the scheme and whose object is called with the URL and the options.

    Args:
        url: What to open.
        migrate: Bring what is stored up to date, if it is of an older version. With False nothing
            is changed or made by opening: a store of an older version refuses everything but
            `Store.schema_state`, `Store.diagnose` and `Store.close`. A store of another package
            gets it as an option, if it has one of that name.
        options: Passed to the store, such as ``limits=`` or ``durability=``.

    Raises:
        ValueError: The scheme is not known, or the URL makes no sense for it.
        TypeError: The store does not have such an option.
        StoreError: The store cannot be opened; the message says why and what to do.
    """
    parts = _split(url)
    limits = options.get("limits")
    if limits is not None and not isinstance(limits, _class("model.requests", "Limits")):
        raise TypeError(f"limits must be a leasedkeyq.stores.Limits, got {type(limits).__name__}")
    opener = _BUILT_IN.get(parts.scheme)
    if opener is not None:
        if not migrate and parts.scheme not in _WITHOUT_VERSIONS:
            options["migrate"] = False
        return opener(url, parts, options)
    for entry in _entries().select(name=parts.scheme):
        theirs = entry.load()
        if not migrate and _has_option(theirs, "migrate"):
            options["migrate"] = False
        opened = theirs(url, **options)
        if not isinstance(opened, _class("stores.store", "Store")):
            raise TypeError(f"the entry point {entry.value!r} did not return a Store")
        return cast("Store", opened)
    raise ValueError(
        f"no store for the scheme {parts.scheme!r} in {url!r}; known are {', '.join(schemes())}. "
        "If another package has it, that is not installed here"
    )


def _has_option(opener: Callable[..., Any], name: str) -> bool:
    # Only a store of another package that is not to migrate needs it.
    from inspect import signature  # noqa: PLC0415

    return name in signature(opener).parameters


def schemes() -> list[str]:
    """The schemes that `connect` knows, those of other packages included."""
    return sorted({*_BUILT_IN, *(entry.name for entry in _entries())})


def _entries() -> "EntryPoints":
    """The schemes of other packages."""
    # Only a scheme that is not known needs it, and it takes longer to import than a store.
    from importlib.metadata import entry_points  # noqa: PLC0415

    return entry_points(group=GROUP)


def _class(module: str, name: str) -> Any:
    return getattr(import_module(f"leasedkeyq.{module}"), name)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url) if isinstance(url, str) else SplitResult("", "", "", "", "")
    except ValueError:
        parts = SplitResult("", "", "", "", "")
    if not parts.scheme:
        raise ValueError(f"not a store URL: {url!r}; it looks like sqlite:///jobs.db")
    return parts


def _memory(url: str, parts: SplitResult, options: dict[str, Any]) -> "Store":
    del url
    if parts.netloc or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError("memory:// has no path: every connect opens a new, empty store")
    store: Store = _class("engines.memory", "MemoryStore")(**options)
    return store


def _path(parts: SplitResult) -> str:
    if parts.query or parts.fragment:
        raise ValueError(
            f"{parts.geturl()!r} has something behind its path; pass options to connect by name, "
            "and write a ? or # that belongs to the path as %3F or %23"
        )
    if not parts.path.strip("/"):
        raise ValueError(f"{parts.geturl()!r} has no path; write {parts.scheme}:///path/to/file")
    path = unquote(parts.path)
    if "\x00" in path:
        raise ValueError(f"{parts.geturl()!r} has a NUL character in its path")
    return path


def _file(url: str, parts: SplitResult, options: dict[str, Any]) -> "Store":
    if parts.netloc not in ("", "localhost"):
        raise ValueError(
            f"{url!r} names a host; write file:///path for an absolute path and file:path for a "
            "relative one"
        )
    path = _path(parts)
    # Four slashes are how others write an absolute path.
    place = Path(f"/{path.lstrip('/')}" if path.startswith("//") else path)
    store: Store = _class("engines.file.store", "FileStore")(place, **options)
    return store


def sqlite_path(url: str) -> Path:
    """The file that a ``sqlite:`` URL names, by the rules of `connect`.

    Raises:
        ValueError: The URL makes no sense.
    """
    parts = _split(url)
    if parts.netloc:
        raise ValueError(
            f"{url!r} names a host; write sqlite:///{parts.netloc}{parts.path} for a path from the "
            "working directory, and four slashes for an absolute one, as in sqlite:////srv/jobs.db"
        )
    path = _path(parts)
    if path.endswith(":memory:"):
        raise ValueError(
            f"{url!r}: a store in memory is memory://, and a SQLite store is a file, for several "
            "processes; write sqlite:///jobs.db"
        )
    # Behind an authority, which is empty, a path begins with a slash of its own.
    return Path(path[1:] if url.partition(":")[2].startswith("//") else path)


def absolute_url(url: str) -> str:
    """A URL that means the same store, whatever the working directory is when it is opened.

    Raises:
        ValueError: The URL makes no sense.
    """
    parts = _split(url)
    if parts.scheme == "sqlite":
        return f"sqlite:///{quote(str(sqlite_path(url).absolute()))}"
    if parts.scheme != "file" or parts.netloc or parts.path[:1] in ("", "/"):
        return url
    return parts._replace(path=f"{quote(os.getcwd())}/{parts.path}").geturl()


def _sqlite(url: str, parts: SplitResult, options: dict[str, Any]) -> "Store":
    del parts
    path = sqlite_path(url)
    absolute = Path("/", path)
    if path != absolute and not path.parent.is_dir() and absolute.parent.is_dir():
        raise StoreError(
            f"{url!r} names {path} in the working directory, where its folder does not exist; an "
            f"absolute path has four slashes: sqlite:///{absolute}"
        )
    store: Store = _class("engines.sqlite.store", "SqliteStore")(path, **options)
    return store


def _redis(url: str, parts: SplitResult, options: dict[str, Any]) -> "Store":
    del url
    store: Store = _class("engines.redis.store", "RedisStore")(parts.geturl(), **options)
    return store


def _postgres(url: str, parts: SplitResult, options: dict[str, Any]) -> "Store":
    del url
    for host in parts.netloc.rpartition("@")[2].split(","):
        _, colon, port = host.rpartition("]")[2].rpartition(":")
        is_number = port.isascii() and port.isdigit() and 0 < int(port[:6]) <= LARGEST_PORT
        if colon and port and not is_number:
            # Without the port itself: it may be a part of a password.
            raise ValueError(
                f"the port of a PostgreSQL server must be a number from 1 to {LARGEST_PORT}; write "
                "postgresql://user:password@host:5432/database, and special characters of the "
                "password as %2F for / and %40 for @"
            )
    store: Store = _class("engines.postgres.store", "PostgresStore")(parts.geturl(), **options)
    return store


_BUILT_IN: dict[str, Callable[[str, SplitResult, dict[str, Any]], "Store"]] = {
    "memory": _memory,
    "file": _file,
    "sqlite": _sqlite,
    "postgresql": _postgres,
    "postgres": _postgres,
    "unix": _redis,
    **dict.fromkeys(
        [
            f"{name}{way}"
            for name in ("redis", "rediss", "valkey", "valkeys")
            for way in ("", "+sentinel", "+cluster")
        ],
        _redis,
    ),
}
_WITHOUT_VERSIONS = frozenset({"memory", "file"})
"""Opening these never changes what is stored."""
