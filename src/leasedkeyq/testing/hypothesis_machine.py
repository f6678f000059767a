"""A Hypothesis state machine: it looks for the shortest requests after which a store is wrong."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from leasedkeyq.model.requests import Change, Claim, Put
from leasedkeyq.testing.comparison import Comparison
from leasedkeyq.testing.menu import Menu
from leasedkeyq.testing.model_time import Durations, ModelTime, RealTime, TooSlowError
from leasedkeyq.testing.site import Site

T = TypeVar("T")
SOON = (0.25, 1.0, 4.0)
"""Short durations for a store with a clock of its own: the first that it is fast enough for."""
PHASES = (Phase.generate, Phase.shrink)
ENOUGH = 40
"""Calls that a search consists of at least."""


def search(new_site: Callable[[], Site], timed: bool, number: int | None) -> None:
    """Look for requests that a store answers otherwise than the model.

    Args:
        new_site: Gives a place for a new, empty store.
        timed: Whether the store accepts a clock; otherwise there are fewer and slower examples.
        number: Where the search starts; None: each time somewhere else.
    """
    for soon in SOON[:1] if timed else SOON:
        machine = machine_for(new_site, None if timed else soon)
        run_state_machine_as_test(
            machine if number is None else seed(number)(machine),
            settings=settings(
                max_examples=20 if timed else 8,
                stateful_step_count=40,
                deadline=None,
                database=None,
                print_blob=True,
                # Where time is real, making a failure short would take many minutes.
                phases=PHASES if timed else PHASES[:1],
                suppress_health_check=[
                    HealthCheck.data_too_large,
                    HealthCheck.filter_too_much,
                    HealthCheck.too_slow,
                ],
            ),
        )
        if machine.calls >= ENOUGH:
            return
    raise AssertionError(f"a call takes longer than {SOON[-1] / 2} s")


class Rules(RuleBasedStateMachine):
    """What `machine_for` returns."""

    calls = 0
    """How many were made, in all examples."""


def machine_for(new_site: Callable[[], Site], soon: float | None) -> type[Rules]:
    """The machine for one sort of store; `soon` is None where it accepts a clock."""
    durations = ModelTime.durations if soon is None else RealTime(soon).durations

    class StoreAndMachine(Rules):
        """Each rule is a call of the store."""

        def __init__(self) -> None:
            super().__init__()
            self.runner = asyncio.Runner()
            self.site = new_site()
            self.slow = False
            self.comparison: Comparison = self.runner.run(self.open())

        async def open(self) -> Comparison:
            store = self.site.open_timed()
            choose = random.Random(0).choice
            if soon is None:
                assert self.site.clock is not None
                return Comparison([store], ModelTime(self.site.clock), choose)
            time = RealTime(soon)
            await time.calibrate(store)
            return Comparison([store], time, choose)

        def do(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
            if self.slow:
                return  # nobody knows any more what should be due
            try:
                self.runner.run(call())
            except TooSlowError:
                self.slow = True
            else:
                StoreAndMachine.calls += 1

        @rule(requests=_made(Menu.puts, durations))
        def put(self, requests: list[Put]) -> None:
            self.do(lambda: self.comparison.put(requests))

        @rule(requests=_made(Menu.claims, durations))
        def claim(self, requests: list[Claim]) -> None:
            self.do(lambda: self.comparison.claim(requests))

        @rule(requests=_made(Menu.changes, durations))
        def settle(self, requests: list[Change]) -> None:
            self.do(lambda: self.comparison.settle(requests))

        @rule(claims=_made(Menu.claims, durations), changes=_made(Menu.changes, durations))
        def claim_and_settle(self, claims: list[Claim], changes: list[Change]) -> None:
            self.do(lambda: self.comparison.claim(claims))
            self.do(lambda: self.comparison.settle(changes))

        @rule(puts=_made(Menu.puts, durations), claims=_made(Menu.claims, durations))
        def put_and_claim(self, puts: list[Put], claims: list[Claim]) -> None:
            self.do(lambda: self.comparison.put(puts))
            self.do(lambda: self.comparison.claim(claims))

        @rule(asked=_made(Menu.edit, durations))
        def edit(self, asked: tuple[str, tuple[str, ...] | None, int]) -> None:
            self.do(lambda: self.comparison.edit(*asked))

        @rule(seconds=_made(Menu.some_wait, durations), queues=_made(Menu.some_queues, durations))
        def wait(self, seconds: float, queues: list[str]) -> None:
            self.do(lambda: self.comparison.wait(seconds))
            self.do(lambda: self.comparison.sweep(queues))

        @rule(asked=_made(Menu.some_keys, durations))
        def look(self, asked: tuple[str, list[str]]) -> None:
            self.do(lambda: self.comparison.look(*asked))
            self.do(self.comparison.compare)

        def teardown(self) -> None:
            try:
                self.runner.run(self.site.close())
            finally:
                self.runner.close()

    return StoreAndMachine


def _made(make: Callable[[Menu], T], durations: Durations) -> st.SearchStrategy[T]:
    """What a menu makes when Hypothesis chooses."""

    @st.composite
    def made(draw: st.DrawFn) -> T:
        def pick(options: Any) -> Any:
            return draw(st.sampled_from(options))

        return make(Menu(pick, durations))

    return made()
