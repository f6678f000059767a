"""Resources that a lifespan opens once for a worker, and how commands get at them."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated, Any, Protocol, assert_type

import pytest

from leasedkeyq.lanes import (
    CallNext,
    CommandPayloadError,
    CommandRegistry,
    Handle,
    LaneConfig,
    LaneConfigError,
    LifespanError,
    ManagerClosedError,
    ManagerFailedError,
    QueueManager,
    QueueManagerBuilder,
    ResourceError,
    Resources,
    RunningCommand,
    current_command,
    resource,
)
from leasedkeyq.lanes.running import lifespan as lifespan_module
from tests.lanes.support import Build, everywhere, on_a_store


class Pool:
    """Something that is opened and closed."""

    def __init__(self, name: str = "pool") -> None:
        self.name = name
        self.closed = False

    async def fetch(self, number: int) -> str:
        assert not self.closed, "the pool was closed before the last command had ended"
        return f"{self.name} {number}"


class Client(Pool): ...


class Fetches(Protocol):
    async def fetch(self, number: int) -> str: ...


class Diary:
    """What was opened and closed, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.pools: list[Pool] = []

    async def pool(self) -> AsyncIterator[Pool]:
        self.lines.append("open pool")
        pool = Pool()
        self.pools.append(pool)
        try:
            yield pool
        finally:
            pool.closed = True
            self.lines.append("close pool")

    @asynccontextmanager
    async def names(self) -> AsyncGenerator[dict[str, Any]]:
        self.lines.append("open names")
        try:
            yield {"reads": Client("reads"), "writes": Client("writes"), "limit": 7}
        finally:
            self.lines.append("close names")


def built(build: Build) -> QueueManagerBuilder:
    return build().with_lane("work", LaneConfig(0, 4), 0)


@everywhere
async def test_resources_are_opened_once_and_closed_after_the_last_command(build: Build) -> None:
    diary = Diary()
    manager = built(build).with_lifespan(diary.pool, diary.names).build()

    @manager.command("work", lane="work")
    async def work(number: int, pool: Pool = resource()) -> str:
        assert diary.lines == ["open pool", "open names"]
        await asyncio.sleep(1)
        return await pool.fetch(number)

    handles = [await work.submit(number) for number in range(6)]
    assert diary.lines == []
    async with manager:
        await manager.start()
        assert [await handle for handle in handles] == [f"pool {number}" for number in range(6)]
        await work.submit(6)  # the end waits for it
    assert diary.lines == ["open pool", "open names", "close names", "close pool"]
    assert len(diary.pools) == 1


@everywhere
async def test_commands_get_at_resources_in_every_way(build: Build) -> None:
    diary = Diary()
    manager = built(build).build()
    registered = manager.lifespan(diary.names)
    assert registered == diary.names

    @manager.lifespan
    async def pool_and_number() -> AsyncIterator[tuple[Pool, float]]:
        yield Pool(), 2.5

    @manager.command("by_type", lane="work")
    async def by_type(pool: Pool, number: int, half: float = resource()) -> str:
        return f"{await pool.fetch(number)} {half}"

    @manager.command("by_name", lane="work")
    async def by_name(
        number: int,
        *,
        reads: Client = resource(),
        writes: Annotated[Client | None, "maybe"] = resource(),
        limit: Any = resource(),
    ) -> str:
        assert writes is not None
        return f"{await reads.fetch(number)} {await writes.fetch(limit)}"

    @manager.command("by_hand", lane="work")
    async def by_hand() -> str:
        resources = current_command().resources
        assert len(resources) == 5
        assert next(iter(resources)) is resources["reads"]
        assert Pool in resources
        assert Client not in resources  # there are two
        assert "nothing" not in resources
        assert_type(resources[float], float)
        return f"{resources['limit']} {resources[float]}"

    @manager.command("only_resources", lane="work")
    async def only_resources(half: float = resource()) -> float:
        return half

    async with manager:
        # To a type checker, a parameter without resource() is one that the caller has to give.
        untyped: Any = by_type
        assert await (await untyped.submit(4)) == "pool 4 2.5"
        assert await (await by_name.submit(1)) == "reads 1 writes 7"
        assert await (await by_hand.submit()) == "7 2.5"
        assert await (await only_resources.submit()) == 2.5


