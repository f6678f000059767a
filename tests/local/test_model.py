"""The queue and a naive model of it do the same, whatever happens.

A Hypothesis state machine searches for a sequence of steps after which the two differ, and makes
it short. Random walks with the same steps go on for longer and cost less per step. Together they
make at least 100,000 steps, and they count them.
"""

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from leasedkeyq.model import line, ready, timers
from tests.local.model_rig import Rig, walk_from
from tests.local.model_steps import ARGUMENTS, CONFIGS, Config, Op

WALKS = range(10)
STEPS_PER_WALK = 10_000
MACHINES = (("no limit", 60), ("bounded", 40))  # and steps in a row
STEPS_PER_MACHINE = 1_500
"""Far fewer than those of the walks, as each takes ten times as long; tests/torture makes more."""


def test_the_tests_here_make_100_000_steps() -> None:
    walks = len(WALKS) * STEPS_PER_WALK
    assert walks + len(MACHINES) * STEPS_PER_MACHINE >= 100_000


@pytest.mark.parametrize("seed", WALKS)
def test_random_walk(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 3 == 2:
        # Tidy up the heaps every few steps, and not only when they are large.
        monkeypatch.setattr(timers, "SMALL", 2)
        monkeypatch.setattr(ready, "SMALL", 2)
        monkeypatch.setattr(line, "SMALL", 1)
    assert walk_from(seed, STEPS_PER_WALK) >= STEPS_PER_WALK


def test_a_queue_that_releases_to_the_wrong_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready.ReadyItems, "appendleft", ready.ReadyItems.append)
    with pytest.raises(AssertionError, match="instead of"):
        walk_from(1, STEPS_PER_WALK)


_OPS = {
    name: st.builds(Op, st.just(name), st.tuples(*map(st.sampled_from, choices)))
    for name, choices in ARGUMENTS.items()
}


def _ops(*names: str) -> st.SearchStrategy[Op]:
    """Steps of these names; a name that is given twice comes up twice as often."""
    return st.sampled_from(names).flatmap(_OPS.__getitem__)


PRODUCE = ("put", "put", "put", "put_nowait", "put_many")
CONSUME = ("get", "get", "take", "take", "get_nowait", "take_nowait", "get_many", "lease")
SETTLE = ("ack", "ack", "release", "release", "release", "extend", "bury")
KEEP = (
    "requeue",
    "requeue",
    "discard",
    "remove",
    "remove_one",
    "remove_one",
    "purge_line",
    "purge_buried",
    "requeue_foreign",
    "misuse",
)
TIME = ("settle", "settle", "turn", "idle", "idle", "jump")


class QueueMachine(RuleBasedStateMachine):
    """Each rule makes a step, or several in one turn of the event loop."""

    configs: Sequence[Config] = CONFIGS
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.rig: Rig | None = None
        self.failed = False

    @initialize(choice=st.integers(0, len(CONFIGS) - 1))
    def start(self, choice: int) -> None:
        self.rig = Rig(self.configs[choice % len(self.configs)])

    def make(self, *moves: Sequence[Op]) -> None:
        assert self.rig is not None
        try:
            self.rig.run(self.rig.again(moves))
        except BaseException:
            self.failed = True
            raise
        type(self).steps += sum(map(len, moves))

    @rule(op=_ops(*PRODUCE))
    def produce(self, op: Op) -> None:
        self.make([op])

    @rule(op=_ops(*CONSUME, "iterate", "join"))
    def consume(self, op: Op) -> None:
        self.make([op])

    @rule(op=_ops("get_nowait", "get_nowait", "take_nowait"))
    def claim(self, op: Op) -> None:
        self.make([op])

    @rule(put=_ops(*PRODUCE), claim=_ops(*CONSUME))
    def pass_on(self, put: Op, claim: Op) -> None:
        self.make([put], [claim])

    @rule(op=_ops(*SETTLE))
    def settle(self, op: Op) -> None:
        self.make([op])

    @rule(op=_ops(*KEEP))
    def keep(self, op: Op) -> None:
        self.make([op])

    @rule(op=_ops(*TIME))
    def pass_time(self, op: Op) -> None:
        self.make([op])

    @rule(late=_ops("jump"), op=_ops(*PRODUCE, *CONSUME, *SETTLE))
    def come_late(self, late: Op, op: Op) -> None:
        self.make([late], [op])

    @rule(ops=st.lists(_ops(*PRODUCE, *CONSUME, *SETTLE, "cancel"), min_size=2, max_size=4))
    def burst(self, ops: list[Op]) -> None:
        self.make(ops)

    @rule(op=_ops(*PRODUCE, *SETTLE), cancel=_ops("cancel", "cancel", "cancel_all"))
    def cancel_in_time(self, op: Op, cancel: Op) -> None:
        self.make([op], [cancel])

    @precondition(lambda self: self.rig is None or self.rig.steps > 30)
    @rule(op=_ops("close"))
    def close(self, op: Op) -> None:
        self.make([op])

    @precondition(lambda self: self.rig is None or self.rig.model.closed)
    @rule(op=_ops("fresh"))
    def fresh(self, op: Op) -> None:
        self.make([op])

    def teardown(self) -> None:
        if self.rig is None:
            return
        if self.failed:
            self.rig.drop()
        else:
            self.rig.end()


@pytest.mark.timeout(600)  # passing takes seconds; making a failure short takes minutes
@pytest.mark.parametrize("kind, length", MACHINES)
def test_state_machine(kind: str, length: int) -> None:
    search(kind, length, STEPS_PER_MACHINE)


def search(kind: str, length: int, steps: int) -> None:
    """Look for steps after which the queue and the model differ. Also for tests/torture."""

    class Machine(QueueMachine):
        configs: Sequence[Config] = tuple(
            c for c in CONFIGS if bool(c.maxsize) == (kind == "bounded")
        )

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=steps * 6 // 5 // length,  # some are cut short
            stateful_step_count=length,
            derandomize=True,
            database=None,
            deadline=None,
            print_blob=True,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
    assert Machine.steps >= steps
