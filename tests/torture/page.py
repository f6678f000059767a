"""Makes docs/reliability.md from the figures that are kept."""

from pathlib import Path
from typing import Final

from tests.torture import figures

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "reliability.md"


def write() -> None:
    """Write the page from all figures."""
    PAGE.write_text(page(figures.load()), encoding="utf-8")


def page(kept: list[figures.Figures]) -> str:
    """The text of the page."""
    rows = [f"- {one.part} on {one.engine}: {one.tried:,}" for one in kept]
    return "\n".join(["# Reliability", "", *rows, ""])
