"""What must always hold inside a `LeasedKeyQueue`, whatever has happened to it."""

from typing import Any

from leasedkeyq import LeasedKeyQueue
from leasedkeyq.model import line as line_module
from leasedkeyq.model import ready as ready_module
from leasedkeyq.model import timers as timers_module
from leasedkeyq.model.linkedlist import DoublyLinkedList


def check_invariants(queue: LeasedKeyQueue[Any, Any], *, most_timers: int) -> None:
    """Check the state of `queue`. At most `most_timers` items have had a timer at one time."""
    state = queue._state
    expiring = _walk(state.expiring)
    moments = [item.lease.expires_at for item in expiring]
    assert moments == sorted(moments), "leases do not expire in the order of their line"
    linked: dict[Any, Any] = {}
    for line in (state.ready.normal, *state.ready.others.values()):
        _check_positions(line)
        for item in _walk(line):
            assert item.key not in linked, f"two nodes for {item.key!r}"
            linked[item.key] = item
    _check_priorities(queue)

    timed = in_line = behind_held = 0
    for key, item in state.items.items():
        assert item.key == key
        is_leased = item.lease is not None
        is_linked = key in linked
        assert is_leased == (key in state.in_flight), f"{key!r}: leased and in flight differ"
        assert not (is_leased and is_linked), f"{key!r} is both available and in flight"
        is_expiring = item in expiring
        assert (is_linked or is_expiring) == (item.next is not None) == (item.prev is not None)
        assert is_linked == item.available
        if is_linked:
            assert linked[key] is item, f"{key!r} has a node that is not its item"
            assert item.timer is None, f"{key!r} is available and has a timer"
        if item.lease is not None:
            assert state.in_flight[key] is item
            assert item.lease.key == key
            assert item.lease._ended is None, f"{key!r} is held by a lease that has ended"
            expiry = item.lease.expires_at
            has_timer = item.timer is not None and item.timer[0] == expiry
            assert is_expiring + has_timer == (expiry is not None), f"{key!r}: expiry and timer"
        else:
            assert item.buffered is None, f"{key!r} has a buffered value and no lease"
            assert item.not_before is None, f"{key!r} keeps a delay that was used"
            places = is_linked + (item.timer is not None) + (key in state.held)
            assert places == 1, f"{key!r} is in {places} places"
        timed += item.timer is not None
        assert (item.line is not None) == (key in state.lines), f"{key!r}: line and lines differ"
        if item.line is not None:
            _check_line(item)
            in_line += len(item.line) if key not in state.held else 0
            behind_held += len(item.line) if key in state.held else 0
    assert linked.keys() <= state.items.keys(), "a node without an item"
    assert state.in_flight.keys() <= state.items.keys(), "a lease without an item"
    assert len(state.ready) == len(linked)
    assert state.lines.keys() <= state.items.keys(), "a line without an item"
    assert (state.in_line, state.behind_held) == (in_line, behind_held)
    for key, (item, number) in state.held.items():
        assert state.items[key] is item, f"{key!r} is held in the place of another item"
        assert state.buried[number].key == key, f"{key!r} is held by an item that is not buried"
    assert len(state.buried) <= state.max_buried
    _check_timers(queue, timed, most_timers)


def _walk(line: DoublyLinkedList[Any, Any]) -> list[Any]:
    """The nodes of a list, which must be the same from both ends."""
    forwards: list[Any] = list(line)
    backwards: list[Any] = []
    node = line.tail.prev
    while node is not None and node is not line.head:
        backwards.append(node)
        node = node.prev
    backwards.reverse()
    assert len(forwards) == len(backwards) == line.size == len(line), "a list has lost count"
    for forward, backward in zip(forwards, backwards, strict=True):
        assert forward is backward, "a list differs forwards and backwards"
    return forwards


def _check_line(item: Any) -> None:
    assert item.line, f"{item.key!r} has an empty line"
    values = list(item.line)
    numbers = [value.number for value in values]
    assert numbers == sorted(set(numbers)), f"the line of {item.key!r} is out of order"
    assert len(values) == len(item.line), f"the line of {item.key!r} has lost count"
    assert (values[0], values[-1]) == (item.line.first, item.line.last)
    assert len(item.line._places) <= 2 * len(values) + line_module.SMALL, "gone values pile up"
    for place, value in enumerate(values):
        assert item.line.get(value.number) is value
        assert not (value.replaces and place), f"{item.key!r}: only the first may be buffered"


def _check_positions(line: DoublyLinkedList[Any, Any]) -> None:
    positions = [item.position for item in _walk(line)]
    assert positions == sorted(set(positions)), "a list is not in the order of its positions"


def _check_priorities(queue: LeasedKeyQueue[Any, Any]) -> None:
    ready = queue._state.ready
    for priority, line in ready.others.items():
        assert priority, "items of priority 0 have a list of their own"
        assert line, f"the list of priority {priority} is empty"
        assert all(item.priority == priority for item in _walk(line)), "an item in the wrong list"
        assert -priority in ready._heap, f"priority {priority} is never served"
    assert all(item.priority == 0 for item in _walk(ready.normal))
    assert len(ready._heap) <= 2 * len(ready.others) + ready_module.SMALL, "priorities pile up"
    assert ready._others_size == sum(map(len, ready.others.values()))
    for index, entry in enumerate(ready._heap):
        assert ready._heap[(index - 1) // 2 if index else 0] <= entry


def _check_timers(queue: LeasedKeyQueue[Any, Any], timed: int, most: int) -> None:
    timers = queue._state.timers
    assert timers.live == timed, "the number of timers is wrong"
    assert sum(entry[2].timer is entry for entry in timers.heap) == timed, "a timer is lost"
    # The bound holds when a timer is cleared; those that run out later take live ones with them.
    assert len(timers.heap) <= 2 * most + timers_module.SMALL, "cleared timers pile up"
    for index, entry in enumerate(timers.heap):
        assert timers.heap[(index - 1) // 2 if index else 0][:2] <= entry[:2]
    earliest = queue._state.earliest()
    moments = [entry[0] for entry in timers.heap if entry[2].timer is entry]
    moments += [item.lease.expires_at for item in _walk(queue._state.expiring)]
    assert earliest == min(moments, default=None), "the earliest moment is wrong"
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
