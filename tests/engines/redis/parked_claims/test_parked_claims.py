"""Claims that stand on the server: what is put then is leased to them at once."""

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from leasedkeyq.engines.redis.parked_claims import ParkedClaimer
from leasedkeyq.engines.redis.store import RedisStore
from leasedkeyq.engines.redis.subscriber import Subscribers
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Ack, Cap, Claim, Claimed, Counts, Placed, Purge, Put, Refusal
from leasedkeyq.stores.store import Claimer
from leasedkeyq.telemetry import StoreMetrics
from tests.engines.redis.support import keys_of, opened, until
from tests.servers.proxy import Direction, Proxy, Verdict
from tests.servers.valkey import Server, makes

PATIENCE = 20.0
NEXT = Claim((("q", 1),), 1, lease_time=30.0)
fresh = itertools.count()


@pytest.fixture(scope="module", params=makes())
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(make=request.param) as running:
        yield running


def one(queue: str = "q", kind: str = "") -> Put:
    return Put(queue, ((f"key {next(fresh)}", b"1"),), kind=kind)


async def used(store: RedisStore, *queues: str) -> None:
    """Use queues once: what is known about a queue is not known before."""
    for queue in queues:
        await store.put([one(queue)])
        [[item]] = await store.claim([Claim(((queue, 1),), 1)])
        await store.settle([Ack(queue, item.key, item.token)])


class Worker:
    """Claims, and keeps what it was given."""

    def __init__(self, store: RedisStore, *queues: str) -> None:
        self.store = store
        self.given: list[Claimed] = []
        self.claimer: Claimer = store.claimer(self.given.append)
        self.stops = [store.watch(queue, lambda: None) for queue in queues or ("q",)]

    async def listening(self) -> None:
        assert isinstance(self.claimer, ParkedClaimer)
        channel = self.store._engine.worker_channel(self.claimer._worker)
        client = self.store._link.client
        await until(lambda: client.pubsub_numsub(channel)[0][1])

    async def claim(self, request: Claim = NEXT, *, idle: bool = True) -> tuple[Claimed, ...]:
        [found] = await self.claimer.claim([request], idle=idle)
        return found

    def left_at(self, queue: str = "q") -> bool:
        assert isinstance(self.claimer, ParkedClaimer)
        client, worker = self.store._link.client, self.claimer._worker
        left = client.get(self.store._engine.worker_channel(worker)) or b""
        return bool(
            left.startswith(b"\0")
            and client.sismember(self.store._engine.channel(queue)[:-1] + "s", worker)
        )

    def lose_messages(self) -> None:
        """Messages arrive, and nobody hears them."""
        assert isinstance(self.store._subscribers, Subscribers)
        [subscriber] = self.store._subscribers._by_loop.values()
        subscriber._takers = dict.fromkeys(subscriber._takers, lambda _: None)


@asynccontextmanager
async def scene(
    server: Server, prefix: str, *queues: str
) -> AsyncGenerator[tuple[RedisStore, Worker]]:
    """A store that puts, and an idle worker with a store of its own."""
    puts, claims = opened(server, prefix), opened(server, prefix, poll=PATIENCE)
    try:
        await used(puts, *(queues or ("q",)))
        worker = Worker(claims, *queues)
        await worker.listening()
        yield puts, worker
        for stop in worker.stops:
            stop()
    finally:
        await claims.close()
        await puts.close()


def test_instruments_are_told_of_what_was_given(server: Server, prefix: str) -> None:
    async def main() -> None:
        async with scene(server, prefix) as (store, worker):
            metrics = StoreMetrics()
            worker.store.instrument(metrics)
            assert await worker.claim() == ()
            await store.put([one("q")])
            await until(lambda: worker.given)
            await store.put([Put("q", (("b", b"1"),))])
            assert await worker.claim(idle=False)
            found = metrics.snapshot()
            assert found.items == {"q": {"claimed": 2}}
            assert found.verbs["claim"].requests == 2
            assert found.verbs["claim"].seconds.count == 2  # what was given is no call

    asyncio.run(main())


def test_what_is_put_is_leased_at_once(server: Server, prefix: str) -> None:
    async def main() -> None:
        async with scene(server, prefix) as (store, worker):
            assert await worker.claim() == ()
            assert worker.left_at()
            [placed] = await store.put([Put("q", (("a", b"value"),), kind="k", priority=3)])
            await until(lambda: worker.given)
            [item] = worker.given
            shown = (item.queue, item.key, bytes(item.value), item.kind, item.priority, item.id)
            assert shown[:-1] == ("q", "a", b"value", "k", 3)
            assert placed == (Placed(shown[-1], "added"),)
            assert item.attempt == 1
            assert (await store.count(["q"]))["q"].in_flight == 1
            assert not worker.left_at()
            ack = Ack("q", item.key, item.token)
            assert await worker.store.settle([ack]) == [None]
            [again] = await worker.store.settle([ack])
            assert isinstance(again, Refusal)

    asyncio.run(main())


