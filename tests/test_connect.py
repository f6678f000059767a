"""`connect`: the schemes of other packages, and where it is imported from."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

import leasedkeyq
from leasedkeyq import MemoryStore, connect, schemes
from leasedkeyq.errors import StoreClosedError, StoreError
from leasedkeyq.model.requests import Limits

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a package with one scheme and one module."""

    def put_there(scheme: str, code: str) -> None:
        (tmp_path / f"{scheme}_store.py").write_text(code, encoding="utf-8")
        about = tmp_path / f"{scheme}_store-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {scheme}-store\nVersion: 1.0\n", encoding="utf-8"
        )
        (about / "entry_points.txt").write_text(
            f"[leasedkeyq.stores]\n{scheme} = {scheme}_store:open_url\n", encoding="utf-8"
        )
        monkeypatch.syspath_prepend(tmp_path)

    return put_there


def test_another_package_adds_a_scheme(install: Install) -> None:
    code = """
from leasedkeyq import MemoryStore

class Pigeon(MemoryStore):
    pass

def open_url(url, **options):
    store = Pigeon(**options)
    store.url = url
    return store
"""
    install("pigeon", code)
    ours = {"file", "memory", "sqlite", "redis", "valkey"}
    assert {*ours, "pigeon"} < set(schemes())
    assert schemes() == sorted(schemes())
    store = connect("pigeon://loft/7", limits=Limits(key_length=3))
    assert type(store).__name__ == "Pigeon"
    assert vars(store)["url"] == "pigeon://loft/7"
    assert store.limits.key_length == 3


def test_a_store_of_another_package_need_not_know_migrations(install: Install) -> None:
    install("dove", "from leasedkeyq import MemoryStore\ndef open_url(url): return MemoryStore()")
    assert isinstance(connect("dove://", migrate=False), MemoryStore)
    code = """
from leasedkeyq import MemoryStore

def open_url(url, migrate=True):
    store = MemoryStore()
    store.migrates = migrate
    return store
"""
    install("crane", code)
    assert vars(connect("crane://", migrate=False))["migrates"] is False
    assert vars(connect("crane://"))["migrates"] is True


def test_what_another_package_opens_must_be_a_store(install: Install) -> None:
    install("raven", "def open_url(url): return url")
    with pytest.raises(TypeError, match="'raven_store:open_url' did not return a Store"):
        connect("raven://")


def test_another_package_cannot_take_our_schemes(install: Install) -> None:
    install("memory", "def open_url(url): raise ArithmeticError")
    assert isinstance(connect("memory://"), MemoryStore)


def test_the_package_has_the_same_connect() -> None:
    assert leasedkeyq.connect is connect
    assert leasedkeyq.MemoryStore is MemoryStore


@pytest.mark.parametrize("fails", [False, True])
async def test_a_store_is_closed_at_the_end_of_its_block(fails: bool) -> None:
    store = connect("memory://")
    with pytest.raises(LookupError) if fails else nullcontext():
        async with store as entered:
            assert entered is store
            await store.queue("jobs").put("a", 1)
            if fails:
                dict[str, int]()["missing"]
    with pytest.raises(StoreClosedError):
        await store.count()


@pytest.mark.parametrize(
    "url, place",
    [
        ("sqlite:///jobs.db", "here/jobs.db"),
        ("sqlite:///below/jobs.db", "here/below/jobs.db"),
        ("sqlite:////{root}/other/jobs.db", "other/jobs.db"),
        ("sqlite:jobs.db", "here/jobs.db"),
        ("sqlite:///a%20b%3F.db", "here/a b?.db"),
        ("sqlite:///../other/jobs.db", "other/jobs.db"),
        ("file:///{root}/other/q.json", "other/q.json"),
        ("file:q.json", "here/q.json"),
    ],
)
def test_paths_are_those_of_sqlalchemy_for_sqlite_and_of_the_rfc_for_files(
    url: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "below").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    async def main() -> None:
        async with connect(url.replace("{root}", str(tmp_path)[1:])) as store:
            await store.queue("jobs").put("a", 1)
            assert (tmp_path / place).exists()

    asyncio.run(main())


def test_three_slashes_before_an_absolute_path_are_explained(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"has four slashes: sqlite:///{tmp_path}/jobs.db"):
        connect(f"sqlite://{tmp_path}/jobs.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("port", ["secret", "0", "65536", "-1", "٣", "1e3"])
def test_a_port_that_is_none_is_explained_and_not_repeated(port: str) -> None:
    """It may be a part of a password with a slash in it."""
    url = f"postgresql://shop:{port}/word@db/shop"
    for each in (url, f"postgresql://db:5432,other:{port}/shop", f"postgresql://[::1]:{port}/shop"):
        with pytest.raises(ValueError, match="must be a number from 1 to 65535; write") as raised:
            connect(each)
        assert "secret" not in str(raised.value)
