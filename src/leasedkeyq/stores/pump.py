"""Waiting on a store: one task claims for everybody who waits on a queue."""

import asyncio
from asyncio import Future, Task
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from leasedkeyq.errors import QueueClosedError, StoreUnavailableError, describe
from leasedkeyq.stores.contract import Claim, Claimed, Release, StoreContract

GRACE = 1.0
"""Seconds for which a consumer whose time is over waits for the first answer of the store."""


class Waiter:
    """A consumer in line.

    Attributes:
        impatient: Its time is over: the next answer of the store is the last one it waits for.
        answered: Whether the store has said, since it waits, that there is nothing for it.
    """

    __slots__ = ("alarm", "answered", "impatient", "key", "lease_time", "many", "timeout", "turn")

    def __init__(
        self,
        turn: "Future[Any]",
        key: str | None,
        lease_time: float | None,
        many: int,
        timeout: float | None,
    ) -> None:
        self.turn = turn
        self.key = key
        self.lease_time = lease_time
        self.many = many
        self.timeout = timeout
        self.impatient = timeout == 0
        self.answered = False
        self.alarm: asyncio.TimerHandle | None = None

    def joins(self, other: "Waiter") -> bool:
        """Whether one claim can serve both."""
        alike = self.key is None is other.key and self.lease_time == other.lease_time
        return alike and self.many == 1 == other.many


