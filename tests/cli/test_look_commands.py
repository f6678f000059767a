"""queues, list, show, stats, workers and schedules, on SQLite."""

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from leasedkeyq.cli import store_command
from leasedkeyq.cli.app import COMMANDS, group
from leasedkeyq.cli.output import Column, age, cells, fitted, printable
from tests.cli.commands import Shell, sqlite_shell


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return sqlite_shell(tmp_path, capsys)


def test_queues(shell: Shell) -> None:
    empty = shell("queues")
    assert (empty.code, empty.out) == (0, "")
    assert "no queue holds anything" in empty.err
    shell.put("mail", "a", "b")
    shell.put("later", "c", delay=600.0)
    shell.bury("mail", "x", "ValueError: no")
    done = shell("queues")
    assert done.code == 0
    assert done.out.splitlines()[0].split() == [
        *("QUEUE", "WAITING", "SCHED", "RUNNING", "DEAD", "DONE", "OLDEST", "NOTE"),
    ]
    assert done.out.splitlines()[1].split()[:6] == ["later", "0", "1", "0", "0", "0"]
    assert done.out.splitlines()[2].split()[:6] == ["mail", "2", "0", "0", "1", "0"]
    assert [view["name"] for view in shell("queues", "--json").json] == ["later", "mail"]


def test_list_pages_and_filters(shell: Shell) -> None:
    shell.put("mail", *(f"k{number}" for number in range(7)))
    shell.bury("mail", "dead", "ValueError: order 17 is gone\nTraceback", "ship")
    page = shell("list", "mail", "--limit", "3", "--json")
    assert [view["key"] for view in page.lines] == ["k0", "k1", "k2"]
    cursor = page.err.split("--cursor ")[1].strip()
    rest = shell("list", "mail", "--cursor", cursor, "--json")
    assert [view["key"] for view in rest.lines] == ["k3", "k4", "k5", "k6", "dead"]
    assert rest.err == ""
    every = shell("list", "mail", "--limit", "2", "--all", "--json")
    assert len(every.lines) == 8
    [dead] = shell("list", "mail", "-s", "dead", "-e", "ORDER 17", "--kind", "ship", "--json").lines
    assert dead["state"] == "buried"
    table = shell("list", "mail", "--state", "buried")
    assert "ValueError: order 17 is gone" in table.out
    assert "Traceback" not in table.out
    nothing = shell("list", "mail", "--older-than", "1h30m")
    assert (nothing.code, nothing.out) == (1, "")
    assert nothing.err == "leasedkeyq: nothing in 'mail' matches\n"
    assert shell("list", "mail", "--newer-than", "1d", "--prefix", "k6").code == 0


def test_show_by_key_and_by_id(shell: Shell) -> None:
    shell.put("mail", "7")
    shell.put("mail", "b", policy="append")
    shell.put("mail", "b", policy="append")
    shell.bury("mail", "dead", "ValueError: gone\n  at line 3")
    by_key = shell("show", "mail", "7", "--json").json
    assert by_key["item"]["key"] == "7"
    assert shell("show", "mail", str(by_key["item"]["id"]), "--json").json == by_key
    assert shell("show", "mail", "--id", str(by_key["item"]["id"]), "--json").json == by_key
    b = shell("show", "mail", "b")
    assert "behind it:" in b.out
    assert '{"to": "b"}' in b.out
    dead = shell("show", "mail", "dead")
    assert "ValueError: gone\n    at line 3" in dead.out
    assert "attempts:\n  1  " in dead.out
    missing = shell("show", "mail", "nobody")
    assert (missing.code, missing.err) == (1, "leasedkeyq: there is no 'nobody' in 'mail'\n")
    odd = shell("show", "mail")
    assert odd.code == 1
    assert "'mail' is not the id of a command" in odd.err


def test_nothing_in_a_queue_can_write_to_the_terminal(shell: Shell) -> None:
    evil = "\x1b]0;owned\x07\x9b31m\u202e\r\n"
    shell.put(f"q{evil}", f"k{evil}")
    shell.bury(f"q{evil}", f"d{evil}", f"e{evil}", f"kind{evil}")
    for words in (
        ["queues"],
        ["list", f"q{evil}"],
        ["show", f"q{evil}", f"k{evil}"],
        ["show", f"q{evil}", f"d{evil}"],
        ["list", f"nope{evil}"],
    ):
        done = shell(*words)
        assert not set("\x1b\x07\x9b\u202e\r") & set(done.out + done.err), words


def test_stats_workers_and_schedules(shell: Shell) -> None:
    shell.put("mail", "a")
    assert shell("stats", "--json").json["available"] == 1
    assert "durability" in shell("stats").out
    assert shell("workers").code == 1
    assert shell("workers", "--json").json == []
    assert shell("schedules").code == 1
    assert shell("schedules", "--json").json == []


