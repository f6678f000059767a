"""The PostgreSQL store for longer: many claimers, many rows, and many dead ones.

At full length under ``TORTURE=1``.
"""

import asyncio
import os

import pytest

from leasedkeyq.testing import Place
from tests.engines.postgres.crowd import work_together
from tests.engines.postgres.plans.test_floors import beside_a_long_transaction
from tests.engines.postgres.plans.test_plans import look_at_plans
from tests.engines.postgres.plans.test_versions import look_among_dead_rows
from tests.engines.postgres.test_transactions import hold_a_transaction_open
from tests.servers.postgres import NEWEST, older_versions, schemas

TORTURE = os.environ.get("TORTURE") == "1"


def test_64_claimers_do_100_000_jobs_over_1000_keys() -> None:
    place = Place()
    crowd = work_together(
        schemas().url,
        schemas().borrow(place),
        stores=8,
        claimers=64,
        keys=1000,
        rounds=100 if TORTURE else 2,
    )
    asyncio.run(crowd)
    place.close()


def test_claims_beside_a_long_transaction_and_a_million_dead_rows() -> None:
    dead, claims = (1_000_000, 500) if TORTURE else (50_000, 40)
    asyncio.run(beside_a_long_transaction(dead=dead, claims=claims))


def test_plans_at_a_million_rows() -> None:
    look_at_plans(1_000_000 if TORTURE else 20_000)


@pytest.mark.parametrize("version", [*older_versions(), NEWEST])
def test_what_is_read_among_a_million_dead_rows(version: str) -> None:
    look_among_dead_rows(version, 1_000_000 if TORTURE else 1_000)


def test_a_transaction_that_stays_open_for_ten_seconds() -> None:
    hold_a_transaction_open(10.0 if TORTURE else 0.3)
