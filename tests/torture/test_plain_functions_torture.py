"""Workers with threads and processes that are killed, on every store; often under ``TORTURE=1``."""

import os
from pathlib import Path

import pytest

from tests.lanes.durable.plain_functions_support import kill_and_interrupt
from tests.lanes.real_clock import run
from tests.servers.urls import KINDS, empty_store

TORTURE = os.environ.get("TORTURE") == "1"
ROUNDS = 10 if TORTURE else 1


@pytest.mark.parametrize("kind", KINDS if TORTURE else ["redis"])
def test_workers_are_killed_again_and_again(kind: str, tmp_path: Path) -> None:
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        with empty_store(kind, folder) as url:
            run(kill_and_interrupt(url, folder))
