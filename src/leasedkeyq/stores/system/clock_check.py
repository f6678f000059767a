"""Whether the clock of a server and that of this machine agree."""

from typing import Final

from leasedkeyq.model.findings import Finding

APART: Final = 5.0
"""Seconds that two clocks may be apart."""


def clock_findings(where: str, theirs: float, before: float, after: float) -> list[Finding]:
    """What is to be said about the clock of a server.

    Args:
        where: The server.
        theirs: What its clock said, as Unix time.
        before: What ours said before it was asked.
        after: What ours said when it had answered.
    """
    apart = max(before - theirs, theirs - after)
    if apart <= APART:
        return []
    direction = "behind" if theirs < before else "ahead of"
    return [
        Finding(
            code="clocks-apart",
            severity="warning",
            what=f"the clock of the server is {apart:,.1f} s {direction} that of this machine",
            where=where,
            advice="set both by NTP. The server's clock decides when leases end and schedules are "
            "due; the times that workers log, and cron expressions, go by theirs",
        )
    ]
