"""A caller of a store whose disk fails for a while, and what the caller may rely on."""

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any, Final, TypeAlias

from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Ack, Claim, Claimed, Put, Release
from leasedkeyq.stores.store import Store
from leasedkeyq.testing.shorthand import EVERY_STATE

QUEUE: Final = "q"
ADVICE: Final = (
    "try again",
    "call again",
    "free some space",
    "make room",
    "right to",
    "create the folder",
    "must exist and be writable",
)
Values: TypeAlias = dict[str, bytes]


class Wrong(Exception):  # noqa: N818  # it is a finding
    """What must not be."""


class Session:
    """Puts, claims and settles, and knows what may be stored.

    A call that failed has happened or not, as a whole: then there are two possible contents, until
    the store can be asked.
    """

    def __init__(self, dice: Random, where: str) -> None:
        self._dice = dice
        self._where = where
        self.possible: list[Values] = [{}]
        self._held: list[Claimed] = []
        self._number = 0
        self.acknowledged = 0
        self.refused = 0

    async def step(self, store: Store) -> None:
        """One call, of whatever kind."""
        kind = self._dice.random()
        if kind < 0.5 or not self.possible[0]:
            await self._put(store)
        elif kind < 0.75 or not self._held:
            await self._claim(store)
        else:
            await self._settle(store)

    async def look(self, store: Store) -> None:
        """What is stored must be one of what is possible, and is known from then on."""
        page = await store.browse(QUEUE, states=EVERY_STATE, limit=1000)
        found = {item.key: item.value for item in page.items}
        if found not in self.possible:
            raise Wrong(f"found {_short(found)}, and not {' or '.join(map(_short, self.possible))}")
        self.possible = [found]

    async def settle_all(self, store: Store) -> None:
        """Every lease that the caller knows of still holds."""
        held, self._held = self._held, []
        for item in held:
            answers = await store.settle([Ack(QUEUE, item.key, item.token)])
            if answers != [None]:
                raise Wrong(f"the lease of {item.key} was refused: {answers}")
            self._becomes(partial(_without, item.key), sure=True)

    async def _put(self, store: Store) -> None:
        many = self._dice.choice((1, 1, 3))
        new: Values = {}
        for _ in range(many):
            self._number += 1
            size = self._dice.choice((3, 400, 5000))
            new[f"k{self._number}"] = b"%d " % self._number + b"x" * size
        puts = [Put(QUEUE, ((key, value),)) for key, value in new.items()]
        sure = await self._call(lambda: store.put(puts)) is not None
        self._becomes(lambda values: {**values, **new}, sure=sure)

    async def _claim(self, store: Store) -> None:
        claimed = await self._call(lambda: store.claim([Claim(((QUEUE, 2),), 2)]))
        for items in claimed or ():
            self._held += items

    async def _settle(self, store: Store) -> None:
        item = self._held.pop(self._dice.randrange(len(self._held)))
        done = self._dice.random() < 0.7
        kind = Ack if done else Release
        answers = await self._call(lambda: store.settle([kind(QUEUE, item.key, item.token)]))
        if answers not in (None, [None]):
            raise Wrong(f"the lease of {item.key} was refused: {answers}")
        if done:
            self._becomes(partial(_without, item.key), sure=answers is not None)

    async def _call(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """The answer; None for an error, which must say where and what to do."""
        try:
            answer = await call()
        except StoreError as error:
            self.refused += 1
            message = str(error)
            if self._where not in message or not any(words in message for words in ADVICE):
                raise Wrong(f"an error does not say what to do: {message}") from error
            return None
        if any(isinstance(each, StoreError) for each in answer):
            raise Wrong(f"the disk failed, and the request is said to be at fault: {answer}")
        self.acknowledged += 1
        return answer

    def _becomes(self, change: Callable[[Values], Values], *, sure: bool) -> None:
        changed = [change(values) for values in self.possible]
        self.possible = changed if sure else [*self.possible, *changed]


def _without(gone: str, values: Values) -> Values:
    return {key: value for key, value in values.items() if key != gone}


def _short(values: Values) -> str:
    return ", ".join(f"{key} ({len(value)})" for key, value in values.items()) or "nothing"
