"""The order of ids that listings go by."""

from leasedkeyq.model.id_order import IdOrder


def test_what_has_gone_is_walked_over_once() -> None:
    """The oldest go first, and listings begin there."""
    there = dict.fromkeys(range(1, 20_001), "key")
    looks = 0

    def is_there(number: int, _: str) -> bool:
        nonlocal looks
        looks += 1
        return number in there

    order = IdOrder(there.items, is_there, lambda: len(there))
    assert next(order.behind(0)) == (1, "key")
    for number in range(1, 9_001):
        del there[number]
    assert next(order.behind(0)) == (9_001, "key")
    looks = 0
    assert next(order.behind(0)) == (9_001, "key")
    assert looks < 10
    assert [number for number, _ in order.behind(100)] == list(range(9_001, 20_001))
    assert order.find(9_000) is None
    assert order.find(9_001) == "key"


def test_the_highest_ids_come_first_from_any_id_down() -> None:
    """What has gone at that end is walked over once, too."""
    there = dict.fromkeys(range(1, 20_001), "key")
    looks = 0

    def is_there(number: int, _: str) -> bool:
        nonlocal looks
        looks += 1
        return number in there

    order = IdOrder(there.items, is_there, lambda: len(there))
    assert next(order.before(None)) == (20_000, "key")
    for number in range(11_001, 20_001):
        del there[number]
    assert next(order.before(None)) == (11_000, "key")
    looks = 0
    assert next(order.before(None)) == (11_000, "key")
    assert looks < 10
    assert [number for number, _ in order.before(6)] == [5, 4, 3, 2, 1]
    assert list(order.before(1)) == []
    order.add(20_001, "new")
    there[20_001] = "new"
    assert next(order.before(30_000)) == (20_001, "new")
