"""Work on a file store, and what is left of it after a loss of power at some step of it."""

import warnings
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from leasedkeyq.engines.file.document_file import DocumentForm
from leasedkeyq.engines.file.file_operations import Access, FileOperations
from leasedkeyq.engines.file.store import FileEngine
from leasedkeyq.model.requests import Claim, Put, StoredItem
from leasedkeyq.model.store_model import StoreModel
from leasedkeyq.testing.shorthand import EVERY_STATE
from tests.engines.file.disguise import live, unwrap, wrap
from tests.torture.power.disk import Name, Names, Step, Sync, SyncFolder, Write
from tests.torture.power.work import RandomWork, Told, Verdict, compare, greatest_fence

NOW = 1e9
QUEUE = "a"


class Content(NamedTuple):
    """All that is stored: the items in all states, and the leases."""

    items: list[StoredItem]
    leases: list[tuple[str, str, str, int]]


class Run(NamedTuple):
    before: dict[str, bytes]
    """The files in which it began."""
    steps: list[Step]
    told: list[Told]
    """The first is what was stored at the beginning."""


class NotedOperations(FileOperations):
    """Writes down each step; without `exchanges`, as on a system where files cannot do that."""

    def __init__(self, folder: Path, *, exchanges: bool) -> None:
        self.steps: list[Step] = []
        self._exchanges = exchanges
        self._names = {name: number for number, name in enumerate(documents_in(folder))}
        self._files = len(self._names)

    def write(self, path: Path, data: bytes, access: Access | None) -> None:
        super().write(path, data, access)
        if path.name in self._names:
            self._rename(Name(path.name, None))
        self._rename(Name(path.name, self._files))
        self.steps.append(Write(self._files, 0, data))
        self._files += 1

    def sync(self, path: Path) -> None:
        super().sync(path)
        folder = path.is_dir()
        self.steps.append(SyncFolder() if folder else Sync(self._names[path.name]))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self._move(source, target)

    def rename_new(self, source: Path, target: Path) -> bool:
        done = super().rename_new(source, target)
        if done:
            self._move(source, target)
        return done

    def exchange(self, source: Path, target: Path) -> bool:
        if not self._exchanges or not super().exchange(source, target):
            return False
        one, other = self._names[source.name], self._names[target.name]
        self._rename(Name(source.name, other), Name(target.name, one))
        return True

    def link(self, source: Path, target: Path) -> bool:
        if target.name in self._names:
            self._rename(Name(target.name, None))
        done = super().link(source, target)
        if done:
            self._rename(Name(target.name, self._names[source.name]))
        return done

    def remove(self, path: Path) -> None:
        super().remove(path)
        if path.name in self._names:
            self._rename(Name(path.name, None))

    def _move(self, source: Path, target: Path) -> None:
        self._rename(Name(source.name, None), Name(target.name, self._names[source.name]))

    def _rename(self, *names: Name) -> None:
        """All of this at once."""
        self.steps.append(Names(names))
        for name, file in names:
            if file is None:
                self._names.pop(name)
            else:
                self._names[name] = file


def documents_in(folder: Path) -> dict[str, bytes]:
    """The files that matter: the lock has nothing in it."""
    return {
        file.name: file.read_bytes()
        for file in sorted(folder.iterdir())
        if not file.name.endswith(".lock")
    }


def opened(path: Path, form: DocumentForm | None = None, **options: Any) -> FileEngine:
    engine = FileEngine(path, form=form, clock=lambda: NOW, **options)
    engine.file.settled = 0.0
    return engine


def content_of(engine: FileEngine) -> Content:
    def work(model: StoreModel, now: float) -> Content:
        names = sorted(model.queues)
        items = [item for name in names for item in model.browse(name, EVERY_STATE, "", now)]
        if engine.settings is not None:
            # The document of a repository has the meaning of a value, and not its spelling.
            items = [unwrap(item) for item in items]
        leases = sorted(
            (name, item.key, item.lease.token, item.lease.fence)
            for name, queue in model.queues.items()
            for item in queue.state.in_flight.values()
        )
        return Content(items, leases)

    return engine.read(work)


def run(
    path: Path, dice: Random, *, rounds: int, form: DocumentForm, exchanges: bool = True
) -> Run:
    """Work on a document, which may be there already: two processes, one at a time."""
    before = documents_in(path.parent)
    options: dict[str, Any] = {"form": form, "name": QUEUE if form == "repository" else None}
    ops = NotedOperations(path.parent, exchanges=exchanges)
    engines = [opened(path, ops=ops, **options) for _ in range(2)]
    told = [Told(0, content_of(engines[0]))]
    work = RandomWork(dice, QUEUE if form == "repository" else "ab", longest=1000)
    for number in range(rounds):
        engine = dice.choice(engines)
        batch = work.batch() if number else work.puts()
        requests: Any = [wrap(each) if form == "repository" else each for each in batch]
        answers = engine.apply(requests)
        work.note(requests, answers)
        fence = greatest_fence(requests, answers, told[-1].fence)
        told.append(Told(len(ops.steps), content_of(engine), True, fence))
    for engine in engines:
        engine.close()
    return Run(before, ops.steps, told)


def judge(path: Path, form: DocumentForm, told: list[Told], last: int) -> set[Verdict]:
    """Open what is left, compare it with what callers were told, and see that it works on."""
    value = live(b"1") if form == "repository" else b"1"
    engine = opened(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = content_of(engine)
            notices = [*engine.file.notices]
            engine.apply([Put(QUEUE, (("new", value),), priority=100)])
            answer: Any = engine.apply([Claim(((QUEUE, 1),))])[0]
        except Exception as error:  # of whatever kind: a damaged file can break anything
            print(f"{path}: {error!r}")
            return {"damaged"}
        finally:
            engine.close()
    verdicts = compare(told, last, found, answer[0].fence)
    if notices or caught:
        # What a loss of power leaves is not damage, and there is nothing to tell.
        print(f"{path}: {notices}")
        verdicts.add("damaged")
    return verdicts
