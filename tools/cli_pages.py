"""Write docs/reference/cli from the help of the commands: one page for each group.

``python tools/cli_pages.py`` writes the pages; with ``--check`` it only says which are not current.
"""

import argparse
import sys
from pathlib import Path

import click

from leasedkeyq.cli.app import COMMANDS, PROGRAM, group

FOLDER = Path(__file__).resolve().parent.parent / "docs/reference/cli"
WIDTH = 80
ABOUT = (
    "Written from the help of the commands. [Look into a queue](../../howto/look-into-a-queue.md) "
    "has the exit codes, and what all commands have in common."
)


def page_name(title: str) -> str:
    """The name of the page of a group."""
    return f"{title.lower().replace(' ', '-')}.md"


def pages() -> dict[str, str]:
    """The text of each page, by its name."""
    names = [*group.context_settings["help_option_names"]]
    context = click.Context(group, info_name=PROGRAM, terminal_width=WIDTH, help_option_names=names)
    texts: dict[str, str] = {}
    for title in dict.fromkeys(entry.group for entry in COMMANDS.values()):
        parts = [f"# Commands: {title.lower()}\n", f"{ABOUT}\n"]
        for name, entry in COMMANDS.items():
            if entry.group == title:
                parts.append(f"## {PROGRAM} {name}\n\n{_help(name, context)}\n")
        texts[page_name(title)] = "\n".join(parts)
    return texts


def _help(name: str, context: click.Context) -> str:
    if name == "worker":
        # It is made without click, and looks different in each version of Python.
        return "See [Run workers](../../howto/worker.md), or `leasedkeyq worker --help`."
    command = group.get_command(context, name)
    assert command is not None
    inner = click.Context(command, info_name=name, parent=context, terminal_width=WIDTH)
    return f"```text\n{command.get_help(inner).rstrip()}\n```"


def outdated() -> list[str]:
    """The pages that are missing, differ from the help, or are of a group that is gone."""
    texts = pages()
    found = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    return sorted(name for name in {*texts, *found} if texts.get(name) != found.get(name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        for name in outdated():
            print(f"docs/reference/cli/{name} is not current: run python tools/cli_pages.py")
        return 1 if outdated() else 0
    FOLDER.mkdir(exist_ok=True)
    texts = pages()
    for path in FOLDER.glob("*.md"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
