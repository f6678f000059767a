"""What a store says about itself: what is wrong with it, and which version its schema has."""

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias, get_args

import msgspec

Severity: TypeAlias = Literal["error", "warning", "note"]
"""How bad a finding is.

``"error"``: something does not work, or is lost. ``"warning"``: it will, if nothing is done.
``"note"``: worth knowing, and it may be meant so.
"""
SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)
"""All of them, the worst first."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that goes wrong, or will.

    Attributes:
        code: What sort of finding it is, such as ``"eviction-policy"``: it stays the same from
            version to version, so that monitoring can go by it.
        severity: How bad it is.
        what: What was found, in a sentence for people.
        where: The server, file, queue, lane, worker or schedule that it is about.
        advice: What to do about it.
    """

    code: str
    severity: Severity
    what: str
    where: str = ""
    advice: str = ""


def worst(findings: Iterable[Finding]) -> Severity | None:
    """The worst severity among findings; None if there are none."""
    found = {finding.severity for finding in findings}
    return next((severity for severity in SEVERITIES if severity in found), None)


class SchemaState(msgspec.Struct, frozen=True, kw_only=True):
    """The version of what a store keeps its items in: tables, keys or a document.

    Attributes:
        version: What is there now; 0 if nothing is.
        wanted: What this leasedkeyq works with.
        changes: What would change from the one to the other, in sentences, step by step.
        sql: What would be run for it; empty if nothing would, or if the store has no SQL.
    """

    version: int
    wanted: int
    changes: tuple[str, ...] = ()
    sql: str = ""

    @property
    def outdated(self) -> bool:
        """Whether something would change."""
        return self.version < self.wanted
