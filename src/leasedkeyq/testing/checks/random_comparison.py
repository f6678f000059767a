"""Whether a store answers as the model does, whatever it is asked."""

from importlib import import_module

from leasedkeyq.testing.differential import Differential
from leasedkeyq.testing.model_time import RealTime, TooSlowError
from leasedkeyq.testing.site import Site
from leasedkeyq.testing.suite import Suite, plain_check, site_check

STEPS = 500
SOON = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Short durations for a store with a clock of its own: the first that it is fast enough for."""


class ComparisonChecks(Suite):
    """The store and the model are asked the same and answer the same."""

    @site_check()
    async def test_it_answers_random_requests_as_the_model_does(self, site: Site) -> None:
        """Requests of every kind, in any order; a failure names the seed that leads to it."""
        await self._compare(site, 1)

    @site_check(needs="cross_process")
    async def test_several_store_objects_answer_as_one_machine_does(self, site: Site) -> None:
        """They have the same items open, and take turns."""
        await self._compare(site, 3)

    @plain_check(needs="hypothesis")
    def test_hypothesis_finds_no_requests_that_it_answers_otherwise(self) -> None:
        """As with random requests, but a failure is cut down to the fewest that lead to it."""
        try:
            machine = import_module("leasedkeyq.testing.hypothesis_machine")
        except ModuleNotFoundError as error:
            if error.name != "hypothesis":
                raise
            raise ModuleNotFoundError(
                'this check needs Hypothesis: pip install "leasedkeyq[testing]"; '
                'or leave it out: without=("hypothesis",)',
                name=error.name,
            ) from error
        machine.search(self.site, "clock" in self.accepts, self.seed)

    async def _compare(self, site: Site, stores: int) -> None:
        seed = self.new_seed()
        if "clock" in self.accepts:
            opened = [site.open_timed() for _ in range(stores)]
            assert site.clock is not None
            await Differential(opened, site.clock, seed).run(STEPS)
            return
        for soon in SOON:
            place = self.site()
            try:
                opened = [place.open_timed() for _ in range(stores)]
                time = RealTime(soon)
                await time.calibrate(opened[0])
                await Differential(opened, time, seed).run(STEPS)
            except TooSlowError:
                continue
            finally:
                await place.close()
            return
        raise AssertionError(f"a call takes longer than {SOON[-1] / 2} s")
