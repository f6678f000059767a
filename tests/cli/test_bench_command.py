"""bench, as a command, and the figures that it compares with."""

import asyncio
from pathlib import Path

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.operations import bench
from leasedkeyq.operations.bench import StepSpeed, compare, measure
from leasedkeyq.stores import Put
from tests.cli.commands import Shell, sqlite_shell
from tests.servers.urls import empty_store
from tools.bench_figures import TARGET, text


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return sqlite_shell(tmp_path, capsys)


def test_the_figures_are_those_of_the_benchmarks() -> None:
    assert TARGET.read_text(encoding="utf-8") == text(), "run python tools/bench_figures.py"


def test_bench(shell: Shell) -> None:
    shell.put("mail", "a")
    done = shell("bench", "--seconds", "0.2s")
    assert done.code == 0
    lines = done.out.splitlines()
    assert "SQLite store" in lines[0]
    assert "durability power" in lines[0]
    assert [line.split()[0] for line in lines[2:5]] == ["put", "claim", "ack"]
    assert "the docs have" in lines[-1]
    assert "CPython" in lines[-1]
    steps = shell("bench", "--seconds", "0.2s", "--json").json["steps"]
    assert [step["step"] for step in steps] == [
        *("put", "claim", "ack", "batch_put", "batch_claim", "batch_ack"),
    ]
    for step in steps:
        assert step["calls"] > 0
        assert 0 < step["p50"] <= step["p95"] <= step["p99"] <= step["longest"]
    assert steps[3]["items"] == 1000 * steps[3]["calls"]
    assert [view["name"] for view in shell("queues", "--all", "--json").json] == ["mail"]


@pytest.mark.parametrize("kind", ["postgresql", "redis", "file"])
def test_bench_on_other_engines(shell: Shell, tmp_path: Path, kind: str) -> None:
    with empty_store(kind, tmp_path) as url:
        report = shell.bare("bench", url, "--seconds", "0.1s", "--json").json
        assert len(report["steps"]) == 6
        assert len(report["comparisons"]) == (1 if kind == "file" else 2)
        assert shell.bare("queues", url, "--all", "--json").json == []


def test_a_bench_that_is_stopped_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "MOST_CALLS", 10)

    async def run() -> None:
        store = MemoryStore()
        await store.put([Put("mine", (("a", b"1"),))])
        held: list[str] = []

        def progress(done: int, _steps: int) -> None:
            if done == 2:
                held.append("some are leased")
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await measure(store, seconds=60, progress=progress)
        assert held
        assert [*await store.count()] == ["mine"]

    asyncio.run(run())


def test_only_what_the_docs_have_is_compared() -> None:
    step = StepSpeed(
        step="put", calls=1, items=1, per_second=1000.0, p50=1, p95=1, p99=1, longest=1
    )
    assert compare("memory", (step,)) == ()
    [one] = compare("valkeys+cluster", (step,))
    assert one.here == 0.001
    assert one.ratio == one.docs / one.here
    assert compare("sqlite", (step,)) == (), "a cycle needs all three"
