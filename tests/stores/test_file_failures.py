"""Each step of a write failing, the power going at each step, and processes killed at each step."""

import errno
import itertools
import json
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.errors import StoreError
from leasedkeyq.stores.contract import Ack, Claim, Claimed, Put, Request
from leasedkeyq.stores.file import FileEngine
from leasedkeyq.stores.fileops import FileOps
from leasedkeyq.stores.machine import StoreMachine

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["leasedkeyq.stores.file"])
SUFFIXES = pytest.mark.parametrize("suffix", ["yaml", "json"])


class FailingOps(FileOps):
    """Fails at the n-th step, before it, halfway or after it."""

    def __init__(self) -> None:
        self.left = -1
        self.how = "before"
        self.failed = ""

    def _fails(self, name: str, how: str) -> None:
        if self.left == 0 and self.how == how:
            self.left = -1
            self.failed = name
            raise OSError(errno.ENOSPC, "No space left on device")

    def _step(self, name: str, *arguments: Any) -> None:
        self._fails(name, "before")
        if self.left == 0 and self.how == "halfway" and name == "write":
            path, data, mode = arguments
            super().write(path, data[: len(data) // 2], mode)
        self._fails(name, "halfway")
        getattr(super(), name)(*arguments)
        self._fails(name, "after")
        self.left -= 1

    def write(self, path: Path, data: bytes, mode: int) -> None:
        self._step("write", path, data, mode)

    def sync(self, path: Path) -> None:
        self._step("sync", path)

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename", source, target)


def keys(path: Path) -> list[str]:
    engine = FileEngine(path)
    engine.settled = 0.0

    def work(machine: StoreMachine, now: float) -> list[str]:
        return sorted(key for space in machine.spaces.values() for key in space.state.items)

    found = engine.read(work)
    # Whatever failed, or ended in the middle: it is not damage, and there is nothing to tell.
    assert not engine.notices
    return found


@SUFFIXES
@pytest.mark.parametrize("how", ["before", "halfway", "after"])
def test_the_nth_step_fails(tmp_path: Path, suffix: str, how: str) -> None:
    steps: list[str] = []
    for number in itertools.count():
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / f"queue.{suffix}"
        ops = FailingOps()
        ops.how = how
        engine = FileEngine(path, ops=ops)
        engine.apply([Put("q", (("a", b"1"), ("b", b"2")))])
        claimed: Any = engine.apply([Claim((("q", 1),))])[0]
        ops.left = number
        batch: list[Request] = [
            Put("q", (("c", b"3"),)),
            Ack("q", "a", claimed[0].token),
            Put("r", (("d", b"4"),)),
        ]
        failure: StoreError | None = None
        try:
            engine.apply(batch)
        except StoreError as error:
            failure = error
        if failure is None:
            assert ops.left >= 0
            break
        assert f"{path}: " in str(failure)
        assert "free some space" in str(failure)
        assert isinstance(failure.__cause__, OSError)
        steps.append(ops.failed)
        now = keys(path)
        assert now in (["a", "b"], ["b", "c", "d"])
        # The cause is gone: work goes on, with what is on the disk.
        engine.apply([Put("q", (("e", b"5"),))])
        assert keys(path) == sorted([*now, "e"])
        assert not list(folder.glob("*.damaged*"))
    assert steps == ["write", "write", "sync", "sync", "rename", "rename", "sync"]


@pytest.mark.filterwarnings("ignore::leasedkeyq.stores.file.FileStoreWarning")
def test_a_failing_repair_is_repeated(tmp_path: Path) -> None:
    number = 0
    for number in itertools.count():
        path = tmp_path / f"queue{number}.yaml"
        ops = FailingOps()
        engine = FileEngine(path, ops=ops)
        engine.settled = 0.0
        engine.apply([Put("q", (("a", b"1"), ("b", b"2")))])
        path.write_bytes(path.read_bytes()[:150])
        ops.left = number
        try:
            engine.apply([Put("q", (("c", b"3"),))])
        except StoreError:
            engine.apply([Put("q", (("c", b"3"),))])
            assert keys(path) == ["a", "b", "c"]
        else:
            break
    assert number > 10


@SUFFIXES
def test_an_unwritable_folder(suffix: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        # Root may write everywhere, so somebody else tries.
        child = multiprocessing.get_context("fork").Process(
            target=_try_an_unwritable_folder, args=(folder / "folder", suffix)
        )
        child.start()
        child.join(60)
        assert child.exitcode == 0


def _try_an_unwritable_folder(folder: Path, suffix: str) -> None:
    if os.geteuid() == 0:
        os.setuid(65534)
    folder.mkdir()
    path = folder / f"queue.{suffix}"
    engine = FileEngine(path)
    engine.apply([Put("q", (("a", b"1"),))])
    folder.chmod(0o500)
    with pytest.raises(StoreError, match="right to write"):
        engine.apply([Put("q", (("b", b"1"),))])
    folder.chmod(0o700)
    engine.apply([Put("q", (("b", b"1"),))])
    assert keys(path) == ["a", "b"]


# Power


class RecordingOps(FileOps):
    def __init__(self) -> None:
        self.steps: list[tuple[Any, ...]] = []

    def write(self, path: Path, data: bytes, mode: int) -> None:
        super().write(path, data, mode)
        self.steps.append(("write", path.name, data))

    def sync(self, path: Path) -> None:
        super().sync(path)
        self.steps.append(("sync", path.name if path.is_file() else ""))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.steps.append(("rename", source.name, target.name))


class Disk:
    """What may be on a disk after a loss of power: only what was synced is certain."""

    def __init__(self) -> None:
        self.synced: dict[int, bytes] = {}
        self.written: dict[int, bytes] = {}
        self.durable: dict[str, int] = {}
        self.names: dict[str, int] = {}
        self.pending: list[dict[str, int | None]] = []

    def do(self, step: tuple[Any, ...]) -> None:
        kind, name, *rest = step
        if kind == "write":
            file = len(self.written)
            self.written[file] = rest[0]
            self._name({name: file})
        elif kind == "rename":
            self._name({name: None, rest[0]: self.names[name]})
        elif name:
            file = self.names[name]
            self.synced[file] = self.written[file]
        else:
            self.durable, self.pending = dict(self.names), []

    def _name(self, change: dict[str, int | None]) -> None:
        self.pending.append(change)
        _rename(self.names, change)

    def outcomes(self) -> Iterator[dict[str, bytes]]:
        """Any of the pending changes of names may have reached the disk, in any selection."""
        for chosen in itertools.product((False, True), repeat=len(self.pending)):
            names = dict(self.durable)
            for change in itertools.compress(self.pending, chosen):
                _rename(names, change)
            for content in (lambda data: b"", lambda data: data[: len(data) // 2]):
                yield {
                    name: self.synced.get(file, content(self.written[file]))
                    for name, file in names.items()
                }


def _rename(names: dict[str, int], change: dict[str, int | None]) -> None:
    for name, file in change.items():
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file


@SUFFIXES
def test_a_loss_of_power_at_each_step_loses_nothing(tmp_path: Path, suffix: str) -> None:
    name = f"queue.{suffix}"
    live = tmp_path / "live"
    live.mkdir()
    ops = RecordingOps()
    engine = FileEngine(live / name, ops=ops)
    # How many steps were made when each state was acknowledged.
    acknowledged: list[tuple[int, list[str]]] = [(0, [])]
    for key in ("a", "b", "c"):
        engine.apply([Put("q", ((key, b"1"),))])
        acknowledged.append((len(ops.steps), keys(live / name)))
    claimed: Any = engine.apply([Claim((("q", 1),))])[0]
    engine.apply([Ack("q", "a", claimed[0].token)])
    acknowledged.append((len(ops.steps), keys(live / name)))
    assert acknowledged[-1][1] == ["b", "c"]

    disk = Disk()
    tried: set[tuple[tuple[str, bytes], ...]] = set()
    for count in range(len(ops.steps) + 1):
        if count:
            disk.do(ops.steps[count - 1])
        past = [state for steps, state in acknowledged if steps <= count]
        future = [state for steps, state in acknowledged if steps > count][:1]
        for number, files in enumerate(disk.outcomes()):
            mark = (*sorted(files.items()), ("count", b"%d" % count))
            if mark in tried:
                continue
            tried.add(mark)
            folder = tmp_path / f"{count}-{number}"
            folder.mkdir()
            for file, data in files.items():
                (folder / file).write_bytes(data)
            assert keys(folder / name) in [past[-1], *future]
    assert len(tried) > len(ops.steps)


# Kill -9


class DeadlyOps(FileOps):
    """Ends the process at the n-th step, before or after it."""

    def __init__(self, left: int) -> None:
        self.left = left

    def _tick(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self, path: Path, data: bytes, mode: int) -> None:
        self._tick()
        super().write(path, data[: len(data) // 2], mode)
        self._tick()
        super().write(path, data, mode)

    def sync(self, path: Path) -> None:
        self._tick()
        super().sync(path)

    def rename(self, source: Path, target: Path) -> None:
        self._tick()
        super().rename(source, target)
        self._tick()


LEASE = 0.3


def _live(path: Path, log: Path, name: int, lethal: int) -> None:
    """Puts, claims and acks; writes down each thing when it is acknowledged."""
    engine = FileEngine(path, ops=DeadlyOps(lethal) if lethal else None)
    with log.open("a", buffering=1) as file:
        for number in itertools.count():
            key = f"{name}.{number}"
            engine.apply([Put("q", ((key, json.dumps(key).encode()),))])
            file.write(f"put {key}\n")
            claimed: Any = engine.apply([Claim((("q", 1),), lease_time=LEASE)])[0]
            items: list[Claimed] = list(claimed)
            for item in items:
                start = time.time()
                file.write(f"try {item.key} {item.fence}\n")
                answer = engine.apply([Ack("q", item.key, item.token)])[0]
                if answer is None:
                    file.write(f"ack {item.key} {item.fence} {start} {time.time()}\n")


@SUFFIXES
def test_killed_at_each_point_and_at_random(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"queue.{suffix}"
    dice = random.Random(suffix)
    logs: list[Path] = []
    for turn in range(8):
        started = []
        for name in range(3):
            log = tmp_path / f"log{turn}.{name}"
            logs.append(log)
            lethal = 0 if name == 2 else 1 + dice.randrange(60)
            arguments = (path, log, 10 * turn + name, lethal)
            started.append(processes.Process(target=_live, args=arguments))
        for process in started:
            process.start()
        # Those that do not die by themselves are killed at random.
        while not logs[-1].exists():
            time.sleep(0.01)
        time.sleep(dice.random() * 0.3)
        for process in started:
            process.kill()
            process.join()
    puts: set[str] = set()
    tries: set[str] = set()
    acks: list[str] = []
    fences: list[str] = []
    for log in logs:
        for line in log.read_text().split("\n")[:-1] if log.exists() else ():
            kind, key, *rest = line.split()
            if kind == "put":
                puts.add(key)
            elif kind == "try":
                tries.add(key)
                fences.append(rest[0])
            else:
                acks.append(key)
    assert len(puts) > 20
    assert len(set(acks)) == len(acks)
    assert len(set(fences)) == len(fences)
    left = keys(path)
    # A put that was acknowledged is there or was acked; an ack may have lost its line in the log.
    assert puts <= {*left, *acks, *tries}
    assert not set(left) & set(acks)
    assert not list(tmp_path.glob("*.damaged*"))
