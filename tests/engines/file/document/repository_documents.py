"""Documents of a repository, for tests: making them, and looking at them in both ways."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from leasedkeyq.engines.file.document.document import RepositorySettings
from leasedkeyq.engines.file.document.repository_form import RepositoryForm
from leasedkeyq.engines.file.document_file import DocumentForm
from leasedkeyq.engines.file.store import FileEngine
from leasedkeyq.model.requests import Claim, Claimed, Put, StoredItem
from leasedkeyq.model.store_model import StoreModel
from leasedkeyq.testing.shorthand import EVERY_STATE
from tests.engines.file.support import ids

NOW = 1_794_792_800.0
FORM = RepositoryForm(RepositorySettings(name="jobs"))
CREATED = "2026-11-16T00:31:33.123456+00:00"


@dataclass
class SeedItem:
    """As programs have it that read such a document without this package."""

    id: str
    type: str
    payload: dict[str, Any]
    status: str
    created_at: str
    priority: int = 0
    scheduled_at: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    retry_count: int = 0
    max_retries: int = 3
    error_message: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


def read_plainly(path: Path) -> list[SeedItem]:
    found = (yaml.safe_load if path.suffix == ".yaml" else json.loads)(path.read_text())
    items = [SeedItem(**item) for item in found[next(n for n in ("items", "queue") if n in found)]]
    for item in items:
        for moment in (item.created_at, item.scheduled_at, item.started_at, item.completed_at):
            assert moment is None or datetime.fromisoformat(moment).tzinfo is not None
    return items


def by_id(path: Path) -> dict[str, SeedItem]:
    return {item.id: item for item in read_plainly(path)}


def value(task: str = "T1", **others: object) -> bytes:
    fields: dict[str, object] = {
        "type": "task",
        "payload": {"task_id": task},
        "created_at": CREATED,
        "max_retries": 3,
        "metadata": {},
    }
    return json.dumps(fields | others, separators=(",", ":")).encode()


def finished(key: str, status: str = "completed", **others: object) -> bytes:
    item = SeedItem(key, "task", {}, status, CREATED, completed_at=CREATED)
    return json.dumps(vars(item) | others).encode()


def opened(
    path: Path,
    form: DocumentForm | None = "repository",
    name: str | None = "jobs",
    clock: Callable[[], float] | None = None,
) -> FileEngine:
    engine = FileEngine(path, form=form, name=name, clock=clock)
    engine.file.settled = 0.0
    return engine


def put(engine: FileEngine, *keys: str, **options: Any) -> Any:
    items = tuple((key, value(key)) for key in keys)
    return ids(engine.apply([Put("jobs", items, kind="task", **options)])[0])


def claim(engine: FileEngine, count: int = 1, **options: Any) -> list[Claimed]:
    answer: Any = engine.apply([Claim((("jobs", count),), count, **options)])[0]
    return list(answer)


def seen(engine: FileEngine, queue: str = "jobs") -> dict[str, StoredItem]:
    found = engine.read(lambda model, now: model.browse(queue, EVERY_STATE, "", now))
    return {item.key: item for item in found}


def ready(engine: FileEngine, queue: str = "jobs") -> list[str]:
    """In the order in which they would be handed out."""

    def work(model: StoreModel, now: float) -> list[str]:
        if not model.count(queue, now).available:
            return []
        return [item.key for item in model.queues[queue].state.ready]

    return engine.read(work)
