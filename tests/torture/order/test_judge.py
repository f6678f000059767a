"""The judge of handed out values sees what is wrong in notes that are made up."""

import pytest

from tests.torture.order.judge import AGAIN, LOST, UNORDERED, Judge

GOOD = ["leased 1 k 0", "released 1", "leased 2 k 0", "done 2", "leased 5 k 1", "done 5"]


def complaints(notes: list[str], many: int = 2) -> list[str]:
    return [complaint.wrong for complaint in Judge(notes).complaints({"k": many})]


def test_nothing_is_wrong_where_values_are_given_back_and_come_again() -> None:
    assert complaints(GOOD) == []
    assert Judge(GOOD).counted["values handed out more than once"] == 1


def test_files_of_notes_are_in_no_order() -> None:
    assert complaints(GOOD[::-1]) == []


@pytest.mark.parametrize(
    "note, many, wrong",
    [
        ("hung 5", 3, LOST),
        ("leased 6 k 0", 2, UNORDERED),
        ("leased 3 k 0", 2, AGAIN),
        ("leased 6 k 1", 2, AGAIN),
    ],
)
def test_a_fault_is_found(note: str, many: int, wrong: str) -> None:
    assert wrong in complaints([*GOOD, note], many)


def test_a_note_that_was_torn_is_not_passed_over() -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        Judge([*GOOD, "leased 9 k"])
