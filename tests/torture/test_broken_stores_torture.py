"""The faults that the conformance kit finds in memory, on SQLite.

All of them under ``TORTURE=1``.
"""

import os

import pytest

from tests.testing.broken.through import Through
from tests.testing.test_broken_stores import ANYWHERE, caught, sqlite

TORTURE = os.environ.get("TORTURE") == "1"

# A store that waits where it must not leaves coroutines behind that nobody can end.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("fault", ANYWHERE if TORTURE else ANYWHERE[::8])
def test_a_fault_is_caught_on_sqlite(fault: type[Through]) -> None:
    caught(fault, sqlite)
