"""Rounds in which a call of a store meets a disturbed network, and what is checked afterwards."""

import asyncio
import random
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from leasedkeyq import MemoryStore, connect
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Ack, Change, Extend, Purge, Refusal, Release
from leasedkeyq.stores import Store
from tests.torture.network.calls import LONG, VERBS, Place, Shown, Verb, left_behind
from tests.torture.network.frames import Frames, PostgresFrames, RedisFrames
from tests.torture.network.proxy import KINDS, Fault, FaultyNetwork, Kind, Network
from tests.torture.part import Findings

LOST: Final = "acknowledged changes lost or made twice"
TWICE: Final = "unacknowledged changes made twice or in part"
UNDONE: Final = "changes made that were told undone"
ANSWERS: Final = "wrong answers"
LATE: Final = "leases settled after their end"
STUCK: Final = "clients stuck"
STRANGE: Final = "errors that are no StoreError"
IMPATIENCE: Final = "calls failed within their patience"
WRONG: Final = (LOST, TWICE, UNDONE, ANSWERS, LATE, STUCK, STRANGE, IMPATIENCE)

UNKNOWN: Final = "not known whether"
"""Says in an error that a change may have been made."""
PATIENCE: Final = 60.0
"""Seconds for a call to come to its end, on a machine however busy."""
SHORT: Final = 0.3
"""Seconds of a lease that ends while its settlement is on its way."""
COMPANIONS: Final = 2
"""Calls that are made at the same time as the one that a round is about."""
DELAYS: Final = ("request delayed", "reply delayed", *KINDS[7:8])
"""Kinds of faults after which a request arrives later than its lease ends."""

OPTIONS: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "postgres": (
        {"patience": PATIENCE, "call_timeout": 0.4, "poll": 0.5},
        {"patience": 0.1, "call_timeout": 0.4, "poll": 0.5},
    ),
    "redis": (
        {
            "retry_for": PATIENCE,
            "poll": 0.5,
            "client_options": {"socket_timeout": 0.4, "socket_connect_timeout": 2.0},
        },
        {
            "retry_for": 0.1,
            "poll": 0.5,
            "client_options": {"socket_timeout": 0.4, "socket_connect_timeout": 2.0},
        },
    ),
}
"""Of the store that waits for its server, and of the one that soon gives up, by engine."""
FRAMES: Final[dict[str, Callable[[], Frames]]] = {
    "postgres": PostgresFrames,
    "redis": RedisFrames,
}


@dataclass
class Outcome:
    """What a caller was told."""

    answer: Any = None
    error: StoreError | None = None

    @property
    def unknown(self) -> bool:
        """Whether the caller cannot know if the change was made."""
        return self.error is not None and UNKNOWN in str(self.error)


