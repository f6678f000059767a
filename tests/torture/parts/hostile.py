"""Hostile input: payloads that would be executed, break a format or end a worker."""

from typing import Final

from tests.torture.hostile.payloads import all_payloads
from tests.torture.hostile.rounds import WRONG, run
from tests.torture.part import ENGINES, Part

PAYLOADS: Final = len(all_payloads())

PART = Part(
    name="hostile",
    title="Hostile payloads as keys, values, names, errors and numbers, through every door",
    unit="payloads",
    amounts=dict.fromkeys(ENGINES, PAYLOADS),
    slice={"sqlite": 8},
    run=run,
    wrong=WRONG,
    note=(
        "Each payload is used in every place that takes something from a caller: of queues, of "
        "stores, of repositories and of lanes. It is refused with a clear error before anything is "
        "stored, or comes back exactly as it was; and every engine says the same as the memory "
        "store. What people see of it on the terminal and on the web page is looked at for each "
        "payload in memory and on SQLite, and for every fourth elsewhere. A payload that is "
        "executed makes a file, a table, a key of the server or an element of a page."
    ),
)
