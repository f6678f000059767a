"""The holder of a lease, in its token."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasedkeyq.errors import UnstorableError
from leasedkeyq.model.admission import check_claims, check_holder
from leasedkeyq.model.holders import LONGEST_HOLDER, holder_of, token_tail
from leasedkeyq.model.requests import Claim


@given(st.text(max_size=LONGEST_HOLDER))
def test_a_token_tells_its_holder(holder: str) -> None:
    tail = token_tail(holder)
    assert holder_of(f"0123abcd{tail}") == holder
    assert tail.isascii()
    assert " " not in tail
    assert tail.isprintable()


def test_a_plain_holder_can_be_read_in_the_token() -> None:
    assert token_tail("web-1.example:4242") == "@web-1.example:4242"
    assert token_tail("") == ""
    assert holder_of("0123abcd") == "", "of a program that tells no holder"


@pytest.mark.parametrize("holder", ["x" * (LONGEST_HOLDER + 1), "a\x00b", "\ud800"])
def test_a_holder_that_cannot_be_kept_is_refused(holder: str) -> None:
    with pytest.raises(UnstorableError, match=r"NUL characters|may have 200 characters"):
        check_claims([Claim((("q", 1),), holder=holder)])
    with pytest.raises(ValueError, match=r"NUL characters|may have 200 characters"):
        check_holder(holder)


def test_a_holder_is_a_string() -> None:
    nobody: Any = None
    with pytest.raises(UnstorableError):
        check_claims([Claim((("q", 1),), holder=nobody)])
    with pytest.raises(TypeError, match="holder must be a str, got None"):
        check_holder(nobody)
    check_claims([Claim((("q", 1),), holder="x" * LONGEST_HOLDER)])