class Line:
    """A network and two stores that reach their server through it, for one round after the other.

    Args:
        engine: Of the stores.
        network: The thread of the network.
        port: Of the server.
        address: The URL of a store whose server is at a port.
        direct: A store that reaches the server without disturbance.
        found: What the rounds find.
    """

    def __init__(
        self,
        engine: str,
        network: Network,
        *,
        port: int,
        address: Callable[[int], str],
        direct: Store,
        found: Findings,
    ) -> None:
        self.network = FaultyNetwork(network, port, FRAMES[engine]())
        self._url = address(self.network.port)
        self._options = OPTIONS[engine]
        self._direct = direct
        self._found = found
        self._stores: list[Store] = []

    async def open(self) -> None:
        """Open the stores."""
        self._stores = [
            await asyncio.to_thread(connect, self._url, **options) for options in self._options
        ]

    async def close(self) -> None:
        """Close the stores and the network."""
        for store in self._stores:
            await store.close()
        self.network.close()

    async def round(self, seed: int, dice: random.Random) -> None:
        """Disturb a call: which one, and how, the seed says."""
        name, kind = disturbed_by(seed)
        fault = Fault(
            kind,
            skip=dice.randrange(VERBS[name].requests),
            seconds=dice.choice((0.1, 0.6, 1.0)),
            refuses=dice.choice((0.0, 0.3)),
        )
        patient = dice.random() < 0.5
        store = self._stores[0 if patient else 1]
        what = f"{name}, {kind}, {'with' if patient else 'without'} patience"
        try:
            async with asyncio.timeout(4 * PATIENCE):
                if dice.random() < 0.15:
                    await self._waits(seed, dice, store)
                if kind in DELAYS and name in ("ack", "release", "extend"):
                    await self._expires(seed, name, fault, store)
                else:
                    await self._calls(seed, dice, name, fault, patient=patient)
        except TimeoutError:
            self._found.violation(STUCK, seed, f"{what}\n{traceback.format_exc()}")
        finally:
            self.network.disarm()
            await self._direct.settle([Purge(f"net-{seed}")])
        self._found.tried += fault.happened.is_set()
        self._found.counted[kind] += fault.happened.is_set()

    # Calls whose keys nobody else asks for

    async def _calls(
        self,
        seed: int,
        dice: random.Random,
        name: str,
        fault: Fault,
        *,
        patient: bool,
    ) -> None:
        store = self._stores[0 if patient else 1]
        verbs = [name, *dice.choices([*VERBS], k=COMPANIONS)]
        places = [
            Place(self._direct, f"net-{seed}-{number}", f"k{number}-")
            for number in range(len(verbs))
        ]
        known = [
            await VERBS[verb].prepare(place) for verb, place in zip(verbs, places, strict=True)
        ]
        await self._warm_up(seed, store)
        self.network.arm(fault)
        outcomes = await asyncio.gather(
            *(
                self._made(VERBS[verb].make(place.through(store), token))
                for verb, place, token in zip(verbs, places, known, strict=True)
            )
        )
        await self._works_again(seed, store)
        await self._settled()
        for verb, place, token, outcome in zip(verbs, places, known, outcomes, strict=True):
            what = f"{verb} beside {verbs}, {fault.kind}"
            self._count(outcome)
            if outcome.error is not None and patient and not VERBS[verb].may_fail:
                self._found.violation(IMPATIENCE, seed, f"{what}: {outcome.error}")
            await self._judge(seed, what, VERBS[verb], place, outcome)
            if outcome.unknown and VERBS[verb].repeatable:
                await self._again(seed, what, VERBS[verb], place.through(store), token)
        for place in places:
            await self._direct.settle([Purge(place.queue)])

    async def _made(self, call: Awaitable[Any]) -> Outcome:
        try:
            return Outcome(await call)
        except StoreError as error:
            return Outcome(error=error)
        except Exception as error:
            return Outcome(StrangeError(error))

    def _count(self, outcome: Outcome) -> None:
        if outcome.error is None:
            self._found.counted["calls that were answered"] += 1
        elif outcome.unknown:
            self._found.counted["calls that may have changed something"] += 1
        else:
            self._found.counted["calls that failed and changed nothing"] += 1

    async def _judge(
        self, seed: int, what: str, verb: Verb, place: Place, outcome: Outcome
    ) -> None:
        """Compare what is left of a call with what it leaves behind where nothing is disturbed."""
        before, _ = await undisturbed(verb, place, make=False)
        after, answer = await undisturbed(verb, place, make=True)
        left = await left_behind(place)
        if isinstance(outcome.answer, StrangeError):
            self._found.violation(STRANGE, seed, f"{what}: {outcome.answer}")
        elif outcome.error is None:
            if left != after:
                self._found.violation(LOST, seed, f"{what}: {difference(after, left)}")
            if not same(outcome.answer, answer):
                words = f"{what}: {outcome.answer!r} and not {answer!r}"
                self._found.violation(ANSWERS, seed, words)
        elif outcome.unknown:
            self._found.counted["of these, those that had"] += left == after
            if left not in (before, after):
                self._found.violation(TWICE, seed, f"{what}: {difference(after, left)}")
        elif left != before:
            words = f"{what}: {difference(before, left)}; the error: {outcome.error}"
            self._found.violation(UNDONE, seed, words)

    async def _again(self, seed: int, what: str, verb: Verb, place: Place, token: Any) -> None:
        """Call again what may have been made: then it has been made, once."""
        outcome = await self._made(self._patiently(lambda: verb.make(place, token)))
        if outcome.error is not None or isinstance(outcome.answer, StrangeError):
            words = f"{what}, called again: {outcome.error or outcome.answer}"
            self._found.violation(STUCK, seed, words)
            return
        after, _ = await undisturbed(verb, place, make=True)
        left = await left_behind(place.through(self._direct))
        if left != after:
            words = f"{what}, called again: {difference(after, left)}"
            self._found.violation(TWICE, seed, words)

    # Leases that end while their settlement is on its way

    async def _expires(self, seed: int, name: str, fault: Fault, store: Store) -> None:
        """A rival takes the key as soon as it can: either has the lease, never both."""
        place = Place(self._direct, f"net-{seed}", "k", SHORT)
        await place.put('"first"')
        await self._warm_up(seed, store)
        fault.skip = 0
        fault.seconds = max(fault.seconds, 2 * SHORT)
        [mine] = await place.take()
        names = (place.queue, place.key, mine.token)
        changes: dict[str, Change] = {
            "ack": Ack(*names),
            "release": Release(*names),
            "extend": Extend(*names, 1.0),
        }
        self.network.arm(fault)
        through = place.through(store)
        call = asyncio.create_task(self._made(through.settle(changes[name])))
        rival = Place(self._direct, place.queue, place.key)
        theirs = await rival.take()
        while not theirs and not (call.done() and not self.network.under_way):
            await asyncio.sleep(0.05)
            theirs = await rival.take()
        outcome = await call
        await self._settled()
        self._count(outcome)
        accepted = outcome.error is None and not isinstance(outcome.answer, Refusal)
        what = f"{name} of a lease of {SHORT} s, {fault.kind}: {outcome}"
        if isinstance(outcome.answer, StrangeError):
            self._found.violation(STRANGE, seed, what)
        if theirs:
            self._found.counted["leases that ended while their settlement was on its way"] += 1
            if theirs[0].fence <= mine.fence or (accepted and name == "ack"):
                self._found.violation(LATE, seed, f"{what}, and a rival has it: {theirs}")
            # What arrives late has not touched the lease of the rival.
            answer = await rival.settle(Ack(rival.queue, rival.key, theirs[0].token))
            if answer is not None:
                self._found.violation(LATE, seed, f"{what}, and the rival is refused")
        await self._works_again(seed, store)

    # Consumers that wait

    async def _waits(self, seed: int, dice: random.Random, store: Store) -> None:
        """All connections are lost, or silent, while a `get` waits: it is served all the same."""
        queue = store.queue(f"net-{seed}-wait", default_lease_timeout=LONG)
        getting = asyncio.create_task(self._patiently(queue.get))
        deadline = time.monotonic() + 2.0
        while not self.network.listeners and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        self.network.disturb_all(dice.choice(("cut", "silent")))
        await asyncio.sleep(dice.random() * 0.1)
        await self._direct.queue(queue.name).put("k", "value")
        key, value, lease = await getting
        assert (key, value) == ("k", "value"), (key, value)
        await self._patiently(lambda: queue.ack(lease))
        await queue.close()
        self._found.counted["waiting consumers whose connections were lost"] += 1

    async def _patiently(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Call until it succeeds: a store without patience may fail more than once."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return await call()
            except StoreError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)

    # Before and after

    async def _warm_up(self, seed: int, store: Store) -> None:
        """Have connections and statements ready, so that the next request is the call's."""
        place = Place(store, f"net-{seed}-probe", "k")
        await self._patiently(lambda: place.put('"1"', "update"))
        await self._patiently(lambda: place.store.count([place.queue]))

    async def _works_again(self, seed: int, store: Store) -> None:
        """The store object works on, whatever has happened to its connections."""
        place = Place(store, f"net-{seed}-probe", "k")
        try:
            await self._patiently(lambda: place.put('"2"', "update"))
            [claimed] = await self._patiently(place.take) or [None]
            # A claim may have been made by a call that failed.
            if claimed is not None:
                ack = Ack(place.queue, place.key, claimed.token)
                await self._patiently(lambda: place.settle(ack))
            await self._direct.settle([Purge(place.queue)])
        except StoreError as error:
            self._found.violation(STUCK, seed, f"the store does not work any more: {error}")

    async def _settled(self) -> None:
        """Wait until all that is late has arrived."""
        deadline = time.monotonic() + PATIENCE
        while self.network.under_way:
            assert time.monotonic() < deadline, "a disturbed request does not come to its end"
            await asyncio.sleep(0.01)


