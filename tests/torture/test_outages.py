"""What the parts `servers` and `network` must find: servers that lose what they acknowledged."""

from contextlib import closing
from pathlib import Path

from tests.engines.kill_facts import ClaimAsked, ClaimDone, Fact, Leased, PutAsked, PutDone
from tests.engines.kill_judge import Found
from tests.servers.ports import lasting_port
from tests.servers.valkey import Server
from tests.torture.outages.judge import FENCES, LOST, NOBODY, UNDONE, OutageJudge, kind_of
from tests.torture.outages.rounds import Outages
from tests.torture.part import Findings, Trial


def claimed(call: int, asked_at: float, done_at: float, fence: int, attempt: int = 1) -> list[Fact]:
    leased = Leased(f"{fence}", f"k{fence}", "v", fence, attempt, asked_at, asked_at + 1)
    return [ClaimAsked(call, asked_at, 1), ClaimDone(call, done_at, [leased])]


def kinds(judge: OutageJudge, left: list[Found]) -> set[str]:
    return {kind_of(complaint) for complaint in judge.verdict(left, {}, 100.0)}


def test_a_server_that_forgets_is_found(tmp_path: Path) -> None:
    """It keeps no file: what it acknowledged before it was killed is lost."""
    found = Findings()
    with (
        Server(port=lasting_port()) as server,
        closing(Outages("redis", server, tmp_path)) as outages,
    ):
        outages.round(1, Trial("redis", range(1), tmp_path).dice(1), found)
    assert found.wrong[LOST] > 0, found


def test_a_fence_that_went_back_is_found() -> None:
    one_after_the_other = [*claimed(1, 0.0, 0.1, fence=2), *claimed(2, 0.2, 0.3, fence=1)]
    assert FENCES in kinds(OutageJudge([one_after_the_other]), [])
    side_by_side = [*claimed(1, 0.0, 0.3, fence=2), *claimed(2, 0.2, 0.3, fence=1)]
    assert FENCES not in kinds(OutageJudge([side_by_side]), [])


def test_a_put_that_was_told_undone_and_is_there_is_found() -> None:
    put: list[Fact] = [PutAsked(1, 0.0, "k", "v")]
    left = [Found("1", "k", "v", 0)]
    assert kinds(OutageJudge([put]), left) == set()
    assert kinds(OutageJudge([put], undone=["v"]), left) == {UNDONE}


def test_a_lease_that_went_to_nobody_is_found() -> None:
    """Unless a claim was under way while the server was away."""
    put: list[Fact] = [PutAsked(1, 0.0, "k", "v"), PutDone(1, 0.1, "1")]
    empty: list[Fact] = [ClaimAsked(2, 0.2, 1), ClaimDone(2, 0.6, [])]
    left = [Found("1", "k", "v", 1)]
    assert kinds(OutageJudge([[*put, *empty]]), left) == {NOBODY}
    assert kinds(OutageJudge([[*put, *empty]], outages=[(0.3, 0.5)]), left) == set()
    assert kinds(OutageJudge([[*put, *empty]], outages=[(0.7, 0.9)]), left) == {NOBODY}
