"""Values in the store that are none of a repository's items, or not all of one."""

import json
from datetime import timedelta
from pathlib import Path

from leasedkeyq.repository import QueueItemStatus
from leasedkeyq.stores import Put
from tests.repository.support import World, found, item, open_session, taken, types

CANCELLED = QueueItemStatus.CANCELLED


def test_values_of_others_do_not_stop_anybody(tmp_path: Path) -> None:
    for kind in ("memory", "sqlite"):
        (tmp_path / kind).mkdir()
        world = World(kind, tmp_path / kind)
        repository = world.open()
        session = open_session(repository)
        for key, value in (("a", b"not json"), ("b", b"[1]"), ("c", b'{"type": 7}')):
            session.call(world.store.put([Put("queue", ((key, value),), priority=1)]))
        good = item()
        repository.enqueue(good)
        assert types(repository) == ["unreadable"] * 3 + ["work"]
        assert taken(repository).id == good.id
        assert repository.stats()["failed"] == 3
        assert "not the fields of an item" in (found(repository, "a").error_message or "")
        assert repository.remove_item("a")
        assert repository.cancel("b").status is CANCELLED
        repository.retry("c")
        got = taken(repository)
        assert (got.type, got.payload) == ("unreadable", {"stored": '{"type": 7}'})
        world.close()


def test_little_is_needed_of_a_stored_item(tmp_path: Path) -> None:
    world = World("sqlite", tmp_path)
    repository = world.open(default_max_retries=9)
    value = json.dumps({"type": "mail", "payload": {"a": 1}}).encode()
    session = open_session(repository)
    session.call(world.store.put([Put("queue", (("k", value),), priority=2, delay=60.0)]))
    made = found(repository, "k")
    assert (made.type, made.payload, made.priority, made.max_retries) == ("mail", {"a": 1}, 2, 9)
    assert (made.created_at, made.scheduled_at) == (world.now, world.now + timedelta(seconds=60))
    world.close()
