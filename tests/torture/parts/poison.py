"""Poison: values that no handler can decode, between good commands."""

from tests.torture.part import Part
from tests.torture.poison.rounds import WRONG, run

PART = Part(
    name="poison",
    title="Values that no handler can decode, between good commands",
    unit="values",
    amounts={"file": 36, "sqlite": 32, "postgres": 32, "redis": 32},
    slice={"sqlite": 1},
    run=run,
    wrong=WRONG,
    note=(
        "Damaged envelopes, arguments and fields of other types, other formats, results and "
        "progress that cannot be encoded. Commands of types that no worker knows are not poison: "
        "they wait for a worker that knows them, as the docs say."
    ),
)
