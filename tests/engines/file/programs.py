"""Programs that change a queue.yaml beside the processes of a repository, each in its own way."""

import logging
import random
import shutil
import time
import warnings
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import yaml

from leasedkeyq.engines.file import document_file
from leasedkeyq.repository import QueueItem, QueueRepository
from tests.forks import fork_server

processes = fork_server()


# How other programs save what they have read. They take turns among themselves: what two of them do
# to each other is not the matter of the store.


def by_rename(path: Path, name: str) -> None:
    """As most editors, and `sed -i`: a new file takes the place of the old one."""
    text = with_item(path.read_text(), name)
    other = path.with_name("editor.tmp")
    other.write_text(text)
    other.replace(path)


def with_backup(path: Path, name: str) -> None:
    """As vim: the old file is renamed first, and is gone for a moment."""
    text = with_item(path.read_text(), name)
    path.replace(path.with_name("queue.yaml~"))
    path.write_text(text)


def with_copy(path: Path, name: str) -> None:
    """As vim with `backupcopy=yes`: a copy is made, and the file is truncated and written."""
    text = with_item(path.read_text(), name)
    shutil.copy(path, path.with_name("queue.yaml~"))
    path.write_text(text)


def in_place(path: Path, name: str) -> None:
    """As nano: the file is truncated and written."""
    path.write_text(with_item(path.read_text(), name))


def slowly(path: Path, name: str) -> None:
    """The file is truncated, and written with pauses."""
    text = with_item(path.read_text(), name)
    step = max(len(text) // 5, 1)
    with path.open("w") as file:
        for at in range(0, len(text), step):
            file.write(text[at : at + step])
            file.flush()
            time.sleep(0.03)


def with_pyyaml(path: Path, name: str) -> None:
    """As a script: everything is read, and everything written."""
    with path.open() as file:
        document = yaml.safe_load(file)
    item = {"id": name, "type": "task", "payload": {"task_id": name}, "status": "pending"}
    document["items"].append(item)
    with path.open("w") as file:
        yaml.dump(document, file)


SAVES: dict[str, Callable[[Path, str], None]] = {
    save.__name__: save
    for save in (by_rename, with_backup, with_copy, in_place, slowly, with_pyyaml)
}


def with_item(text: str, name: str) -> str:
    item = f"\n- type: task\n  payload: {{task_id: {name}}}\nleasedkeyq:"
    assert "\nleasedkeyq:" in text
    return text.replace("\nleasedkeyq:", item, 1)


def change(path: Path, seconds: float, seed: int, log: Path) -> None:
    """Change the document in all ways, and note each change after it was made."""
    dice = random.Random(seed)
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        for kind in dice.sample(sorted(SAVES), len(SAVES)):
            name = f"edit-{kind}-{number}"
            SAVES[kind](path, name)
            with log.open("a") as file:
                file.write(f"{name}\n")
            number += 1
            time.sleep(dice.random() * 0.05)


def work(path: Path, seconds: float, number: int, log: Path, notes: Path) -> None:
    """Put, claim and complete items, and note each put after it was acknowledged."""
    logging.basicConfig(filename=notes, level=logging.WARNING)
    document_file.SET_ASIDE = 100_000  # all of them are looked at
    dice = random.Random(number)
    end = time.monotonic() + seconds
    count = 0
    with QueueRepository(path, keep_finished=None) as repository:
        while time.monotonic() < end:
            name = f"work-{number}-{count}"
            repository.enqueue(QueueItem.create("task", {"task_id": name}))
            with log.open("a") as file:
                file.write(f"{name}\n")
            count += 1
            item = repository.dequeue(timeout=0.0)
            if item is not None:
                repository.complete(item.id)
            time.sleep(dice.random() * 0.03)


def run_programs(
    folder: Path, seconds: float, seed: int, *, kills: bool = False
) -> tuple[set[str], set[str], list[str]]:
    """Let them all run; return what was written, what is in the document, and what is aside.

    With `kills`, one of the processes of the repository is killed again and again.
    """
    path = folder / "queue.yaml"
    log, notes = folder / "log", folder / "notes"
    with QueueRepository(path, keep_finished=None) as repository:
        repository.enqueue(QueueItem.create("task", {"task_id": "first"}))
    workers = iter(range(1_000_000))

    def start() -> BaseProcess:
        arguments = (path, seconds, next(workers), log, notes)
        process = processes.Process(target=work, args=arguments)
        process.start()
        return process

    editor = processes.Process(target=change, args=(path, seconds, seed, log))
    running = [start(), editor]
    editor.start()
    if kills:
        _kill_often(start, random.Random(seed), time.monotonic() + seconds)
    else:
        running.append(start())
    for process in running:
        process.join(seconds + 60)
        assert process.exitcode == 0
    told = notes.read_text() if notes.exists() else ""
    with warnings.catch_warnings(record=True) as late:
        warnings.simplefilter("always")
        with QueueRepository(path, keep_finished=None) as repository:
            found = {str(item.payload["task_id"]) for item in repository.get_queue().items}
    told += "".join(str(warning.message) for warning in late)
    aside = [file for file in folder.glob("*.damaged-*") if file.suffix != ".reason"]
    # A process that was killed right after it set a file aside could not tell.
    assert kills or all(file.name in told for file in aside), "set aside and nobody was told"
    return set(log.read_text().split()), found, [file.read_text() for file in aside]


def _kill_often(start: Callable[[], BaseProcess], dice: random.Random, end: float) -> None:
    while time.monotonic() < end:
        process = start()
        time.sleep(0.2 + dice.random() * 0.4)
        process.kill()
        process.join()
