"""Threads and processes of workers on stores. The part `pools` of the torture, of which `make test`
has a slice, kills such workers and presses Ctrl-C.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.lanes.durable import plain_functions_worker
from tests.lanes.real_clock import run
from tests.servers.urls import KINDS, empty_store


@pytest.mark.parametrize("kind", KINDS)
def test_plain_functions_run_on_every_store(kind: str, tmp_path: Path) -> None:
    (tmp_path / "go on").touch()

    async def main(url: str) -> None:
        manager = plain_functions_worker.build(url)
        types: dict[str, Any] = dict(manager.queue().registry.types)
        async with manager:
            for command in ("in_thread", "in_process"):
                handle = await manager.submit("work", types[command](str(tmp_path), 1), key="k")
                assert await handle == 1

    with empty_store(kind, tmp_path) as url:
        run(main(url))
    assert (tmp_path / "thread-1.1").read_text() == str(os.getpid())
    assert (tmp_path / "process-1.1").read_text() != str(os.getpid())
