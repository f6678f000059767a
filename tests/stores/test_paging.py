"""What listings have in common, whatever the engine."""

import pytest

from leasedkeyq.stores.paging import prefix_end

LAST = "\U0010ffff"


@pytest.mark.parametrize(
    "prefix, end",
    [
        ("a", "b"),
        ("ab", "ac"),
        ("\x7f", "\x80"),
        ("ö\ud7ff", "ö\ue000"),
        (f"a{LAST}", "b"),
        (f"a{LAST}{LAST}", "b"),
        (LAST, None),
    ],
)
def test_the_end_of_a_prefix_is_behind_all_that_begin_with_it(prefix: str, end: str | None) -> None:
    assert prefix_end(prefix) == end
    if end is not None:
        for key in (prefix, prefix + "\x01", prefix + LAST * 3):
            assert prefix.encode() <= key.encode() < end.encode()
        assert not end.startswith(prefix)
