"""bench: how fast a store is here."""

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from leasedkeyq.cli.choices import SPAN, json_option
from leasedkeyq.cli.output import Column, echo_json, echo_table, printable
from leasedkeyq.cli.progress_bar import ProgressBar
from leasedkeyq.cli.store_command import StoreCommand, StoreSession

if TYPE_CHECKING:
    from leasedkeyq.operations.bench import BenchReport
    from leasedkeyq.operations.operator import Operator

_COLUMNS = (
    Column("STEP"),
    Column("ITEMS", "right"),
    Column("PER SECOND", "right"),
    Column("P50", "right"),
    Column("P95", "right"),
    Column("P99", "right"),
    Column("LONGEST", "right"),
)


@click.command("bench", cls=StoreCommand, short_help="Measure how fast a store is here.")
@click.option(
    "--seconds",
    type=SPAN,
    default=10.0,
    metavar="SPAN",
    show_default="10s",
    help="How long it takes, about.",
)
@json_option
def bench(session: StoreSession, *, seconds: float, as_json: bool) -> None:
    """Measure how fast a store is here.

    One caller puts, claims and acknowledges items, one by one and then 1,000 by one call, in a
    queue of its own, which is removed. Percentiles are of calls. Where the documentation has the
    same figure, both are shown, with the machine that it was measured on. The store works hard
    meanwhile: on one that is in use, others will notice.

    \b
    Examples:
      leasedkeyq bench sqlite:////srv/jobs.db
      leasedkeyq bench postgresql://shop@db/shop --seconds 30s --json
    """
    from leasedkeyq.operations.bench import measure  # noqa: PLC0415 - help needs it not

    scheme = urlsplit(session.url).scheme

    async def work(operator: "Operator") -> "BenchReport":
        with ProgressBar("bench") as bar:
            return await measure(operator.store, scheme, seconds=seconds, progress=bar.update)

    report = session.run(work, create=True)
    if as_json:
        echo_json(report)
    else:
        _print_report(report)


def _print_report(report: "BenchReport") -> None:
    click.echo(f"{printable(report.store)}, durability {report.durability}")
    echo_table(
        _COLUMNS,
        [
            (
                step.step.replace("batch_", "1,000 x "),
                f"{step.items:,}",
                f"{step.per_second:,.0f}",
                *(milliseconds(time) for time in (step.p50, step.p95, step.p99, step.longest)),
            )
            for step in report.steps
        ],
    )
    for one in report.comparisons:
        click.echo(
            f"{one.what}: {milliseconds(one.here)} an item; the docs have "
            f"{milliseconds(one.docs)} ({one.machine}, {one.date}): {one.ratio:.2g} times as fast"
        )
    if not report.comparisons:
        click.echo("the docs have no figures for such a store", err=True)


def milliseconds(seconds: float) -> str:
    """A time for people, in milliseconds."""
    return f"{seconds * 1000:.3g} ms"
