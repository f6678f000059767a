"""What must always hold inside a `LeasedKeyQueue`, whatever has happened to it."""

from collections.abc import Sequence
from typing import Any

from leasedkeyq import LeasedKeyQueue
from leasedkeyq.model import line as line_module
from leasedkeyq.model import ready as ready_module
from leasedkeyq.model import timers as timers_module
from leasedkeyq.model.line import Line
from leasedkeyq.model.linkedlist import DoublyLinkedList


def check_invariants(queue: LeasedKeyQueue[Any, Any], *, most_timers: int) -> None:
    """Check the state of `queue`. At most `most_timers` items have had a timer at one time."""
    state = queue._state
    expiring = _walk(state.expiring)
    moments = [item.lease.expires_at for item in expiring]
    assert moments == sorted(moments), "leases do not expire in the order of their line"
    linked = _linked(queue)
    timed = in_line = behind_held = 0
    in_flight, held = state.in_flight, state.held
    for key, item in state.items.items():
        assert item.key == key
        lease, timer, line = item.lease, item.timer, item.line
        is_linked = key in linked
        assert (lease is not None) == (key in in_flight), f"{key!r}: leased and in flight differ"
        assert lease is None or not is_linked, f"{key!r} is both available and in flight"
        is_expiring = item in expiring
        assert (is_linked or is_expiring) == (item.next is not None) == (item.prev is not None)
        assert is_linked == item.available
        if is_linked:
            assert linked[key] is item, f"{key!r} has a node that is not its item"
            assert timer is None, f"{key!r} is available and has a timer"
        if lease is not None:
            assert in_flight[key] is item
            assert lease.key == key
            assert lease._ended is None, f"{key!r} is held by a lease that has ended"
            expiry = lease.expires_at
            has_timer = timer is not None and timer[0] == expiry
            assert is_expiring + has_timer == (expiry is not None), f"{key!r}: expiry and timer"
        else:
            assert item.buffered is None, f"{key!r} has a buffered value and no lease"
            assert item.not_before is None, f"{key!r} keeps a delay that was used"
            places = is_linked + (timer is not None) + (key in held)
            assert places == 1, f"{key!r} is in {places} places"
        timed += timer is not None
        assert (line is not None) == (key in state.lines), f"{key!r}: line and lines differ"
        if line is not None:
            values = _check_line(key, line)
            if key in held:
                behind_held += values
            else:
                in_line += values
    assert linked.keys() <= state.items.keys(), "a node without an item"
    assert in_flight.keys() <= state.items.keys(), "a lease without an item"
    assert len(state.ready) == len(linked)
    assert state.lines.keys() <= state.items.keys(), "a line without an item"
    assert (state.in_line, state.behind_held) == (in_line, behind_held)
    for key, (item, number) in held.items():
        assert state.items[key] is item, f"{key!r} is held in the place of another item"
        assert state.buried[number].key == key, f"{key!r} is held by an item that is not buried"
    assert len(state.buried) <= state.max_buried
    _check_timers(queue, timed, most_timers, moments)


def _walk(line: DoublyLinkedList[Any, Any]) -> list[Any]:
    """The nodes of a list, which must be the same from both ends."""
    forwards: list[Any] = list(line)
    assert len(forwards) == line.size == len(line), "a list has lost count"
    node: Any = line.tail.prev
    for forward in reversed(forwards):
        assert node is forward, "a list differs forwards and backwards"
        node = forward.prev
    assert node is line.head, "a list differs forwards and backwards"
    return forwards


def _check_line(key: Any, line: Line[Any]) -> int:
    """Check the line of a key; returns how long it is."""
    values = list(line)
    many = len(values)
    assert many, f"{key!r} has an empty line"
    assert many == len(line), f"the line of {key!r} has lost count"
    numbers = [value.number for value in values]
    assert numbers == sorted(set(numbers)), f"the line of {key!r} is out of order"
    assert values[0] is line.first
    assert values[-1] is line.last
    assert len(line._places) <= 2 * many + line_module.SMALL, "gone values pile up"
    assert list(map(line.get, numbers)) == values, f"the line of {key!r} does not find its values"
    behind = [value.replaces for value in values[1:]]
    assert not any(behind), f"{key!r}: only the first may be buffered"
    return many


def _linked(queue: LeasedKeyQueue[Any, Any]) -> dict[Any, Any]:
    """The available items by key, each in the list of its priority, once the lists are checked."""
    ready = queue._state.ready
    assert 0 not in ready.others, "items of priority 0 have a list of their own"
    linked: dict[Any, Any] = {}
    for priority, line in ((0, ready.normal), *ready.others.items()):
        items = _walk(line)
        positions = [item.position for item in items]
        assert positions == sorted(set(positions)), "a list is not in the order of its positions"
        assert items or not priority, f"the list of priority {priority} is empty"
        assert not priority or -priority in ready._heap, f"priority {priority} is never served"
        for item in items:
            assert item.key not in linked, f"two nodes for {item.key!r}"
            assert item.priority == priority, "an item in the wrong list"
            linked[item.key] = item
    assert len(ready._heap) <= 2 * len(ready.others) + ready_module.SMALL, "priorities pile up"
    assert ready._others_size == sum(map(len, ready.others.values()))
    for index, entry in enumerate(ready._heap):
        assert ready._heap[(index - 1) // 2 if index else 0] <= entry
    return linked


def _check_timers(
    queue: LeasedKeyQueue[Any, Any], timed: int, most: int, expiries: Sequence[float]
) -> None:
    timers = queue._state.timers
    heap = timers.heap
    assert timers.live == timed, "the number of timers is wrong"
    moments = [entry[0] for entry in heap if entry[2].timer is entry]
    assert len(moments) == timed, "a timer is lost"
    # The bound holds when a timer is cleared; those that run out later take live ones with them.
    assert len(heap) <= 2 * most + timers_module.SMALL, "cleared timers pile up"
    for index, entry in enumerate(heap):
        assert heap[(index - 1) // 2 if index else 0][:2] <= entry[:2]
    earliest = queue._state.earliest()
    assert earliest == min([*moments, *expiries], default=None), "the earliest moment is wrong"
    if earliest is not None and not queue.closed:
        alarm = queue._alarm
        assert alarm is not None, "a timer is set and no alarm"
        assert not alarm.cancelled(), "a timer is set and its alarm is cancelled"
        assert alarm.when() == queue._alarm_at <= earliest, "the alarm is set too late"


def check_lines(
    queue: LeasedKeyQueue[Any, Any], *, getters: int, takers: int, producers: int, joiners: int
) -> None:
    """Check the lines of those who wait, once everybody who was woken has run."""
    lines = queue._consumers
    assert not any(turn.done() for turn in lines), "somebody who is done still stands in line"
    assert len(lines.for_any) == getters
    assert all(lines.for_key.values()), "an empty line for a key"
    assert sum(map(len, lines.for_key.values())) == takers
    if lines.for_any:
        assert not queue._state.ready, "an item is available while somebody waits for any"
    for key in lines.for_key:
        item = queue._state.items.get(key)
        assert item is None or not item.available, f"{key!r} is available while somebody waits"
    line = queue._producers.line
    assert len(line) == producers
    by_key = queue._producers.by_key
    assert all(by_key.values()), "an empty line of producers for a key"
    assert by_key.keys() == {key for producer in line for key in producer.keys}
    for key, waiting in by_key.items():
        assert list(waiting) == [producer for producer in line if key in producer.keys]
    assert len(queue._joiners) == joiners
