"""``leasedkeyq web``: where it listens, who may come, how it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from leasedkeyq.__main__ import main
from leasedkeyq.web.access.users import hash_password, password_matches

TOKEN = "a-token-that-is-long-enough"


@pytest.fixture
def cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasedkeyq.web.access.users.COST", 16)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "jobs.example.com"])
def test_an_address_that_others_reach_needs_authentication(
    host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["web", "memory://", "--host", host, "--port", "0"]) == 2
    error = capsys.readouterr().err
    assert f"{host} can be reached from other machines" in error
    assert "--token" in error
    assert "--user" in error


def test_a_password_becomes_a_hash(
    cheap_hashes: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"correct horse\n")
    os.close(writing)
    with os.fdopen(reading) as text:
        monkeypatch.setattr(sys, "stdin", text)
        assert main(["web", "--hash-password"]) == 0
    printed = capsys.readouterr().out.strip()
    assert password_matches("correct horse", printed)


@pytest.mark.parametrize(
    "words, told",
    [
        (["sqlite:///nothing-here.db"], "there is no file"),
        ([], "no store"),
        (["memory://", "--token", "short"], "at least 16 characters"),
        (["memory://", "--user", "ada"], "NAME:HASH"),
        (["memory://", "--user", "ada:admin:x"], "role viewer or operator"),
        (["memory://", "--user", "ada:plain-password"], "password hash of user 'ada'"),
        (["a=memory://", "memory://"], "give all stores a name"),
        (["memory://", "--trace-url", "https://traces.example.com/"], "{trace_id}"),
    ],
)
def test_what_makes_no_sense_is_told_in_a_line(
    words: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LEASEDKEYQ_URL", raising=False)
    assert main(["web", *words, "--port", "0"]) in (2, 3)
    error = capsys.readouterr().err
    assert told in error
    assert len(error.splitlines()) == 1
    assert "plain-password" not in error


def test_without_the_extra_it_says_which_command_installs_it() -> None:
    blocked = (
        "import sys; sys.modules['starlette'] = None\n"
        "from leasedkeyq.__main__ import main\n"
        "sys.exit(main(['web', 'memory://', '--port', '0']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", blocked], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert 'pip install "leasedkeyq[web]"' in done.stderr


def test_a_server_that_answers_and_ends_at_once(cheap_hashes: None, tmp_path: Path) -> None:
    """With a page open, whose events go on for ever."""
    users = tmp_path / "users.txt"
    users.write_text(f"# those who may\nada:viewer:{hash_password('correct horse')}\n")
    command = ["-m", "leasedkeyq", "web", "shop=memory://", "--port", "0", "--users", str(users)]
    server = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"LEASEDKEYQ_WEB_TOKEN": TOKEN},
    )
    try:
        assert server.stdout is not None
        told = server.stdout.readline()
        assert told.endswith("/ shows shop. Ctrl-C ends it.\n"), told
        address = told.split()[0]
        with httpx.Client(base_url=address, timeout=30) as client:
            assert client.get("/s/shop/overview.json").status_code == 401
            client.headers["authorization"] = f"Bearer {TOKEN}"
            answer = client.get("/s/shop/overview.json")
            assert answer.json()["totals"]["available"] == 0
            assert "server" not in answer.headers
            with client.stream("GET", "/s/shop/overview.live") as live:
                assert live.headers["content-type"].startswith("text/event-stream")
                events = live.iter_lines()
                assert next(events) == "event: open"
                began = time.monotonic()
                server.send_signal(signal.SIGTERM)
                assert server.wait(30) in (0, -signal.SIGTERM)
                assert time.monotonic() - began < 15
        logged = server.communicate()[1]
        assert TOKEN not in logged
        assert "ERROR" not in logged, "an open page ends properly"
    finally:
        server.kill()
        server.communicate()
