import copy
import pickle
import uuid

import pytest

from leasedkeyq import Lease, LeasedKeyQueue, LeaseRecord


def test_a_lease_has_a_token_and_a_key() -> None:
    lease = Lease("token", "key")
    assert (lease.token, lease.key) == ("token", "key")
    assert (lease.fence, lease.attempt, lease.expires_at) == (0, 0, None)
    assert Lease(token="t", key="k").token == "t"


def test_tokens_are_random_uuids_and_stay() -> None:
    first, second = Lease.create("key"), Lease.create("key")
    assert uuid.UUID(first.token).version == 4
    assert first.token == first.token
    assert first.token != second.token


@pytest.mark.parametrize("name", ["token", "key", "fence", "attempt", "expires_at", "new"])
def test_a_lease_cannot_be_changed(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(Lease.create("key"), name, "other")


def test_leases_are_equal_by_token() -> None:
    lease = Lease.create("key")
    same = Lease(lease.token, "other key", fence=9)
    assert lease == same
    assert hash(lease) == hash(same)
    assert lease != Lease.create("key")
    assert lease != lease.token
    assert len({lease, same}) == 1


def test_copies_and_pickles_are_equal() -> None:
    lease = Lease("token", "key", 3, 2, 7.5)
    for twin in (copy.copy(lease), copy.deepcopy(lease), pickle.loads(pickle.dumps(lease))):
        assert twin == lease
        assert (twin.key, twin.fence, twin.attempt, twin.expires_at) == ("key", 3, 2, 7.5)


def test_repr_says_what_it_holds() -> None:
    assert repr(Lease("t", "k", 3, 2, 7.5)) == (
        "Lease(token='t', key='k', fence=3, attempt=2, expires_at=7.5)"
    )


async def test_fences_grow_and_attempts_count() -> None:
    queue = LeasedKeyQueue[str, int]()
    await queue.put("a", 1)
    await queue.put("b", 2)
    _, _, first = await queue.get()
    _, _, second = await queue.get()
    await queue.release(first)
    _, _, third = await queue.get()
    assert first.fence < second.fence < third.fence
    assert (first.attempt, second.attempt, third.attempt) == (1, 1, 2)


async def test_an_equal_lease_settles_too() -> None:
    queue = LeasedKeyQueue[str, int]()
    await queue.put("a", 1)
    _, _, lease = await queue.get()
    await queue.ack(pickle.loads(pickle.dumps(lease)))
    assert await queue.inflight_size() == 0


def test_lease_records_can_still_be_made() -> None:
    lease = Lease.create("key")
    record = LeaseRecord(lease, "key", 1, timeout=5.0)
    assert not record.acknowledged
    assert record.created_at > 0
    assert not record.is_expired(record.created_at + 4.9)
    assert record.is_expired(record.created_at + 5.0)
    assert not LeaseRecord(lease, "key", 1).is_expired(1e12)


def test_leases_can_be_matched() -> None:
    match Lease("t", "k"):
        case Lease(token, key):
            assert (token, key) == ("t", "k")
