"""Commands that carry items: move, export, import."""

import asyncio
import contextlib
import gzip
import os
import sys
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import click

from leasedkeyq.cli.choices import SPAN, json_option
from leasedkeyq.cli.exit_codes import NOT_FOUND, REFUSED
from leasedkeyq.cli.output import counted, echo_json, printable
from leasedkeyq.cli.progress_bar import ProgressBar
from leasedkeyq.cli.store_command import (
    CommandFailedError,
    StoreCommand,
    StoreSession,
    hidden,
    open_store,
    store_option,
)

if TYPE_CHECKING:
    from leasedkeyq.transfer.move import MoveReport
    from leasedkeyq.transfer.queue_transfer import MoveProgress
    from leasedkeyq.transfer.restore import ImportReport

STANDARD = "-"
"""The name of standard input and output."""


@click.command("move", cls=StoreCommand, words="TARGET", short_help="Move items to another store.")
@click.option("--queue", "-q", metavar="NAME", help="Only this queue.")
@click.option(
    "--wait",
    type=SPAN,
    metavar="SPAN",
    help="How long to wait for items in flight; without it, until their leases end.",
)
@click.option(
    "--newer",
    type=click.Choice(["source", "target"]),
    help="Only the newest value of a key counts, and it is in this store. Else all are kept.",
)
@click.option(
    "--target-option",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option for the target store, such as schema=shop.",
)
@json_option
def move(
    session: StoreSession,
    *,
    target: str,
    queue: str | None,
    wait: float | None,
    newer: str | None,
    target_option: tuple[str, ...],
    as_json: bool,
) -> int | None:
    """Move items to another store.

    All queues, or one, while both stores are in use. Nothing is lost: an item leaves the source
    when it is in the target. A move that was interrupted is taken up again by the same command.
    Schedules are declared by programs, and are not moved. The exit code is 4 if something is left
    in the source.

    \b
    Examples:
      leasedkeyq move file:queue.yaml sqlite:///jobs.db
      leasedkeyq move sqlite:///jobs.db postgresql://shop@db/shop --wait 5m
    """
    from leasedkeyq.transfer.move import move as move_items  # noqa: PLC0415 - help needs it not

    options = dict(map(store_option, target_option))
    hidden.add(target, options)

    async def main() -> "MoveReport":
        seen: dict[str, MoveProgress] = {}

        def progress(told: "MoveProgress") -> None:
            seen[told.queue] = told
            moved = sum(each.moved for each in seen.values())
            bar.update(moved, moved + sum(each.left for each in seen.values()))

        with ProgressBar("move") as bar:
            async with session.open() as source, open_store(target, options, create=True) as goal:
                return await move_items(
                    source, goal, queue, wait=wait, newer=cast("Any", newer), progress=progress
                )

    report = asyncio.run(main())
    left = sum(each.left for each in report.queues.values())
    if as_json:
        queues = report.queues
        verified = report.verified
        echo_json({"moved": report.moved, "left": left, "verified": verified, "queues": queues})
    else:
        for name, each in report.queues.items():
            rest = f", {each.left:,} left" if each.left else ""
            click.echo(f"{printable(name)}: {counted(each.moved, 'item')} moved{rest}")
        click.echo(f"{counted(report.moved, 'item')} moved in all")
        if left:
            click.echo(
                f"left in the source: {counted(left, 'item')}, in flight, behind such an item, or "
                "buried while the target uses their key; run the command again",
                err=True,
            )
    return REFUSED if left else None


