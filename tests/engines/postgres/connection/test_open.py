"""Opening a store on PostgreSQL: what is made, what is refused, and with which words."""

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

import leasedkeyq
from leasedkeyq import connect
from leasedkeyq.engines.postgres import schema as schema_module
from leasedkeyq.engines.postgres import store as store_module
from leasedkeyq.engines.postgres.store import PostgresStore
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Change
from leasedkeyq.stores import Ack, Claim, Extend, Put, Release, Store, StoredItem
from leasedkeyq.testing import Place
from tests.servers.postgres import run_sql, server_url, shared_server


@pytest.fixture
def name() -> Iterator[str]:
    place = Place()
    yield place.name
    place.close()
    run_sql(server_url(), f'DROP SCHEMA IF EXISTS "{place.name}" CASCADE')


def use(store: PostgresStore) -> None:
    async def run() -> None:
        await store.put([Put("q", (("a", b"1"),))])
        assert [c.key for c in (await store.claim([Claim((("q", 1),))]))[0]] == ["a"]
        await store.close()

    asyncio.run(run())


def test_it_is_found_by_its_url_and_says_what_it_keeps(name: str) -> None:
    for scheme in ("postgresql", "postgres"):
        store = connect(server_url().replace("postgresql://", f"{scheme}://"), schema=name)
        assert isinstance(store, PostgresStore)
        assert store.capabilities.cross_process
        asyncio.run(store.close())


@pytest.mark.parametrize(
    "setting, durability, warning",
    [
        ("", "power", ""),
        ("fsync", "process", "fsync is off"),
        ("full_page_writes", "process", "full_page_writes is off"),
        ("synchronous_commit", "process", "synchronous_commit is off"),
    ],
)
def test_durability_is_that_of_the_server(
    setting: str, durability: str, warning: str, name: str
) -> None:
    store = connect(server_url(), schema=name)
    assert isinstance(store, PostgresStore)
    store.warnings.clear()
    settings = dict.fromkeys(("fsync", "full_page_writes", "synchronous_commit"), "on")
    assert store._durability({**settings, setting: "off"}) == durability
    assert [warning in text for text in store.warnings] == [True] * bool(warning)
    asyncio.run(store.close())


def test_the_settings_of_the_server_are_read() -> None:
    """The server of the tests does without fsync."""
    store = connect(shared_server().url)
    assert isinstance(store, PostgresStore)
    assert store.capabilities.durability == "process"
    assert "fsync" in store.warnings[0]
    asyncio.run(store.close())


@pytest.mark.parametrize(
    "change, words",
    [
        (("not%20secret@", "wrong@"), "password"),
        (("/postgres", "/nowhere"), "no such database"),
        (("leasedkeyq:", "nobody:"), "password"),
    ],
)
def test_what_is_wrong_with_a_url_is_said(change: tuple[str, str], words: str) -> None:
    with pytest.raises(StoreError, match=words):
        connect(shared_server().url.replace(*change))


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(StoreError, match="cannot be reached"):
        connect("postgresql://somebody@127.0.0.1:1/postgres", patience=0)


def test_an_old_server_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(schema_module, "OLDEST_SERVER", 990000)
    with pytest.raises(StoreError, match="needs 99 or newer"):
        connect(server_url(), schema=name)


@pytest.mark.parametrize("bad", ["", "Big", "a b", 'a"b', "1a", "a" * 49])
def test_names_of_schemas(bad: str) -> None:
    with pytest.raises(ValueError, match="schema must be"):
        connect(server_url(), schema=bad)


def test_tables_that_must_not_be_made_are_made_by_the_command(name: str) -> None:
    with pytest.raises(StoreError, match=rf"postgres.schema {name} 0") as caught:
        connect(server_url(), schema=name, create=False)
    command = next(part for part in str(caught.value).split("what ") if part.startswith("python"))
    arguments = command.split(" prints")[0].split()[1:]
    sql = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True
    ).stdout
    run_sql_script(sql)
    store = connect(server_url(), schema=name, create=False)
    assert isinstance(store, PostgresStore)
    use(store)


