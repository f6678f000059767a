"""``leasedkeyq`` and ``python -m leasedkeyq``: the commands of the package."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from leasedkeyq import __version__
from leasedkeyq.cli import worker
from leasedkeyq.cli.health import PortError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    if arguments is None:
        arguments = sys.argv[1:]
    parser = argparse.ArgumentParser(prog="leasedkeyq", description="Keyed, leased queues.")
    parser.add_argument("--version", action="version", version=f"leasedkeyq {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    help_text = "run the lanes of a manager until SIGTERM or SIGINT"
    worker_parser = commands.add_parser("worker", help=help_text, description=help_text)
    worker.add_arguments(worker_parser)
    options = parser.parse_args(arguments)
    try:
        return worker.main(options, arguments)
    except worker.UsageError as error:
        worker_parser.error(str(error))
    except (worker.MissingExtraError, PortError) as error:
        sys.stderr.write(f"{worker_parser.prog}: error: {error}\n")
        return worker.MISUSED


def run() -> NoReturn:
    """Run a command, and end the process: the console script."""
    code = main()
    worker.end_for_certain(code)
    sys.exit(code)


if __name__ == "__main__":
    run()
