"""`connect`: from a URL to a store."""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from leasedkeyq.stores.memory import MemoryStore
from leasedkeyq.stores.store import Store

Opener = Callable[..., Store]

GROUP = "leasedkeyq.stores"
"""The entry point group in which other packages register their schemes."""


def connect(url: str, **options: Any) -> Store:
    """Open the store that `url` names.

    - ``memory://``: in this process, gone with it.
    - ``file:///path/queue.yaml`` or ``.json``: one document that people can read and edit.
    - ``sqlite:///path/jobs.db``: a database file, shared by processes.

    Paths are absolute after three slashes and relative right after the colon. Other packages add
    schemes by an entry point in the group ``leasedkeyq.stores`` whose name is the scheme and whose
    object is called with the URL and the options.

    Args:
        url: What to open.
        options: Passed to the store, such as ``limits=`` or ``durability=``.

    Raises:
        ValueError: The scheme is not known, or the URL makes no sense for it.
        StoreError: The store cannot be opened; the message says why and what to do.
    """
    if not isinstance(url, str) or ":" not in url:
        raise ValueError(f"not a store URL: {url!r}; it looks like sqlite:///path/jobs.db")
    parts = urlsplit(url)
    opener = _BUILT_IN.get(parts.scheme)
    if opener is not None:
        return opener(parts, options)
    for entry in entry_points(group=GROUP, name=parts.scheme):
        opened = entry.load()(url, **options)
        if not isinstance(opened, Store):
            raise TypeError(f"the entry point {entry.value!r} did not return a Store")
        return opened
    raise ValueError(
        f"no store for the scheme {parts.scheme!r} in {url!r}; known are {', '.join(schemes())}"
    )


def schemes() -> list[str]:
    """The schemes that `connect` knows, those of other packages included."""
    return sorted({*_BUILT_IN, *(entry.name for entry in entry_points(group=GROUP))})


def _memory(parts: SplitResult, options: dict[str, Any]) -> Store:
    if parts.netloc or parts.path.strip("/"):
        raise ValueError("memory:// has no path: every connect opens a new, empty store")
    return MemoryStore(**options)


def _path(parts: SplitResult) -> Path:
    if parts.netloc not in ("", "localhost"):
        raise ValueError(
            f"{parts.geturl()!r} names a host; write {parts.scheme}:///path for an absolute path"
        )
    if not parts.path.strip("/"):
        raise ValueError(f"{parts.geturl()!r} has no path; write {parts.scheme}:///path/to/file")
    return Path(unquote(parts.path))


def _file(parts: SplitResult, options: dict[str, Any]) -> Store:
    path = _path(parts)
    store: Store = import_module("leasedkeyq.stores.file").FileStore(path, **options)
    return store


def _sqlite(parts: SplitResult, options: dict[str, Any]) -> Store:
    path = _path(parts)
    store: Store = import_module("leasedkeyq.stores.sqlite").SqliteStore(path, **options)
    return store


_BUILT_IN: dict[str, Callable[[SplitResult, dict[str, Any]], Store]] = {
    "memory": _memory,
    "file": _file,
    "sqlite": _sqlite,
}
