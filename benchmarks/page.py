"""The results in Markdown: docs/benchmarks.md, and the short table of the README."""

from collections.abc import Mapping, Sequence

from benchmarks.peers import PUBLISHED_VERSION
from benchmarks.report import HEAD, Results, Row, case_rows, fact_rows, markdown_table
from benchmarks.servers import POSTGRES_SETTINGS, REDIS_SETTINGS

START, END = "<!-- benchmark:start -->", "<!-- benchmark:end -->"
POSTGRES_TOLD = ("synchronous_commit", "fsync", "max_connections")
NAMES = {
    "memory": "the queue in memory",
    "stores": "SQLite and files",
    "lanes": "lanes",
    "postgres": "PostgreSQL",
    "redis": "Redis",
}
"""What the page calls the parts."""
PARTS_HEAD: Row = ("part", "leasedkeyq", "measured", "rounds", "compared with", "machine")
FEWEST_ROUNDS = 3
"""With fewer, a median says nothing about how far the rounds lie apart."""

PAGE = """\
# Benchmarks

<!-- Written by `make bench`. Edit benchmarks/page.py and not this page. -->

leasedkeyq beside its predecessor on PyPI, leasedkeyq {published}, and beside `asyncio.Queue`; its
stores and lanes beside other queues on SQLite, PostgreSQL and Redis. A row with a target is a
promise, and `make bench` fails when it is not kept. A row without one is there for information.

{claims}

*Speed* is a ratio of times per operation: 2x means half the time. *Cost* is the ratio the other
way round. *Single rounds* are the lowest and the highest round; where a million items have to be
put first, there is one round, of more slices.

What is compared is always measured side by side, in the same rounds. The parts may come from
several runs:

{parts}

## What to make of it

- `asyncio.Queue` has no keys and no leases: what it hands out is gone. It is here as a measure of
  what a queue for one event loop costs at the very least.
- {published} wakes everybody who waits at every put. How it fares with waiting tasks depends on
  how many there are; this package wakes one task per item.
- One task that never has to wait shows the cost of the queue alone. In a real program the event
  loop, the tasks and the work itself come on top, and all ratios move towards 1.
- Another machine or another version of Python gives other times, and somewhat other ratios.

For the stores:

- Storing an item safely costs a wait for the disk. Those who call at a time share that wait: it is
  the number of callers that makes SQLite fast here, and one task alone waits for each step.
- At the same durability every queue on SQLite pays the same for a commit. litequeue as it comes
  does not wait for the disk at all: the slower the disk, the better it looks beside the others,
  and the more is gone after a loss of power.
- One caller that waits for each step waits for the disk each time. huey hands out what is gone
  then, and so has one step less: put, get and acknowledge are three syncs, and two for huey.
- litequeue has nothing that waits for a job, so its worker looks every millisecond, all the time.
  The workers of this package sleep until a job comes.
- A claim takes what comes first in an index that holds only what is ready. It does not matter how
  much else waits or is in flight.
- **When to move on from a file.** Each step on a file writes the whole document, so its cost
  grows with the number of items, while SQLite's does not. With up to about a thousand items, a few
  steps per second and the wish to read and edit the queue with an editor, a file is fine. With
  many thousands of items, with more than some ten steps per second, or with many processes that
  write, use SQLite: it is another URL in `connect` and nothing else changes.

For PostgreSQL and Redis:

- The jobs do nothing, so what is measured is the queue: one trip to the server for many jobs, or
  several trips for each of them. A job that does something takes its own time on top.
- Whoever calls alone waits for the server, and on PostgreSQL for its disk. Those who call at a time
  go there together: that is why 100 callers are so much faster than one.
- Not all libraries promise the same. With huey and the list of taskiq, a job that was handed out is
  gone when its worker dies; this package runs it again. Its leases, the keys of which one runs at a
  time, the priorities and the tokens that tell an old lease from a new one are on in all figures.
  Results are not kept, as dramatiq, taskiq and pgqueuer, the fastest, keep none; there is a row
  with results kept.
- Redis syncs its file once a second here, as it comes. A row shows what `appendfsync always` costs,
  with which a loss of power loses nothing.
- The server and its clients share the cores of one machine. How much a second worker process gains
  is read beside the cores that were busy meanwhile: with all of them busy, nothing is left to gain.
- arq and pydocket look for jobs at intervals, which is what their time to start shows.

## How it is measured

Every case runs in a process of its own: this package from its built wheel, {published} in a
virtual environment of its own, both with the same interpreter. In a round these processes take
turns in short slices. A ratio is made from neighbouring slices; its median is taken over the
slices of a round, and then over the rounds. (Where a rare clean-up is part of the cost, averages
of a round take the place of medians.) Every round starts new processes, and every other round
goes backwards through the cases.

In memory the clock is the CPU time of the process; for the stores it is the clock on the wall, as
waiting for the disk is part of the cost. Before each slice garbage is collected and what is alive
is frozen (`gc.freeze`); the collector stays on. Keys are strings, and exist before the clock
starts.

The other libraries have an environment each, and are used as their documentation has it: on SQLite
from threads where there are many callers, while this package has as many tasks in one event loop.
All files are in the folder of the project, on its disk. How the connections were set, as they said
themselves:

{facts}

The servers are one PostgreSQL ({postgres_settings}, everything else as it comes) and one Valkey
({redis_settings}), on this machine, for all libraries alike, each of which has a database of its
own that is emptied before each slice. All have hiredis where they use redis-py, and pgqueuer its
uvloop; this package runs on the event loop of asyncio. Callers are tasks, and threads where a
library blocks. A worker is a process of its own that runs as many jobs at a time as it is told;
the rows say how many.

`synchronous` decides what a commit survives: with `FULL` a loss of power, with `NORMAL` the end of
the process only. huey and persist-queue do not set it and have SQLite's default. `full` of this
package is `FULL` for all but claims, which are committed with `NORMAL`.

To repeat it, which takes about a quarter of an hour and writes this page and the table in the
README:

```sh
make bench
make bench BENCH_ARGS=redis  # one part; the others keep their figures
make bench PYTHON=python3.13 BENCH_ARGS="--rounds 9 memory lanes"
make bench BENCH_ARGS="--scenario 'submit to start'"  # what has this in its title; writes nothing
make bench BENCH_ARGS=--flat  # ten million cycles, and the memory after each million
```

The parts are `memory`, `stores`, `lanes`, `postgres` and `redis`. Their figures are kept in
`benchmarks/figures`. A run of fewer than {fewest} rounds writes nothing.

## The times behind the ratios

Time per operation, or bytes or items: the median of the rounds, the lowest and the highest.
The ratios above are not made from these medians but from slices that ran side by side, because
the speed of a machine changes from one moment to the next.

{cases}
"""


