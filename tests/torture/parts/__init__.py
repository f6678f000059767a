"""The parts of the torture, by name, in the order in which the page shows them."""

from collections.abc import Mapping

from tests.torture.part import Part
from tests.torture.parts import (
    bit_flips,
    chains,
    clocks,
    disk_faults,
    histories,
    hostile,
    kills,
    long_tests,
    model,
    network,
    order,
    pauses,
    poison,
    pools,
    power,
    recovery,
    releases,
    schedules,
    servers,
    simulation,
    soak,
)

_ALL: tuple[Part, ...] = (
    kills.PART,
    pauses.PART,
    recovery.PART,
    servers.PART,
    network.PART,
    power.PART,
    hostile.PART,
    poison.PART,
    bit_flips.PART,
    disk_faults.PART,
    clocks.PART,
    soak.PART,
    simulation.PART,
    histories.PART,
    releases.PART,
    long_tests.PART,
    model.PART,
    order.PART,
    schedules.PART,
    chains.PART,
    pools.PART,
)

PARTS: Mapping[str, Part] = {part.name: part for part in _ALL}
