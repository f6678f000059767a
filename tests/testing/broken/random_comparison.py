"""Faults that show only when every answer is compared with that of the model."""

from leasedkeyq.model.requests import Claimed, StoredItem
from tests.testing.broken.processes import HandsOutOnlyItsOwn
from tests.testing.broken.through import OtherClaims, OtherItems, caught_by, replace


@caught_by("test_it_answers_random_requests_as_the_model_does")
class RoundsTimes(OtherItems):
    """Shows when an item was put to the second."""

    def shown(self, item: StoredItem) -> StoredItem:
        return replace(item, put_at=float(int(item.put_at)))


@caught_by("test_hypothesis_finds_no_requests_that_it_answers_otherwise")
class RoundsTimesOfLeases(OtherClaims):
    """Tells whoever claims an item to the second when it was put."""

    def shown(self, item: Claimed) -> Claimed:
        return replace(item, put_at=float(int(item.put_at)))


@caught_by("test_several_store_objects_answer_as_one_machine_does")
class IsAloneOnItsPlace(HandsOutOnlyItsOwn):
    """Does not see what another store object put."""