@pytest.mark.parametrize(
    "arguments, code, said",
    [
        (["list"], 2, "QUEUE is missing: list [STORE] QUEUE (leasedkeyq list --help tells more)"),
        (["list", "mail"], 2, "no store: write its URL first"),
        (["nonsense"], 2, "No such command 'nonsense'"),
        (["queues", "what://x"], 2, "no store for the scheme 'what'"),
        (["queues", "sqlite:///nowhere.db"], 3, "there is no file nowhere.db"),
        (["queues", "file:nowhere.yaml"], 3, "there is no file nowhere.yaml"),
        (["queues", "memory://", "one"], 2, "'one' is one word too many"),
        (["list", "memory://", "q", "--older-than", "soon"], 2, "no span of time"),
        (["queues", "memory://", "--store-option", "a"], 2, "--store-option is NAME=VALUE"),
        (["queues", "memory://", "--store-option", "a=1"], 2, "unexpected keyword argument 'a'"),
        (["list", "memory://", "q", "--cursor", "x"], 2, "cursor must be"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], code: int, said: str, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEASEDKEYQ_URL", raising=False)
    done = shell.bare(*arguments)
    assert (done.code, done.out) == (code, "")
    [line] = done.err.splitlines()
    assert said in line


def test_without_a_command_the_help_is_shown(shell: Shell) -> None:
    done = shell.bare()
    assert done.code == 2
    assert done.out == shell.bare("--help").out


def test_the_store_comes_from_the_environment(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.put("file:odd", "a")
    monkeypatch.setenv("LEASEDKEYQ_URL", shell.url)
    assert shell.bare("queues", "--json").json[0]["name"] == "file:odd"
    # A queue may look like a URL, where the store is known and there is no other word.
    assert shell.bare("list", "file:odd", "--json").lines[0]["key"] == "a"
    monkeypatch.setenv("LEASEDKEYQ_URL", "memory://")
    assert shell.bare("list", shell.url, "file:odd", "--json").lines[0]["key"] == "a"
    assert shell.bare("list", "--store", shell.url, "file:odd", "--json").lines[0]["key"] == "a"


def test_all_commands_have_the_help_that_the_list_tells() -> None:
    import click

    for name, entry in COMMANDS.items():
        command = group.get_command(click.Context(group), name)
        assert command is not None
        assert command.name == name
        if name != "worker":
            assert command.help is not None
            assert command.help.splitlines()[0] == entry.summary, name
            assert "Examples:" in command.help, name


def test_help_fits_a_narrow_terminal(shell: Shell) -> None:
    for arguments in (["--help"], *([name, "--help"] for name in COMMANDS if name != "worker")):
        done = shell.bare(*arguments)
        assert done.code == 0
        assert max(len(line) for line in done.out.splitlines()) <= 80, arguments


def test_completion_knows_commands_and_queues(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.put("mail-out", "a")
    for name, part in (("bash", "complete -o"), ("zsh", "#compdef"), ("fish", "complete --")):
        assert part in shell.bare("completion", name).out
    monkeypatch.setenv("_LEASEDKEYQ_COMPLETE", "bash_complete")
    monkeypatch.setattr(store_command, "COMPLETION_TIME", 60.0)

    def completed(words: str, count: int) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(count))
        return shell.bare().out.split()

    assert completed("leasedkeyq qu", 1) == ["plain,queues"]
    assert completed(f"leasedkeyq list {shell.url} ma", 3) == ["plain,mail-out"]
    assert completed(f"leasedkeyq list {shell.url} x", 3) == []
    assert completed("leasedkeyq list sqlite:///nowhere.db ma", 3) == []
    monkeypatch.setenv("LEASEDKEYQ_URL", shell.url)
    assert completed("leasedkeyq show ma", 2) == ["plain,mail-out"]


def test_bash_completes_behind_a_url_and_in_a_name_with_colons(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.put("mail:eu", "a")
    shell.put("mail;rm -rf x", "a")
    shell.put("-rf", "a")
    assert 'COMP_LINE="$COMP_LINE"' in shell.bare("completion", "bash").out
    monkeypatch.setenv("_LEASEDKEYQ_COMPLETE", "bash_complete")
    monkeypatch.setattr(store_command, "COMPLETION_TIME", 60.0)
    monkeypatch.setenv("COMP_WORDBREAKS", " \t\n\"'@><=;|&(:")

    def completed(line: str, behind: str = "") -> list[str]:
        monkeypatch.setenv("COMP_LINE", line + behind)
        monkeypatch.setenv("COMP_POINT", str(len(line)))
        return shell.bare().out.split()

    assert completed("leasedkeyq qu") == ["plain,queues"]
    # What a shell would run is not offered.
    assert completed(f"leasedkeyq list {shell.url} ") == ["plain,mail:eu"]
    assert completed(f"leasedkeyq list {shell.url} ma", " --json") == ["plain,mail:eu"]
    assert completed(f"leasedkeyq list {shell.url} mail:e") == ["plain,eu"]
    assert completed(f"leasedkeyq list --store={shell.url} mail:") == ["plain,eu"]
    assert completed(f"leasedkeyq list {shell.url} mail:eu --state=bur") == ["plain,buried"]


def test_closed_streams_lead_nowhere(shell: Shell) -> None:
    shell.put("mail", "a")
    code = (
        f"from leasedkeyq.__main__ import main; raise SystemExit(main(['queues', {shell.url!r}]))"
    )
    command = f"{sys.executable} -c {shlex.quote(code)} <&- >&- 2>&-"
    assert subprocess.run(command, shell=True, timeout=60, check=False).returncode == 0


def test_without_the_extra_only_the_worker_runs() -> None:
    code = """
import sys
sys.modules["click"] = sys.modules["rich"] = None
from leasedkeyq.__main__ import main
assert main(["queues", "memory://"]) == 2
assert main(["--help"]) == 2
assert main(["--version"]) == 0
main(["worker", "--help"])
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("pip install 'leasedkeyq[cli]'") == len(done.stderr.splitlines()) == 2
    assert done.stdout.startswith("leasedkeyq ")
    assert "--max-memory" in done.stdout


def test_a_look_imports_little(shell: Shell) -> None:
    """What takes long to import would be most of the time that a command takes."""
    shell.put("mail", "a")
    code = """
import sys
from leasedkeyq.__main__ import main
assert main(sys.argv[1:]) == 0
slow = {"rich", "importlib.metadata", "leasedkeyq.lanes.manager",
    "leasedkeyq.lanes.commands.command", "leasedkeyq.lanes.durable.engine",
    "leasedkeyq.lanes.schedules.schedule", "leasedkeyq.cli.worker",
    "leasedkeyq.web", "argparse", "email", "urllib.request"}
print(sorted(slow & set(sys.modules)))
"""
    command = [sys.executable, "-c", code, "queues", shell.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "[]"), done.stderr


def test_a_closed_pipe_ends_a_command_quietly(shell: Shell) -> None:
    shell.put("mail", *(f"{number:0200}" for number in range(2000)))
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "leasedkeyq", "list", shell.url, "mail", "--all", "--json"],
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("colour", [True, False])
def test_tables_fit_the_terminal(
    colour: bool, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.put("a queue with a name that is rather long, as some people like them", "k" * 300)
    shell.bury("mail", "[bold]no markup[/bold]" * 9, "ValueError: " + "x" * 300, "kind" * 20)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    for words in (["queues"], ["list", "mail"]):
        out = shell(*words).out
        assert ("\x1b[" in out) == colour
        lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in out.splitlines()]
        assert len(lines) in (2, 3)
        assert max(map(len, lines)) <= 80
        assert ("[bold]" in out) == ("list" in words)


def test_ctrl_c_ends_a_command_quietly(shell: Shell) -> None:
    shell.put("mail", "a")
    command = [sys.executable, "-m", "leasedkeyq", "queues", shell.url, "--watch", "--every", "1h"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"QUEUE")
        assert process.stdout.readline().startswith(b"mail")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == b""


def test_tables_fit_a_line() -> None:
    columns = (Column("A"), Column("B", shrinks=True), Column("C", shrinks=True))
    rows = [["1", "x" * 50, "日本" * 20], ["2", "y", "z"]]
    for row in fitted(columns, rows, 40):
        assert sum(map(cells, row)) + 4 <= 40
    assert fitted(columns, [["1", "b", "c"]], 40) == [["1", "b", "c"]]
    assert printable("a\tb") == "a\\tb"
    assert [age(n) for n in (None, 0, 59, 61, 3700, 90000)] == [
        *("-", "0.0s", "59s", "1m01s", "1h01m", "1d01h")
    ]


def test_the_reference_of_the_commands_is_current() -> None:
    path = Path(__file__).resolve().parent.parent.parent / "tools/cli_pages.py"
    spec = importlib.util.spec_from_file_location("cli_pages", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.outdated() == [], "run python tools/cli_pages.py"


def test_json_has_no_characters_that_a_terminal_obeys(shell: Shell) -> None:
    key = "\x7f\x9b31m\u202e\U000e0041"
    shell.put("mail", key)
    done = shell("list", "mail", "--json")
    assert done.out.rstrip("\n").isprintable()
    assert done.lines[0]["key"] == key
