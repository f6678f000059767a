"""Waiting on a store: one task claims for everybody who waits on a queue."""

import asyncio
import logging
from asyncio import Future, Task
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from leasedkeyq.errors import (
    StoreUnavailableError,
    closed_while_waiting,
    describe,
)
from leasedkeyq.model.requests import Claim, Claimed
from leasedkeyq.stores.system.holder import this_process
from leasedkeyq.stores.take_back import UnwantedClaims

if TYPE_CHECKING:
    from leasedkeyq.stores.store import Store

logger = logging.getLogger("leasedkeyq")

GRACE = 1.0
"""Seconds for which a consumer whose time is over waits for the first answer of the store."""
TURNS: Final = 10
"""Turns of the event loop within which a claim that is about to be sent has been."""
LAST_CLAIM: Final = 10.0
"""Seconds for which closing waits for the answer to a claim that is under way."""


class Waiter:
    """A consumer in line.

    Attributes:
        impatient: Its time is over: the next answer of the store is the last one it waits for.
        answered: Whether the store has said, since it waits, that there is nothing for it.
        idle: The same, and no producer has put an item for it since.
    """

    __slots__ = (
        "alarm",
        "answered",
        "idle",
        "impatient",
        "key",
        "lease_time",
        "many",
        "timeout",
        "turn",
    )

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
        self.idle = False
        self.alarm: asyncio.TimerHandle | None = None

    def joins(self, other: "Waiter") -> bool:
        """Whether one claim can serve both."""
        alike = self.key is None is other.key and self.lease_time == other.lease_time
        return alike and self.many == 1 == other.many