def test_what_is_given_has_the_holder_of_the_claim(server: Server, prefix: str) -> None:
    """Whether a message tells of it, or taking the claim back does; for any text."""

    async def main() -> None:
        async with scene(server, prefix) as (store, worker):
            for number, holder in enumerate(("host:1", "a höst @ 5%", "")):
                assert await worker.claim(Claim((("q", 1),), 1, holder=holder)) == ()
                await store.put([Put("q", ((f"k{number}", b"value"),))])
                await until(lambda: worker.given)
                item = worker.given.pop()
                assert (item.key, bytes(item.value)) == (f"k{number}", b"value")
                [[shown]] = await store.look("q", [item.key])
                assert (shown.state, shown.holder) == ("in_flight", holder)
                assert await worker.store.settle([Ack("q", item.key, item.token)]) == [None]
            worker.lose_messages()
            assert await worker.claim(Claim((("q", 1),), 1, holder="host:2")) == ()
            await store.put([Put("q", (("late", b"value"),))])
            await worker.claim(idle=False)
            assert worker.given[-1].key == "late"
            [[shown]] = await store.look("q", ["late"])
            assert shown.holder == "host:2"
            late = Ack("q", "late", worker.given[-1].token)
            assert await worker.store.settle([late]) == [None]

    asyncio.run(main())


def test_claims_of_two_holders_are_not_parked(server: Server, prefix: str) -> None:
    """What is put would be given to either of them."""

    async def main() -> None:
        async with scene(server, prefix) as (_, worker):
            claims = [Claim((("q", 1),), 1, holder=holder) for holder in ("host:1", "host:2")]
            assert await worker.claimer.claim(claims, idle=True) == [(), ()]
            assert not worker.left_at()
            assert await worker.claimer.claim(claims[:1], idle=True) == [()]
            assert worker.left_at()

    asyncio.run(main())


def test_a_claim_is_given_one_item(server: Server, prefix: str) -> None:
    async def main() -> None:
        async with scene(server, prefix) as (store, worker):
            await worker.claim(Claim((("q", 10),), 10))
            for _ in range(3):
                await store.put([one()])
            await until(lambda: worker.given)
            await asyncio.sleep(0.05)
            assert len(worker.given) == 1
            assert (await store.count(["q"]))["q"].available == 2

    asyncio.run(main())


def test_a_lost_message_is_found_by_the_next_claim(server: Server, prefix: str) -> None:
    async def main() -> None:
        async with scene(server, prefix) as (store, worker):
            await worker.claim()
            worker.lose_messages()
            await store.put([one()])
            await store.put([one()])
            assert await worker.claim() == (), "there is no room for another one"
            assert len(worker.given) == 1
            assert len(await worker.claim()) == 1
            assert len(worker.given) == 1

    asyncio.run(main())


def test_what_was_given_and_is_leased_no_more(server: Server, prefix: str) -> None:
    """The worker claims as if nothing had been given."""

    async def main() -> None:
        async with scene(server, prefix) as (store, worker):
            await worker.claim(Claim((("q", 1),), 1, lease_time=0.01))
            worker.lose_messages()
            await store.put([one()])
            await asyncio.sleep(0.05)
            [item] = await worker.claim()
            assert item.attempt == 2
            assert not worker.given

    asyncio.run(main())


def test_what_an_earlier_claim_was_given_counts_no_more(server: Server, prefix: str) -> None:
    async def main() -> None:
        async with scene(server, prefix) as (store, worker):
            await worker.claim()
            await store.put([one()])
            await until(lambda: worker.given)
            assert await worker.claim() == ()
            await store.put([Put("q", (("x", b"1"), ("y", b"1")))])
            [item] = await worker.claim()
            assert item.key == "x"
            assert len(worker.given) == 1

    asyncio.run(main())


def test_a_batch_that_is_parted_claims_no_more(server: Server, prefix: str) -> None:
    """Taking a claim back and claiming are one step, however large the batch of others is."""

    async def main() -> None:
        async with scene(server, prefix) as (store, worker):
            await worker.claim()
            worker.lose_messages()
            await store.put([one()])
            await store.put([one()])
            large = Put("large", tuple((f"k{number}", b"1" * 10**6) for number in range(9)))
            _, found = await asyncio.gather(worker.store.put([large]), worker.claim())
            assert found == ()
            assert len(worker.given) == 1

    asyncio.run(main())


