"""A person reads and edits the groups in the document of a repository."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from leasedkeyq.repository import QueueItem, QueueItemStatus, QueueRepository
from tests.repository.support import found, item, taken, types

Items = list[dict[str, Any]]


@pytest.fixture(params=["yaml", "json"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"queue.{request.param}"


@pytest.fixture
def repository(path: Path) -> Iterator[QueueRepository]:
    with QueueRepository(path, backoff=lambda _: 0.0) as repository:
        yield repository


def fill(repository: QueueRepository, group: str, *names: str) -> list[QueueItem]:
    items = [item(name, group=group) for name in names]
    for made in items:
        repository.enqueue(made)
    return items


def listed(path: Path) -> Items:
    items: Items = yaml.safe_load(path.read_text())["items"]
    return items


def by_hand(path: Path, change: Callable[[Items], object]) -> None:
    """Change the list of items in a document, as a person does in an editor."""
    document = yaml.safe_load(path.read_text())
    change(document["items"])
    if path.suffix == ".json":
        document.pop("sum", None)
        path.write_text(json.dumps(document, indent=1))
    else:
        path.write_text(yaml.safe_dump(document, sort_keys=False))


def handed_out(repository: QueueRepository) -> list[str]:
    names: list[str] = []
    while (got := repository.dequeue()) is not None:
        names.append(got.type)
        repository.complete(got)
    return names


def place(items: Items, name: str) -> int:
    return next(number for number, one in enumerate(items) if one["type"] == name)


def test_each_item_of_a_group_is_an_item_of_the_document(
    path: Path, repository: QueueRepository
) -> None:
    fill(repository, "acme", "a", "b")
    repository.enqueue(item("free"))
    taken(repository)
    assert [(one["type"], one["status"], one.get("group")) for one in listed(path)] == [
        ("a", "processing", "acme"),
        ("b", "pending", "acme"),
        ("free", "pending", None),
    ]
    assert "group" not in listed(path)[2]
    if path.suffix == ".yaml":
        assert "\n  group: acme\n" in path.read_text()


def test_an_error_is_shown(path: Path, repository: QueueRepository) -> None:
    first, _ = fill(repository, "acme", "a", "b")
    repository.fail(taken(repository), "boom")
    assert (listed(path)[0]["error_message"], listed(path)[0]["retry_count"]) == ("boom", 1)
    by_hand(path, lambda items: items[1].update(priority=3))
    assert found(repository, first.id).error_message == "boom"
    assert handed_out(repository) == ["a", "b"]


def test_items_are_added_to_groups(path: Path, repository: QueueRepository) -> None:
    fill(repository, "acme", "a", "b")
    taken(repository)
    new = (("c", "acme"), ("d", "acme"), ("e", "new"))
    added = [{"type": name, "payload": {"x": 1}, "group": group} for name, group in new]
    by_hand(path, lambda items: items.extend(added))
    assert types(repository) == ["a", "e", "b", "c", "d"]
    assert taken(repository).type == "e"
    assert repository.dequeue() is None
    repository.complete(repository.get_queue().items[0])
    assert handed_out(repository) == ["b", "c", "d"]


def test_an_item_is_added_in_the_middle(path: Path, repository: QueueRepository) -> None:
    fill(repository, "acme", "a", "b")
    new = {"type": "between", "payload": {}, "group": "acme"}
    by_hand(path, lambda items: items.insert(1, new))
    assert handed_out(repository) == ["a", "between", "b"]


def test_an_item_above_the_first_waits_for_it(path: Path, repository: QueueRepository) -> None:
    fill(repository, "acme", "a", "b")
    taken(repository)
    by_hand(path, lambda items: items.insert(0, {"type": "new", "payload": {}, "group": "acme"}))
    assert repository.dequeue() is None
    repository.complete(next(one for one in repository.get_queue().items if one.type == "a"))
    assert handed_out(repository) == ["new", "b"]


def test_the_order_of_a_group_is_changed(path: Path, repository: QueueRepository) -> None:
    fill(repository, "acme", "a", "b", "c", "d")
    by_hand(path, lambda items: items.insert(1, items.pop(3)))
    assert handed_out(repository) == ["a", "d", "b", "c"]


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_an_item_is_removed(path: Path, repository: QueueRepository, name: str) -> None:
    fill(repository, "acme", "a", "b", "c")
    by_hand(path, lambda items: items.pop(place(items, name)))
    assert handed_out(repository) == [one for one in "abc" if one != name]


@pytest.mark.parametrize("status", ["completed", "cancelled", "failed"])
@pytest.mark.parametrize("name", ["a", "b"])
def test_an_item_is_finished(
    path: Path, repository: QueueRepository, name: str, status: str
) -> None:
    items = fill(repository, "acme", "a", "b", "c")
    by_hand(path, lambda items: items[place(items, name)].update(status=status))
    stored = found(repository, items["ab".index(name)].id)
    assert (stored.status, stored.group) == (QueueItemStatus(status), "acme")
    assert handed_out(repository) == [one for one in "abc" if one != name]


def test_an_item_that_was_given_up_comes_back(path: Path, repository: QueueRepository) -> None:
    made = item("a", group="acme", max_retries=1)
    repository.enqueue(made)
    fill(repository, "acme", "b")
    repository.fail(taken(repository), "boom")
    by_hand(path, lambda items: items[place(items, "a")].update(status="pending", retry_count=0))
    assert handed_out(repository) == ["b", "a"]


def test_an_item_joins_leaves_and_changes_its_group(
    path: Path, repository: QueueRepository
) -> None:
    fill(repository, "acme", "a", "b", "c", "d")
    repository.enqueue(item("free"))

    def change(items: Items) -> None:
        items[place(items, "free")]["group"] = "acme"
        del items[place(items, "b")]["group"]
        items[place(items, "c")]["group"] = "other"
        items[place(items, "d")]["group"] = None

    by_hand(path, change)
    groups = {one.type: one.group for one in repository.get_queue().items}
    assert groups == {"a": "acme", "free": "acme", "b": None, "c": "other", "d": None}
    assert sorted(taken(repository).type for _ in range(4)) == ["a", "b", "c", "d"]
    assert repository.dequeue() is None


def test_attempts_go_with_an_item_into_another_group(
    path: Path, repository: QueueRepository
) -> None:
    fill(repository, "acme", "a", "b")
    fill(repository, "other", "x")
    repository.fail(taken(repository), "boom")
    by_hand(path, lambda items: items[place(items, "a")].update(group="other"))
    moved = next(one for one in repository.get_queue().items if one.type == "a")
    assert (moved.group, moved.retry_count, moved.error_message) == ("other", 1, "boom")
    assert [taken(repository).type for _ in range(2)] == ["x", "b"]


def test_a_lease_that_a_person_ended_leaves_the_item_the_first(
    path: Path, repository: QueueRepository
) -> None:
    fill(repository, "acme", "a", "b")
    taken(repository)
    by_hand(path, lambda items: items[0].update(status="pending"))
    assert [taken(repository).type, repository.dequeue()] == ["a", None]


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda items: items[1].update(status="processing"), "only the first item of a group"),
        (lambda items: items[0].update(group="other"), "only an item that is pending"),
        (lambda items: items[0].pop("group"), "only an item that is pending"),
        (lambda items: items[1].update(group=""), "group must be a text"),
        (lambda items: items[1].update(group=7), "group"),
        (lambda items: items[1].update(group="a\x00b"), "group"),
        (lambda items: items.append({**items[1], "type": "copy"}), "twice"),
    ],
)
def test_what_cannot_be_is_set_aside(
    path: Path,
    repository: QueueRepository,
    change: Callable[[Items], object],
    message: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(repository, "acme", "a", "b")
    got = taken(repository)
    by_hand(path, change)
    assert types(repository) == ["a", "b"]
    assert message in caplog.text
    repository.complete(got)
    assert handed_out(repository) == ["b"]


def test_comments_stay_with_items_that_are_put_again(tmp_path: Path) -> None:
    path = tmp_path / "queue.yaml"
    with QueueRepository(path) as repository:
        first, _, _ = fill(repository, "acme", "a", "b", "c")
        text = path.read_text()
        for name in ("a", "b", "c"):
            text = text.replace(f"  type: {name}\n", f"  type: {name} # mine: {name}\n")
        path.write_text(text)
        repository.update_item(first.id, lambda item: item.metadata.update(seen=True))
        repository.complete(taken(repository))
        written = path.read_text()
    for name in ("a", "b", "c"):
        assert f"type: {name} # mine: {name}" in written
