"""How a module of `pages` says which screens it has, and what can be done there."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from leasedkeyq.web.visit import Visit


@dataclass(frozen=True)
class Content:
    """What a screen shows.

    Args:
        title: The title of the page.
        data: What is shown, by name: for the template, and as JSON for tools. Views, lists,
            numbers, texts: whatever msgspec can write.
        extra: What only the template needs, such as charts.
        status: The status of the answer.
    """

    title: str
    data: Mapping[str, Any]
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    status: int = 200


@dataclass(frozen=True)
class Screen:
    """A screen of a store: as a page, as JSON (``.json`` or ``?format=json``) and live (``.live``).

    Args:
        path: Where it is below the store, such as ``"/lanes"``.
        template: Its template. Each of its blocks whose name begins with ``live_`` is rendered
            anew while the page is open, and replaces the element with this name in ``data-live``.
            Macros of templates whose names end with ``parts.html`` are there under their names.
        content: Finds out what is shown.
        nav: Its name in the navigation; "" if it is not there.
    """

    path: str
    template: str
    content: Callable[[Visit], Awaitable[Content]]
    nav: str = ""


@dataclass(frozen=True)
class Action:
    """A change that a form asks for, by POST. The guard has checked that the user may.

    Args:
        path: Where it is below the store, such as ``"/lanes/pause"``.
        act: Does it, and answers: most often by `Visit.done`.
    """

    path: str
    act: Callable[[Visit], Awaitable[Response]]
