"""Servers that are killed and frozen under load."""

from contextlib import closing
from typing import Final

from tests.torture.outages.judge import FENCES, HELD_TWICE, LOST, NOBODY, OTHER, TWICE, UNDONE
from tests.torture.outages.rounds import IMPATIENCE, STRANGE, STUCK, Outages
from tests.torture.outages.servers import SERVERS
from tests.torture.part import Findings, Part, Trial


def run(trial: Trial) -> Findings:
    """One server for all rounds; each kills it once and freezes it once."""
    found = Findings()
    with (
        SERVERS[trial.engine]() as server,
        closing(Outages(trial.engine, server, trial.folder)) as outages,
    ):
        for seed in trial.seeds:
            outages.round(seed, trial.dice(seed), found)
    return found


PART: Final = Part(
    name="servers",
    title="The server killed with kill -9, and frozen (SIGSTOP), under load",
    unit="kills and freezes",
    amounts={"postgres": 200, "redis": 200},
    slice={"redis": 1},
    run=run,
    wrong=(LOST, HELD_TWICE, TWICE, FENCES, UNDONE, NOBODY, STUCK, STRANGE, IMPATIENCE, OTHER),
    note=(
        "Each round kills every process of the server once and freezes it once, for up to 1.5 s, "
        "while two processes with six tasks each put, get, extend, release and acknowledge. One of "
        "them waits for the server, the other gives calls up after 0.2 s, and so has calls of "
        "which it does not know whether they were made. PostgreSQL runs with fsync, Valkey with "
        "appendfsync always."
    ),
)
