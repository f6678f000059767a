"""Judges what clients noted while their server failed, and what is there afterwards."""

from collections.abc import Iterable, Sequence
from math import inf

from tests.engines.kill_facts import ClaimAsked, ClaimDone, Fact
from tests.engines.kill_judge import FENCES as OUT_OF_ORDER
from tests.engines.kill_judge import MADE_UP, Complaint, Found, Judge

LOST = "acknowledged changes lost"
TWICE = "leases settled twice or late"
HELD_TWICE = "keys held twice"
FENCES = "fences that went back"
NOBODY = "leases handed to nobody"
UNDONE = "changes made that were told undone"
OTHER = "other contradictions"


class OutageJudge(Judge):
    """The judge of the kills, for servers that number leases in transactions side by side.

    Args:
        journals: What each client noted.
        undone: The values of puts of which a client was told that they did not happen.
        outages: When the server was away, from and to. A claim that was under way then is asked
            for again, and answered without the leases that have expired meanwhile: those went to
            nobody, and rightly so. A `get` goes on then, and returns another lease.
    """

    def __init__(
        self,
        journals: Iterable[Sequence[Fact]],
        undone: Iterable[str] = (),
        outages: Sequence[tuple[float, float]] = (),
    ) -> None:
        journals = list(journals)
        super().__init__(journals, one_writer=False)
        self._undone = set(undone)
        for facts in journals:
            asked = {fact.call: fact for fact in facts if isinstance(fact, ClaimAsked)}
            for fact in facts:
                if isinstance(fact, ClaimDone):
                    claim = asked[fact.call]
                    if any(claim.at < end and begin < fact.at for begin, end in outages):
                        self.unanswered_claims += claim.most

    def _check_order(self) -> None:
        """A lease that was asked for when another had been handed out has a higher fence."""
        latest = -inf
        for fence, lease in sorted(self.leases.items()):
            if lease.done_at < latest:
                words = f"lease {fence} was handed out before one with a lower fence"
                self.complain(OUT_OF_ORDER, words)
            latest = max(latest, lease.asked_at)

    def verdict(
        self, left: Sequence[Found], done: dict[str, int], looked_at: float
    ) -> list[Complaint]:
        """As `Judge.verdict`."""
        seen = {lease.leased.value for lease in self.leases.values()}
        for value in sorted(self._undone & (seen | {found.value for found in left})):
            self.complain(MADE_UP, f"{value} was put, and the error said that it was not")
        return super().verdict(left, done, looked_at)


KINDS = (
    (LOST, ("lost", "the attempts do not count up", "while it was running")),
    (NOBODY, ("went to nobody",)),
    (HELD_TWICE, ("was held twice",)),
    (TWICE, ("times", "after it was settled", "after it had expired", "still there")),
    (TWICE, ("had a successor", "that of another lease")),
    (FENCES, ("fence",)),
    (UNDONE, ("the error said that it was not",)),
)


def kind_of(complaint: Complaint) -> str:
    """Under which name a complaint is counted."""
    for name, words in KINDS:
        if any(word in complaint.words for word in words):
            return name
    return OTHER
