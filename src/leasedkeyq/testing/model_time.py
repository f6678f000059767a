"""Time for comparing a store with the model: moved by hand, or real."""

import asyncio
import time
from dataclasses import dataclass

from leasedkeyq.model.requests import Purge, Put
from leasedkeyq.stores.store import Store
from leasedkeyq.testing.clock import ManualClock

LONG = 600.0
"""A duration that does not pass during a comparison in real time."""


class TooSlowError(Exception):
    """A call took so long that nobody can say what was due when it was applied."""


@dataclass(frozen=True)
class Durations:
    """What requests may say, in seconds; a value that is there twice is chosen twice as often."""

    leases: tuple[float | None, ...]
    delays: tuple[float | None, ...]
    pauses: tuple[float, ...]
    """Delays of releases."""
    keeps: tuple[float, ...]
    waits: tuple[float, ...]
    rates: tuple[tuple[float, float], ...]
    """Of caps: tokens per second, and how many a full bucket has."""
    deadlines: tuple[float | None, ...]
    """Of items and of urgencies."""
    steps: tuple[tuple[tuple[float, int], ...], ...]
    uniques: tuple[float, ...]
    """For how long after its end a value is not put again."""


class ModelTime:
    """The time that the model is told, for a store whose clock is moved by hand."""

    durations = Durations(
        leases=(None, None, 1.0, 2.0, 2.0, 5.0, 5.0, 0.0),
        delays=(None, None, None, None, 0, 0.5, 1.0, 3.0),
        pauses=(0.0, 0.0, 0.0, 1.0, 2.0),
        keeps=(0.0, 0.0, 1.0, 4.0, 4.0),
        waits=(0.25, 0.5, 0.5, 1.0, 1.0, 2.0, 7.0),
        rates=((1.0, 1.0), (0.5, 1.0), (2.0, 2.0), (0.3, 2.5), (0.1, 3.0)),
        deadlines=(None, None, 0.3, 1.0, 2.0, 5.0, 30.0),
        steps=((), ((1.0, 1),), ((0.75, 1), (0.5, 2), (0.25, 3)), ((0.3, 5), (0.9, 1))),
        uniques=(0.0, 0.25, 1.0, 3.0, 10.0),
    )
    tolerance = 0.0
    """How much a moment may differ."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    async def before(self) -> float:
        """A request is going to be made; returns the time."""
        return self._clock.now

    def after(self) -> None:
        """The request was answered."""

    async def wait(self, seconds: float) -> None:
        """Let time pass."""
        self._clock.advance(seconds)


class RealTime(ModelTime):
    """The time of a store with a clock of its own.

    Requests come in bursts. What a request of a burst makes due soon comes due after the burst
    and before the next one, by any clock. So the model and the store agree on what is due,
    though they do not agree on the time to the microsecond.

    Args:
        soon: The one short duration, in seconds. A burst takes less than that.
    """

    def __init__(self, soon: float) -> None:
        self.durations = Durations(
            leases=(None, soon, soon, LONG),
            delays=(None, None, None, None, 0, soon, LONG),
            pauses=(0.0, 0.0, soon, LONG),
            keeps=(0.0, 0.0, soon, LONG),
            waits=(soon,),
            # After a lease by the first there is no part of a token left that would come due
            # within a burst; of the second, none comes due at all.
            rates=((1 / soon, 1.0), (1 / LONG, 2.0)),
            deadlines=(None, soon, soon, LONG),
            # Which share of a deadline remains, nobody can say; but whether it is past.
            steps=((), ((1.0, 2),)),
            uniques=(0.0, soon, LONG),
        )
        self.tolerance = soon
        self._soon = soon
        self._offset = time.time() - time.monotonic()
        self._began: float | None = None
        self._ended = 0.0

    async def calibrate(self, store: Store) -> None:
        """Find out what time it is for the store. Its queue ``"clock"`` is used and emptied."""
        before = time.monotonic()
        await store.put([Put("clock", (("now", b"1"),))])
        after = time.monotonic()
        [[item]] = await store.look("clock", ["now"])
        await store.settle([Purge("clock")])
        self._offset = item.put_at - (before + after) / 2

    async def before(self) -> float:
        """A request is going to be made; returns the time. Starts a new burst if need be."""
        now = time.monotonic()
        if self._began is not None and now > self._began + self._soon * 0.4:
            await self.wait(self._soon)
            now = time.monotonic()
        if self._began is None:
            self._began = now
        return now + self._offset

    def after(self) -> None:
        """The request was answered.

        Raises:
            TooSlowError: What the burst has made due may be due by now.
        """
        self._ended = time.monotonic()
        if self._began is not None and self._ended > self._began + self._soon * 0.8:
            raise TooSlowError

    async def wait(self, seconds: float) -> None:
        """Let time pass until all is due that is to be due soon."""
        self._began = None
        end = self._ended + seconds * 1.3
        await asyncio.sleep(max(end - time.monotonic(), 0.0))