def run_sql_script(sql: str) -> None:
    import asyncpg

    async def run() -> None:
        connection = await asyncpg.connect(server_url())
        await connection.execute(sql)
        await connection.close()

    asyncio.run(run())


def test_many_open_it_for_the_first_time_at_once(name: str) -> None:
    async def run() -> None:
        stores = await asyncio.gather(
            *(asyncio.to_thread(connect, server_url(), schema=name) for _ in range(8))
        )
        for number, store in enumerate(stores):
            await store.put([Put("q", ((f"k{number}", b"1"),))])
        assert (await stores[0].count(["q"]))["q"].available == 8
        for store in stores:
            await store.close()

    asyncio.run(run())


def test_a_migration_runs_beside_old_workers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next version adds; workers of this one go on, and may be started while it is usable."""
    now = schema_module.VERSION
    old = connect(server_url(), schema=name)
    assert isinstance(old, PostgresStore)
    with monkeypatch.context() as newer:
        step = "ALTER TABLE lkq.items ADD COLUMN note text;"
        texts = schema_module.migration
        newer.setattr(schema_module, "VERSION", now + 1)
        newer.setattr(
            schema_module,
            "migration",
            lambda version, schema: (
                schema_module.in_schema(step, schema) if version > now else texts(version, schema)
            ),
        )
        with pytest.raises(StoreError, match=f"has tables of version {now}, and create=False"):
            connect(server_url(), schema=name, create=False)
        asyncio.run(connect(server_url(), schema=name).close())
    assert run_sql(server_url(), f"SELECT version FROM {name}.version") == now + 1
    use(old)
    again = connect(server_url(), schema=name)
    asyncio.run(again.close())
    run_sql(server_url(), f"UPDATE {name}.version SET usable_from = {now + 1}")
    with pytest.raises(StoreError, match="upgrade leasedkeyq"):
        connect(server_url(), schema=name)


def as_of(patch: pytest.MonkeyPatch, version: int) -> None:
    """Make stores that are opened now those of an older program."""
    patch.setattr(schema_module, "VERSION", version)
    patch.setattr(store_module, "VERSION", version)


def test_tables_of_before_progress_are_brought_up_to_date(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was stored is there, its history goes on, and from now on it keeps progress."""

    async def attempt(store: Store, progress: bytes | None) -> StoredItem:
        [[claimed]] = await store.claim([Claim((("q", 1),), 1, "a", 60.0)])
        token = claimed.token
        changes: list[Change] = [
            Extend("q", "a", token, 60.0, progress),
            Release("q", "a", token, error="x"),
        ]
        assert not any(isinstance(one, Exception) for one in await store.settle(changes))
        [[item]] = await store.look("q", ["a"])
        await store.close()
        return item

    with monkeypatch.context() as older:
        as_of(older, 2)
        store = connect(server_url(), schema=name)
        asyncio.run(_put(store, "a"))
        assert len(asyncio.run(attempt(store, None)).history) == 1
    assert run_sql(server_url(), f"SELECT version FROM {name}.version") == 2
    item = asyncio.run(attempt(connect(server_url(), schema=name), b"half"))
    assert (len(item.history), item.progress) == (2, b"half")
    item = asyncio.run(attempt(connect(server_url(), schema=name), None))
    assert (len(item.history), item.progress) == (3, b"half")
    version = run_sql(server_url(), f"SELECT version FROM {name}.version")
    assert version == schema_module.VERSION