class ClaimPump:
    """Claims for the consumers of one queue, first come, first served.

    Calls that arrive while a claim is under way are served by the next one, so that many consumers
    cost one round trip. While nothing is available the pump sleeps, until the store's `watch` says
    that something changed or something comes due. What was claimed for a consumer that has gone
    goes to the next in line, or back to where it was.
    """

    def __init__(self, store: StoreContract, queue: str) -> None:
        self._store = store
        self._queue = queue
        self._line: dict[Waiter, None] = {}
        self._listeners: set[Future[None]] = set()
        self._wake = asyncio.Event()
        self._news = False
        self._task: Task[None] | None = None
        self._unwatch: Callable[[], None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._undoing: set[Task[None]] = set()

    async def claim(
        self, key: str | None, timeout: float | None, lease_time: float | None, many: int = 1
    ) -> Sequence[Claimed]:
        """Wait for an item, of `key` or any; with `many`, take up to so many when they are there.

        If this is cancelled or times out, the store is as if it had not been called.

        Raises:
            TimeoutError: The store had nothing in time.
            StoreUnavailableError: The time is over, and the store could not be asked.
        """
        loop = asyncio.get_running_loop()
        waiter = Waiter(loop.create_future(), key, lease_time, many, timeout)
        self._line[waiter] = None
        self._start()
        if timeout:
            waiter.alarm = loop.call_later(timeout, self._give_up, waiter)
        try:
            claimed: Sequence[Claimed] = await waiter.turn
        except asyncio.CancelledError:
            turn = waiter.turn
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                await asyncio.shield(self.give_back(turn.result()))
            raise
        finally:
            self._line.pop(waiter, None)
            self._end_if_idle()
            if waiter.alarm is not None:
                waiter.alarm.cancel()
        return claimed

    def changed(self) -> "Future[None]":
        """Done when something changes in the queue from now on, or comes due."""
        turn: Future[None] = asyncio.get_running_loop().create_future()
        turn.add_done_callback(self._unlisten)
        self._listeners.add(turn)
        self._start()
        return turn

    def _unlisten(self, turn: "Future[None]") -> None:
        self._listeners.discard(turn)
        self._end_if_idle()
        if not turn.cancelled():
            turn.exception()  # whoever does not wait any more need not hear of it

    def _end_if_idle(self) -> None:
        """Nobody waits: the task need not, and nobody needs to watch the store for it."""
        if not self._line and not self._listeners:
            self._wake.set()

    def close(self) -> None:
        """Send everybody away."""
        for turn in [*(waiter.turn for waiter in self._line), *self._listeners]:
            if not turn.done():
                turn.set_exception(QueueClosedError("the queue was closed while waiting"))
        self._wake.set()

    # The task

    def _start(self) -> None:
        if self._unwatch is None:
            self._unwatch = self._store.watch(self._queue, self._hear)
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _hear(self) -> None:
        """Something changed in the queue, or has come due."""
        self._news = True
        self._wake.set()

    async def _run(self) -> None:
        """Serve the line until nobody is left in it."""
        try:
            while self._line or self._listeners:
                await self._wake.wait()
                self._wake.clear()
                if self._news:
                    self._news = False
                    for turn in self._listeners:
                        if not turn.done():
                            turn.set_result(None)
                if self._line and await self._serve():
                    self._wake.set()
                elif self._line or self._listeners:
                    await self._set_alarm()
        except Exception as error:
            for turn in [*(waiter.turn for waiter in self._line), *self._listeners]:
                if not turn.done():
                    turn.set_exception(error)
        finally:
            self._stop()

    def _stop(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    async def _set_alarm(self) -> None:
        """Wake up when the next item comes due; ask in that order, so that none slips through."""
        [seconds] = await self._store.sweep([self._queue])
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(seconds, self._hear)

    async def _serve(self) -> bool:
        """One claim for all who wait; returns whether it is worth asking again at once."""
        groups = self._groups()
        if not groups:
            return False
        answers = await self._store.claim([self._claim_for(waiters) for waiters in groups])
        left: list[Claimed] = []
        for waiters, claimed in zip(groups, answers, strict=True):
            left += self._hand_out(waiters, claimed)
        if left:
            await asyncio.shield(self.give_back(left))
            return True
        return any(answers)

    def _groups(self) -> list[list[Waiter]]:
        """Those who wait, in line, together with those whom the same claim can serve."""
        groups: list[list[Waiter]] = []
        for waiter in self._line:
            if waiter.turn.done():
                continue
            if groups and waiter.joins(groups[-1][-1]):
                groups[-1].append(waiter)
            else:
                groups.append([waiter])
        # Whoever waits for one key goes before those who take any.
        groups.sort(key=lambda waiters: waiters[0].key is None)
        return groups

    def _claim_for(self, waiters: list[Waiter]) -> Claim:
        first = waiters[0]
        limit = first.many if len(waiters) == 1 else len(waiters)
        return Claim(((self._queue, limit),), limit, first.key, first.lease_time)

    def _hand_out(self, waiters: list[Waiter], claimed: Sequence[Claimed]) -> Sequence[Claimed]:
        """Give what was claimed to those who are still there; return what is left over."""
        start = 0
        for waiter in waiters:
            if waiter.turn.done():
                continue
            if start < len(claimed):
                end = start + waiter.many
                self._line.pop(waiter, None)
                waiter.turn.set_result(claimed[start:end])
                start = end
            elif waiter.impatient:
                waiter.turn.set_exception(too_late(waiter.key, waiter.timeout or 0))
            else:
                waiter.answered = True
        return claimed[start:]

    def give_back(self, claimed: Sequence[Claimed]) -> Task[None]:
        """Undo claims whose consumers have gone."""
        undo = [Release(c.queue, c.key, c.token, undo=True) for c in claimed]
        task = asyncio.get_running_loop().create_task(self._undo(undo))
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)
        return task

    async def _undo(self, changes: list[Release]) -> None:
        with suppress(Exception):  # the leases expire by themselves
            await self._store.settle(changes)

    def _give_up(self, waiter: Waiter) -> None:
        """The time of a consumer is over. What the store has not said, it is not told."""
        if waiter.turn.done():
            return
        timeout = waiter.timeout or 0
        outage = self._store.outage
        if outage is not None:
            waiter.turn.set_exception(outage)
        elif waiter.answered:
            waiter.turn.set_exception(too_late(waiter.key, timeout))
        elif not waiter.impatient:
            # The call may be under way since a moment: its answer decides.
            waiter.impatient = True
            loop = asyncio.get_running_loop()
            waiter.alarm = loop.call_later(GRACE, self._give_up, waiter)
        else:
            message = (
                f"the store did not answer within {timeout + GRACE:g} s: it is not known whether "
                f"queue {self._queue!r} has anything"
            )
            waiter.turn.set_exception(StoreUnavailableError(message))


def too_late(key: str | None, timeout: float) -> TimeoutError:
    """The error for a consumer that has waited long enough."""
    what = "no item became" if key is None else f"key {describe(key)} did not become"
    return TimeoutError(f"{what} available within {timeout} s")
