"""Image resizing: each picture in a process of its own, and a clean-up every night.

Pictures are PPM files in the folder PICTURES. Start a worker, and submit what is in the folder:

    leasedkeyq worker resizing:manager
    python resizing.py 200

The worker computes in as many processes as there are cores. A picture that takes longer than a
minute, or whose process dies, is tried again, and the other pictures do not notice.
"""

import asyncio
import os
import sys
from pathlib import Path

from ppm import Picture

from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder, RetryPolicy

PICTURES = Path(os.environ.get("PICTURES", "pictures"))
STORE = os.environ.get("STORE", "sqlite:///pictures.db")
RETRIES = RetryPolicy.exponential(int(os.environ.get("RETRIES", "3")))

manager = (
    QueueManagerBuilder()
    .with_lane("images", LaneConfig(0, 8, timeout=60, retry_policy=RETRIES), 0)
    .with_lane("nightly", LaneConfig(timeout=600), 1)
    .with_processes(os.cpu_count() or 1)
    .with_storage(STORE)
    .build()
)


@manager.command("resize", run_in="process")
def resize(name: str, width: int) -> str:
    """Write a picture at a smaller width, and return the name of that file."""
    picture = Picture.read(PICTURES / name)
    rows = list(picture.shrunk(width))
    small = PICTURES / "small" / name
    small.parent.mkdir(exist_ok=True)
    Picture(width, len(rows), b"".join(rows)).write(small)
    return str(small)


@manager.command("clean_up")
def clean_up() -> int:
    """Remove small pictures whose originals are gone. It waits for the disk: so in a thread."""
    smalls = (PICTURES / "small").glob("*.ppm")
    orphans = [small for small in smalls if not (PICTURES / small.name).exists()]
    for small in orphans:
        small.unlink()
    return len(orphans)


async def submit_all(names: list[str], width: int) -> None:
    """Submit pictures, and tell of each that is done."""
    # A picture that waits already is not submitted again: its name is its key.
    handles = [
        await manager.submit("images", resize(name, width), key=name, if_present="skip")
        for name in names
    ]
    for name, handle in zip(names, handles, strict=True):
        try:
            print(f"{name}: {await handle}")
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}")
    await manager.close()


if __name__ == "__main__":
    everything = sorted(path.name for path in PICTURES.glob("*.ppm"))
    asyncio.run(submit_all(everything, int(sys.argv[1])))
