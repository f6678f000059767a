"""Fields of values that are not shown: `Redaction`."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeGuard

import msgspec

from leasedkeyq.model.requests import Attempt, StoredItem
from leasedkeyq.operations.items.exact_json import (
    Exact,
    ExactMembers,
    Number,
    plain,
    read_exact,
    write_exact,
)
from leasedkeyq.operations.items.item_views import envelope_of
from leasedkeyq.operations.views import ItemView, ScheduleView

HIDDEN_MARK: Final = "[hidden"
HIDDEN: Final = "[hidden]"
UNREADABLE: Final = "[hidden: it is not JSON, so its fields cannot be told apart]"
UNKNOWN: Final = "[hidden: its value is not kept, so what to hide in its errors is not known]"
SHORT: Final = 6
"""A hidden value of fewer characters is looked for as a word of its own in other texts."""

HideRule: TypeAlias = str | Callable[[tuple[str, ...], Any], bool]
"""A field to hide: its name wherever it is, its path from the top, or a function that decides."""


class Redaction:
    """Hides fields of values, and what these held wherever else it is told of the same item.

    Args:
        rules: Each of these is

            - the name of a field, such as ``"password"``, at any depth; letter case does not count,
            - a path from the top, such as ``"customer.card.number"``, with ``*`` for any name or
              any place of a list,
            - a function that is given the path and the value of a field, and says whether to hide
              it. The whole value has the path ``()``.

    Values, results, progress and arguments are gone through. What was hidden is hidden in the
    errors and the history of the same item, too, as long as it has this value: of an item that is
    done, whose value is not kept, no error is shown; what a newer value has replaced is not known,
    and stays in the errors of attempts before that. Keys are shown: they are what items are found
    by.
    """

    def __init__(self, rules: HideRule | Iterable[HideRule] = ()) -> None:
        listed = [rules] if isinstance(rules, str) or callable(rules) else list(rules)
        self._names: set[str] = set()
        self._paths: list[tuple[str, ...]] = []
        self._functions: list[Callable[[tuple[str, ...], Any], bool]] = []
        for rule in listed:
            if callable(rule):
                self._functions.append(rule)
            elif not isinstance(rule, str) or not rule or "" in rule.split("."):
                raise ValueError(f"redact takes names, paths with dots and functions, got {rule!r}")
            elif "." in rule:
                self._paths.append(tuple(rule.casefold().split(".")))
            else:
                self._names.add(rule.casefold())

    @property
    def active(self) -> bool:
        """Whether anything is hidden at all."""
        return bool(self._names or self._paths or self._functions)

    def value(self, value: Any) -> tuple[Any, tuple[str, ...]]:
        """A decoded value without its hidden fields, and the texts that these held."""
        if not self.active:
            return value, ()
        secrets: list[str] = []
        shown = self._walk(value, (), secrets)
        return shown, tuple(secrets)

    def raw(self, raw: str) -> tuple[str, tuple[str, ...]]:
        """JSON text without its hidden fields, and the texts that these held."""
        if not self.active or not raw:
            return raw, ()
        secrets: list[str] = []
        try:
            exact = read_exact(raw)
            shown = self._walk_exact(exact, (), secrets)
            # What is hidden may be nothing to look for elsewhere: true, null or an empty text.
            return (raw if shown == exact else write_exact(shown)), tuple(secrets)
        except (ValueError, RecursionError):
            return UNREADABLE, ()

    def text(self, text: str, secrets: Sequence[str]) -> str:
        """A text without what hidden fields held."""
        if not text or not secrets:
            return text
        # The longest first: a secret may be a part of another.
        for secret in sorted(set(secrets), key=len, reverse=True):
            for form in {secret, repr(secret)[1:-1], json.dumps(secret)[1:-1]}:
                if len(form) >= SHORT:
                    text = text.replace(form, HIDDEN)
                else:
                    text = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", HIDDEN, text)
        return text

    def item(self, item: ItemView) -> ItemView:
        """An item as it may be shown."""
        if not self.active:
            return item
        value, of_value = self.value(item.value)
        raw, of_raw = self.raw(item.raw) if item.readable else (UNREADABLE, ())
        result, of_result = self.value(item.result)
        raw_result, of_raw_result = self.raw(item.raw_result)
        progress, of_progress = self.value(item.progress)
        secrets = (*of_value, *of_raw, *of_result, *of_raw_result, *of_progress)
        done = item.state == "done"
        return msgspec.structs.replace(
            item,
            value=value,
            raw=raw,
            result=result,
            raw_result=raw_result,
            progress=None if done else self._texts(progress, secrets),
            error=_unknown(item.error) if done else self.text(item.error, secrets),
            history=_unknown_history(item) if done else self._history(item.history, secrets),
        )

    def stored(self, item: StoredItem) -> StoredItem:
        """A stored item whose errors may be shown, searched and grouped; its value stays as it is.

        Searching the errors as they are would tell, letter by letter, what is hidden.
        """
        if not self.active or not (item.error or item.history):
            return item
        if item.state == "done":
            return msgspec.structs.replace(
                item, error=_unknown(item.error), history=_unknown_history(item)
            )
        envelope = envelope_of(item)
        raw = item.value if envelope is None else bytes(envelope.payload)
        _, secrets = self.raw(raw.decode("utf-8", "backslashreplace"))
        if not secrets:
            return item
        return msgspec.structs.replace(
            item,
            error=self.text(item.error, secrets),
            history=self._history(item.history, secrets),
        )

    def hides(self, item: ItemView) -> bool:
        """Whether something of the value of an item, as it is shown, is hidden.

        Then it cannot be edited: what is hidden would be lost.
        """
        return self.active and HIDDEN_MARK in item.raw

    def schedule(self, schedule: ScheduleView) -> ScheduleView:
        """A schedule as it may be shown."""
        if not self.active:
            return schedule
        return msgspec.structs.replace(schedule, arguments=self.raw(schedule.arguments)[0])

    def _history(self, history: Sequence[Attempt], secrets: Sequence[str]) -> tuple[Attempt, ...]:
        return tuple(
            Attempt(past.number, past.ended_at, past.how, self.text(past.error, secrets))
            for past in history
        )

    def _walk(self, value: Any, path: tuple[str, ...], secrets: list[str]) -> Any:
        if self._is_hidden(path, value):
            secrets.extend(_leaves(value))
            return HIDDEN
        if _is_mapping(value):
            fields = value
            return {
                name: self._walk(field, (*path, str(name)), secrets)
                for name, field in fields.items()
            }
        if _is_sequence(value):
            places = value
            return [
                self._walk(place, (*path, str(index)), secrets)
                for index, place in enumerate(places)
            ]
        return value

    def _walk_exact(self, value: Exact, path: tuple[str, ...], secrets: list[str]) -> Exact:
        """As `_walk`, for a document whose numbers keep their digits."""
        if self._is_hidden(path, plain(value) if self._functions else None):
            secrets.extend(_exact_leaves(value))
            return HIDDEN
        if isinstance(value, ExactMembers):
            return ExactMembers(
                (name, self._walk_exact(member, (*path, name), secrets)) for name, member in value
            )
        if isinstance(value, list):
            return [
                self._walk_exact(member, (*path, str(place)), secrets)
                for place, member in enumerate(value)
            ]
        return value

    def _is_hidden(self, path: tuple[str, ...], value: Any) -> bool:
        if path:
            folded = tuple(part.casefold() for part in path)
            if folded[-1] in self._names:
                return True
            for rule in self._paths:
                if len(rule) == len(folded) and all(
                    part in ("*", name) for part, name in zip(rule, folded, strict=True)
                ):
                    return True
        return any(hides(path, value) for hides in self._functions)

    def _texts(self, value: Any, secrets: Sequence[str]) -> Any:
        """Hide secrets in the texts of a value, too: progress may quote the arguments."""
        if isinstance(value, str):
            return self.text(value, secrets)
        if _is_mapping(value):
            fields = value
            return {name: self._texts(field, secrets) for name, field in fields.items()}
        if _is_sequence(value):
            return [self._texts(place, secrets) for place in value]
        return value


def _unknown(error: str) -> str:
    return UNKNOWN if error else ""


def _unknown_history(item: ItemView | StoredItem) -> tuple[Attempt, ...]:
    """The attempts of an item that is done: a store keeps its result, not what it was given."""
    return tuple(
        Attempt(past.number, past.ended_at, past.how, _unknown(past.error)) for past in item.history
    )


def _is_mapping(value: Any) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, Mapping)


def _is_sequence(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, list | tuple)


def _leaves(value: Any) -> Iterator[str]:
    """The texts and numbers in a hidden value."""
    if _is_mapping(value):
        for field in value.values():
            yield from _leaves(field)
    elif _is_sequence(value):
        for place in value:
            yield from _leaves(place)
    elif isinstance(value, str):
        if value:
            yield value
    elif value is not None and not isinstance(value, bool):
        yield json.dumps(value) if isinstance(value, int | float) else str(value)


def _exact_leaves(value: Exact) -> Iterator[str]:
    """The texts and numbers in a hidden value; numbers as they are written, and as Python does."""
    if isinstance(value, ExactMembers):
        for _, member in value:
            yield from _exact_leaves(member)
    elif isinstance(value, list):
        for member in value:
            yield from _exact_leaves(member)
    elif isinstance(value, Number):
        yield str(value)
        yield from _leaves(plain(value))
    elif isinstance(value, str):
        yield from _leaves(value)
