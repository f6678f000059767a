"""``leasedkeyq completion``."""

import os
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

SHELLS = ("bash", "zsh", "fish")
_MORE = "env " + " ".join(
    f'{name}="${name}"' for name in ("COMP_LINE", "COMP_POINT", "COMP_WORDBREAKS")
)


class BashCompletion(BashComplete):
    """Completion of bash for words with colons in them, such as URLs.

    Bash splits words there, too, and replaces only the last of these parts. So the words are read
    from the line, and what bash does not replace is left out of the answer.
    """

    source_template = BashComplete.source_template.replace("env", _MORE, 1)
    _kept = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the cursor, and the one at it."""
        line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT") or 0)]
        if not line:
            return super().get_completion_args()  # the script of an older version
        words = split_arg_string(line)
        if line[-1].isspace():
            words.append("")
        breaks = os.environ.get("COMP_WORDBREAKS", "")
        self._kept = words[-1][: max((words[-1].rfind(sign) for sign in breaks), default=-1) + 1]
        return words[1:-1], words[-1]

    def format_completion(self, item: CompletionItem) -> str:
        """An answer, without the part that bash leaves in the line."""
        value: Any = item.value
        return f"{item.type},{str(value).removeprefix(self._kept)}"


add_completion_class(BashCompletion)


@click.command("completion", short_help="Print the completion of a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion of a shell.

    It completes commands and options, and the names of queues where the store answers within a
    second.

    \b
    Examples:
      eval "$(leasedkeyq completion bash)"                       # in ~/.bashrc
      eval "$(leasedkeyq completion zsh)"                        # in ~/.zshrc
      leasedkeyq completion fish > ~/.config/fish/completions/leasedkeyq.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = ctx.find_root().command
    click.echo(kind(root, {}, "leasedkeyq", "_LEASEDKEYQ_COMPLETE").source())
