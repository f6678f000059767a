"""The image resizing of the docs, as it is printed: a worker with processes, and its client."""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "image_resizing"
PATIENCE = 60.0
RED, BLUE = bytes([250, 0, 0]), bytes([0, 0, 250])


def picture(width: int, height: int) -> bytes:
    """Its left half is red, its right half blue."""
    row = RED * (width // 2) + BLUE * (width // 2)
    return b"P6\n%d %d\n255\n" % (width, height) + row * height


@contextmanager
def worker(environment: dict[str, str]) -> Generator[None]:
    command = [sys.executable, "-m", "leasedkeyq", "worker", "resizing:manager"]
    process = subprocess.Popen(
        [*command, "--log-level", "error"], cwd=EXAMPLE, env=os.environ | environment
    )
    try:
        yield
        process.terminate()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


def client(argument: str, environment: dict[str, str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "resizing.py", argument],
        cwd=EXAMPLE,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return done.stdout.splitlines()


def test_pictures_are_resized_in_processes_and_cleaned_up(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.ppm").write_bytes(picture(40, 20))
    (folder / "broken.ppm").write_bytes(b"P6\n1 1\n255\n")
    environment = {
        "PICTURES": str(folder),
        "STORE": f"sqlite:///{tmp_path}/pictures.db",
        "RETRIES": "0",
    }
    with worker(environment):
        lines = client("4", environment)
        small = folder / "small"
        told = dict(line.split(": ", 1) for line in lines)  # the last line of each
        assert sorted(told) == ["0.ppm", "1.ppm", "2.ppm", "broken.ppm"]
        assert told["broken.ppm"].startswith("ValueError: ")
        for name in ("0.ppm", "1.ppm", "2.ppm"):
            assert told[name] == str(small / name)
            assert (small / name).read_bytes() == b"P6\n4 2\n255\n" + 2 * (2 * RED + 2 * BLUE)
        (folder / "1.ppm").unlink()
        assert client("clean-up", environment) == ["removed: 1"]
        assert sorted(path.name for path in small.iterdir()) == ["0.ppm", "2.ppm"]
