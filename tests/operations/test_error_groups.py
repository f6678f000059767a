"""Errors that are the same but for numbers, names and places."""

import pytest

from leasedkeyq.model.requests import Attempt, StoredItem
from leasedkeyq.operations.items.error_groups import ErrorGrouping, group_of

SAME = [
    ["TimeoutError: no answer after 3 s", "TimeoutError: no answer after 12.5 s"],
    ["KeyError: 'a-17'", "KeyError: 'b'"],
    ['ValueError: "x" is no number', 'ValueError: "" is no number'],
    ["OSError: cannot open /srv/a/1.txt", "OSError: cannot open /tmp/b.txt"],
    [
        "HTTPError: 503 for https://shop.example/orders/1?x=2",
        "HTTPError: 502 for https://shop.example/",
    ],
    [
        "LookupError: order 7b1f3a52-0c1e-4f0a-9a43-3b0d7d9e1f10 is gone",
        "LookupError: order 11111111-2222-3333-4444-555555555555 is gone",
    ],
    ["RuntimeError: object at 0x7f12ab", "RuntimeError: object at 0xdeadbeef01"],
    ["MailError: no mailbox ann@example.org", "MailError: no mailbox bob.b@mail.example"],
    ["E: order-17 failed", "E: order-99812 failed"],
    ["E: digest 9f86d081884c7d65 differs", "E: digest 0123456789abcdef0 differs"],
    ["E: failed; tried again after 2 s", "E: failed"],
    ["E: failed\nTraceback\n  line 1", "E: failed\nTraceback\n  line 2"],
    ["E: sizes 1, 2, 3", "E: sizes 4, 5"],
]


@pytest.mark.parametrize("errors", SAME, ids=lambda errors: errors[0][:30])
def test_what_differs_is_left_out(errors: list[str]) -> None:
    assert len({group_of(error) for error in errors}) == 1


@pytest.mark.parametrize(
    "one, other",
    [
        ("ValueError: bad", "TypeError: bad"),
        ("TimeoutError: no answer", "TimeoutError: no connection"),
        ("E: feedback is missing", "E: facade is missing"),
        ("", "E"),
    ],
)
def test_other_errors_are_other_groups(one: str, other: str) -> None:
    assert group_of(one) != group_of(other)


def test_an_endless_error_is_quick_and_bounded() -> None:
    assert len(group_of("/a" * 100_000 + "'" * 1000)) <= 300


def letter(number: int, error: str, kind: str, at: float, queue: str = "mail") -> StoredItem:
    history = (Attempt(1, at, "buried", error),)
    return StoredItem(
        id=number,
        queue=queue,
        key=f"k{number}",
        state="buried",
        value=b"1",
        kind=kind,
        error=error,
        put_at=1.0,
        history=history,
    )


def test_groups_count_kinds_queues_and_times() -> None:
    grouping = ErrorGrouping()
    for one in (
        letter(1, "E: 1", "send", 5.0),
        letter(2, "E: 2\ntrace", "send", 3.0),
        letter(3, "E: 3", "parse", 9.0, "other"),
        letter(4, "F", "send", 1.0),
    ):
        grouping.add(one)
    first, second = grouping.groups()
    assert (first.error, first.example, first.count) == ("E: …", "E: 1", 3)
    assert (first.first, first.last) == (3.0, 9.0)
    assert first.kinds == {"send": 2, "parse": 1}
    assert first.queues == {"mail": 2, "other": 1}
    assert (second.error, second.count) == ("F", 1)
