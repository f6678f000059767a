"""``leasedkeyq`` and ``python -m leasedkeyq``: the commands of the package.

``worker`` runs without the extra ``cli``, as workers in production need no other command. All other
commands need it. What a command does not need is not imported for it.
"""

import sys
from collections.abc import Sequence
from typing import NoReturn

MISUSED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    if arguments is None:
        arguments = sys.argv[1:]
    if arguments and arguments[0] == "worker":
        return _run_worker(arguments)
    try:
        from leasedkeyq.cli import app  # noqa: PLC0415 - it needs the extra
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        if arguments and arguments[0] == "--version":
            from leasedkeyq import __version__  # noqa: PLC0415

            sys.stdout.write(f"leasedkeyq {__version__}\n")
            return 0
        sys.stderr.write(
            "leasedkeyq: this command needs click, which is not installed: "
            "pip install 'leasedkeyq[cli]'; only `leasedkeyq worker` runs without it\n"
        )
        return MISUSED
    return app.main(arguments)


def _run_worker(arguments: Sequence[str]) -> int:
    from leasedkeyq.cli import worker  # noqa: PLC0415
    from leasedkeyq.cli.health import PortError  # noqa: PLC0415

    parser = worker.new_parser()
    options = parser.parse_args(arguments[1:])
    try:
        return worker.main(options, arguments)
    except worker.UsageError as error:
        parser.error(str(error))
    except (worker.MissingExtraError, PortError) as error:
        sys.stderr.write(f"{parser.prog}: error: {error}\n")
        return worker.MISUSED


def run() -> NoReturn:
    """Run a command, and end the process: the console script."""
    code = main()
    worker = sys.modules.get("leasedkeyq.cli.worker")
    if worker is not None:
        worker.end_for_certain(code)
    sys.exit(code)


if __name__ == "__main__":
    run()
