"""What no store takes: numbers that none can count, errors that none can keep."""

from math import inf, nan
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.errors import UnstorableError
from leasedkeyq.model.admission import check_claims, check_ids, refusal_of
from leasedkeyq.model.requests import (
    Ack,
    Amend,
    Bury,
    Cancel,
    Claim,
    Discard,
    Extend,
    Limits,
    Put,
    Release,
    Requeue,
)

ONE = (("k", b"1"),)
TEXT: Any = "1"
NONE: Any = None
FLOAT: Any = 1.5
REFUSED: dict[str, Any] = {
    "delay must be finite": Put("q", ONE, delay=nan),
    "delay must be a number": Put("q", ONE, delay=TEXT),
    "deadline must be finite": Put("q", ONE, deadline=inf),
    "max_items must be at least 0": Put("q", ONE, max_items=-1),
    "max_items must be at most": Put("q", ONE, max_items=2**64),
    "priority must be an int": Put("q", ONE, priority=FLOAT),
    "priority must be below 2": Put("q", ONE, priority=10**5000),
    "kind must be a str": Put("q", ONE, kind=NONE),
    "keep must be finite": Ack("q", "k", "t", b"1", inf),
    "keep must be a number": Cancel("q", "k", b"1", NONE),
    "id must be at most": Cancel("q", "k", id=2**63),
    "id must be an int": Discard("q", TEXT),
    "id must be at least": Requeue("q", -(2**64)),
    "id must be at most 9": Amend("q", "k", 2**63, b"1"),
    "delay must be finite, got inf": Release("q", "k", "t", delay=inf),
    "error must be text": Release("q", "k", "t", error="a\x00b"),
    "error must be text ": Bury("q", "k", "t", "\ud800"),
    "error must be text w": Bury("q", "k", "t", FLOAT),
    "lease_time must be finite": Extend("q", "k", "t", nan),
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_request_that_no_store_can_keep_is_refused(words: str) -> None:
    refusal = refusal_of(REFUSED[words], Limits())
    assert isinstance(refusal, UnstorableError)
    assert words in str(refusal)


@pytest.mark.parametrize(
    "claim, words",
    [
        (Claim((("q", 1),), 2**64), "limit must be at most"),
        (Claim((("q", TEXT),)), "limit must be an int"),
        (Claim((("q", 1),), lease_time=nan), "lease_time must be finite"),
        (Claim((("q", 1),), lease_times=(inf,)), "lease_time must be finite"),
    ],
)
def test_a_claim_with_numbers_that_no_store_can_count(claim: Claim, words: str) -> None:
    with pytest.raises(UnstorableError, match=words):
        check_claims([claim])


def test_ids_that_no_item_can_have() -> None:
    check_ids([1, 2**63 - 1])
    for number in (2**63, TEXT, NONE, FLOAT):
        with pytest.raises(UnstorableError, match="ids: id must be"):
            check_ids([number])


async def test_what_is_as_large_as_a_store_can_count_is_taken() -> None:
    store = MemoryStore()
    most = 2**63 - 1
    [placed] = await store.put([Put("q", ONE, priority=most, max_items=most, deadline=1e308)])
    assert isinstance(placed, tuple)
    [[claimed]] = await store.claim([Claim((("q", most),), most, lease_time=1e308)])
    assert claimed.priority == most
