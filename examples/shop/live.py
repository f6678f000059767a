"""Run the shop with its web page until Ctrl-C: orders come in, things fail, workers are killed.

    python live.py [--port 8765] [--folder shop-data]

Four processes run: two workers, one of which is killed now and then and started again, the
customers, and the web page.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORKER = ["-m", "leasedkeyq", "worker", "shop:manager"]
RESTART = 4.0
"""Seconds after which a worker that was killed is there again."""


class Shop:
    """The processes of the shop. They write to one log."""

    def __init__(self, folder: Path, port: int) -> None:
        self.url = f"sqlite:///{folder.resolve() / 'shop.db'}"
        self.log = folder / "shop.log"
        self.processes = [
            self.start(*WORKER),
            self.start("-m", "leasedkeyq", "web", self.url, "--port", str(port)),
            self.start("shop.py"),
        ]
        self.victim = self.start(*WORKER)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a Python process. It is told to end by `close`, and does not hear our Ctrl-C."""
        paths = os.pathsep.join([str(HERE), *filter(None, sys.path)])
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *arguments],
                cwd=HERE,
                env=os.environ | {"PYTHONPATH": paths, "SHOP_STORE": self.url},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def ended(self) -> bool:
        """Whether a process has ended by itself."""
        return any(process.poll() is not None for process in self.processes)

    def close(self) -> None:
        everybody = [*self.processes, self.victim]
        for process in everybody:
            process.terminate()
        for process in everybody:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def run(port: int, folder: Path) -> int:
    shop = Shop(folder, port)
    stop: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda heard, _: stop.append(heard))
    print(f"The shop is open: http://127.0.0.1:{port}/    Ctrl-C closes it.", flush=True)
    next_kill = time.monotonic() + random.uniform(20, 40)
    try:
        while not stop and not shop.ended():
            time.sleep(0.1)
            if time.monotonic() < next_kill:
                continue
            if shop.victim.poll() is None:
                shop.victim.kill()
                shop.victim.wait()
                print("A worker was killed. Its commands run again when their leases end.")
                next_kill = time.monotonic() + RESTART
            else:
                shop.victim = shop.start(*WORKER)
                next_kill = time.monotonic() + random.uniform(30, 60)
        failed = not stop
    finally:
        shop.close()
    if failed:
        print(f"A process of the shop has ended. The end of its log:\n{tail(shop.log)}")
        return 1
    print("The shop is closed.")
    return 0


def tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a shop with its web page until Ctrl-C.")
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--folder", type=Path, help="where its files are; a new one by default")
    options = parser.parse_args()
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        return run(options.port, options.folder)
    with tempfile.TemporaryDirectory(prefix="leasedkeyq-shop-") as folder:
        return run(options.port, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
