"""Makes the steps of `tests.local.model_steps` with a `LeasedKeyQueue` and its naive model."""

import pickle
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from leasedkeyq import Lease, QueueClosedError
from tests.local.model_stage import (
    Caller,
    Got,
    Outcome,
    Stage,
    at_once,
    outcome,
    outcome_of,
    shown_buried,
)
from tests.local.model_steps import (
    CONFIGS,
    KEYS,
    MAY_WAIT,
    MOODS,
    SETTLE,
    TURNS_THE_LOOP,
    Config,
    Mood,
    Op,
    door_options,
    misuses,
    naive_policy,
)
from tests.local.naive_types import Claim, NaiveLease, Producer


class BlockError(Exception):
    """What goes wrong inside an ``async with queue.lease()``."""


class Rig(Stage):
    """Makes steps. The methods that are no steps begin with an underscore, but for three."""

    async def do(self, op: Op) -> None:
        """Make one step, and compare."""
        self._count([op])
        if op.name in TURNS_THE_LOOP:
            self.before_turn()
            await getattr(self, op.name)(*op.args)
        elif op.name in MAY_WAIT and self._will_wait(op):
            await self._in_one_turn([op])
        else:
            self._now(op)
        if op.name != "jump":
            self.check()

    async def burst(self, ops: Sequence[Op]) -> None:
        """Make steps in one turn of the event loop, before any of their effects on tasks."""
        self._count(ops)
        await self._in_one_turn(ops)
        self.check()

    async def again(self, moves: Sequence[Sequence[Op]]) -> None:
        """Make the steps of a `history`."""
        for ops in moves:
            await (self.do(ops[0]) if len(ops) == 1 else self.burst(ops))

    def _count(self, ops: Sequence[Op]) -> None:
        self.steps += len(ops)
        self.history.append(ops)

    async def _in_one_turn(self, ops: Sequence[Op]) -> None:
        self.before_turn()
        for op in ops:
            if op.name in MAY_WAIT:
                caller = Caller(op)
                caller.task = self.loop.create_task(self._call(caller))
                self.callers.append(caller)
            else:
                self.loop.call_soon(self._in_burst, op)
        await self.turn()

    def _in_burst(self, op: Op) -> None:
        try:
            self._now(op)
            self.check()
        except BaseException as error:  # raised again after the turn
            self.failures.append(error)

    def _now(self, op: Op) -> None:
        if op.name in MAY_WAIT:
            at_once(self._call(Caller(op)))
        else:
            getattr(self, op.name)(*op.args)

    async def _call(self, caller: Caller) -> None:
        caller.arrived = True
        self.catch_up()
        await getattr(self, caller.op.name)(caller, *caller.op.args)
        caller.done = True

    def _will_wait(self, op: Op) -> bool:
        """What the model thinks, before the call is made."""
        model = self.model
        model.advance()
        if model.closed:
            return False
        name, args = op
        if name in ("put", "put_many", "requeue"):
            producer = self._producer(op)
            if producer is None or producer.most > self.config.maxsize:
                return False
            return not model.may_put(producer)
        if name == "join":
            return not model.is_done()
        key, timeout = None, None
        if name in ("take", "lease"):
            key, timeout = args[:2]
        elif name != "iterate":
            timeout = args[-2]
        there = model.in_order()
        return timeout != 0 and not (there if key is None else any(i.key == key for i in there))

    # Putting

    def _value(self) -> int:
        self.values += 1
        return self.values

    def _producer(self, op: Op) -> Producer | None:
        """The producer of a put, put_many or requeue, for the model. None: nothing to requeue."""
        name, args = op
        if name == "requeue":
            index, policy = args
            if not self.buried:
                return None
            naive = self.buried[index % len(self.buried)][1]
            if naive not in self.model.given_up:
                return None
            return self.model.requeuing(naive, naive_policy(policy))
        keys, policy, priority, delay = args
        return self._putting(keys, policy, priority, delay)

    def _putting(
        self, keys: Sequence[str], policy: str, priority: int | None, delay: float | None
    ) -> Producer:
        """A put of new values, for the model. Where it replaces, the last value of a key counts."""
        items = [(key, self._value()) for key in keys]
        if naive_policy(policy) in ("update", "buffer", "reject") and policy != "newest":
            items = list(dict(items).items())
        if policy == "newest":
            items = list(dict(items).items())
        return Producer(items, naive_policy(policy), priority, delay)

    async def put(
        self, caller: Caller, key: str, policy: str, priority: int | None, delay: float | None
    ) -> None:
        producer = self._putting([key], policy, priority, delay)
        [(_, value)] = producer.items
        options: dict[str, Any] = {**door_options(policy), "priority": priority, "delay": delay}
        answer, got = await self._produce(
            caller, producer, lambda: self.queue.put(key, value, **options)
        )
        assert answer is None or [got] == answer

    async def put_many(
        self,
        caller: Caller,
        keys: Sequence[str],
        policy: str,
        priority: int | None,
        delay: float | None,
    ) -> None:
        producer = self._putting(keys, policy, priority, delay)
        as_mapping = len(keys) % 2 and len(set(keys)) == len(keys)
        items = dict(producer.items) if as_mapping else producer.items
        options: dict[str, Any] = {**door_options(policy), "priority": priority, "delay": delay}
        answer, got = await self._produce(
            caller, producer, lambda: self.queue.put_many(items, **options)
        )
        assert answer is None or got == Counter(answer)

    async def requeue(self, caller: Caller, index: int, policy: str) -> None:
        if not self.buried:
            return
        item, naive = self.buried[index % len(self.buried)]
        await self._produce(
            caller,
            self.model.requeuing(naive, naive_policy(policy)),
            lambda: self.queue.requeue(item, **door_options(policy)),
        )

    async def _produce(
        self, caller: Caller, producer: Producer, call: Callable[[], Awaitable[Any]]
    ) -> tuple[Any, Any]:
        expected = outcome(lambda: self.model.produce(producer))
        return await self.wait(caller, expected, call)

    def put_nowait(self, key: str, policy: str, priority: int | None, delay: float | None) -> None:
        producer = self._putting([key], policy, priority, delay)
        [(_, value)] = producer.items
        options: dict[str, Any] = {**door_options(policy), "priority": priority, "delay": delay}
        answer, got = self.compare(
            lambda: self.model.put_nowait(producer),
            lambda: self.queue.put_nowait(key, value, **options),
        )
        assert got == answer

    # Getting

    async def get(self, caller: Caller, timeout: float | None, lease_time: float | None) -> None:
        expected = outcome(lambda: self.model.get(timeout, lease_time))
        await self._consume(
            caller, expected, lambda: self.queue.get(timeout, lease_timeout=lease_time)
        )

    async def take(
        self, caller: Caller, key: str, timeout: float | None, lease_time: float | None
    ) -> None:
        expected = outcome(lambda: self.model.take(key, timeout, lease_time))
        await self._consume(
            caller, expected, lambda: self.queue.take(key, timeout, lease_timeout=lease_time)
        )

    async def iterate(self, caller: Caller) -> None:
        async def first() -> Got:
            async for got in self.queue:
                return got
            raise QueueClosedError("the iteration has ended")

        expected = outcome(lambda: self.model.get(None, None))
        await self._consume(caller, expected, first)

    async def get_many(
        self, caller: Caller, n: int, timeout: float | None, lease_time: float | None
    ) -> None:
        expected = outcome(lambda: self.model.get(timeout, lease_time))
        answer, got = await self.wait(
            caller, expected, lambda: self.queue.get_many(n, timeout, lease_timeout=lease_time)
        )
        if isinstance(answer, Claim):
            claims = [answer]
            while len(claims) < n and (more := self.model.get_or_none(lease_time)):
                claims.append(more)
            assert len(got) == len(claims)
            for claim, one in zip(claims, got, strict=True):
                self.receive(claim, one)

    async def lease(
        self,
        caller: Caller,
        key: str | None,
        timeout: float | None,
        lease_time: float | None,
        leaving: tuple[bool, bool, float | None],
    ) -> None:
        """Work on an item in an ``async with`` block, which fails or not."""
        fails, front, delay = leaving
        model = self.model
        block = self.queue.lease(
            key, timeout, lease_timeout=lease_time, requeue_front=front, delay=delay
        )
        if key is None:
            expected = outcome(lambda: model.get(timeout, lease_time))
        else:
            expected = outcome(lambda: model.take(key, timeout, lease_time))
        claim, got = await self.wait(caller, expected, block.__aenter__)
        if claim is None:
            return
        self.receive(claim, got)
        failure = BlockError() if fails else None

        async def leave() -> bool | None:
            try:
                return await block.__aexit__(BlockError if fails else None, failure, None)
            except BlockError as error:
                return error is not failure

        if failure is None:
            settled = outcome(lambda: model.ack(claim.lease))
        else:
            settled = outcome(lambda: model.release(claim.lease, front=front, delay=delay))
            if settled[0] in ("InvalidLeaseError", "LeaseExpiredError"):
                settled = ("returned", None)  # the block lets its own exception pass
        left = await outcome_of(leave)
        assert left[0] == settled[0], f"{left} instead of {settled}"
        assert left[0] != "returned" or not left[1], "the exception did not pass"

    async def _consume(
        self, caller: Caller, expected: Outcome, call: Callable[[], Awaitable[Got]]
    ) -> None:
        answer, got = await self.wait(caller, expected, call)
        if isinstance(answer, Claim):
            self.receive(answer, got)

    def get_nowait(self, lease_time: float | None) -> None:
        answer, got = self.compare(
            lambda: self.model.get_nowait(lease_time),
            lambda: self.queue.get_nowait(lease_timeout=lease_time),
        )
        if isinstance(answer, Claim):
            self.receive(answer, got)

    def take_nowait(self, key: str, lease_time: float | None) -> None:
        answer, got = self.compare(
            lambda: self.model.take_nowait(key, lease_time),
            lambda: self.queue.take_nowait(key, lease_timeout=lease_time),
        )
        if isinstance(answer, Claim):
            self.receive(answer, got)

    async def join(self, caller: Caller) -> None:
        await self.wait(caller, outcome(self.model.join), self.queue.join)

    # Settling

    def _lease(self, index: int, looks: str) -> tuple[Lease[str], NaiveLease | None]:
        """A lease, and what the model has for it."""
        if looks == "foreign" and self.foreign_leases:
            return self.foreign_leases[index % len(self.foreign_leases)], None
        if looks == "forged" or not self.tickets:
            return Lease(f"token {index}", KEYS[index % len(KEYS)]), None
        # Live leases twice, so that they come up more often.
        live = [ticket for ticket in self.tickets if not ticket.naive.ended]
        tickets = [*live, *live, *self.tickets]
        lease, naive = tickets[index % len(tickets)]
        if looks == "copy":
            return pickle.loads(pickle.dumps(lease)), naive
        if looks == "other key":
            other = KEYS[(KEYS.index(lease.key) + 1) % len(KEYS)]
            return Lease(lease.token, other, lease.fence, lease.attempt), None
        return lease, naive

    def ack(self, index: int, looks: str) -> None:
        lease, naive = self._lease(index, looks)
        self.compare(lambda: self.model.ack(naive), lambda: at_once(self.queue.ack(lease)))

    def release(self, index: int, looks: str, way_back: tuple[bool, float | None]) -> None:
        lease, naive = self._lease(index, looks)
        front, delay = way_back
        self.compare(
            lambda: self.model.release(naive, front=front, delay=delay),
            lambda: at_once(self.queue.release(lease, requeue_front=front, delay=delay)),
        )

    def extend(self, index: int, looks: str, timeout: float | None) -> None:
        lease, naive = self._lease(index, looks)
        self.compare(
            lambda: self.model.extend(naive, timeout),
            lambda: at_once(self.queue.extend(lease, timeout)),
        )
        if naive is not None and naive.ended is None:
            assert lease.expires_at == naive.expires_at

    def bury(self, index: int, looks: str, hold: bool) -> None:
        lease, naive = self._lease(index, looks)
        error = f"error {self._value()}"
        answer, got = self.compare(
            lambda: self.model.bury(naive, error, hold),
            lambda: at_once(self.queue.bury(lease, error, hold=hold)),
        )
        if answer is not None:
            assert shown_buried(got) == shown_buried(answer)
            self.buried = [*self.buried[-5:], (got, answer)]

    # The rest

    def requeue_foreign(self, index: int) -> None:
        """A buried item of another queue, whose number may well be in use here."""
        if self.foreign_buried and not self.model.closed:
            item = self.foreign_buried[index % len(self.foreign_buried)]
            actual = outcome(lambda: at_once(self.queue.requeue(item)))
            assert actual[0] == "KeyError", f"requeue of another queue's item: {actual}"

    def purge_buried(self) -> None:
        answer, got = self.compare(
            self.model.purge_buried, lambda: at_once(self.queue.purge_buried())
        )
        assert answer == got

    def remove(self, key: str) -> None:
        answer, got = self.compare(
            lambda: self.model.remove(key), lambda: at_once(self.queue.remove(key))
        )
        assert answer == got

    def remove_one(self, key: str, index: int) -> None:
        """One value of a key, as its line shows it; now and then one that is not there."""
        self.catch_up()
        shown = [] if self.model.closed else self.line(key)
        place = index if index < len(shown) else None
        number = shown[index].id if place is not None else 10**6
        answer, got = self.compare(
            lambda: self.model.remove_one(key, place),
            lambda: at_once(self.queue.remove(key, id=number)),
        )
        assert answer == got

    def purge_line(self, key: str) -> None:
        answer, got = self.compare(
            lambda: self.model.purge_line(key), lambda: at_once(self.queue.purge_line(key))
        )
        assert answer == got

    def discard(self, index: int) -> None:
        if self.buried:
            item, naive = self.buried[index % len(self.buried)]
            self.compare(
                lambda: self.model.discard(naive), lambda: at_once(self.queue.discard(item))
            )

    def misuse(self, index: int) -> None:
        """A call that makes no sense is refused with an error that names the argument."""
        if self.model.closed:
            return
        lease = self.tickets[0].lease if self.tickets else Lease("x", "a")
        mistakes = misuses(self.queue, lease)
        name, kind, call = mistakes[index % len(mistakes)]
        actual = outcome(lambda: at_once(call()))
        assert actual[0] == kind, f"wrong {name}: {actual}"
        assert name in str(actual[1]), f"the error does not name {name}: {actual[1]}"

    def cancel(self, index: int) -> None:
        """Cancel a task, first of all one that is about to be served."""
        waiting = [c for c in self.callers if c.waiting is not None and not c.waiting.cancelled]
        owed = self.model.owed()
        waiting.sort(key=lambda caller: caller.waiting not in owed)
        if waiting:
            caller = waiting[index % len(waiting)]
            assert caller.task is not None
            assert caller.waiting is not None
            caller.task.cancel()
            self.model.cancel(caller.waiting)

    def cancel_all(self, direction: int) -> None:
        """Cancel all who wait, in the order of their coming or the other way round."""
        for caller in self.callers[::direction]:
            if caller.task is not None and caller.waiting is not None:
                caller.task.cancel()
                self.model.cancel(caller.waiting)

    def close(self) -> None:
        self.compare(self.model.close, lambda: at_once(self.queue.close()))
        assert self.queue.closed

    async def fresh(self, config: Config) -> None:
        """Another queue, for which what is left of this one is foreign."""
        await self.dismiss()
        await self.queue.close()
        self.foreign_leases = [ticket.lease for ticket in self.tickets][-4:]
        self.foreign_buried = [item for item, _ in self.buried][-4:]
        self.open(config)


