"""move, export and import, as commands."""

import gzip
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.commands import Shell, sqlite_shell
from tests.servers.urls import empty_store


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return sqlite_shell(tmp_path, capsys)


def fill(shell: Shell) -> None:
    shell.put("mail", *(f"k{number}" for number in range(7)))
    shell.put("later", "c", delay=600.0)
    shell.bury("mail", "dead", "ValueError: no")


def names(shell: Shell, url: str = "") -> dict[str, tuple[int, int, int]]:
    found = shell.bare("queues", url or shell.url, "--json").json
    return {view["name"]: (view["available"], view["scheduled"], view["buried"]) for view in found}


FILLED = {"mail": (7, 0, 1), "later": (0, 1, 0)}


def test_move(shell: Shell, tmp_path: Path) -> None:
    fill(shell)
    target = f"sqlite:///{tmp_path}/other.db"
    done = shell("move", target, "--queue", "later", "--json")
    assert done.code == 0
    assert (done.json["moved"], done.json["left"], done.json["verified"]) == (1, 0, True)
    done = shell("move", target)
    assert done.code == 0
    assert done.out == "mail: 8 items moved\n8 items moved in all\n"
    assert names(shell) == {}
    assert names(shell, target) == FILLED
    again = shell("move", target)
    assert (again.code, again.out) == (0, "0 items moved in all\n")
    assert shell("move").code == 2


def test_move_tells_what_is_left(shell: Shell, tmp_path: Path) -> None:
    fill(shell)
    shell.claim("mail", "k0")
    done = shell("move", f"sqlite:///{tmp_path}/other.db", "--wait", "0s")
    assert done.code == 4
    assert "left in the source: 1 item," in done.err
    assert "1 left" in done.out


@pytest.mark.parametrize("name", ["backup.jsonl", "backup.jsonl.gz"])
def test_export_and_import(shell: Shell, tmp_path: Path, name: str) -> None:
    fill(shell)
    backup, target = tmp_path / name, f"sqlite:///{tmp_path}/other.db"
    done = shell("export", str(backup))
    assert (done.code, done.out) == (0, "")
    assert done.err == f"9 items written to {backup}\n"
    assert [path.name for path in tmp_path.glob("backup*")] == [name]
    dry = shell.bare("import", target, str(backup), "--dry-run")
    assert (dry.code, dry.out) == (0, "9 items would be put into the store\n")
    assert not (tmp_path / "other.db").exists()
    done = shell.bare("import", target, str(backup), "--json")
    assert (done.code, done.json["restored"]) == (0, 9)
    assert names(shell, target) == FILLED
    refused = shell("export", str(backup))
    assert refused.code == 2
    assert "--yes" in refused.err
    assert shell("export", str(backup), "--yes", "-q", "later").err.startswith("1 item written")


def test_a_damaged_backup_changes_nothing(shell: Shell, tmp_path: Path) -> None:
    fill(shell)
    backup, target = tmp_path / "b.jsonl", f"sqlite:///{tmp_path}/other.db"
    shell("export", str(backup))
    whole = backup.read_bytes()
    backup.write_bytes(whole.replace(b'"key":"k3"', b'"key":"k9"'))
    done = shell.bare("import", target, str(backup))
    assert done.code == 4
    line = [b'"key":"k3"' in text for text in whole.splitlines()].index(True) + 1
    assert f"line {line} of the backup: it is damaged" in done.err
    backup.write_bytes(whole[:-5])
    assert "cut" in shell.bare("import", target, str(backup)).err
    short = tmp_path / "s.jsonl.gz"
    short.write_bytes(gzip.compress(whole)[:-20])
    assert shell.bare("import", target, str(short)).code == 4
    packed = bytearray(gzip.compress(whole))
    packed[10] ^= 0xFF  # the first of the compressed bytes
    short.write_bytes(packed)
    assert "damaged or cut" in shell.bare("import", target, str(short)).err
    assert shell.bare("import", target, str(tmp_path / "none")).code == 2
    assert not (tmp_path / "other.db").exists()


def test_what_cannot_be_put_is_told(shell: Shell, tmp_path: Path) -> None:
    fill(shell)
    backup = tmp_path / "b.jsonl"
    shell("export", str(backup))
    shell.put("mail", "dead")
    done = shell("import", str(backup))
    assert done.code == 4
    assert "queue 'mail', key 'dead': its key is in use" in done.err


def test_by_pipes(shell: Shell, tmp_path: Path) -> None:
    """Of standard output, and of a reader that goes away."""
    fill(shell)
    program = [sys.executable, "-m", "leasedkeyq"]
    out = subprocess.run(
        [*program, "export", shell.url], check=True, capture_output=True, timeout=60
    ).stdout
    target = f"sqlite:///{tmp_path}/other.db"
    subprocess.run([*program, "import", target], check=True, input=out, timeout=60)
    assert names(shell, target) == FILLED
    shell.put("large", *(f"{number}{'x' * 400}" for number in range(2000)))
    with subprocess.Popen([*program, "export", shell.url], stdout=-1, stderr=-1) as process:
        assert process.stdout is not None
        assert process.stdout.read(10)
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


