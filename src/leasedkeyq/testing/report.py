"""Running the checks without a test runner, and what comes of it."""

import time
import traceback
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

from leasedkeyq.testing.suite import Check, Gap, Need, Suite, check_names, checks_of


@dataclass(frozen=True)
class CheckResult:
    """What became of one check.

    Attributes:
        name: The check: the name of its method.
        title: What it checks, in a sentence.
        outcome: ``"not applicable"`` is for a store that does not claim what the check is about.
        reason: Why it failed or does not apply.
        details: The traceback of a failure.
        seconds: How long it took.
    """

    name: str
    title: str
    outcome: Literal["passed", "failed", "not applicable"]
    reason: str = ""
    details: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.outcome:>14}  {self.name}{reason}"


@dataclass(frozen=True)
class ConformanceReport:
    """What became of each check. As a string: a line for each, and the numbers."""

    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> tuple[CheckResult, ...]:
        """The checks that the store passed."""
        return self._those("passed")

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """The checks that the store did not pass."""
        return self._those("failed")

    @property
    def not_applicable(self) -> tuple[CheckResult, ...]:
        """The checks of what the store does not claim, and those that were left out."""
        return self._those("not applicable")

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    def _those(self, outcome: str) -> tuple[CheckResult, ...]:
        return tuple(result for result in self.results if result.outcome == outcome)

    def __str__(self) -> str:
        numbers = (
            f"{len(self.passed)} passed, {len(self.failed)} failed, "
            f"{len(self.not_applicable)} not applicable"
        )
        return "\n".join([*map(str, self.results), numbers])


def run_checks(
    suite: type[Suite], without: Collection[Need] = (), only: Collection[str] | None = None
) -> ConformanceReport:
    """Run the checks of a suite, or `only` some, one after the other.

    Raises:
        ValueError: There is no check of a name in `only`, or no need of a name in `without`.
        RuntimeError: Python runs with ``-O``, which leaves out what the checks consist of.
    """
    if not __debug__:
        raise RuntimeError("the checks are assert statements: run Python without -O")
    checks = [*checks_of(suite)]
    check_names("without", without, get_args(Need))
    check_names("only", only or (), [check.name for check in checks])
    return ConformanceReport(
        tuple(_run(suite, check, without) for check in checks if only is None or check.name in only)
    )


def _run(suite: type[Suite], check: Check, without: Collection[Need]) -> CheckResult:
    started = time.monotonic()
    try:
        if check.needs in without:
            raise Gap(f"left out: without {check.needs}")  # noqa: TRY301 - an outcome like others
        check.run(suite())
    except Gap as gap:
        return CheckResult(check.name, check.title, "not applicable", str(gap))
    except Exception as error:
        # A bare assert says nothing; its line does.
        line = traceback.extract_tb(error.__traceback__)[-1].line
        reason = f"{type(error).__name__}: {str(error) or line}"
        details = "".join(traceback.format_exception(error))
        seconds = time.monotonic() - started
        return CheckResult(check.name, check.title, "failed", reason, details, seconds)
    return CheckResult(check.name, check.title, "passed", seconds=time.monotonic() - started)