def test_a_message_during_the_next_claim_counts_once(server: Server, prefix: str) -> None:
    async def main() -> None:
        async with scene(server, prefix) as (store, worker):
            for _ in range(100):
                assert await worker.claim() == ()
                putting = asyncio.create_task(store.put([one()]))
                for _ in range(random.randrange(8)):
                    await asyncio.sleep(0)
                found = await worker.claim()
                await putting
                await asyncio.sleep(0.005)
                if not worker.given and not found:
                    found = await worker.claim(idle=False)
                assert len(worker.given) + len(found) == 1
                for item in (*worker.given, *found):
                    [answer] = await worker.store.settle([Ack("q", item.key, item.token)])
                    assert answer is None
                worker.given.clear()
            assert (await store.count(["q"]))["q"] == Counts()

    asyncio.run(main())


def test_a_claim_that_was_cancelled_loses_nothing(server: Server, prefix: str) -> None:
    async def main() -> None:
        async with scene(server, prefix) as (store, worker):
            for turns in range(12):
                claiming = asyncio.create_task(worker.claim())
                for _ in range(turns):
                    await asyncio.sleep(0)
                claiming.cancel()
                await asyncio.gather(claiming, return_exceptions=True)
                await store.put([one()])
                await asyncio.sleep(0.01)
                found: tuple[Claimed, ...] = ()
                if not worker.given:
                    found = await worker.claim(idle=False)
                [item] = (*worker.given, *found)
                assert await worker.store.settle([Ack("q", item.key, item.token)]) == [None]
                worker.given.clear()

    asyncio.run(main())


def test_only_what_the_worker_can_run(server: Server, prefix: str) -> None:
    async def main() -> None:
        async with scene(server, prefix) as (store, worker):
            await worker.claim(Claim((("q", 1),), 1, kinds=("a", "b")))
            await store.put([one(kind="other")])
            await asyncio.sleep(0.05)
            assert not worker.given
            await store.settle([Purge("q")])
            await store.put([one(kind="b")])
            await until(lambda: worker.given)

    asyncio.run(main())


def test_who_waits_already_comes_first(server: Server, prefix: str) -> None:
    async def main() -> None:
        async with scene(server, prefix) as (store, worker):
            await worker.claim()
            await store.put([Put("q", (("x", b"1"), ("y", b"1")))])
            await store.put([Put("q", (("z", b"1"),), priority=-1)])
            await asyncio.sleep(0.05)
            assert not worker.given
            [item] = await worker.claim()
            assert item.key == "x"

    asyncio.run(main())


def test_a_claim_at_several_queues(server: Server, prefix: str) -> None:
    async def main() -> None:
        queues = ("a", "{b}", "{}")
        async with scene(server, prefix, *queues) as (store, worker):
            request = Claim(
                tuple((queue, 5) for queue in queues), 5, lease_times=(10.0, 20.0, None)
            )
            for number, queue in enumerate(queues):
                assert await worker.claim(request) == ()
                assert all(worker.left_at(each) for each in queues)
                await store.put([one(queue)])
                await until(lambda: worker.given)
                assert not any(worker.left_at(each) for each in queues)
                [item] = worker.given
                assert item.queue == queue
                [shown] = (await store.look(queue, [item.key]))[0]
                lease_time = (10.0, 20.0, None)[number]
                if lease_time is None:
                    assert item.expires_at is None
                else:
                    assert item.expires_at == pytest.approx((shown.leased_at or 0) + lease_time)
                worker.given.clear()

    asyncio.run(main())


def test_a_queue_without_room_is_left_out(server: Server, prefix: str) -> None:
    async def main() -> None:
        async with scene(server, prefix, "q", "other") as (store, worker):
            await worker.claim(Claim((("q", 0), ("other", 1)), 1, lease_time=30.0))
            await store.put([one()])
            await store.put([one("other")])
            await until(lambda: worker.given)
            assert [item.queue for item in worker.given] == ["other"]
            await worker.claim(Claim((("other", 1),), 0))
            await store.put([one("other")])
            assert (await store.count(["other"]))["other"].available == 1

    asyncio.run(main())


