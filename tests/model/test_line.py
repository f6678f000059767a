"""The line of a key: its order, its ends, and what is found by number."""

import random
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasedkeyq.model import line as line_module
from leasedkeyq.model.line import Line, LineValue


def make(*numbers: int) -> Line[str]:
    line: Line[str] = Line()
    for number in numbers:
        line.add(LineValue(number, f"value {number}", 0, None))
    return line


def numbers(values: "Iterator[LineValue[str]] | Line[str]") -> list[int]:
    return [value.number for value in values]


def test_values_are_in_the_order_of_their_numbers() -> None:
    line = make(3, 5, 9, 4)
    assert numbers(line) == [3, 4, 5, 9]
    assert (line.first.number, line.last.number, len(line)) == (3, 9, 4)
    assert not make()


def test_values_are_found_by_number() -> None:
    line = make(3, 5, 9)
    found = line.get(5)
    assert found is not None
    assert found.value == "value 5"
    assert [number in line for number in (2, 3, 4, 9, 10)] == [False, True, False, True, False]
    assert line.get(10) is make().get(1) is None


def test_values_leave_from_every_place() -> None:
    line = make(1, 2, 3, 4, 5)
    for number, left in ((3, [1, 2, 4, 5]), (5, [1, 2, 4]), (1, [2, 4])):
        taken = line.take(number)
        assert taken is not None
        assert taken.number == number
        assert line.take(number) is None
        assert numbers(line) == left
    assert [line.take_first().number, line.take_first().number] == [2, 4]
    assert not line
    line.add(LineValue(7, "again", 0, None))
    assert numbers(line) == [7]


def test_values_behind_a_number() -> None:
    line = make(1, 2, 3, 4, 5)
    line.take(1)
    line.take(3)
    assert [numbers(line.behind(number)) for number in (0, 2, 3, 4, 5)] == [
        [2, 4, 5],
        [4, 5],
        [4, 5],
        [5],
        [],
    ]


@given(st.integers(0, 2**32), st.sampled_from((0, 1, 32)))
def test_it_does_what_a_sorted_dict_does(seed: int, small: int) -> None:
    rng = random.Random(seed)
    line, naive, last = make(), dict[int, str](), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_module, "SMALL", small)
        for _ in range(rng.randint(0, 120)):
            known = sorted(naive)
            match rng.choice("aaaftm"):
                case "a":
                    last += rng.randint(1, 3)
                    naive[last] = f"value {last}"
                    line.add(LineValue(last, naive[last], 0, None))
                case "f" if naive:
                    assert line.take_first().number == known[0]
                    del naive[known[0]]
                case "m" if naive:
                    number = rng.choice(known)
                    taken = line.take(number)
                    assert taken is not None
                    assert taken.value == naive.pop(number)
                case _:
                    number = rng.randint(0, last + 1)
                    taken = line.take(number)
                    assert (taken and taken.value) == naive.pop(number, None)
            known = sorted(naive)
            assert numbers(line) == known
            assert len(line) == len(known)
            assert not known or (line.first.number, line.last.number) == (known[0], known[-1])
            after = rng.randint(-1, last + 1)
            assert numbers(line.behind(after)) == [n for n in known if n > after]


def test_what_is_gone_is_forgotten() -> None:
    line = make(*range(10_000))
    for number in range(1, 9_990, 2):
        line.take(number)
    while len(line) > 10:
        line.take_first()
    assert len(line._places) < 100


def test_nothing_costs_more_in_a_long_line() -> None:
    def calls(length: int) -> int:
        line = make(*range(length))
        count = 0

        def counted(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(counted)
        try:
            line.add(LineValue(length + 1, "", 0, None))
            line.take(length // 2)
            line.take_first()
            next(line.behind(length - 2))
            line.get(length)
        finally:
            sys.setprofile(None)
        return count

    few, many = calls(10), calls(100_000)
    assert many < 4 * few, f"{few} calls in a short line, {many} in a long one"
