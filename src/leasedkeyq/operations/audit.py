"""The audit log: who has changed what, and when.

Every action of an `Operator` is one line of the logger ``leasedkeyq.audit``, at the level INFO, or
WARNING if it was refused or failed. The line has its facts in `extra`, too: ``action``, ``queue``,
``target``, ``actor``, ``result``, ``done`` and ``matched``. The log has the time.
"""

import logging

from leasedkeyq.errors import describe
from leasedkeyq.operations.views import ActionReport

logger = logging.getLogger("leasedkeyq.audit")


def record(
    report: ActionReport, *, actor: str, queue: str = "", target: str = "", action: str = ""
) -> ActionReport:
    """Log what became of an action; returns the report."""
    facts = {"action": action or report.action, "queue": queue, "target": target, "actor": actor}
    counts = {"done": report.done, "matched": report.matched}
    level = logging.INFO if report.done or report.dry_run else logging.WARNING
    _log(level, facts | {"result": result_of(report)}, counts)
    return report


def record_failure(
    action: str, error: BaseException, *, actor: str, queue: str = "", target: str = ""
) -> None:
    """Log an action that has raised."""
    result = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    facts = {"action": action, "queue": queue, "target": target, "actor": actor}
    _log(logging.WARNING, facts | {"result": result}, {})


def result_of(report: ActionReport) -> str:
    """What became of an action, in a few words."""
    if report.dry_run:
        return f"dry run: {report.matched} would be changed"
    if report.matched <= 1 and not report.failed_count:
        return "done" if report.done else "nothing to do"
    text = f"{report.done} of {report.matched} done"
    if report.failed_count:
        text += f", {report.failed_count} failed"
        if report.matched <= 1:
            text = report.failed[0][2]
    return text if report.complete else f"{text}, stopped"


def _log(level: int, facts: dict[str, str], counts: dict[str, int]) -> None:
    if logger.isEnabledFor(level):
        logger.log(
            level,
            "%s %s %s by %s: %s",
            facts["action"],
            describe(facts["queue"]) if facts["queue"] else "-",
            describe(facts["target"]) if facts["target"] else "-",
            describe(facts["actor"]),
            facts["result"],
            extra={**facts, **counts},
        )
