"""No command prints the password of a store, whatever goes wrong."""

from pathlib import Path

import click
import pytest

from leasedkeyq.cli.app import COMMANDS, group
from leasedkeyq.cli.hidden import HiddenSecrets, shown_url
from leasedkeyq.cli.store_command import StoreCommand
from tests.cli.commands import Shell

CANARY = "c4n4ry"
ELSEWHERE = {"web", "worker", "completion", "top"}
"""Commands that need no store at once, or a terminal; they have tests of their own."""
NO_SERVER = "127.0.0.1:1"


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.delenv("LEASEDKEYQ_URL", raising=False)
    return Shell("", capsys)


def words_of(name: str, url: str, folder: Path) -> list[str]:
    """What a command has to be given besides its store."""
    command = group.get_command(click.Context(group), name)
    assert command is not None
    if name == "move":
        return [url]
    if name in ("export", "import"):
        return [str(folder / "backup.jsonl")]
    assert isinstance(command, StoreCommand), name
    known = {"type": "send", "arguments": "{}", "value": "1", "priority": "1"}
    words = [known.get(word.name, word.name) for word in command.words]
    # What has the option must not ask, nor read standard input.
    return [*words, *(["--yes"] if any(param.name == "yes" for param in command.params) else [])]


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ELSEWHERE])
def test_no_command_prints_a_password(name: str, shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "backup.jsonl").write_text("")
    urls = {
        f"postgresql://ann:{CANARY}@{NO_SERVER}/db?password={CANARY}2": "patience=0",
        f"redis://ann:{CANARY}%21@{NO_SERVER}/0": "retry_for=0",
        f"nonsense://ann:{CANARY}@host/?secret_token={CANARY}": "patience=0",
        f"file://ann:{CANARY}@host/x.json": "patience=0",
        f"sqlite://ann:{CANARY}@host/x.db": "patience=0",
        f"postgresql://ann:{CANARY}@host:port/db": "patience=0",
    }
    for url, option in urls.items():
        words = words_of(name, url, tmp_path)
        given = ("--store-option", option, "--store-option", f"password={CANARY}", "--debug")
        done = shell.bare(name, url, *words, *given)
        assert done.code != 0, url
        assert CANARY not in done.out + done.err, url
    url = next(iter(urls))
    done = shell.bare(name, url, *words_of(name, url, tmp_path), url, url, url)
    assert done.code in (2, 3)  # `tail` takes any number of words
    assert CANARY not in done.out + done.err


@pytest.mark.parametrize(
    "url, shown",
    [
        ("redis://host/0", "redis://host/0"),
        ("redis://:pw@host/0", "redis://:***@host/0"),
        ("postgresql://ann:p%40w@host/db", "postgresql://ann:***@host/db"),
        ("postgresql://ann:p@w@host/db", "postgresql://ann:***@host/db"),
        (
            "postgresql://host/db?user=ann&password=pw&x=1",
            "postgresql://host/db?user=ann&password=***&x=1",
        ),
        ("postgresql://host/db?sslpassword=pw", "postgresql://host/db?sslpassword=***"),
        ("postgresql://host/db?pass%77ord=pw", "postgresql://host/db?pass%77ord=***"),
    ],
)
def test_urls_are_shown_without_passwords(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_a_password_is_hidden_as_it_was_written_and_as_it_is_read() -> None:
    hidden = HiddenSecrets()
    hidden.add("redis://ann:p%40ss%27word@host", {"sentinel_password": "other one", "db": 1})
    text = "p%40ss%27word, p@ss'word and other one; 1 is shown"
    assert hidden.hide(text) == "***, *** and ***; 1 is shown"
    short = HiddenSecrets()
    short.add("redis://ann:a@host")
    assert short.hide("redis://ann:a@host was not there") == "redis://ann:***@host was not there"


def test_passwords_in_options_of_a_client_are_hidden() -> None:
    secrets = HiddenSecrets()
    secrets.add("redis://h", {"client_options": {"username": "shop", "password": "hunter2"}})
    assert secrets.hide("AUTH shop hunter2 refused") == "AUTH shop *** refused"
