"""What is said of the times of claims and of sizes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tests.torture.part import Findings
from tests.torture.soak.work import KINDS

SLOW: Final = "claim p99 above 3x"
GROWS: Final = "sizes without a bound"
STAYS: Final = "sizes that stay when the transaction has ended"
MOST: Final = 3.0
ENOUGH: Final = 1000
"""Claims from which a p99 is judged. A few seconds have too few of them."""
WINDOWS: Final = 6
"""The first and the last sixth are compared: ten minutes of an hour."""
SLACK: Final[Mapping[str, int]] = {
    "bytes of the database": 8 << 20,
    "bytes of the log": 32 << 20,
    "bytes of tables and indexes": 32 << 20,
    "dead rows": 50_000,
    "keys": 200,
    "bytes in memory": 16 << 20,
    "bytes of memory of the process": 48 << 20,
    "open files of the process": 8,
}
"""By how much a size may exceed twice of what it was after the first sixth."""

Rounds = Sequence[Mapping[str, Sequence[float]]]


def window(seconds: Rounds, kind: str, *, last: bool) -> list[float]:
    """The times of the first or the last sixth of all rounds."""
    many = max(1, len(seconds) // WINDOWS)
    rounds = seconds[-many:] if last else seconds[:many]
    return [one for each in rounds for one in each[kind]]


def p99(samples: Iterable[float]) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


def judge_times(found: Findings, seed: int, beside: Rounds, twin: Rounds) -> None:
    """Publish the times of claims, and compare those of the last ten minutes with the twin's."""
    for kind in KINDS:
        early, late = (window(beside, kind, last=last) for last in (False, True))
        twin_late = window(twin, kind, last=True)
        found.seconds[f"{kind}, the first sixth"] = early
        found.seconds[f"{kind}, the last sixth"] = late
        found.seconds[f"{kind}, the last sixth, without the transaction"] = twin_late
        ratio = p99(late) / p99(twin_late)
        found.counted[f"% of the twin's p99: {kind}, the last sixth"] = round(100 * ratio)
        found.counted[f"% of its own p99 at first: {kind}, the last sixth"] = round(
            100 * p99(late) / p99(early)
        )
        if ratio > MOST and len(late) >= ENOUGH:
            found.violation(
                SLOW, seed, f"{kind}: p99 {p99(late):.4f} s, {ratio:.1f} times that of its twin"
            )


def judge_size(found: Findings, seed: int, name: str, early: int, late: int) -> None:
    """Whether something has stopped growing."""
    what = name.rpartition(": ")[2]
    if late > 2 * early + SLACK[what]:
        found.violation(GROWS, seed, f"{name}: {early:,} after a sixth of the time, {late:,} now")
