"""`connect`: the schemes of other packages, and where it is imported from."""

from collections.abc import Callable
from pathlib import Path

import pytest

import leasedkeyq
from leasedkeyq.stores import MemoryStore, connect, schemes
from leasedkeyq.stores.contract import Limits

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