@click.command("export", cls=StoreCommand, words="[FILE]", short_help="Write a backup.")
@click.option("--queue", "-q", "queues", multiple=True, metavar="NAME", help="Only these queues.")
@click.option("--yes", "-y", is_flag=True, help="Overwrite a file that is there.")
def export(session: StoreSession, *, file: str | None, queues: tuple[str, ...], yes: bool) -> None:
    """Write a backup.

    That is lines of JSON, in FILE or on standard output. It has the items of all states with their
    lines, priorities, delays, deadlines, kinds, errors and results, and the schedules; import puts
    them into a store of any engine. A name that ends with .gz is compressed. Nothing is changed,
    and workers may go on: what they do meanwhile may be in the backup or not. For a backup of one
    moment, stop them.

    \b
    Examples:
      leasedkeyq export sqlite:///jobs.db backup.jsonl.gz
      leasedkeyq export postgresql://shop@db/shop | zstd > backup.jsonl.zst
    """
    from leasedkeyq.stores.store import NO_ITEMS  # noqa: PLC0415 - help needs it not
    from leasedkeyq.transfer.export import export_store  # noqa: PLC0415

    if file not in (None, STANDARD) and Path(str(file)).exists():
        session.confirm(f"Overwrite {file}?", yes=yes)

    async def main() -> int:
        async with session.open() as store:
            counts = await store.count(queues)
            empty = [name for name in queues if counts.get(name, NO_ITEMS) == NO_ITEMS]
            if queues and len(empty) == len(queues):
                what = ", ".join(map(printable, empty))
                raise CommandFailedError(
                    f"nothing is in {what}, so no backup was written: leasedkeyq queues shows "
                    "what there is",
                    NOT_FOUND,
                )
            for name in empty:
                click.echo(f"nothing is in {printable(name)}", err=True)
            with ProgressBar("export") as bar, _output(file) as out:
                return await export_store(
                    store, out.write, queues=queues or None, progress=bar.update
                )

    items = asyncio.run(main())
    where = "standard output" if file in (None, STANDARD) else str(file)
    click.echo(f"{counted(items, 'item')} written to {printable(where)}", err=True)


@click.command("import", cls=StoreCommand, words="[FILE]", short_help="Put a backup into a store.")
@click.option("--dry-run", is_flag=True, help="Only see that all of it can be read and taken.")
@click.option("--again", is_flag=True, help="Put all of it, though it was imported before.")
@json_option
def import_(
    session: StoreSession, *, file: str | None, dry_run: bool, again: bool, as_json: bool
) -> int | None:
    """Put a backup into a store.

    The backup is in FILE, or comes from standard input; the store may be of any engine. What is in
    the store stays; values of a key that is there go to the end of its line. A file is read twice:
    first to see that it is whole, so that a damaged one changes nothing. An import that was
    interrupted is taken up again by the same command, and puts nothing twice: within a week, a
    backup that was imported is not put once more, but with --again. Run it while no workers do. The
    exit code is 4 if some items could not be put.

    \b
    Examples:
      leasedkeyq import postgresql://shop@db/shop backup.jsonl.gz --dry-run
      leasedkeyq import sqlite:///jobs.db < backup.jsonl
    """
    from leasedkeyq.transfer.restore import check_backup, import_backup  # noqa: PLC0415

    if file not in (None, STANDARD):
        with _input(file) as lines:
            check_backup(lines)

    async def main() -> "ImportReport":
        try:
            store = session.open(create=not dry_run)
        except CommandFailedError:
            if not dry_run:
                raise
            store = open_store("memory://", {})  # the store is not there yet
        async with store:
            with ProgressBar("import") as bar, _input(file) as lines:
                return await import_backup(
                    store, lines, dry_run=dry_run, again=again, progress=bar.update
                )

    report = asyncio.run(main())
    if as_json:
        echo_json(report)
    else:
        would = "would be put" if dry_run else "were put"
        click.echo(f"{counted(report.restored, 'item')} {would} into the store")
        if report.skipped:
            click.echo(f"{counted(report.skipped, 'item')} skipped: they are there, or over")
        for line, queue, key, reason in report.refused:
            place = f"line {line}, queue {queue!r}, key {key!r}"
            click.echo(f"not put: {printable(place)}: {printable(reason)}", err=True)
        more = report.refused_count - len(report.refused)
        if more:
            click.echo(f"not put: {more:,} more", err=True)
    return REFUSED if report.refused_count else None


@contextlib.contextmanager
def _output(file: str | None) -> Generator[IO[bytes]]:
    """Where a backup goes. A file has its name when it is whole, and not before."""
    if file in (None, STANDARD):
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(str(file))
    part = path.with_name(f"{path.name}.part")
    try:
        with _opened(part, "wb", compressed=path.suffix == ".gz") as out:
            yield out
            out.flush()
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def _input(file: str | None) -> Generator[IO[bytes]]:
    if file in (None, STANDARD):
        yield sys.stdin.buffer
        return
    path = Path(str(file))
    try:
        opened = _opened(path, "rb", compressed=path.suffix == ".gz")
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror or error}") from error
    with opened as lines:
        try:
            yield lines
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise CommandFailedError(f"{path}: it is damaged or cut: {error}", REFUSED) from error


def _opened(path: Path, mode: str, *, compressed: bool) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path, mode) if compressed else path.open(mode))