def page(results: Sequence[Results]) -> str:
    """The page of the docs."""
    cases = [
        f"### {scenario.title}\n\n{scenario.about}\n\n"
        + markdown_table(("", "median", "lowest", "highest"), case_rows(scenario, found.rounds))
        for part in results
        for scenario, found in zip(part.scenarios, part.measured, strict=True)
    ]
    facts = fact_rows(results)
    return PAGE.format(
        published=PUBLISHED_VERSION,
        claims=markdown_table(HEAD, [row for part in results for row in part.rows()]),
        parts=markdown_table(PARTS_HEAD, [_part_row(part) for part in results]),
        fewest=FEWEST_ROUNDS,
        postgres_settings=_told(POSTGRES_SETTINGS, *POSTGRES_TOLD),
        redis_settings=_told(REDIS_SETTINGS, "appendonly", "appendfsync"),
        facts=markdown_table(facts[0], facts[1:]),
        cases="\n\n".join(cases),
    )


def _part_row(part: Results) -> Row:
    compared = ", ".join(part.peers)
    return NAMES[part.part], part.version, part.date, str(part.rounds), compared, part.machine


def _told(settings: Mapping[str, str], *names: str) -> str:
    return ", ".join(f"`{name} {settings[name]}`" for name in names)


def readme_table(results: Sequence[Results]) -> str:
    """The short table, with a line that says where it comes from."""
    rows = [row[:3] for part in results for row in part.rows(headlines_only=True)]
    dates = sorted({part.date for part in results})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    where = "; ".join(dict.fromkeys(part.machine for part in results))
    return f"{markdown_table(HEAD[:3], rows)}\n\nWritten by `make bench`, {when}: {where}.\n"


def replace_between_markers(text: str, new: str) -> str | None:
    """`text` with `new` between the markers, or None if it does not have both in order."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        return None
    return f"{before}{START}\n\n{new}\n{END}{after}"