@everywhere
async def test_a_resource_is_no_argument(build: Build) -> None:
    manager = built(build).with_lifespan(Diary().pool).build()

    @manager.command("work", lane="work", key=lambda number: f"{number}")
    async def work(number: int, pool: Pool = resource()) -> str:
        return await pool.fetch(number)

    command = work(7)
    assert manager.queue().registry.encode(command, "work") == b'{"number":7}'
    assert_type(await work.submit(7), Handle[str])
    with pytest.raises(CommandPayloadError, match="pool is a resource, which the worker passes"):
        work(7, pool=Pool())
    with pytest.raises(CommandPayloadError, match="at most 1 without a name, got 2"):
        work(7, Pool())
    function: Any = work.function
    assert await function(7, pool=Pool("mine")) == "mine 7"
    with pytest.raises(ResourceError, match="no lifespan provides a resource of the type Pool"):
        await command.execute()
    await manager.close()


@everywhere
async def test_a_type_that_a_lifespan_provides_is_enough(build: Build) -> None:
    """The annotation of the lifespan tells, whether it is registered before or after."""
    registry = CommandRegistry()

    @registry.register("first", lane="work")
    async def first(pool: Pool, number: int) -> str:
        return await pool.fetch(number)

    manager = built(build).with_commands(registry).with_lifespan(Diary().pool).build()

    @manager.command("second", lane="work")
    async def second(*, client: Client, number: int) -> str:
        return await client.fetch(number)

    @manager.lifespan
    def client() -> AbstractAsyncContextManager[Client]:
        return opened()

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Client]:
        yield Client("client")

    untyped: tuple[Any, Any] = (first, second)
    async with manager:
        assert await (await manager.submit(untyped[0](1))) == "pool 1"
        assert await (await manager.submit(untyped[1](number=2))) == "client 2"


@everywhere
async def test_a_lifespan_that_does_not_say_what_it_yields_is_hinted_at(build: Build) -> None:
    manager = built(build).build()

    @manager.lifespan
    async def opened():  # type: ignore[no-untyped-def]  # that is what is tested
        yield Pool("pool")

    @manager.command("fetch", lane="work")
    async def fetch(number: int, pool: Pool) -> str:
        return await pool.fetch(number)

    untyped: Any = fetch
    said = r"'fetch' do not fit: .*if pool is a resource, write pool: Pool = resource\(\), or"
    with pytest.raises(CommandPayloadError, match=said):
        untyped(1)
    with pytest.raises(CommandPayloadError, match=r"Expected `int`, got `str`.*$") as caught:
        untyped("x", Pool("pool"))
    assert "resource" not in str(caught.value)


@everywhere
async def test_a_text_that_a_lifespan_yields_makes_no_resources_of_arguments(build: Build) -> None:
    manager = built(build).build()

    @manager.lifespan
    async def opened() -> AsyncIterator[tuple[Pool, str, int]]:
        yield Pool("pool"), "a name", 3

    @manager.command("fetch", lane="work")
    async def fetch(name: str, number: int, pool: Pool, place: str = resource()) -> str:
        return f"{name} {number} {await pool.fetch(number)} {place}"

    untyped: Any = fetch
    async with manager:
        assert await (await manager.submit(untyped("x", 7))) == "x 7 pool 7 a name"


@everywhere
async def test_middleware_has_the_resources_too(build: Build) -> None:
    manager = built(build).with_lifespan(Diary().pool).build()

    @manager.middleware
    async def fetch(command: RunningCommand, call_next: CallNext) -> Any:
        return await command.resources[Pool].fetch(await call_next())

    @manager.command("work", lane="work")
    async def work(number: int) -> int:
        return number

    async with manager:
        fetched: object = await (await manager.submit(work(3)))
    assert fetched == "pool 3"


@everywhere
async def test_what_no_lifespan_provides_is_refused_at_the_start(build: Build) -> None:
    diary = Diary()
    manager = built(build).with_lifespan(diary.names).build()

    @manager.command("one", lane="work")
    async def one(pool: Pool = resource()) -> None: ...

    @manager.command("two", lane="work")
    async def two(reads: Client = resource(), timeout: Any = resource()) -> None: ...

    handle = await one.submit()
    told = (
        r"command 'one' takes the resource pool: Pool, but there are several .* of the type Pool.*"
        r"; command 'two' takes the resource timeout, but no lifespan provides a resource of the "
        r"name 'timeout'; there are: reads: Client, writes: Client, limit: int"
    )
    with pytest.raises(ResourceError, match=told):
        await manager.start()
    assert diary.lines == ["open names", "close names"]
    assert (handle.status, handle.attempt) == ("pending", 0)
    await manager.close()