class ClaimPump:
    """Claims for the consumers of one queue, first come, first served.

    Calls that arrive while a claim is under way are served by the next one, so that many consumers
    cost one round trip. The pump watches the store only when a claim has left somebody waiting, as
    that costs more than a claim; it then asks once more, and sleeps until the store's `watch` says
    that something changed or something comes due. What was claimed for a consumer that has gone
    goes to the next in line, or is taken back.

    Args:
        store: Where it claims.
        queue: Of which queue.
        holder: Who holds the leases, for people; empty: this process.

    Attributes:
        unwanted: Claims whose consumers have gone.
        on_idle: Called when consumers have begun to wait, as the store has nothing for them.
    """

    def __init__(self, store: "Store", queue: str, holder: str = "") -> None:
        self._store = store
        self._queue = queue
        self._holder = holder
        self._line: dict[Waiter, None] = {}
        self._listeners: set[Future[None]] = set()
        self._wake = asyncio.Event()
        self._news = False
        self._task: Task[None] | None = None
        self._unwatch: Callable[[], None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._served: dict[Waiter, Sequence[Claimed]] = {}
        """Consumers that were given something, and have not run since."""
        self._resting = True
        """Whether no request of the task is under way."""
        self._unsent = False
        """Whether consumers have come whom the task will ask for in a moment."""
        self._sends = 0
        self._behind = 0
        """How many calls wait in `sent`."""
        self._closed = False
        self.unwanted = UnwantedClaims(store.settle)
        self.on_idle: Callable[[], None] | None = None

    async def claim(
        self, key: str | None, timeout: float | None, lease_time: float | None, many: int = 1
    ) -> Sequence[Claimed]:
        """Wait for an item, of `key` or any; with `many`, take up to so many when they are there.

        If this is cancelled or times out, the store is as if it had not been called.

        Raises:
            TimeoutError: The store had nothing in time.
            StoreUnavailableError: The time is over, and the store could not be asked.
            QueueClosedError: `close` was called.
        """
        self._check_closed()
        loop = asyncio.get_running_loop()
        waiter = Waiter(loop.create_future(), key, lease_time, many, timeout)
        self._line[waiter] = None
        self._unsent = self._unsent or self._resting
        self._start()
        if timeout:
            waiter.alarm = loop.call_later(timeout, self._give_up, waiter)
        try:
            claimed: Sequence[Claimed] = await waiter.turn
        except asyncio.CancelledError:
            turn = waiter.turn
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                await asyncio.shield(self.unwanted.take_back(turn.result()))
            raise
        finally:
            self._line.pop(waiter, None)
            self._served.pop(waiter, None)
            self._end_if_idle()
            if waiter.alarm is not None:
                waiter.alarm.cancel()
        self._check_closed()  # then this is taken back already
        return claimed

    async def sent(self) -> None:
        """Until a claim that is about to be sent has gone to the store.

        A call that was made after a `get` waits for this, which takes a turn or two of the event
        loop: so calls act in the order in which they were made.
        """
        if not self._unsent and not self._behind:
            return
        # Consumers that come later are not waited for, and calls keep their order.
        sends = self._sends
        self._behind += 1
        try:
            for _ in range(TURNS):
                await asyncio.sleep(0)
                if not self._unsent or self._sends != sends:
                    return
        finally:
            self._behind -= 1

    def changed(self) -> "Future[None]":
        """Done when something changes in the queue from now on, or comes due."""
        self._check_closed()
        turn: Future[None] = asyncio.get_running_loop().create_future()
        turn.add_done_callback(self._unlisten)
        self._listeners.add(turn)
        self._watch()
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

    def idle_for(self, keys: Sequence[str]) -> list[Waiter]:
        """The consumers that wait, and would take an item of one of these keys at once."""
        wanted = frozenset(keys)
        return [
            waiter
            for waiter in self._line
            if waiter.idle and not waiter.turn.done() and (not waiter.key or waiter.key in wanted)
        ]

    def awaits_all(self, keys: Iterable[str]) -> bool:
        """Whether for each of these keys a consumer waits that takes this key only."""
        waiting = {waiter.key for waiter in self._line if waiter.idle and not waiter.turn.done()}
        return waiting.issuperset(keys)

    def _check_closed(self) -> None:
        if self._closed:
            raise closed_while_waiting()

    def close(self) -> None:
        """Send everybody away."""
        self._closed = True
        for turn in [*(waiter.turn for waiter in self._line), *self._listeners]:
            if not turn.done():
                turn.set_exception(closed_while_waiting())
        for claimed in self._served.values():
            self.unwanted.add(claimed)
        self._wake.set()

    async def ended(self) -> None:
        """After `close`: until no claim is under way, and what it has leased is taken back."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=LAST_CLAIM)
        await self.unwanted.flush()

    # The task

    def _start(self) -> None:
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _watch(self) -> bool:
        """Watch the store; returns whether that begins only now."""
        if self._unwatch is not None:
            return False
        self._unwatch = self._store.watch(self._queue, self._hear)
        return True

    def _hear(self) -> None:
        """Something changed in the queue, or has come due."""
        self._news = True
        self._wake.set()

    async def _run(self) -> None:
        """Serve the line until nobody is left in it."""
        try:
            while self._line or self._listeners:
                self._resting = True
                await self._wake.wait()
                self._resting = False
                self._wake.clear()
                if self._news:
                    self._news = False
                    for turn in self._listeners:
                        if not turn.done():
                            turn.set_result(None)
                if self._line and await self._serve():
                    self._wake.set()
                elif not self._line and not self._listeners:
                    continue
                elif self._watch():
                    self._wake.set()  # What changed before the watch began is found by asking.
                else:
                    await self._set_alarm()
        except Exception as error:
            for turn in [*(waiter.turn for waiter in self._line), *self._listeners]:
                if not turn.done():
                    turn.set_exception(error)
        finally:
            self._resting, self._unsent = True, False
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
        self._unsent = False  # The claim goes to the store before anybody else runs.
        self._sends += 1
        if not groups:
            return False
        answers = await self._store.claim([self._claim_for(waiters) for waiters in groups])
        left: list[Claimed] = []
        for waiters, claimed in zip(groups, answers, strict=True):
            left += self._hand_out(waiters, claimed)
        if left:
            await asyncio.shield(self.unwanted.take_back(left))
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
        holder = self._holder or this_process()
        return Claim(((self._queue, limit),), limit, first.key, first.lease_time, holder=holder)

    def _hand_out(self, waiters: list[Waiter], claimed: Sequence[Claimed]) -> Sequence[Claimed]:
        """Give what was claimed to those who are still there; return what is left over."""
        start = 0
        began_to_wait = False
        for waiter in waiters:
            if waiter.turn.done():
                continue
            if start < len(claimed):
                end = start + waiter.many
                self._line.pop(waiter, None)
                self._served[waiter] = claimed[start:end]
                waiter.turn.set_result(claimed[start:end])
                start = end
            elif waiter.impatient:
                self._line.pop(waiter, None)
                waiter.turn.set_exception(too_late(waiter.key, waiter.timeout or 0))
            else:
                began_to_wait = began_to_wait or not waiter.idle
                waiter.answered = waiter.idle = True
        if began_to_wait and self.on_idle is not None:
            self.on_idle()
        return claimed[start:]

    def _give_up(self, waiter: Waiter) -> None:
        """The timeout of a consumer has passed.

        It is a `TimeoutError` only if the store has answered, since the consumer waits, that there
        is nothing. Otherwise the consumer waits `GRACE` longer for that answer, and then hears
        that the store did not answer.
        """
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
    return TimeoutError(f"{what} available within {timeout:g} s")
