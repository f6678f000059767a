"""How a worker tells over HTTP that it lives, that it is ready, and what it has done."""

import asyncio
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from leasedkeyq.__main__ import main
from leasedkeyq.cli.health import HEAD, Health, HealthServer
from leasedkeyq.cli.metrics_text import merged
from leasedkeyq.cli.probe import WorkerProbe
from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder
from tests.cli.test_worker import APP, PATIENCE, Worker, producer, result, worker

BLOCKS = """
@manager.command("block")
async def block(until: str) -> None:
    while not os.path.exists(until):
        time.sleep(0.05)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP + "\nimport os\n" + BLOCKS, encoding="utf-8")
    return tmp_path


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def until(holds: Callable[[], Any]) -> Any:
    """Wait until something holds."""
    deadline = time.monotonic() + PATIENCE
    while not (found := holds()):
        assert time.monotonic() < deadline, "it never held"
        time.sleep(0.02)
    return found


def port_of(process: Worker) -> int:
    return int(process.hear("tells its health at port").rpartition(" ")[2])


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("processes", [(), ("--processes", "2")])
def test_a_worker_tells_how_it_is(processes: tuple[str, ...], folder: Path) -> None:
    url = f"sqlite:///{folder}/jobs.db"
    health = ("--health", "127.0.0.1:0", "--stuck-after", "1")
    with (
        worker(folder, "app:manager", "--store", url, *health, *processes) as process,
        producer(url) as (runner, manager),
    ):
        port = port_of(process)
        until(lambda: get(port, "/readyz")[0] == 200)
        assert "the store answers" in get(port, "/readyz")[1]
        assert get(port, "/nothing")[0] == 404
        assert runner.run(result(manager, "work", "work", 1, 0.0)) == 2
        labels = {("lane", "work"), ("type", "work"), ("outcome", "completed")}

        def counted() -> bool:
            status, text = get(port, "/metrics")
            assert status == 200
            done = {
                where: value
                for (name, where), value in samples(text).items()
                if name == "leasedkeyq_attempts_ended_total" and labels <= where
            }
            if processes:
                assert all(dict(where)["process"] in ("1", "2") for where in done)
            return sum(done.values()) == 1

        until(counted)
        # An event loop that is blocked is seen from beside it, and only as long as it is.
        until(lambda: get(port, "/livez")[0] == 200)
        block = manager.command("block", block_until)
        runner.run(manager.submit("work", block(f"{folder}/go on")))
        until(lambda: get(port, "/livez")[0] == 503)
        assert "the event loop has stood still for" in get(port, "/livez")[1]
        (folder / "go on").touch()
        until(lambda: get(port, "/livez")[0] == 200)
        assert process.end(signal.SIGTERM) == 0
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), 5)


async def block_until(until: str) -> None:
    raise NotImplementedError


def test_a_port_in_use_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for more in ([], ["--processes", "2"]):
            code = main(["worker", "app:manager", "--health", f"127.0.0.1:{port}", *more])
            assert code == 2
            [line] = capsys.readouterr().err.splitlines()
            where = f"cannot listen at 127.0.0.1:{port}: Address already in use"
            assert line == f"leasedkeyq worker: error: --health: {where}"


class Told:
    """A source of health that says what it was told."""

    def __init__(self) -> None:
        self.health = Health(True, "well")

    def live(self) -> Health:
        return self.health

    def ready(self) -> Health:
        return self.health

    def metrics(self) -> str:
        return "up 1\n"


def test_requests_are_bounded() -> None:
    server = HealthServer("127.0.0.1", 0)
    source = Told()
    server.start(source)
    try:
        assert get(server.port, "/livez?verbose=1") == (200, "well\n")
        source.health = Health(False, "ill")
        assert get(server.port, "/readyz") == (503, "ill\n")
        assert get(server.port, "/metrics") == (200, "up 1\n")

        def sent(request: bytes) -> bytes:
            with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
                connection.sendall(request)
                answer = b""
                try:
                    while piece := connection.recv(1000):
                        answer += piece
                except ConnectionResetError:
                    pass
                return answer

        assert b" 501 " in sent(b"POST /livez HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello")
        assert sent(b"GET /livez HTTP/1.1\r\nX: " + b"x" * HEAD + b"\r\n\r\n") == b""
        head = sent(b"HEAD /readyz HTTP/1.1\r\n\r\n")
        assert b" 503 " in head
        assert head.endswith(b"\r\n\r\n")
    finally:
        server.close()


class FailingSource(Told):
    """It cannot be asked."""

    def ready(self) -> Health:
        raise ConnectionError("no store")

    def metrics(self) -> str:
        raise ZeroDivisionError


def test_what_cannot_be_found_out_is_told() -> None:
    server = HealthServer("127.0.0.1", 0)
    server.start(FailingSource())
    try:
        assert get(server.port, "/readyz") == (503, "ConnectionError('no store')\n")
        assert get(server.port, "/metrics") == (503, "ZeroDivisionError()\n")
        assert get(server.port, "/livez")[0] == 200
    finally:
        server.close()


@pytest.mark.parametrize("with_client", [True, False])
def test_metrics_of_a_worker(with_client: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not with_client:
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        monkeypatch.delitem(sys.modules, "leasedkeyq.telemetry.prometheus", raising=False)
    lane = f"lane of {with_client}"
    manager = QueueManagerBuilder().with_lane(lane, LaneConfig(0, 2), 0).build()

    @manager.command("double", lane=lane)
    async def double(number: int) -> int:
        return 2 * number

    async def main() -> None:
        probe = WorkerProbe(30)
        assert probe.ready() == Health(False, "it starts")
        assert probe.metrics() == ""
        probe.attach(manager, measure=True)
        async with manager:
            assert await (await manager.submit(double(1))) == 2
            found = samples(await asyncio.to_thread(probe.metrics))
            done = {("lane", lane), ("type", "double")}
            assert found["leasedkeyq_commands_submitted_total", frozenset(done)] == 1
            assert found["leasedkeyq_command_running_seconds_count", frozenset(done)] == 1
            done.add(("outcome", "completed"))
            assert found["leasedkeyq_attempts_ended_total", frozenset(done)] == 1
            assert found["leasedkeyq_lane_pending", frozenset({("lane", lane)})] == 0
            assert found["leasedkeyq_dead_letters", frozenset()] == 0
            assert (await asyncio.to_thread(probe.ready)).well
        assert probe.ready() == Health(False, "it ends")
        probe.detach()

    asyncio.run(main())


def test_the_metrics_of_processes_are_one_text() -> None:
    text = '# HELP a_total A\n# TYPE a_total counter\na_total{x="1 {"} 2.0\n# TYPE b gauge\nb 3\n'
    both = merged({"1": text, "2": text})
    assert both.count("# TYPE") == 2
    found = samples(both)
    assert found["a_total", frozenset({("x", "1 {"), ("process", "1")})] == 2.0
    assert found["b", frozenset({("process", "2")})] == 3.0
    assert merged({}) == "\n"