@everywhere
async def test_a_resource_without_any_lifespan_is_refused_at_the_start(build: Build) -> None:
    manager = built(build).build()

    @manager.command("one", lane="work")
    async def one(pool: Fetches = resource()) -> None: ...

    with pytest.raises(ResourceError, match=r"'one' takes the resource pool: Fetches.*are: none"):
        async with manager:
            pass
    with pytest.raises(ManagerClosedError):
        await manager.start()


@everywhere
async def test_a_lifespan_that_fails_ends_the_start(build: Build) -> None:
    diary = Diary()
    tries: list[int] = []
    manager = built(build).with_lifespan(diary.pool).build()

    @manager.lifespan
    async def broken() -> AsyncIterator[None]:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("no route to the database")
        yield

    @manager.command("work", lane="work")
    async def work() -> int:
        return len(tries)

    handle = await work.submit()
    told = r"the lifespan .*broken failed at the start: OSError: no route to the database"
    with pytest.raises(LifespanError, match=told) as caught:
        await manager.start()
    assert isinstance(caught.value.__cause__, OSError)
    assert diary.lines == ["open pool", "close pool"]
    assert (handle.status, handle.attempt) == ("pending", 0)
    async with manager:  # the database is there again
        assert await handle == 2
    assert diary.lines == ["open pool", "close pool"] * 2


@everywhere
async def test_a_lifespan_that_fails_at_the_end_is_told_when_all_else_has_ended(
    build: Build,
) -> None:
    diary = Diary()
    manager = built(build).with_lifespan(diary.pool).build()

    @manager.lifespan
    async def broken() -> AsyncIterator[None]:
        yield
        raise OSError("cannot flush")

    @manager.command("work", lane="work")
    async def work() -> int:
        return 7

    told = r"the lifespan .*broken failed at the end: OSError: cannot flush"
    handle = await work.submit()
    with pytest.raises(LifespanError, match=told):
        async with manager:
            await manager.drain()
    assert await handle == 7
    assert diary.lines == ["open pool", "close pool"]
    with pytest.raises(LifespanError, match=told):
        await manager.close()


