"""``leasedkeyq worker`` in the list of commands; it runs without click, see ``__main__``."""

import click


class WorkerCommand(click.Command):
    """Has the help of the worker, which is made without click."""

    def get_help(self, ctx: click.Context) -> str:
        """As ``leasedkeyq worker --help`` prints it."""
        del ctx
        from leasedkeyq.cli.worker import new_parser  # noqa: PLC0415 - it needs all of lanes

        return new_parser().format_help()


worker = WorkerCommand("worker", short_help="Run the lanes of a manager until told to stop.")
