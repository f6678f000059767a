"""``leasedkeyq completion``."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


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
