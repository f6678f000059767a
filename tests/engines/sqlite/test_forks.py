"""A process that is forked while a store is open, and uses the same file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, os, sys, warnings
from leasedkeyq import connect

warnings.simplefilter("ignore", DeprecationWarning)  # a fork among threads, which is the point
url = sys.argv[1]

async def put(store, *keys):
    for key in keys:
        await store.queue("q").put(key, 1)

async def count():
    async with connect(url) as store:
        return await store.queue("q").qsize()

store = connect(url)
if "used" in sys.argv:
    asyncio.run(put(store, "first"))
told, tell = os.pipe()
wait, go_on = os.pipe()
child = os.fork()
if not child:
    async def work():
        async with connect(url) as own:
            await put(own, "second")
            os.write(tell, b"x")
            os.read(wait, 1)
            await put(own, "third")
            os._exit(0)  # killed: nothing is written back at an end
    asyncio.run(work())
os.read(told, 1)
# The old process closes its file. It is not the last one: the log must stay for the new process.
asyncio.run(store.close())
os.write(go_on, b"x")
assert os.waitpid(child, 0)[1] == 0
print(asyncio.run(count()))
"""


@pytest.mark.parametrize("before", ["used", "opened"])
def test_what_a_new_process_writes_is_not_lost(before: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"sqlite:///{tmp_path}/jobs.db", before],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) == (3 if before == "used" else 2)