class StrangeError(Exception):
    """An error that is none of a store."""


def disturbed_by(seed: int) -> tuple[str, Kind]:
    """The call and the fault of a round. Their numbers have no common divisor: all pairs meet."""
    return [*VERBS][seed % len(VERBS)], KINDS[seed % len(KINDS)]


async def undisturbed(verb: Verb, place: Place, *, make: bool) -> tuple[Shown, Any]:
    """What a store in memory has after a call, or without it, and what it answers."""
    async with MemoryStore() as store:
        here = place.through(store)
        known = await verb.prepare(here)
        answer = await verb.make(here, known) if make else None
        return await left_behind(here), answer


def same(answer: Any, other: Any) -> bool:
    """Whether two answers are the same; refusals are, whatever they say."""
    return answer == other or (isinstance(answer, Refusal) and isinstance(other, Refusal))


def difference(wanted: Shown, left: Shown) -> str:
    """Two states of a key, for people."""
    return f"there is {left}, and should be {wanted}"


async def run_rounds(
    lines: list[Line], seeds: range, dice_of: Callable[[int], random.Random]
) -> None:
    """Run all rounds, side by side on the lines: a round mostly waits."""
    waiting = iter(seeds)

    async def work(line: Line) -> None:
        for seed in waiting:
            await line.round(seed, dice_of(seed))

    for line in lines:
        await line.open()
    await asyncio.gather(*map(work, lines))
    for line in lines:
        await line.close()