def test_an_import_that_is_killed_goes_on(shell: Shell, tmp_path: Path) -> None:
    keys = [f"{number:05}" for number in range(3000)]
    shell.put("mail", *keys)
    backup, target = tmp_path / "b.jsonl", tmp_path / "other.db"
    shell("export", str(backup))
    lines = backup.read_bytes().splitlines(keepends=True)
    command = [sys.executable, "-m", "leasedkeyq", "import", f"sqlite:///{target}"]
    with subprocess.Popen(command, stdin=-1, stdout=-1) as process:
        assert process.stdin is not None
        # Half of it, and then it waits for more.
        process.stdin.write(b"".join(lines[:1600]))
        process.stdin.flush()
        end = time.monotonic() + 60
        while not target.exists() or not names(shell, f"sqlite:///{target}"):
            assert time.monotonic() < end
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    [(available, _, _)] = names(shell, f"sqlite:///{target}").values()
    assert 0 < available < 3000
    done = shell.bare("import", f"sqlite:///{target}", str(backup), "--json")
    assert done.json["skipped"] == available
    found = shell.bare("list", f"sqlite:///{target}", "mail", "--all", "--json").lines
    assert [view["key"] for view in found] == keys


def interrupted_move(shell: Shell, target: Path, how: signal.Signals, items: int) -> int:
    """Begin to move items, end the process in the midst of it, and tell how many were moved."""
    shell.put("mail", *(f"{number:05}" for number in range(items)))
    code = (
        "import sys; from leasedkeyq.transfer import move; "
        "move.move.__kwdefaults__['batch'] = 5; from leasedkeyq.__main__ import run; run()"
    )
    command = [sys.executable, "-c", code, "move", shell.url, f"sqlite:///{target}"]
    with subprocess.Popen(command, stdout=-1, stderr=-1) as process:
        end = time.monotonic() + 60
        while True:
            # The file may be there while its tables are not: a look refuses it then.
            look = shell.bare("queues", f"sqlite:///{target}", "--json")
            if look.code == 0 and any(view["available"] for view in look.json):
                break
            assert process.poll() is None
            assert time.monotonic() < end
        process.send_signal(how)
        assert process.wait(60) in (130, -how)
    return sum(counts[0] for counts in names(shell, f"sqlite:///{target}").values())


def test_a_move_that_is_interrupted_goes_on(shell: Shell, tmp_path: Path) -> None:
    target = tmp_path / "other.db"
    moved = interrupted_move(shell, target, signal.SIGINT, 4000)
    assert 0 < moved < 4000
    done = shell("move", f"sqlite:///{target}", "--json")
    assert (done.code, done.json["left"]) == (0, 0)
    found = shell.bare("list", f"sqlite:///{target}", "mail", "--all", "--json").lines
    assert sorted(view["key"] for view in found) == [f"{number:05}" for number in range(4000)]
    assert names(shell) == {}


if os.environ.get("TORTURE") == "1":

    def test_a_move_that_is_killed_goes_on(shell: Shell, tmp_path: Path) -> None:
        """The second one waits for a minute, until the leases of the first one have ended."""
        target = tmp_path / "other.db"
        assert interrupted_move(shell, target, signal.SIGKILL, 4000) < 4000
        assert shell("move", f"sqlite:///{target}").code == 0
        found = shell.bare("list", f"sqlite:///{target}", "mail", "--all", "--json").lines
        assert sorted(view["key"] for view in found) == [f"{number:05}" for number in range(4000)]


@pytest.mark.parametrize("kind", ["postgresql", "redis", "file"])
def test_on_other_engines(shell: Shell, tmp_path: Path, kind: str) -> None:
    fill(shell)
    backup = tmp_path / "b.jsonl"
    with empty_store(kind, tmp_path) as url:
        shell("export", str(backup))
        assert shell.bare("import", url, str(backup)).code == 0
        assert names(shell, url) == FILLED
        target = f"sqlite:///{tmp_path}/other.db"
        assert shell.bare("move", url, target).code == 0
        assert names(shell, target) == FILLED


def test_export_tells_of_queues_that_hold_nothing(shell: Shell, tmp_path: Path) -> None:
    shell.put("mail", "a")
    target = tmp_path / "backup.jsonl"
    nothing = shell("export", str(target), "--queue", "nowhere")
    assert (nothing.code, target.exists()) == (1, False)
    assert "nothing is in nowhere, so no backup was written" in nothing.err
    some = shell("export", str(target), "-q", "nowhere", "-q", "mail")
    assert some.code == 0
    assert "nothing is in nowhere\n" in some.err
    assert "1 item written" in some.err
