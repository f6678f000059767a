"""What all tests of the command line need."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def log_of_the_process() -> Iterator[None]:
    """A worker that runs in this process sets up its log, which would outlive the test."""
    root = logging.getLogger()
    handlers, level = [*root.handlers], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
