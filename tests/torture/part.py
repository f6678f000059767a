"""What a part of the torture is: rounds by seed on an engine, and what was found in them."""

import random
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.servers.urls import empty_store

ENGINES: Final = ("memory", "file", "sqlite", "postgres", "redis")
"""In the order in which tables show them."""
MOST_VIOLATIONS: Final = 20
"""Whose words are kept. All are counted."""


@dataclass
class Findings:
    """What some rounds tried, and what they found. Findings add up."""

    tried: int = 0
    """How often the fault of the part was tried, in the unit of the part."""
    counted: Counter[str] = field(default_factory=Counter[str])
    """What else happened, by name: `acknowledged puts`."""
    wrong: Counter[str] = field(default_factory=Counter[str])
    """What must not happen, by the names that the part gives in `Part.wrong`."""
    violations: list[str] = field(default_factory=list[str])
    """The first of them, in words, with their seeds."""
    seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Measured times by name: `from a kill to new hands`."""

    def violation(self, name: str, seed: int, words: str) -> None:
        """Count what must not happen, and keep the words of the first ones."""
        self.wrong[name] += 1
        if len(self.violations) < MOST_VIOLATIONS:
            self.violations.append(f"seed {seed}: {name}: {words}")

    def time(self, name: str, seconds: float) -> None:
        """Add one measured time."""
        self.seconds.setdefault(name, []).append(seconds)

    def __add__(self, other: "Findings") -> "Findings":
        seconds = {name: list(samples) for name, samples in self.seconds.items()}
        for name, samples in other.seconds.items():
            seconds.setdefault(name, []).extend(samples)
        # `Counter.__add__` drops what is zero, and a zero is what a reader looks for.
        counted = self.counted.copy()
        counted.update(other.counted)
        wrong = self.wrong.copy()
        wrong.update(other.wrong)
        violations = [*self.violations, *other.violations][:MOST_VIOLATIONS]
        return Findings(self.tried + other.tried, counted, wrong, violations, seconds)


@dataclass(frozen=True)
class Trial:
    """Some rounds of a part on one engine."""

    engine: str
    seeds: range
    """One round each. All that is random in a round comes from its seed."""
    folder: Path
    """An empty folder for this trial alone."""

    def dice(self, seed: int) -> random.Random:
        """The chance of a round: the same at each repetition, another one on each engine."""
        return random.Random(f"{self.engine} {seed}")

    @contextmanager
    def empty_store(self) -> Generator[str]:
        """The URL of an empty store of the engine, which processes can share.

        Redis runs with `appendfsync always`. Memory has no URL.
        """
        kind = "postgresql" if self.engine == "postgres" else self.engine
        with empty_store(kind, self.folder) as url:
            yield url


@dataclass(frozen=True, kw_only=True)
class Part:
    """A kind of fault, or of load, that is tried on engines."""

    name: str
    """The word for it on the command line: `kills`."""
    title: str
    """What is tried, as a row of the table says it."""
    unit: str
    """What `Findings.tried` counts, in the plural: `kills`."""
    amounts: Mapping[str, int]
    """Rounds at full length, by engine."""
    slice: Mapping[str, int]
    """Rounds in `make test`, by engine: a second or two in all."""
    run: Callable[[Trial], Findings]
    wrong: tuple[str, ...]
    """What is counted and must stay zero: `items lost`."""
    spread: bool = True
    """Whether the rounds may be spread over processes."""
    note: str = ""
    """What a reader of the figures has to know, in whole sentences."""
