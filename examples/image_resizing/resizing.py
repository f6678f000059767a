"""Image resizing: each picture in a process of the worker, with progress, and a nightly clean-up.

Pictures are PPM files in the folder PICTURES. Start a worker, submit all pictures to be 200 pixels
wide and see how they come along, and run the clean-up without waiting for the night:

    leasedkeyq worker resizing:manager
    python resizing.py 200
    python resizing.py clean-up

The worker computes in as many processes as there are cores. A picture that takes longer than a
minute, or whose process dies, is tried again, and the other pictures do not notice. It needs
leasedkeyq with the extra `schedules`.
"""

import asyncio
import os
import sys
from pathlib import Path

from ppm import Picture

from leasedkeyq.lanes import Handle, LaneConfig, QueueManagerBuilder, RetryPolicy, current_command

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


@manager.command("resize", lane="images", key="{}@{}".format, run_in="process")
def resize(name: str, width: int) -> str:
    """Write a picture at a smaller width, and return where. It computes: so in a process."""
    picture = Picture.read(PICTURES / name)
    height = picture.height_at(width)
    rows: list[bytes] = []
    for row in picture.shrunk(width):
        rows.append(row)
        current_command().progress(len(rows) / height, f"row {len(rows)} of {height}")
    small = PICTURES / "small" / name
    small.parent.mkdir(exist_ok=True)
    Picture(width, height, b"".join(rows)).write(small)
    return str(small)


@manager.command("clean up", lane="nightly")
def clean_up() -> int:
    """Remove small pictures whose originals are gone. It waits for the disk: so in a thread."""
    smalls = (PICTURES / "small").glob("*.ppm")
    orphans = [small for small in smalls if not (PICTURES / small.name).exists()]
    for small in orphans:
        small.unlink()
    return len(orphans)


nightly = manager.schedule("clean up", "0 3 * * *", clean_up(), tz="Europe/Berlin")


async def follow(name: str, handle: Handle[str]) -> None:
    """Tell how far a picture has come, and what became of it."""
    async for progress in handle.updates():
        print(f"{name}: {progress.text}")
    try:
        print(f"{name}: {await handle}")
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}")


async def main(what: str, names: list[str]) -> None:
    """Submit all pictures, or clean up now."""
    if what == "clean-up":
        print("removed:", await (await nightly.run_now()))
    else:
        # A picture that waits already is not submitted again: its name is its key.
        handles = [
            await manager.submit(resize(name, int(what)), if_present="skip") for name in names
        ]
        await asyncio.gather(*[follow(*pair) for pair in zip(names, handles, strict=True)])
    await manager.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sorted(path.name for path in PICTURES.glob("*.ppm"))))
