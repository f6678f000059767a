"""One process that measures: `python -m benchmarks.worker MODULE WORKLOAD OPTIONS`.

It prepares the workload, says that it is ready, and then answers every line on its standard input
by one measurement, each answer one line of JSON. It ends with its input.
"""

import asyncio
import faulthandler
import json
import sys
from importlib import import_module

from benchmarks.timing import FACTS, Workload

LONGEST = 300.0
"""Seconds after which one step is taken to hang; the worker shows where, and ends."""


def answer(**fields: object) -> None:
    print(json.dumps(fields), flush=True)
    faulthandler.dump_traceback_later(LONGEST, exit=True)


async def serve(workload: Workload, options: dict[str, object]) -> None:
    turn = await workload(**options)
    answer(ready=True, facts=FACTS)
    # Reading blocks the event loop, on purpose: nothing shall run between two turns.
    while sys.stdin.readline():
        answer(value=await turn())


def main() -> None:
    module, name, options = sys.argv[1:]
    faulthandler.dump_traceback_later(LONGEST, exit=True)
    workloads: dict[str, Workload] = import_module(module).WORKLOADS
    asyncio.run(serve(workloads[name], json.loads(options)))


if __name__ == "__main__":
    main()
