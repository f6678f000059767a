"""A store that the web page shows."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias, cast
from urllib.parse import unquote, urlsplit

from markupsafe import Markup

from leasedkeyq.connect import connect
from leasedkeyq.operations.change_log import AuditLog
from leasedkeyq.operations.items.redaction import Redaction
from leasedkeyq.operations.live.series import SeriesReader
from leasedkeyq.operations.operator import Operator
from leasedkeyq.stores import Store
from leasedkeyq.web.bulk_runs import BulkRuns
from leasedkeyq.web.figures import FigureBook, LaneFigures
from leasedkeyq.web.poller import Poller

StoreSource: TypeAlias = str | Store
Sources: TypeAlias = StoreSource | Iterable[StoreSource] | Mapping[str, StoreSource]
"""A URL or a store, several of them, or several by name."""

RARELY: Final = 30.0
"""Seconds between two looks at what takes long to find out."""
NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]+")


class ShownStore:
    """One of the stores of a page, opened when it is first looked at.

    Args:
        name: Its name on the page and in addresses.
        source: A URL, or a store of the host application, which closes it itself.
        options: Passed to `connect` with a URL.
        interval: Seconds between two looks at it.
        redaction: What of values is hidden.
    """

    def __init__(
        self,
        name: str,
        source: StoreSource,
        options: Mapping[str, Any],
        interval: float,
        redaction: Redaction,
    ) -> None:
        self.name = name
        self._source = source
        self._options = options
        self._store: Store | None = source if isinstance(source, Store) else None
        self._redaction = redaction
        self._figures: tuple[SeriesReader, FigureBook] | None = None
        self._read = 0
        self.poller = Poller(interval)
        self.rare_poller = Poller(max(RARELY, interval))
        self.runs = BulkRuns()
        """What is being done to many items."""

    @property
    def store(self) -> Store:
        """The store.

        Raises:
            StoreError: It cannot be opened.
        """
        if self._store is None:
            assert isinstance(self._source, str)
            self._store = connect(self._source, **self._options)
        return self._store

    @property
    def operator(self) -> Operator:
        """What looks at the store and acts on it. What it shows has no hidden fields."""
        return Operator(self.store, redaction=self._redaction)

    async def figures(self) -> dict[str, LaneFigures]:
        """What the workers did in each lane in the last hour, as they have told by now."""
        return (await self._book()).lanes(self._read)

    async def charts(self, lane: str | None, wanted: str) -> tuple[str, Markup]:
        """The charts of a lane, or of all, and over which range of time.

        Args:
            lane: The lane; None for all.
            wanted: One of `figures.RANGES`; any other: the one that what is known fits in.
        """
        book = await self._book()
        span = book.range_of(wanted)
        return span, book.charts(self._read, lane, span)

    async def _book(self) -> FigureBook:
        reader, book = self._figures or _figures_of(self.store)
        self._figures = reader, book

        async def refresh() -> None:
            self._read += await reader.refresh()

        await self.poller.look("series", refresh)
        return book

    @property
    def audit(self) -> AuditLog:
        """Who has changed what."""
        return AuditLog(self.store, self.name)

    async def close(self) -> None:
        """Stop looking, and close what was opened here. A later look opens it again."""
        await self.runs.close()
        for poller in (self.poller, self.rare_poller):
            poller.stop()
            poller.forget()
        if isinstance(self._source, str) and self._store is not None:
            store, self._store = self._store, None
            self._figures = None
            await store.close()


def _figures_of(store: Store) -> tuple[SeriesReader, FigureBook]:
    reader = SeriesReader(store)
    return reader, FigureBook(reader)


def shown_stores(
    sources: Sources, options: Mapping[str, Any], interval: float, redaction: Redaction
) -> dict[str, ShownStore]:
    """The stores of a page by name, in their order.

    Raises:
        ValueError: There is none, two have one name, or a name cannot be in an address.
        TypeError: One is neither a URL nor a store.
    """
    if isinstance(sources, str | Store):
        sources = [sources]
    named: list[tuple[str, StoreSource]]
    if isinstance(sources, Mapping):
        by_name = cast("Mapping[str, StoreSource]", sources)
        named = list(by_name.items())
    else:
        named = _with_names(list(sources))
    shown: dict[str, ShownStore] = {}
    for name, source in named:
        if not isinstance(source, str | Store):
            raise TypeError(f"a store is a URL or a Store, got {type(source).__name__}")
        if not name or NOT_IN_NAMES.search(name):
            raise ValueError(
                f"the name of a store has letters, digits, dots, dashes and underscores, "
                f"got {name!r}"
            )
        shown[name] = ShownStore(name, source, options, interval, redaction)
    if not shown:
        raise ValueError("the web page needs a store: a URL such as sqlite:///jobs.db, or a Store")
    return shown


def _with_names(sources: list[StoreSource]) -> list[tuple[str, StoreSource]]:
    named: list[tuple[str, StoreSource]] = []
    taken: set[str] = set()
    for source in sources:
        plain = name = _name_of(source)
        number = 2
        while name in taken:
            name = f"{plain}-{number}"
            number += 1
        taken.add(name)
        named.append((name, source))
    return named


def _name_of(source: StoreSource) -> str:
    """A short name for a store; never anything of its password."""
    if not isinstance(source, str):
        kind = type(source).__name__.removesuffix("Store").lower()
        return kind or "store"
    try:
        parts = urlsplit(source)
        host = parts.hostname or ""
    except ValueError:
        return "store"
    last = unquote(parts.path).rstrip("/").rpartition("/")[2]
    scheme = parts.scheme.partition("+")[0]
    name = "-".join(part for part in (host, last) if part) if host else last or scheme
    return NOT_IN_NAMES.sub("-", name).strip("-.") or "store"
