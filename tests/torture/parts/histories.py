"""Linearizability: histories of eight clients, explained as calls one after the other."""

from tests.torture.histories.rounds import UNEXPLAINED, run
from tests.torture.part import ENGINES, Part

PART = Part(
    name="histories",
    title="Histories of 8 clients under faults, explained as calls one after the other",
    unit="histories",
    amounts=dict.fromkeys(ENGINES, 10_000),
    slice={"memory": 10, "file": 2, "sqlite": 4, "postgres": 4, "redis": 4},
    run=run,
    wrong=(UNEXPLAINED,),
    note=(
        "Linearizability. Eight clients call put, get, take, ack, release, extend, remove and look "
        "on up to three keys, by several store objects; leases expire, calls are cancelled, "
        "requests and answers are lost, connections are cut (servers) and another program holds "
        "the lock (SQLite). A search looks for one order of the calls of each key, by the machine "
        "of docs/explanation/states.md, in which every answer is right; the order between keys is "
        "not judged. Claims and looks of PostgreSQL pass over rows that another call is changing: "
        "a claim that found nothing beside another call is not judged there, and a look may show "
        "a lease that has just expired. A history that the search cannot decide within its limit "
        "of steps is counted apart, and is no proof. The same search finds fifteen planted bugs. "
        "In memory time is virtual, and a seed repeats a history exactly; elsewhere it repeats the "
        "calls and the faults, while the engine has its own timing."
    ),
)
