"""Requests and replies that are cut, delayed, doubled and lost on their way."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from typing import Final
from urllib.parse import urlsplit

from leasedkeyq import connect
from tests.servers.ports import lasting_port
from tests.servers.postgres import PostgresServer
from tests.servers.valkey import Server
from tests.torture.network.proxy import Network
from tests.torture.network.rounds import WRONG, Line, run_rounds
from tests.torture.part import Findings, Part, Trial

LINES: Final = 6
"""Rounds that run side by side."""


@contextmanager
def server(engine: str) -> Generator[tuple[int, Callable[[int], str]]]:
    """A server: its port, and the URL of a store that finds it at a port."""
    if engine == "redis":
        with Server("--appendonly", "yes", port=lasting_port()) as redis:
            yield redis.port, lambda port: f"redis://127.0.0.1:{port}/0"
    else:
        postgres = PostgresServer()
        user = urlsplit(postgres.url).netloc.rpartition("@")[0]
        try:
            yield postgres.port, lambda port: f"postgresql://{user}@127.0.0.1:{port}/postgres"
        finally:
            postgres.remove()


def run(trial: Trial) -> Findings:
    """One server for all rounds, and some lines to it."""
    found = Findings()

    async def rounds(port: int, address: Callable[[int], str], network: Network) -> None:
        async with connect(address(port)) as direct:
            many = min(LINES, len(trial.seeds))
            lines = [
                Line(trial.engine, network, port=port, address=address, direct=direct, found=found)
                for _ in range(many)
            ]
            await run_rounds(lines, trial.seeds, trial.dice)

    with server(trial.engine) as (port, address), closing(Network()) as network:
        asyncio.run(rounds(port, address, network))
    return found


PART: Final = Part(
    name="network",
    title="Each request and each reply cut, delayed, doubled or lost on its way",
    unit="disturbed requests",
    amounts={"postgres": 1_000, "redis": 1_000},
    slice={"redis": 12},
    run=run,
    wrong=WRONG,
    note=(
        "Each round disturbs one request of one call, or its reply, while others are made beside "
        "it: cut before, within and after; delayed beyond time-outs and leases; late, when its "
        "connection is gone; doubled; a connection that hangs without a word. What is left of the "
        "call is compared with what a store in memory has after the same call, or without it."
    ),
)
