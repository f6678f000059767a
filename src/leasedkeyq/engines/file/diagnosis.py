"""What goes wrong with the document of a file store: damage, its size, its disk."""

from pathlib import Path
from typing import Final

from leasedkeyq.engines.file.document.document import VERSION, Document
from leasedkeyq.engines.file.document.json_fields import decode_whole
from leasedkeyq.model.findings import Finding, SchemaState
from leasedkeyq.stores.system.disk_space import disk_findings

LARGE: Final = 4 * 1024**2
"""Bytes of a document that is written whole with each batch."""
ASIDE: Final = ".damaged-"
REASON: Final = ".reason"
MOST_ASIDE: Final = 5
"""So many files that were set aside are told by name."""


def schema_state(path: Path, document: Document) -> SchemaState | None:
    """The version of a document; that of a repository has none."""
    if document.settings is not None:
        return None
    if not path.exists():
        return SchemaState(
            version=0, wanted=VERSION, changes=(f"version {VERSION}: the document is made",)
        )
    fields = document.head.fields
    version = decode_whole(fields, "version", "the document") if "version" in fields else 1
    changes = (
        ("version 2: keys have lines; the document is written so by the next change",)
        if version < VERSION
        else ()
    )
    return SchemaState(version=version, wanted=VERSION, changes=changes)


def diagnose(path: Path, notices: list[str]) -> list[Finding]:
    """What is to be said about a document that can be read.

    Args:
        path: Where it is.
        notices: What happened to it while the store was open.
    """
    found = disk_findings(path) if path.exists() else []
    aside = sorted(
        other
        for other in path.parent.glob(f"{_literal(path.name)}{ASIDE}*")
        if other.suffix != REASON
    )
    for file in aside[-MOST_ASIDE:]:
        reason = file.with_name(file.name + REASON)
        try:
            why = reason.read_text(encoding="utf-8").strip()
        except OSError:
            why = "the reason is not there any more"
        found.append(
            Finding(
                code="document-set-aside",
                severity="warning",
                what=f"a version of the document was set aside as {file.name}: {why}",
                where=str(path),
                advice="take over what is missing from it, and delete it with its .reason",
            )
        )
    size = path.stat().st_size if path.exists() else 0
    if size > LARGE:
        found.append(
            Finding(
                code="document-large",
                severity="warning",
                what=f"the document has {size / 1024**2:,.1f} MiB, which are written with each "
                "batch of changes",
                where=str(path),
                advice="move on to SQLite: leasedkeyq move takes everything over",
            )
        )
    found += [
        Finding(
            code="document-changed",
            severity="note",
            what=notice,
            where=str(path),
            advice="nothing, if that was meant so",
        )
        for notice in notices
    ]
    return found


def damaged(path: Path, error: Exception) -> Finding:
    """A document that cannot be read."""
    return Finding(
        code="document-damaged",
        severity="error",
        what=f"the document cannot be used: {error}",
        where=str(path),
        advice="mend it, or put its .bak or a backup in its place",
    )


def _literal(name: str) -> str:
    """A name in which nothing has a meaning of its own for `glob`."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