def test_tables_of_before_holders_are_brought_up_to_date(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease of before has no holder and can be settled; programs of before go on beside it."""

    def claim(key: str, holder: str = "") -> Claim:
        return Claim((("q", 1),), 1, key, 60.0, holder=holder)

    async def use_both(old: Store) -> None:
        await old.put([Put("q", tuple((key, b"1") for key in "abcd"))])
        [[before]] = await old.claim([claim("a")])
        new = connect(server_url(), schema=name)
        [[second]] = await new.claim([Claim((("q", 1),), 1, None, 60.0, holder="new:1")])
        [[third]] = await new.claim([claim("c", "new:2")])
        [[fourth]] = await old.claim([Claim((("q", 1),), 1, None, 60.0)])
        for store in (old, new):
            looked = [item for [item] in await store.look("q", [*"abcd"])]
            assert [item.holder for item in looked] == ["", "new:1", "new:2", ""]
        held = (before, second, third, fourth)
        acks = [Ack("q", item.key, item.token) for item in held]
        # A program settles what the other one has leased.
        assert await old.settle(acks[1:3]) == [None, None]
        assert await new.settle([acks[0], acks[3]]) == [None, None]
        await old.close()
        await new.close()

    with monkeypatch.context() as older:
        as_of(older, 3)
        store = connect(server_url(), schema=name)
    assert run_sql(server_url(), f"SELECT version FROM {name}.version") == 3
    asyncio.run(use_both(store))
    version = run_sql(server_url(), f"SELECT version FROM {name}.version")
    assert version == schema_module.VERSION


def test_a_lone_claim_beside_what_has_come_due_keeps_its_holder(name: str) -> None:
    """`ack_and_claim_1` leaves it to `apply_1` then."""

    async def run() -> None:
        store = connect(server_url(), schema=name)
        await store.put([Put("q", (("late", b"1"),), delay=0.05), Put("q", (("a", b"1"),))])
        await asyncio.sleep(0.2)
        [claimed] = await store.claim([Claim((("q", 2),), 2, None, 60.0, holder="host:1")])
        assert [item.key for item in claimed] == ["a", "late"]
        looked = [item for [item] in await store.look("q", ["a", "late"])]
        assert [item.holder for item in looked] == ["host:1", "host:1"]
        await store.close()

    asyncio.run(run())


def test_tables_of_a_version_that_was_never_released_are_refused(name: str) -> None:
    """An older leasedkeyq refuses the new tables, and this one the old: each says what to do."""
    asyncio.run(connect(server_url(), schema=name).close())
    usable_from = run_sql(server_url(), f"SELECT usable_from FROM {name}.version")
    assert usable_from == 3
    run_sql(server_url(), f"UPDATE {name}.version SET version = 1, usable_from = 1")
    for create in (True, False):
        with pytest.raises(StoreError, match="version 1, which this leasedkeyq does not know"):
            connect(server_url(), schema=name, create=create)


def test_a_store_may_be_used_from_several_event_loops(name: str) -> None:
    store = connect(server_url(), schema=name)
    for number in range(3):
        asyncio.run(_put(store, f"k{number}"))

    async def last() -> None:
        assert (await store.count(["q"]))["q"].available == 3
        await store.close()

    asyncio.run(last())


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("without_a_word", [False, True])
def test_event_loops_that_have_ended_are_let_go(
    name: str, without_a_word: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A connection that is collected after its loop complains; pytest would keep that, and the loop.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    store = connect(server_url(), schema=name)

    async def use() -> None:
        stop = store.watch("q", lambda: None)
        await _put(store, "k")
        await asyncio.gather(*[store.count(["q"]) for _ in range(3)])
        stop()

    def left() -> weakref.ref[asyncio.AbstractEventLoop]:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(use())
        if not without_a_word:
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        return weakref.ref(loop)

    loops = [left() for _ in range(3)]
    asyncio.run(use())
    gc.collect()
    assert [loop() for loop in loops] == [None] * 3
    loops = [left()]
    asyncio.run(store.close())
    gc.collect()
    assert [loop() for loop in loops] == [None]


async def _put(store: object, key: str) -> None:
    assert isinstance(store, PostgresStore)
    await store.put([Put("q", ((key, b"1"),))])


def test_the_password_is_not_shown() -> None:
    with pytest.raises(StoreError) as caught:
        connect("postgresql://somebody:hidden@127.0.0.1:1/postgres", patience=0)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("how", ["connect('postgresql://localhost')", "leasedkeyq.PostgresQueue()"])
def test_without_the_extra(tmp_path: Path, how: str) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(Path(leasedkeyq.__file__).parent.parent)!r})
sys.modules["asyncpg"] = None
import leasedkeyq
from leasedkeyq import connect
try:
    {how}
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert 'pip install "leasedkeyq[postgres]"' in done.stdout
