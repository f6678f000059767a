"""What a screen is given: the request, who makes it, the store that it is about."""

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, cast
from urllib.parse import quote, urlencode

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.operations.items.redaction import Redaction
from leasedkeyq.operations.views import ActionReport
from leasedkeyq.web.access.guard import FORM, VISITOR, Visitor, client_of
from leasedkeyq.web.access.users import User
from leasedkeyq.web.glance import Glance, glance_at
from leasedkeyq.web.words import count

if TYPE_CHECKING:
    from leasedkeyq.web.app import Dashboard
    from leasedkeyq.web.shown_store import ShownStore

T = TypeVar("T")

TOLD = {True: 200, False: 409}
"""The status of the answer to a tool."""


class Visit:
    """One request, by one user.

    Args:
        dashboard: The page as a whole.
        request: The request.
        shown: The store that it is about; None for pages about none.
    """

    def __init__(
        self, dashboard: "Dashboard", request: Request, shown: "ShownStore | None" = None
    ) -> None:
        self.dashboard = dashboard
        self.request = request
        self._shown = shown

    # Who and what

    @property
    def visitor(self) -> Visitor:
        """Who makes the request, as the guard has found out."""
        return cast("Visitor", self.request.scope[VISITOR])

    @property
    def user(self) -> User | None:
        """The user; None on the page where they log in."""
        visitor = self.request.scope.get(VISITOR)
        return visitor.user if isinstance(visitor, Visitor) else None

    @property
    def actor(self) -> str:
        """Who makes the request, and from where, for the audit log."""
        return f"{self.user.name if self.user else '?'} ({client_of(self.request)})"

    @property
    def may_change(self) -> bool:
        """Whether to show what changes something. The guard refuses it in any case."""
        return self.user is not None and self.user.role == "operator"

    @property
    def shown(self) -> "ShownStore":
        """The store that the page is about, with its `operator`, `poller` and `audit`."""
        if self._shown is None:
            raise HTTPException(404, "There is no such store here.")
        return self._shown

    @property
    def has_store(self) -> bool:
        """Whether the page is about a store."""
        return self._shown is not None

    @property
    def redaction(self) -> Redaction:
        """What of values is hidden."""
        return self.dashboard.redaction

    @property
    def form_token(self) -> str:
        """What every form carries in its field ``form_token``; the macro `form` writes it."""
        return self.dashboard.sessions.form_token(self.visitor.session)

    @property
    def wants_json(self) -> bool:
        """Whether a tool asks."""
        path = self.request.scope["path"]
        return path.endswith(".json") or self.request.query_params.get("format") == "json"

    # What was asked

    def query(self, name: str, default: str = "") -> str:
        """A field of the address; the default if it is not there."""
        return self.request.query_params.get(name, default)

    def form(self, name: str, default: str = "") -> str:
        """A field of the form; the default if it is not there."""
        return self.form_all(name)[0] if self.form_all(name) else default

    def form_all(self, name: str) -> list[str]:
        """All fields of the form with a name, such as those of check boxes."""
        fields: Mapping[str, list[str]] = self.request.scope.get(FORM, {})
        return fields.get(name, [])

    def form_names(self) -> list[str]:
        """The names of all fields of the form."""
        fields: Mapping[str, list[str]] = self.request.scope.get(FORM, {})
        return list(fields)

    def need(self, name: str, where: str = "address") -> str:
        """A field of the address or, with ``where="form"``, of the form, that must be there.

        Raises:
            HTTPException: 400.
        """
        value = self.query(name) if where == "address" else self.form(name)
        if not value:
            raise HTTPException(400, f"The {where} lacks {name!r}.")
        return value

    # Where things are

    def root(self, path: str = "/", /, **query: object) -> str:
        """The address of a page about no store, or of a static file."""
        return _address(f"{self.request.scope['root_path']}{path}", query)

    def static(self, name: str) -> str:
        """The address of a static file, such as ``"style.css"``."""
        return self.root(self.dashboard.static_path(name))

    def path(self, path: str = "/", /, **query: object) -> str:
        """The address of a page about the same store: ``visit.path("/queue", queue="mail")``.

        Fields that are None or "" are left out; a list makes several fields of one name.
        """
        return _address(f"{self._store_path}{path}", query)

    @cached_property
    def _store_path(self) -> str:
        return self.root(f"/s/{quote(self.shown.name, safe='')}")

    # What is there

    async def look(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """What `make` finds, shared with all pages that look at the same within two seconds.

        What depends on anything but the store (a filter, a cursor) belongs into the key. What is
        made must be the same for every user.
        """
        return await self.shown.poller.look(key, make)

    async def look_rarely(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """As `look`, at most twice a minute: for what takes long to find out."""
        return await self.shown.rare_poller.look(key, make)

    async def glance(self) -> Glance:
        """The queues, lanes and workers of the store, seen at most two seconds ago."""
        shown = self.shown
        return await self.look("glance", lambda: glance_at(shown.operator))

    # What becomes of a change

    async def change(
        self, action: str, target: str, do: Callable[[], Awaitable[ActionReport]], back: str
    ) -> Response:
        """Make a change, write it into the audit log, and lead back to a page that tells of it.

        An error of the store, or a refusal, is told on that page, too, and is in the log. A tool
        that has sent a token is answered with the report, or the error (409), as JSON.

        Args:
            action: What is done, as a verb.
            target: What it is done to: names and numbers, no values.
            do: Does it.
            back: The path in this store that shows the outcome.
        """
        try:
            report = await do()
        except (LeasedKeyQError, ValueError, LookupError) as error:
            await self.remember(action, target, f"failed: {type(error).__name__}")
            self.shown.poller.forget()
            return self.answer(f"{target}: {action} failed: {error}", back, good=False)
        words = report_words(report)
        await self.remember(action, target, words)
        self.shown.poller.forget()
        if self.visitor.by_token:
            return json_response(report)
        return self.answer(f"{target}: {words}", back, good=not report.failed_count)

    async def remember(self, action: str, target: str, outcome: str) -> None:
        """Write a change into the audit log. `change` does so by itself."""
        user = self.user
        await self.shown.audit.add(
            who=user.name if user else "",
            client=client_of(self.request),
            action=action,
            target=target,
            outcome=outcome,
        )

    def answer(self, words: str, back: str, *, good: bool = True) -> Response:
        """Lead to a page that shows a message once.

        Args:
            words: The message.
            back: The path below the store.
            good: Whether it tells of a success.
        """
        if self.visitor.by_token:
            return json_response({"message": words} if good else {"error": words}, TOLD[good])
        response = RedirectResponse(self.path(back) if self.has_store else self.root(back), 303)
        self.dashboard.remember_message(self, response, words, good=good)
        return response

    def back(self, default: str) -> str:
        """Where the form wants to go after it: its field ``back``, if that is a path of ours."""
        wanted = self.form("back")
        return wanted if is_own_path(wanted) else default


def json_response(data: Any, status: int = 200) -> Response:
    """Data as JSON, for tools."""
    return Response(msgspec.json.encode(data), status, media_type="application/json")


def is_own_path(path: str) -> bool:
    """Whether a path stays on this page: no other host, no trick of browsers."""
    return (
        path.startswith("/")
        and not path.startswith(("//", "/\\"))
        and path.isprintable()
        and "\\" not in path
    )


def report_words(report: ActionReport) -> str:
    """What became of an action, in a sentence."""
    verb = "would be done" if report.dry_run else "done"
    words = f"{report.action.replace('_', ' ')}: {count(report.done)} {verb}"
    if report.matched and report.matched != report.done:
        words += f" of {count(report.matched)}"
    if report.failed_count:
        words += f", {count(report.failed_count)} failed"
        if report.failed:
            queue, item, reason = report.failed[0]
            words += f" (the first: {item} of {queue}: {reason})"
    if not report.complete:
        words += "; not all that match were dealt with, repeat it"
    if report.note:
        words += f" ({report.note})"
    return words


def _is_several(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, list | tuple)


def _address(path: str, query: Mapping[str, Any]) -> str:
    fields: list[tuple[str, str]] = []
    for name, value in query.items():
        parts = value if _is_several(value) else [value]
        fields += [(name, str(part)) for part in parts if part is not None and part != ""]
    return f"{path}?{urlencode(fields)}" if fields else path
