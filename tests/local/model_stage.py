"""A stage for a `LeasedKeyQueue` and its naive model: an event loop, tasks, and the comparing.

Calls that have to wait are real tasks. Nothing settles the event loop between two steps but the
steps that say so: a task may have been handed an item, or be cancelled, and not know it yet. The
model need not guess in which order the event loop runs the tasks: each reports when it resumes,
and the model says whether that was right and what the call must return. What the model does
predict is who is served, with what, and that everybody who is owed something gets it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, NamedTuple, TypeVar

from leasedkeyq import (
    BuriedItem,
    InvalidLeaseError,
    ItemSnapshot,
    KeyAlreadyInFlightError,
    KeyAlreadyPresentError,
    KeyNotAvailableError,
    Lease,
    LeasedKeyQError,
    LeasedKeyQueue,
    QueueObserver,
)
from leasedkeyq.testing import VirtualTimeLoop
from tests.local.model_steps import KEYS, Config, Op
from tests.local.naive_queue import NaiveQueue
from tests.local.naive_types import (
    Claim,
    Consumer,
    Event,
    Joiner,
    NaiveBuried,
    NaiveLease,
    Producer,
    Shown,
)
from tests.local.queue_invariants import check_invariants, check_lines

T = TypeVar("T")
Queue = LeasedKeyQueue[str, int]
Got = tuple[str, int, Lease[str]]

Outcome = tuple[str, Any]
"""What came of a call: "returned" and the result, or the name of an error and its data."""


@dataclass(eq=False)
class Caller:
    """A call of the queue that may wait, in a task of its own or not."""

    op: Op
    task: asyncio.Task[None] | None = None
    waiting: Consumer | Producer | Joiner | None = None
    arrived: bool = False
    done: bool = False


class Ticket(NamedTuple):
    """A lease of the queue, and what the model has for it."""

    lease: Lease[str]
    naive: NaiveLease


class Log(QueueObserver[str]):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_put(self, key: str) -> None:
        self.events.append(("put", key, 0, 0.0))

    def on_claim(self, key: str, attempt: int, waited: float) -> None:
        self.events.append(("claim", key, attempt, waited))

    def on_ack(self, key: str, attempt: int, held: float) -> None:
        self.events.append(("ack", key, attempt, held))

    def on_release(self, key: str, attempt: int, held: float) -> None:
        self.events.append(("release", key, attempt, held))

    def on_expire(self, key: str, attempt: int, held: float) -> None:
        self.events.append(("expire", key, attempt, held))

    def on_bury(self, key: str, attempt: int, held: float) -> None:
        self.events.append(("bury", key, attempt, held))

    def on_remove(self, key: str) -> None:
        self.events.append(("remove", key, 0, 0.0))


class Stage:
    """One event loop with a queue, its model, and tasks that wait for something."""

    def __init__(self, config: Config) -> None:
        self.loop = VirtualTimeLoop()
        self.complaints: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.complaints.append(context))
        self.steps = 0
        self.history: deque[Sequence[Op]] = deque(maxlen=100)
        self.values = 0
        self.foreign_leases: list[Lease[str]] = []
        self.foreign_buried: list[BuriedItem[str, int]] = []
        self.failures: list[BaseException] = []
        self.jumped = False
        self.open(config)

    def open(self, config: Config) -> None:
        """Begin with a new queue. For it, what is left of the one before is foreign."""
        self.config = config
        self.log = Log()
        self.queue = Queue(
            default_lease_timeout=config.lease_time,
            maxsize=config.maxsize,
            max_buried=config.max_buried,
            observer=self.log if config.observed else None,
        )
        self.model = NaiveQueue(
            config.lease_time, config.maxsize, config.max_buried, self.loop.time()
        )
        self.callers: list[Caller] = []
        self.tickets: list[Ticket] = []
        self.buried: list[tuple[BuriedItem[str, int], NaiveBuried]] = []
        self.latest: Ticket | None = None

    def run(self, steps: Coroutine[Any, Any, T]) -> T:
        async def and_look() -> T:
            result = await steps
            self.before_turn()
            return result

        return self.loop.run_until_complete(and_look())

    # The event loop

    def before_turn(self) -> None:
        """Look, if the event loop was blocked.

        Without a call of the queue in between, the order in which late timers ring decides who
        is served, and that is the event loop's.
        """
        if self.jumped:
            self.check()

    async def turn(self) -> None:
        """Let everybody run who can, once."""
        await asyncio.sleep(0)
        self._after_turn()

    async def settle(self) -> None:
        """Let everybody run until nobody is owed anything."""
        await self.turn()
        for _ in range(100):
            await self.turn()
            if not self.model.owed():
                break
        else:
            raise AssertionError(f"a wake-up was lost: {self.model.owed()}")
        model = self.model
        check_lines(
            self.queue,
            getters=sum(consumer.key is None for consumer in model.consumers),
            takers=sum(consumer.key is not None for consumer in model.consumers),
            producers=len(model.producers),
            joiners=len(model.joiners),
        )

    async def idle(self, seconds: float) -> None:
        """Let time pass in the event loop, where timers ring."""
        await asyncio.sleep(seconds)
        self._after_turn()

    def jump(self, seconds: float) -> None:
        """Block the event loop. Only the next call, or turn, notices how late it is."""
        self.loop.jump(seconds)
        self.model.now = self.loop.time()
        self.jumped = True
        # Late timers ring together, earliest first. This one is the first of them.
        self.loop.call_at(0, self.model.time_out, self.model.now)

    def catch_up(self) -> None:
        """Tell the model what time it is, in an event loop that is not blocked."""
        self.model.pass_time(self.loop.time())

    def _after_turn(self) -> None:
        self.catch_up()
        for failure in self.failures:
            raise failure
        for caller in self.callers:
            if caller.task is not None and caller.task.done():
                caller.task.result()
            elif caller.arrived and caller.waiting is None:
                raise AssertionError(f"{caller.op} waits and need not")
        self.callers = [caller for caller in self.callers if not caller.done]

    async def dismiss(self) -> None:
        """Cancel everybody who waits, and see that they go."""
        for caller in self.callers:
            if caller.task is not None and caller.waiting is not None:
                caller.task.cancel()
                self.model.cancel(caller.waiting)
        await self.settle()
        assert not self.callers
        self.check()

    def end(self) -> None:
        """Make the last comparison and leave nothing behind."""
        try:
            self.run(self._end())
            assert not asyncio.all_tasks(self.loop)
        finally:
            self.drop()

    async def _end(self) -> None:
        await self.dismiss()
        self.compare(self.model.close, lambda: at_once(self.queue.close()))
        self.check()
        await self.settle()

    def drop(self) -> None:
        """Leave nothing behind, whatever has happened."""
        if self.loop.is_closed():
            return
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        for _ in range(100):
            if all(task.done() for task in tasks):
                break
            self.loop.run_until_complete(asyncio.sleep(0))
        for task in tasks:
            if task.done() and not task.cancelled():
                task.exception()
        self.loop.close()

    # Comparing

    async def wait(
        self, caller: Caller, expected: Outcome, call: Callable[[], Awaitable[Any]]
    ) -> tuple[Any, Any]:
        """Make a call that may take its time.

        Returns what the model and the queue say: two results, or twice None after an error.
        """
        if isinstance(expected[1], Consumer | Producer | Joiner):
            caller.waiting = expected[1]
        actual = await outcome_of(call)
        waited = caller.waiting
        if waited is not None:
            self.catch_up()
            expected = outcome(lambda: self.model.resume(waited))
        return self._same(expected, actual)

    def compare(self, expect: Callable[[], Any], call: Callable[[], Any]) -> tuple[Any, Any]:
        """Make a call that does not wait. Returns what the model and the queue say."""
        self.catch_up()
        return self._same(outcome(expect), outcome(call))

    def _same(self, expected: Outcome, actual: Outcome) -> tuple[Any, Any]:
        assert actual[0] == expected[0], f"{actual} instead of {expected}"
        if actual[0] != "returned":
            assert actual[1] == expected[1], f"{actual} instead of {expected}"
            return None, None
        return expected[1], actual[1]

    def receive(self, claim: Claim, got: Got) -> None:
        """Somebody has got an item: the right one, with the right lease."""
        key, value, lease = got
        naive = claim.lease
        assert (key, value) == (claim.key, claim.value), f"{got} instead of {claim}"
        assert lease.key == key
        assert lease.attempt == naive.attempt
        assert lease.expires_at == naive.expires_at
        ticket = Ticket(lease, naive)
        latest = self.latest
        if latest is not None:
            is_later = naive.number > latest.naive.number
            assert (lease.fence > latest.lease.fence) == is_later, "fences do not grow"
        if latest is None or naive.number > latest.naive.number:
            self.latest = ticket
        self.tickets.append(ticket)
        ended = [ticket for ticket in self.tickets if ticket.naive.ended]
        if len(ended) > 6:
            self.tickets.remove(ended[0])

    def line(self, key: str) -> list[ItemSnapshot[str, int]]:
        """What the queue shows of a key."""

        async def all_of_it() -> list[ItemSnapshot[str, int]]:
            return [item async for item in self.queue.line(key)]

        line: list[ItemSnapshot[str, int]] = at_once(all_of_it())
        return line

    def check(self) -> None:
        """Compare everything that can be seen, and look inside."""
        model, queue = self.model, self.queue
        self.catch_up()
        self.jumped = False
        model.advance()
        items = at_once(queue.snapshot())
        assert len({item.id for item in items}) == len(items), "two values have one number"
        shown = [_shown(item) for item in items]
        expected = model.snapshot()
        assert shown == expected, f"{shown} instead of {expected}"
        assert at_once(queue.available_keys()) == model.available_keys()
        assert at_once(queue.scheduled_keys()) == model.scheduled_keys()
        assert at_once(queue.inflight_keys()) == model.inflight_keys()
        assert at_once(queue.qsize()) == model.qsize()
        assert at_once(queue.scheduled_size()) == model.scheduled_size()
        assert at_once(queue.inflight_size()) == model.inflight_size()
        key = KEYS[self.steps % len(KEYS)]
        line = self.line(key)
        assert [_shown(item) for item in line] == model.shown_line(key)
        ids = [item.id for item in line]
        assert ids == sorted(set(ids))
        assert at_once(queue.peek(key)) == model.peek(key)
        assert at_once(queue.contains(key)) == model.contains(key)
        buried = at_once(queue.buried())
        if buried or model.given_up:
            assert list(map(shown_buried, buried)) == list(map(shown_buried, model.given_up))
            numbers = [item.id for item in buried]
            assert numbers == sorted(set(numbers))
        if self.config.observed:
            assert sorted(self.log.events) == sorted(model.events)
        self.log.events.clear()
        model.events.clear()
        check_invariants(queue, most_timers=len(KEYS))
        assert not self.complaints, self.complaints


def _shown(item: ItemSnapshot[str, int]) -> Shown:
    return (item.key, item.value, item.state, item.priority, item.attempt, item.due)


def at_once(call: Any) -> Any:
    """The result of a coroutine that does not wait. Passes on what is no coroutine."""
    if type(call) is not CoroutineType:
        return call
    try:
        call.send(None)
    except StopIteration as end:
        return end.value
    call.close()
    raise AssertionError(f"{call} waits and need not")


_ERRORS = (
    LeasedKeyQError,
    TimeoutError,
    KeyError,
    ValueError,
    TypeError,
    asyncio.CancelledError,
)


def outcome(call: Callable[[], Any]) -> Outcome:
    try:
        return "returned", call()
    except _ERRORS as error:
        return type(error).__name__, _data(error)


async def outcome_of(call: Callable[[], Awaitable[Any]]) -> Outcome:
    try:
        return "returned", await call()
    except _ERRORS as error:
        return type(error).__name__, _data(error)


def _data(error: BaseException) -> object:
    match error:
        case InvalidLeaseError():
            return error.reason
        case KeyAlreadyInFlightError() | KeyAlreadyPresentError():
            return error.keys
        case KeyNotAvailableError():
            return error.key, error.state
        case ValueError() | TypeError():
            return str(error)
        case _:
            return None


def shown_buried(item: BuriedItem[str, int] | NaiveBuried) -> tuple[object, ...]:
    facts = (item.key, item.value, item.priority, item.attempt, item.error, item.buried_at)
    return (*facts, item.holds)