@everywhere
async def test_a_lifespan_that_ends_too_early_is_a_failure_of_the_manager(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    manager = built(build).build()
    broken = asyncio.Event()

    async def connection() -> None:
        await broken.wait()
        raise ConnectionError("lost")

    @manager.lifespan
    async def connected() -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            group.create_task(connection())
            yield

    @manager.command("work", lane="work")
    async def work() -> None:
        await asyncio.sleep(1000)

    await manager.start()
    handle = await work.submit()
    await asyncio.sleep(1)
    broken.set()
    with pytest.raises(ManagerFailedError, match="connected failed while the worker ran"):
        await handle
    with pytest.raises(ManagerFailedError):
        await work.submit()
    await manager.close()
    assert "connected failed while the worker ran" in caplog.text


@everywhere
async def test_a_lifespan_that_does_not_end_is_cancelled(build: Build) -> None:
    manager = built(build).build()

    @manager.lifespan
    async def stuck() -> AsyncIterator[None]:
        yield
        await asyncio.sleep(1000)

    with pytest.raises(LifespanError, match=f"within {lifespan_module.PATIENCE:g} s"):
        async with manager:
            pass


@everywhere
async def test_a_cancelled_start_leaves_nothing_open(build: Build) -> None:
    diary = Diary()
    manager = built(build).with_lifespan(diary.pool).build()

    @manager.lifespan
    async def slow() -> AsyncIterator[None]:
        await asyncio.sleep(1000)
        yield

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(manager.start(), 1)
    assert diary.lines == ["open pool", "close pool"]
    starting = asyncio.create_task(manager.start())
    await asyncio.sleep(1)
    await manager.close()
    with pytest.raises(ManagerClosedError, match="closed while it opened its resources"):
        await starting
    assert diary.lines == ["open pool", "close pool"] * 2


@everywhere
async def test_two_starts_open_the_resources_once(build: Build) -> None:
    diary = Diary()
    manager = built(build).with_lifespan(diary.pool).build()

    @manager.lifespan
    async def slow() -> AsyncIterator[None]:
        await asyncio.sleep(5)
        yield

    await asyncio.gather(manager.start(), manager.start())
    await manager.close()
    assert diary.lines == ["open pool", "close pool"]


async def test_a_manager_that_runs_no_lane_opens_nothing() -> None:
    diary = Diary()
    manager = built(on_a_store).with_lifespan(diary.pool).run_only().build()

    @manager.command("work", lane="work")
    async def work(client: Client = resource()) -> None: ...

    async with manager:
        await work.submit()
        await manager.queue().settle_down()
        await manager.close()
    assert diary.lines == []


async def test_lifespans_and_middleware_stay_when_a_manager_is_rebuilt() -> None:
    diary = Diary()
    builder = QueueManagerBuilder().with_default_lanes()
    manager = builder.build()
    manager.lifespan(diary.pool)

    @manager.middleware
    async def again(command: RunningCommand, call_next: CallNext) -> Any:
        return [await call_next()]

    @manager.command("work", lane="query")
    async def work(pool: Pool = resource()) -> str:
        return await pool.fetch(1)

    await builder.rebuild(manager)
    async with manager:
        result: object = await (await manager.submit(work()))
    assert result == ["pool 1"]
    assert diary.lines == ["open pool", "close pool"]


def test_a_plain_function_has_resources_and_middleware_too() -> None:
    asyncio.run(run_in_a_thread())


async def run_in_a_thread() -> None:
    threads: list[threading.Thread] = []
    manager = QueueManagerBuilder().with_default_lanes().with_lifespan(Diary().pool).build()

    @manager.middleware
    async def note(command: RunningCommand, call_next: CallNext) -> Any:
        threads.append(threading.current_thread())
        return {**command.arguments, "result": await call_next()}

    @manager.command("plain", lane="query")
    def plain(number: int, pool: Pool = resource()) -> bool:
        threads.append(threading.current_thread())
        return current_command().resources[Pool] is pool

    async with manager:
        result: object = await (await manager.submit(plain(7)))
    assert result == {"number": 7, "result": True}
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()


# Bad lifespans


def test_bad_lifespans_are_refused_with_their_names() -> None:
    diary = Diary()
    manager = QueueManagerBuilder().with_default_lanes().build()
    wrong: Any

    async def coroutine() -> Pool:
        return Pool()

    async def wants(app: Any) -> AsyncIterator[None]:
        yield

    for wrong, told in [
        (coroutine, "coroutine: it must be an async function with one yield"),
        (7, "7: it must be an async function with one yield"),
        (diary.names(), "give the function itself, without calling it"),
        (wants, "wants: it is called without arguments: missing a required argument: 'app'"),
    ]:
        with pytest.raises(TypeError, match=told):
            manager.lifespan(wrong)
        with pytest.raises(TypeError, match=told):
            QueueManagerBuilder().with_lifespan(wrong)


async def test_a_function_that_returns_no_context_manager_is_refused_at_the_start() -> None:
    manager = QueueManagerBuilder().with_default_lanes().build()
    wrong: Any = Pool
    manager.lifespan(wrong)
    with pytest.raises(LifespanError, match=r"Pool failed at the start: .*no async context"):
        await manager.start()
    await manager.close()


async def test_lifespans_come_before_the_start() -> None:
    manager = QueueManagerBuilder().with_default_lanes().build()
    async with manager:
        with pytest.raises(LaneConfigError, match="has been started"):
            manager.lifespan(Diary().pool)


def test_a_resource_cannot_be_passed_by_position_only() -> None:
    manager: QueueManager = QueueManagerBuilder().with_default_lanes().build()
    with pytest.raises(TypeError, match="'work': a resource is passed by name, and pool can only"):

        @manager.command("work")
        async def work(pool: Pool = resource(), /) -> None: ...


def test_resources_and_their_marker_can_be_shown() -> None:
    resources = Resources()
    assert repr(resources) == "<Resources: none>"
    resources.add(None)
    resources.add({"pool": Pool()})
    resources.add(7)
    assert repr(resources) == "<Resources: pool: Pool, int>"
    assert repr(resource()) == "resource()"
    assert int in resources
    assert resources[int] == 7
    assert Fetches not in resources  # a protocol that cannot be checked at run time