async def walk(rig: Rig, rng: random.Random, steps: int) -> None:
    """Make so many random steps, some of them in bursts."""
    goal = rig.steps + steps
    mood = MOODS[0]
    while rig.steps < goal:
        chance = rng.random()
        if chance < 0.01:
            mood = rng.choice(MOODS)
        elif chance < 0.07:
            size = min(rng.randint(2, 5), goal - rig.steps)
            await rig.burst([mood.op(rng, in_a_burst=True) for _ in range(size)])
        elif chance < 0.085:
            await _crowd(rig, rng, mood)
        elif chance < 0.10:
            # What has expired meanwhile is noticed by the very next call.
            await rig.do(mood.op_of(rng, "jump"))
            await rig.do(mood.op_of(rng, rng.choice(tuple(SETTLE))))
        elif chance < 0.104 and rig.model.producers:
            # Room, and the end, before the producer that is woken gets to run.
            await rig.do(mood.op_of(rng, "get_nowait"))
            await rig.do(Op("close"))
        elif chance < 0.30 and rig.model.closed:
            await rig.do(Op("fresh", (rng.choice(CONFIGS),)))
        else:
            await rig.do(mood.op(rng))


async def _crowd(rig: Rig, rng: random.Random, mood: Mood) -> None:
    """Serve a crowd at once, and let some of it give back, from the middle and in any order."""
    await rig.burst([Op("get", (None, None))] * rng.randint(1, 5))
    await rig.do(Op("put_many", (KEYS, rng.choice(("update", "append")), None, None)))
    names = (
        "cancel",
        "cancel",
        "cancel",
        "turn",
        "turn",
        "release",
        "release",
        "put",
        "take_nowait",
    )
    for _ in range(rng.randint(0, 12)):
        name = rng.choice(names)
        await rig.do(mood.op_of(rng, name))


def walk_from(seed: int, steps: int) -> int:
    """A random walk from beginning to end; returns the steps that were made."""
    rng = random.Random(seed)
    rig = Rig(rng.choice(CONFIGS))
    try:
        rig.run(walk(rig, rng, steps))
        rig.end()
    except BaseException as error:
        moves = "\n  ".join(map(repr, list(rig.history)[-12:]))
        error.add_note(f"seed {seed}, step {rig.steps}, {rig.config}, last:\n  {moves}")
        raise
    finally:
        rig.drop()
    return rig.steps
