"""The frame of the conformance kit: what a check is, what it needs, and how it is run."""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, get_args

from leasedkeyq.model.requests import Capabilities
from leasedkeyq.stores.store import Store
from leasedkeyq.testing.site import Address, Place, Site

Need: TypeAlias = Literal[
    "durability", "cross_process", "joint_edits", "extends_apart", "hypothesis"
]
"""What a check needs of a store, or of the machine that it runs on."""
Option: TypeAlias = Literal["clock", "limits"]
"""What an opener may accept.

With ``clock``, a function without arguments that returns Unix time, checks need not wait for time
to pass, and compare every moment exactly. With ``limits``, a `Limits`, they reach the limits soon.
Without them the checks run as well, longer and less strictly.
"""

T = TypeVar("T")
S = TypeVar("S", bound="Suite")
Test: TypeAlias = Callable[[S], None]


@dataclass(frozen=True)
class Check:
    """One thing that a store must do."""

    name: str
    title: str
    needs: Need | None
    run: Callable[[Any], None]


class Gap(Exception):  # noqa: N818  # not an error of the store: the check does not apply
    """A check does not apply to a store; the message says why."""


class Suite(ABC):
    """Checks of a store, as ordinary test methods. Each gets an empty store of its own."""

    time_limit: ClassVar[float] = 90.0
    """No check takes longer, in seconds."""
    patience: ClassVar[float] = 20.0
    """Who was woken has come by then, in seconds; on a slow machine, too."""
    accepts: ClassVar[frozenset[Option]] = frozenset()
    seed: int | None = None
    """Where the random checks start; None: each time somewhere else."""
    without: ClassVar[frozenset[Need]] = frozenset()

    def __init_subclass__(
        cls, *, accepts: tuple[Option, ...] = (), without: tuple[Need, ...] = ()
    ) -> None:
        check_names("accepts", accepts, get_args(Option))
        check_names("without", without, get_args(Need))
        cls.accepts = cls.accepts.union(accepts)
        cls.without = cls.without.union(without)
        for found in checks_of(cls):
            if found.needs in cls.without:
                setattr(cls, found.name, None)

    @abstractmethod
    def opener(self, place: Place) -> Address:
        """Say how to open a store that has its items at `place`, and none yet."""

    def site(self) -> Site:
        """A new store for a check, not opened yet. It must be closed."""
        place = Place()
        try:
            return Site(self.opener(place), self.accepts, place)
        except BaseException:
            place.close()
            raise

    async def soon(self, call: Awaitable[T], otherwise: str) -> T:
        """Await what must come soon; an error says `otherwise`."""
        try:
            return await asyncio.wait_for(call, self.patience)
        except TimeoutError:
            raise AssertionError(f"{otherwise} within {self.patience} s") from None

    def new_seed(self) -> int:
        """Where a random check starts."""
        return random.SystemRandom().randrange(2**32) if self.seed is None else self.seed


def check_names(argument: str, names: Collection[str], known: Collection[str]) -> None:
    """Refuse names that mean nothing: they would change nothing, unnoticed."""
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"{argument} has {unknown}; known are {', '.join(known)}")


def checks_of(suite: type) -> Iterator[Check]:
    """The checks of a suite."""
    for name in dict.fromkeys(name for kind in suite.__mro__ for name in vars(kind)):
        if name.startswith("test_"):
            found = vars(getattr(suite, name) or Suite).get("check")
            if isinstance(found, Check):
                yield found


def gap(need: Need | None, capabilities: Capabilities) -> str | None:
    """Why a store that claims `capabilities` does not meet a need; None if it does."""
    if need == "cross_process" and not capabilities.cross_process:
        return "the store does not claim to be shared by processes (capabilities.cross_process)"
    if need == "extends_apart" and not capabilities.extends_apart:
        return (
            "the store does not claim to renew leases from another thread "
            "(capabilities.extends_apart)"
        )
    if need == "durability" and capabilities.durability == "none":
        return "the store does not claim to keep anything (capabilities.durability)"
    if need == "joint_edits" and not capabilities.joint_edits:
        return "the store does not claim to edit several queues at once (capabilities.joint_edits)"
    return None


def check(method: Callable[[S, Store], Awaitable[None]]) -> Test[S]:
    """Make a check of a coroutine method that is given an open store."""

    async def with_store(self: S, site: Site) -> None:
        await method(self, site.open())

    def run(self: S) -> None:
        asyncio.run(_run(self, with_store, None))

    return _made(method, None, run)


def site_check(
    needs: Need | None = None,
) -> Callable[[Callable[[S, Site], Awaitable[None]]], Test[S]]:
    """Make a check of a coroutine method that is given a site, with no store open yet."""

    def make(method: Callable[[S, Site], Awaitable[None]]) -> Test[S]:
        def run(self: S) -> None:
            asyncio.run(_run(self, method, needs))

        return _made(method, needs, run)

    return make


def plain_check(needs: Need | None = None) -> Callable[[Callable[[S], None]], Test[S]]:
    """Make a check of a method that opens its stores by itself."""
    return lambda method: _made(method, needs, method)


def _made(method: Callable[..., Any], needs: Need | None, run: Callable[[S], None]) -> Test[S]:
    """A plain function for pytest to find, which takes no fixtures."""

    def test(self: S) -> None:
        try:
            run(self)
        except Gap as reason:
            suite = type(self).__name__
            declared = f"class {suite}(..., without=({needs!r},))"
            raise AssertionError(f"{reason}; declare it as a gap: {declared}") from None

    test.__name__ = method.__name__
    test.__qualname__ = method.__qualname__
    test.__module__ = method.__module__
    test.__doc__ = method.__doc__
    title = (method.__doc__ or "").partition("\n")[0]
    test.__dict__["check"] = Check(method.__name__, title, needs, run)
    return test


async def _run(suite: S, method: Callable[[S, Site], Awaitable[None]], needs: Need | None) -> None:
    site = suite.site()
    limit = suite.time_limit
    try:
        if needs is not None:
            reason = gap(needs, site.open().capabilities)
            if reason is not None:
                raise Gap(reason)
            await site.close_stores()
        timeout = asyncio.timeout(limit)
        try:
            async with timeout:
                await method(suite, site)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise AssertionError(f"not done within {limit} s: something hangs") from None
    finally:
        await site.close()