def test_workers_share_what_comes(server: Server, prefix: str) -> None:
    async def main() -> None:
        async with scene(server, prefix) as (store, worker):
            other = Worker(worker.store)
            await other.listening()
            for _ in range(60):
                for each in (worker, other):
                    if not each.left_at():
                        assert await each.claim() == ()
                before = len(worker.given) + len(other.given)
                await store.put([one()])
                await until(lambda: len(worker.given) + len(other.given) > before)  # noqa: B023
            assert min(len(worker.given), len(other.given)) > 5
            tokens = [item.token for item in (*worker.given, *other.given)]
            assert len(set(tokens)) == 60

    asyncio.run(main())


def test_nobody_is_given_anything_after_the_end(server: Server, prefix: str) -> None:
    async def main() -> None:
        async with scene(server, prefix) as (store, worker):
            await worker.claim()
            await worker.claimer.close()
            assert not worker.left_at()
            await store.put([one()])
            await asyncio.sleep(0.05)
            assert not worker.given
            assert (await store.count(["q"]))["q"].available == 1

    asyncio.run(main())


def test_what_was_given_just_before_the_end_is_taken(server: Server, prefix: str) -> None:
    async def main() -> None:
        async with scene(server, prefix) as (store, worker):
            await worker.claim()
            worker.lose_messages()
            await store.put([one()])
            await worker.claimer.close()
            assert len(worker.given) == 1

    asyncio.run(main())


def test_one_that_does_not_listen_is_passed_over(server: Server, prefix: str) -> None:
    async def main() -> None:
        async with scene(server, prefix) as (store, worker):
            await worker.claim()
            client = store._link.client
            for connection in client.client_list(_type="pubsub"):
                client.client_kill_filter(_id=connection["id"])
            await until(lambda: not client.client_list(_type="pubsub"))
            await store.put([one()])
            assert (await store.count(["q"]))["q"].available == 1
            assert not worker.left_at()

    asyncio.run(main())


def test_a_claim_stands_for_a_while(server: Server, prefix: str) -> None:
    now = 1_800_000_000.0

    async def main() -> None:
        store = opened(server, prefix, clock=lambda: now, poll=PATIENCE)
        await used(store, "q")
        worker = Worker(store)
        await worker.listening()
        await worker.claim()
        later = opened(server, prefix, clock=lambda: now + PATIENCE + 1.5)
        await later.put([one()])
        await asyncio.sleep(0.05)
        assert not worker.given
        await later.close()
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "request_", [Claim((("q", 1),), 1, caps=(Cap("q", "*", 5),)), Claim((("q", 1),), 1, key="a")]
)
def test_a_claim_with_limits_does_not_stand(server: Server, prefix: str, request_: Claim) -> None:
    async def main() -> None:
        async with scene(server, prefix) as (_, worker):
            assert await worker.claim(request_) == ()
            assert not worker.left_at()

    asyncio.run(main())


@pytest.mark.parametrize("options", [{"wait_replicas": 1, "wait_timeout": 0.01}, {"poll": 200.0}])
def test_one_that_waits_for_replicas_or_asks_rarely_does_not_stand(
    server: Server, prefix: str, options: dict[str, float]
) -> None:
    async def main() -> None:
        store = opened(server, prefix, **options)
        assert type(store.claimer(lambda _: None)) is Claimer
        await store.close()

    asyncio.run(main())


def test_a_busy_worker_leaves_no_claim(server: Server, prefix: str) -> None:
    async def main() -> None:
        async with scene(server, prefix) as (store, worker):
            assert await worker.claim(idle=False) == ()
            assert not worker.left_at()
            await store.put([one()])
            assert len(await worker.claim()) == 1
            assert not worker.left_at()

    asyncio.run(main())


def test_all_that_is_kept_for_it_has_a_lifetime(server: Server, prefix: str) -> None:
    async def main() -> None:
        async with scene(server, prefix) as (store, worker):
            before = keys_of(server, prefix)
            await worker.claim()
            await store.put([one()])
            await until(lambda: worker.given)
            await worker.claim()
            kept = {key: left for key, left in keys_of(server, prefix).items() if key not in before}
            assert sum(key.endswith(":s") for key in kept) == 2
            assert all(left > 0 for key, left in kept.items() if key.endswith(":s"))

    asyncio.run(main())


def test_a_full_server_takes_no_claim(prefix: str) -> None:
    async def main() -> None:
        with Server() as server:
            async with scene(server, prefix) as (_, worker):
                with server.client() as client:
                    client.config_set("maxmemory", 1)
                some = Claim((("q", 1), ("q2", 1)), 1, kinds=("a",))
                assert await worker.claim(some) == ()
                assert not worker.left_at("q")
                assert not worker.left_at("q2")
                assert await worker.claim(some) == ()

    asyncio.run(main())


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_a_repeated_call_gives_the_same(server: Server, prefix: str, lost: str) -> None:
    """The call that takes a claim back is cut off, and made again."""

    async def main() -> None:
        with Proxy(server.socket) as proxy:
            puts = opened(server, prefix)
            await used(puts, "q")
            url = f"redis://127.0.0.1:{proxy.port}"
            claims = RedisStore(url, prefix=prefix, poll=PATIENCE)
            worker = Worker(claims)
            await worker.listening()
            await worker.claim()
            worker.lose_messages()
            await puts.put([one()])
            asked = cut = False

            def judge(direction: Direction, _: int, data: bytes) -> Verdict:
                nonlocal asked, cut
                asked = asked or (direction == "request" and b"EVALSHA" in data)
                if cut or not asked or direction != lost:
                    return "pass"
                cut = True
                return "cut"

            proxy.begin(judge)
            await worker.claim()
            assert cut
            assert len(worker.given) == 1
            await claims.close()
            await puts.close()

    asyncio.run(main())


def test_a_store_gives_nothing_to_its_own_workers(server: Server, prefix: str) -> None:
    """They would start what the store does not yet know to have been put."""

    async def main() -> None:
        async with scene(server, prefix) as (_, worker):
            await worker.claim()
            await worker.store.put([one()])
            await asyncio.sleep(0.05)
            assert not worker.given
            assert len(await worker.claim()) == 1

    asyncio.run(main())


def test_workers_that_have_gone_are_not_kept(server: Server, prefix: str) -> None:
    """Though nobody puts anything."""

    async def main() -> None:
        async with scene(server, prefix) as (_, worker):
            for _ in range(50):
                another = worker.store.claimer(worker.given.append)
                await another.claim([NEXT], idle=True)
                await another.close()
            await worker.claim()
            with server.client() as client:
                assert client.scard(f"{prefix}:{{q}}:s") < 10
            assert worker.left_at()

    asyncio.run(main())


@pytest.mark.parametrize("rights", ["resetchannels", "-publish", "-srandmember", "-pubsub"])
def test_who_may_not_publish_puts_all_the_same(prefix: str, rights: str) -> None:
    async def main() -> None:
        with Server("--port", "0") as server:
            with server.client() as client:
                client.execute_command(
                    *("ACL", "SETUSER", "putter", "on", ">x", "~*", "&*", "+@all", rights)
                )
            async with scene(server, prefix) as (_, worker):
                await worker.claim()
                url = f"unix://{server.socket}?username=putter&password=x"
                putter = RedisStore(url, prefix=prefix)
                await putter.put([one()])
                assert [item.attempt for item in await worker.claim()] == [1]
                await putter.close()

    asyncio.run(main())


def test_what_nobody_expects_is_given_back(server: Server, prefix: str) -> None:
    """The server lost what it knew, and a call that is made again leaves a claim again."""

    async def main() -> None:
        async with scene(server, prefix) as (store, worker):
            await worker.claim()
            assert isinstance(worker.claimer, ParkedClaimer)
            worker.claimer._parked = False
            await store.put([one()])
            async with asyncio.timeout(PATIENCE):
                while not (await store.count(["q"]))["q"].available:
                    await asyncio.sleep(0.005)
            assert not worker.given
            [item] = await worker.claim()
            assert item.attempt == 1

    asyncio.run(main())


def test_a_claim_of_which_nothing_is_known_is_taken_back(server: Server, prefix: str) -> None:
    async def main() -> None:
        async with scene(server, prefix) as (store, worker):
            assert isinstance(worker.claimer, ParkedClaimer)
            batcher = worker.claimer._batcher
            submit_many = batcher.submit_many

            async def fail(requests: Any, *, alone: bool = False) -> Any:
                answers = await submit_many(requests, alone=alone)
                return [*answers[:-1], StoreError("who knows")]

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(batcher, "submit_many", fail)
                assert await worker.claim() == ()
            worker.lose_messages()
            await store.put([one()])
            assert await worker.claim() == ()
            assert len(worker.given) == 1

    asyncio.run(main())


def test_a_store_that_is_closed_keeps_nothing(server: Server, prefix: str) -> None:
    async def main() -> None:
        async with scene(server, prefix) as (store, worker):
            await worker.claim()
            worker.lose_messages()
            await store.put([one()])
            await worker.store.close()
            assert not worker.given
            [item] = (await store.browse("q")).items
            assert (item.state, item.attempt) == ("available", 0)

    asyncio.run(main())
