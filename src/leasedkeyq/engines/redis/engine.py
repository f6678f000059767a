"""Batches of requests, applied by calls of the script.

What is to be asked of the server is yielded, and the answers are sent in: so a thread or an event
loop can do the asking.
"""

import logging
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from math import inf
from typing import Any, Final

import msgspec

from leasedkeyq.engines.redis.link import AskServer, RedisLink, ScriptError, ServerFullError, Steps
from leasedkeyq.engines.redis.wire import (
    PARTS,
    Read,
    RedisRequest,
    answer_of,
    caps_form,
    claimed,
    counts,
    cut_form,
    damaged_queue,
    encode,
    forms_of,
    is_cut_short,
    is_damage,
    is_list,
    new_ids,
    or_false,
    queues_of,
    rank_of,
    raw,
    rest_of,
    shown,
    urgency_form,
)
from leasedkeyq.errors import (
    StoreDamagedError,
    StoreError,
    StoreUnavailableError,
    UnstorableError,
)
from leasedkeyq.model.edit import Edit, EditStoppedError
from leasedkeyq.model.requests import (
    LINE_STATES,
    STATES,
    Answer,
    Change,
    Claim,
    Claimed,
    Limits,
    Put,
    RepairReport,
    Requeue,
    StoredItem,
)
from leasedkeyq.model.urgency import Rank, most_urgent_first
from leasedkeyq.stores.batching import SpoiledBatchError
from leasedkeyq.stores.store import report_dropped

logger = logging.getLogger("leasedkeyq")

REPLY_LIFETIME: Final = 300_000
"""Milliseconds for which the last answer to a store object can be asked for again."""
REGISTERED_FOR: Final = 600.0
"""Seconds after which a queue that is used is named again in the list of queues."""
MANY_REGISTERED: Final = 10_000
"""Queues that a store remembers to have named. A program may use ever new ones for a moment."""
FORGOTTEN_AFTER: Final = 3600
"""Seconds after which an empty queue may be struck off that list."""
BUSY_STEP: Final = (0.001, 0.004)
"""Seconds between two tries to change a queue that another store edits."""
PAGE: Final = 500
LARGE: Final = 8 * 1024 * 1024
"""Bytes of requests above which a batch is parted: no caller should wait long for others."""
TOO_LARGE: Final = 512 * 1024 * 1024
"""Bytes that a server takes in one call unless it is set up otherwise (proto-max-bulk-len)."""

RECORDS: Final = ("l", "i", "b", "n", "d")
"""Keys of a queue with records, in the order in which they are repaired."""
INDEXES: Final = ("o", "r", "t", "u", "p", "bk", "dk")
"""Keys of a queue that tell which records there were."""

REGISTER: Final = """
local now = redis.call('TIME')[1]
for number = 2, #ARGV do redis.call('ZADD', KEYS[1], now, ARGV[number]) end
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. now - ARGV[1], 'LIMIT', 0, 10)
"""
NAMED: Final = "return redis.call('ZSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])"
STRIKE_OFF: Final = """
local limit = redis.call('TIME')[1] - tonumber(ARGV[1])
for number = 2, #ARGV do
  local since = redis.call('ZSCORE', KEYS[1], ARGV[number])
  if since and tonumber(since) < limit then redis.call('ZREM', KEYS[1], ARGV[number]) end
end
"""
RESERVE: Final = """
local time = redis.call('TIME')
local micros = (tonumber(time[1]) - 1767225600) * 1000000 + tonumber(time[2])
local first = math.max(tonumber(redis.call('GET', KEYS[1]) or 0) + 1, micros)
redis.call('SET', KEYS[1], string.format('%.0f', first + tonumber(ARGV[1]) - 1))
return first
"""


class Repair(msgspec.Struct, frozen=True):
    """Asks for a queue to be made usable again."""

    queue: str


class QueueNames(msgspec.Struct, frozen=True):
    """Asks for the names of all queues, or strikes off those that are `empty`."""

    empty: tuple[str, ...] = ()


class EditLock(msgspec.Struct):
    """The queues that an edit has for itself, and as of when."""

    queues: Sequence[str]
    keys: list[str]
    token: str
    now: float | None = None


class ScriptReply(msgspec.Struct):
    """What the script says."""

    answers: list[Any]
    changed: Sequence[bytes] = ()
    dropped: Sequence[bytes] = ()


class RedisEngine:
    """Applies requests.

    Args:
        link: The way to the server.
        prefix: Of all keys.
        me: The name of this store object, which nobody else has.
        name: The name of this engine, which no other engine has. It makes one call at a time.
        limits: How much the store takes.
        edit_time: Seconds that an edit may take.
        durable: A command that waits until a batch is kept, or None.
        clock: Unix time, for tests.
        wake: Told which queues have changed.
    """

    def __init__(
        self,
        link: RedisLink,
        *,
        prefix: str,
        me: str,
        name: str,
        limits: Limits,
        edit_time: float,
        durable: tuple[Any, ...] | None,
        clock: Callable[[], float] | None,
        wake: Callable[[Iterable[str]], None],
    ) -> None:
        self._link = link
        self._prefix = prefix
        self.me = me
        self._name = name
        self._limits = limits
        self._edit_time = edit_time
        self._durable = durable
        self._clock = clock
        self._wake = wake
        self._serial = 0
        self._registered: dict[str, float] = {}

    def forget(self) -> None:
        """Forget what is known about the server, which may be another now."""
        self._registered.clear()

    def channel(self, queue: str) -> str:
        """Where changes of a queue are told."""
        return f"{self._prefix}:{{{_escape(queue)}}}:w"

    def worker_channel(self, worker: str) -> str:
        """Where a worker is told what its claim was given; a key of that name has the claim."""
        return f"{self._prefix}:{{{worker}}}:s"

    # Batches

    def apply(self, requests: list[Any]) -> Steps[list[Any]]:
        """Apply a batch, and answer each of its requests."""
        if not requests:
            return []
        if isinstance(requests[0], Edit):
            return [(yield from self._edit(requests[0]))]
        if isinstance(requests[0], Repair):
            return [(yield from self._repair(requests[0].queue))]
        if isinstance(requests[0], QueueNames):
            return [(yield from self._names(requests[0]))]
        try:
            forms = forms_of(requests)
            packed = encode(forms)
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            # If the server fails, each request behind would wait for it as long again.
            raise SpoiledBatchError(self._link.address, error, stops=lambda: True) from error
        if len(packed) > LARGE and len(requests) > 1:
            half = len(requests) // 2
            return (yield from self._in_turn([requests[:half], requests[half:]], self.apply))
        if self._link.clustered:
            return (yield from self._in_turn([*_runs(requests)], self._apply_run))
        return (yield from self._run(requests, forms, packed))

    def _in_turn(
        self, parts: Sequence[list[Any]], apply: Callable[[list[Any]], Steps[list[Any]]]
    ) -> Steps[list[Any]]:
        """Apply the parts of a batch one after the other.

        A failure is the answer to its part and to those behind it. What was done before counts.
        """
        answers: list[Any] = []
        for number, part in enumerate(parts):
            try:
                answers += yield from apply(part)
            except StoreError as error:
                if not answers:
                    raise
                return answers + [error for left in parts[number:] for _ in left]
        return answers

    def _apply_run(self, requests: list[Any]) -> Steps[list[Any]]:
        if len(queues_of(requests[0])) != 1:
            [request] = requests
            claim = self._claim_by_urgency if request.by_turns else self._claim_in_turn
            return [(yield from claim(request))]
        forms = forms_of(requests)
        return (yield from self._run(requests, forms, encode(forms)))

    def _run(self, requests: list[Any], forms: list[list[Any]], packed: bytes) -> Steps[list[Any]]:
        """Requests that one call of the script can apply."""
        names: dict[str, None] = {}
        recorded = False
        for request in requests:
            names |= dict.fromkeys(queues_of(request))
            recorded = recorded or not isinstance(request, Read)
        keys = self._reply_keys([*names])
        try:
            if self._new_queues(requests) or (recorded and self._link.clustered):
                yield from self._prepare(requests, forms)
                packed = encode(forms)
            reply = yield from self._call(keys, packed, [*names], recorded=recorded)
        except ServerFullError as error:
            return (yield from self._while_full(requests, error))
        done = len(reply.answers)
        answers = yield from self._answers(keys, requests[:done], reply.answers)
        return [*answers, *(yield from self._go_on(requests[done:]))]

    def _go_on(self, requests: list[Any]) -> Steps[list[Any]]:
        """The requests behind one that took more than one call. What was done before counts."""
        if not requests:
            return []
        forms = forms_of(requests)
        try:
            return (yield from self._run(requests, forms, encode(forms)))
        except StoreError as error:
            return [error] * len(requests)

    def _prepare(self, requests: Sequence[RedisRequest], forms: list[list[Any]]) -> Steps[None]:
        """What is to be asked before a call: names new queues and, on a cluster, gives ids."""
        try:
            yield from self._register(requests)
            yield from self._give_ids(requests, forms)
        except StoreUnavailableError as error:
            raise StoreUnavailableError(f"{error}; nothing was changed") from error.__cause__

    def _answers(
        self, keys: list[str], requests: Sequence[RedisRequest], answers: list[Any]
    ) -> Steps[list[Any]]:
        """The answers of the contract; claims that took too long for one call are completed."""
        found: list[Any] = []
        errors: dict[str, StoreError] = {}
        for request, answer in zip(requests, answers, strict=True):
            if is_damage(answer):
                damaged = damaged_queue(answer)
                if damaged not in errors:
                    queues = [damaged] if damaged else [*queues_of(request)]
                    errors[damaged] = yield from self._damage(queues)
                found.append(errors[damaged])
                continue
            if is_list(answer) and answer and answer[0] in (b"long", b"stale"):
                found.append((yield from self._asked_again(keys, request, answer[0])))
                continue
            items = answer_of(request, answer)
            if isinstance(request, Claim) and is_cut_short(answer):
                items = yield from self._completed(keys, request, answer, items)
            found.append(items)
        return found

    def _asked_again(self, keys: list[str], request: Any, why: bytes) -> Steps[Any]:
        """The answer to a request that the script could not apply as it was.

        ``"long"``: a change of more than one call may do, which is made in steps. ``"stale"``: a
        put whose ids, on a cluster, are below those of the line by now; it is given others.
        """
        removed = 0
        try:
            more = why == b"long"
            while more:
                form = encode([cut_form(request)])
                reply = yield from self._call(keys, form, [request.queue], recorded=True)
                [answer] = reply.answers
                if is_damage(answer):
                    return (yield from self._damage([request.queue]))
                removed += answer[0]
                more = bool(answer[1])
            forms = forms_of([request])
            [last] = yield from self._run([request], forms, encode(forms))
        except StoreError as error:
            return error
        return last + removed if removed and isinstance(last, int) else last

    def _completed(
        self, keys: list[str], request: Claim, answer: Any, items: tuple[Claimed, ...]
    ) -> Steps[tuple[Claimed, ...] | StoreError]:
        """A claim with all its items, or with those that it has when something fails."""
        names = [*queues_of(request)]
        while is_cut_short(answer):
            rest = encode([rest_of(request, answer, items)])
            try:
                reply = yield from self._call(keys, rest, names, recorded=True)
            except StoreError as error:
                return items or error
            [answer] = reply.answers
            if is_damage(answer):
                return items or (yield from self._damage([damaged_queue(answer) or names[0]]))
            items = (*items, *claimed(request, answer))
        return items

    def _while_full(self, requests: list[Any], error: StoreError) -> Steps[list[Any]]:
        """The server's memory is full: what needs none goes on, and may free some."""
        groups = [(grows, [*group]) for grows, group in groupby(requests, _grows)]
        if len(groups) == 1:
            raise error
        answers: list[Any] = []
        for grows, group in groups:
            try:
                answers += [error for _ in group] if grows else (yield from self.apply(group))
            except StoreError as failure:
                answers += [failure for _ in group]
        return answers

    def _reply_keys(self, names: Sequence[str]) -> list[str]:
        """Where the answer is kept.

        On a cluster that is beside the queue, and a key follows that is never there. While the
        queue moves from one server to another, both then refuse the call until all of it has
        moved (TRYAGAIN), rather than run it where some of the queue is missing.
        """
        if not self._link.clustered:
            return [f"{self._prefix}:a:{self._name}"]
        return [self._in_slot(names[0], f"a:{self._name}"), self._in_slot(names[0], "-")]

    def _give_ids(self, requests: Sequence[RedisRequest], forms: list[list[Any]]) -> Steps[None]:
        """On a cluster: ids for new items, which one key counts for all queues."""
        needed = [new_ids(request) for request in requests] if self._link.clustered else []
        if not any(needed):
            return
        key = f"{self._prefix}:m"
        first: int = yield from self._asked("EVAL", RESERVE, 1, key, sum(needed))
        for number, count in enumerate(needed):
            if count:
                forms[number][-1] = first
                first += count

    def _claim_in_turn(
        self, request: Claim, given: tuple[Claimed, ...] = ()
    ) -> Steps[tuple[Claimed, ...]]:
        """A claim over several queues, which may be on several servers, after what it was given."""
        claimed = [*given]
        for number, (queue, most) in enumerate(request.queues):
            room = most - sum(item.queue == queue for item in given)
            left = min(room, request.limit - len(claimed))
            if left <= 0:
                continue
            try:
                claimed += yield from self._claim_part(request, number, left)
            except StoreError:
                if not claimed:
                    raise
                break
        return tuple(claimed)

    def _claim_by_urgency(self, request: Claim) -> Steps[tuple[Claimed, ...]]:
        """Look which items of all queues are the most urgent, and claim so many in each.

        If there was no time to look at all, or others were quicker, what is left comes in turn.
        """
        lines: list[list[tuple[Rank, int]]] = []
        left_out = False
        for number, ((queue, most), urgency) in enumerate(
            zip(request.queues, request.urgencies, strict=True)
        ):
            room, kinds = min(most, request.limit), or_false(request.kinds)
            limits, how = caps_form(request.caps), urgency_form(urgency)
            asked = ("ranks", (queue, room, or_false(request.key), kinds, limits, how), (queue,))
            [found_ranks] = yield from self._apply_run([Read(*asked)])
            if isinstance(found_ranks, StoreError):
                raise found_ranks
            ranks, cut_short = found_ranks
            left_out = left_out or bool(cut_short)
            lines.append([(rank_of(found), number) for found in ranks])
        turns = [*most_urgent_first([*map(iter, lines)], request.limit)]
        given: dict[int, tuple[Claimed, ...]] = {}
        for number, wanted in Counter(turns).items():
            try:
                given[number] = yield from self._claim_part(request, number, wanted)
            except StoreError:
                if not any(given.values()):
                    raise
                left_out = False
                break
            left_out = left_out or len(given[number]) < wanted
        claimed = {number: iter(items) for number, items in given.items()}
        found = [next(claimed[number], None) for number in turns if number in claimed]
        items = tuple(item for item in found if item is not None)
        return (yield from self._claim_in_turn(request, items)) if left_out else items

    def _claim_part(self, request: Claim, number: int, limit: int) -> Steps[tuple[Claimed, ...]]:
        """What a claim over several queues leases in one of them."""
        answers = yield from self._apply_run([_part(request, number, limit)])
        items: tuple[Claimed, ...] | StoreError = answers[0]
        if isinstance(items, StoreError):
            raise items
        return items

    def _call(
        self,
        keys: Sequence[str],
        packed: bytes,
        names: list[str],
        *,
        recorded: bool,
        now: float | None = None,
        edit_token: str = "",
        editing: bool = False,
    ) -> Steps[ScriptReply]:
        """Have the script apply requests; those that are `recorded`, once, however often asked."""
        self._serial += recorded
        deadline = 0.0
        while True:
            moment = now if now is not None else self._clock() if self._clock else False
            batch = self._batch(
                packed,
                names,
                serial=self._serial if recorded else 0,
                moment=moment,
                edit_token=edit_token,
                editing=editing,
            )
            try:
                reply = yield from self._sent(keys, batch, recorded)
            except ScriptError as error:
                raise (yield from self._damage(names, keys, error)) from error.__cause__
            if reply[0] == b"done":
                return self._received(reply)
            if reply[0] == b"more":
                self._received(reply)
                continue
            if reply[0] == b"lost":
                raise StoreError(
                    f"{self._link.address}: the edit took longer than edit_time, "
                    f"{self._edit_time:g} s; nothing was changed"
                )
            if reply[0] != b"busy":
                raise StoreError(f"{self._link.address}: the script answered {reply[0]!r}")
            present = time.monotonic()
            deadline = deadline or present + 2 * self._edit_time
            if present > deadline:
                raise StoreError(f"{self._link.address}: others edit {names} without an end")
            if (yield random.uniform(*BUSY_STEP)):
                raise StoreError(f"{self._link.address}: closed while others edit {names}")

    def _batch(
        self,
        packed: bytes,
        names: list[str],
        *,
        serial: int,
        moment: Any,
        edit_token: str = "",
        editing: bool = False,
    ) -> bytes:
        """What the script is given."""
        return encode(
            [
                self._prefix,
                self.me,
                serial,
                moment,
                self._limits.history,
                self._limits.buried,
                edit_token,
                self._link.clustered,
                REPLY_LIFETIME,
                msgspec.Raw(packed),
                names,
                editing,
            ]
        )

    def _sent(self, keys: Sequence[str], batch: bytes, recorded: bool) -> Steps[list[Any]]:
        if len(batch) > TOO_LARGE:
            raise StoreError(
                f"{self._link.address}: a call of {len(batch)} bytes is more than a server takes "
                f"({TOO_LARGE}, its proto-max-bulk-len); nothing was changed: put fewer items at "
                "a time"
            )
        if self._durable is None or not recorded:
            reply: list[Any] = (yield AskServer(keys, batch, changes=recorded))[0]
            return reply
        reply, answer = yield AskServer(keys, batch, self._durable)
        wanted = list(self._durable[1:-1])
        kept: list[int] = answer if is_list(answer) else [answer]
        if any(here < want for here, want in zip(kept, wanted, strict=True)):
            if len(reply) > 1:
                self._received(reply)
            raise StoreError(
                f"{self._link.address}: the change was made, but was not confirmed in time: "
                f"{self._durable[0]} was to reach {wanted} and reached {kept}"
            )
        return reply

    def _received(self, reply: list[Any]) -> ScriptReply:
        received = ScriptReply(*reply[1:])
        if received.changed:
            self._wake([name.decode() for name in received.changed])
        dropped = [name.decode() for name in received.dropped]
        report_dropped(zip(dropped[::2], dropped[1::2], strict=True))
        return received

    def _in_slot(self, queue: str, name: str) -> str:
        return f"{self._prefix}:{{{_escape(queue)}}}:{name}"

    # The list of queues

    def _register(self, requests: Sequence[RedisRequest]) -> Steps[None]:
        """Name the queues that are going to hold something, before they do."""
        new = self._new_queues(requests)
        if new:
            old = yield from self._named(new)
            if len(self._registered) > MANY_REGISTERED:
                self._registered.clear()  # each is named again when it is used again
            self._registered.update(dict.fromkeys(new, time.monotonic()))
            if old:
                yield from self._look_through(old)

    def _new_queues(self, requests: Sequence[RedisRequest]) -> set[str]:
        """The queues of puts that were not named for a while."""
        oldest = time.monotonic() - REGISTERED_FOR
        known = self._registered
        return {
            request.queue
            for request in requests
            if isinstance(request, Put | Requeue) and known.get(request.queue, -inf) < oldest
        }

    def _named(self, names: Iterable[str]) -> Steps[list[str]]:
        """Name queues; returns some that nobody has named for long."""
        key = f"{self._prefix}:q"
        old: list[bytes] = yield from self._asked("EVAL", REGISTER, 1, key, FORGOTTEN_AFTER, *names)
        return [name.decode() for name in old]

    def _look_through(self, names: Iterable[str]) -> Steps[None]:
        """Strike those off that are empty."""
        used: list[str] = []
        empty: list[str] = []
        for name in names:
            parts = [self._in_slot(name, part) for part in ("i", "b", "d")]
            held = yield "EXISTS", *parts
            (used if held else empty).append(name)
        if empty:
            yield from self._names(QueueNames(tuple(empty)))
        if used:
            yield from self._named(used)

    def _names(self, asked: QueueNames) -> Steps[list[str]]:
        key = f"{self._prefix}:q"
        if asked.empty:
            yield from self._asked("EVAL", STRIKE_OFF, 1, key, FORGOTTEN_AFTER, *asked.empty)
            return []
        names: dict[str, None] = {}  # One may be told of twice.
        cursor = b"0"
        while True:
            cursor, found = yield from self._asked("EVAL", NAMED, 1, key, cursor, PAGE)
            names |= dict.fromkeys(name.decode() for name in found[::2])
            if cursor == b"0":
                return [*names]

    def _asked(self, *command: Any) -> Steps[Any]:
        """Another script, on a key of the store as a whole."""
        try:
            return (yield command)
        except ScriptError as error:
            raise (yield from self._damage([], failure=error)) from error.__cause__

    # Damage

    def _damage(
        self, queues: Iterable[str], keys: Sequence[str] = (), failure: StoreError | None = None
    ) -> Steps[StoreError]:
        """Find out what is damaged, after a call has met it."""
        for queue in queues:
            asked = encode([["examine", queue]])
            batch = self._batch(asked, [queue], serial=0, moment=False)
            try:
                reply = (yield AskServer(self._reply_keys([queue]), batch, changes=False))[0]
            except ScriptError:
                continue
            found: list[list[bytes]] = reply[1][0] if reply[0] == b"done" else []
            if found and not is_damage(found):
                part, kind = (each.decode() for each in found[0])
                return self._damaged(queue, part, kind)
        types = dict.fromkeys(keys, "string")
        types |= {f"{self._prefix}:m": "string", f"{self._prefix}:q": "zset"}
        for key, wanted in types.items():
            kind = yield "TYPE", key
            kind = kind.decode() if isinstance(kind, bytes) else str(kind)
            if kind not in ("none", wanted):
                return StoreDamagedError(
                    f"{self._link.address}: the key {key!r} is a {kind}: somebody has overwritten "
                    "it. Delete or rename it: the store does without what was there",
                    part=key,
                )
        if failure is not None:
            return failure
        [queue] = [*queues][:1] or [""]
        return self._damaged(queue, "", "")

    def _damaged(self, queue: str, part: str, kind: str) -> StoreDamagedError:
        what = "an entry of one of its keys is missing"
        if part:
            key = self._in_slot(queue, part)
            how = f"is a {kind}" if kind else "is gone, or entries of it are"
            what = f"the key {key!r}, {PARTS[part]}, {how}"
        return StoreDamagedError(
            f"{self._link.address}: the queue {queue!r} is damaged: {what}. Somebody else has "
            "deleted, evicted or overwritten it. The call has changed nothing, or a part of what "
            f"it should. `await store.repair({queue!r})` makes the queue usable again with what is "
            "left, and says what that is",
            queue=queue,
            part=self._in_slot(queue, part) if part else "",
        )

    def _repair(self, queue: str) -> Steps[RepairReport]:
        """Make the indexes of a queue anew, in steps, while no other store may change it."""
        held = EditLock([queue], self._reply_keys([queue]), secrets.token_hex(8))
        time_left = int(self._edit_time * 1000)
        yield from self._named([queue])

        def ask(verb: str, *arguments: Any) -> Steps[Any]:
            form = [verb, queue, time_left, *arguments]
            [answer] = yield from self._while_held(held, [form], recorded=True)
            return answer

        aside = [name.decode() for name in (yield from ask("repair"))[1::2]]
        lost: dict[str, None] = {}
        for verb, parts in (("repair_part", RECORDS), ("repair_lost", INDEXES)):
            for part in parts:
                cursor, unread = b"0", 0
                while cursor:
                    cursor, more, gone = yield from ask(verb, part, raw(cursor))
                    unread += more
                    lost |= dict.fromkeys(key.decode() for key in gone)
                if unread:
                    aside.append(self._in_slot(queue, f"{part}:damaged"))
        yield from ask("repair_end")
        reply = yield from self._call(
            held.keys, encode([["count", [queue]]]), [queue], recorded=False
        )
        kept = counts(reply.answers[0][0])
        report = RepairReport(
            queue=queue, kept=kept, lost=tuple(sorted(lost)), set_aside=tuple(aside)
        )
        logger.warning(
            "%s: the queue %r was repaired: it has %s; values of %d keys are lost, %d keys of the "
            "server are set aside",
            self._link.address,
            queue,
            kept,
            len(report.lost),
            len(report.set_aside),
        )
        return report

    # Edits

    def _edit(self, edit: Edit) -> Steps[list[Answer]]:
        """Lock, look, let the work be done, apply and unlock."""
        held = EditLock(edit.queues, self._reply_keys([edit.queue]), secrets.token_hex(8))
        # All are locked by one call, or none: two edits cannot wait for each other.
        locks = [["lock", queue, int(self._edit_time * 1000)] for queue in edit.queues]
        moment, *_ = yield from self._while_held(held, locks, recorded=True)
        held.now = float(moment)
        try:
            items = yield from self._everything(edit, held)
            changes = yield partial(edit.changes, items)
            forms = [self._formed(change) for change in changes]
            yield from self._prepare(changes, forms)
            answers = yield from self._while_held(held, forms, recorded=True, editing=True)
        except GeneratorExit:
            raise
        except BaseException:
            # Should this fail, the lock ends by itself.
            with suppress(StoreError):
                unlocks = [["unlock", queue] for queue in edit.queues]
                yield from self._while_held(held, unlocks, recorded=True)
            raise
        if answers and answers[0] == b"refused":
            number: int = answers[1]
            if is_damage(answers[2]):
                raise (yield from self._damage(edit.queues))
            raise EditStoppedError(answer_of(changes[number - 1], answers[2]))
        return [*map(answer_of, changes, answers)]

    def _while_held(
        self, held: EditLock, forms: list[list[Any]], *, recorded: bool, editing: bool = False
    ) -> Steps[list[Any]]:
        reply = yield from self._call(
            held.keys,
            encode(forms),
            [*held.queues],
            recorded=recorded,
            now=held.now,
            edit_token=held.token,
            editing=editing,
        )
        if any(map(is_damage, reply.answers)):
            raise (yield from self._damage(held.queues))
        return reply.answers

    def _formed(self, change: Put | Change) -> list[Any]:
        try:
            [formed] = forms_of([change])
            encode(formed)
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            message = f"{self._link.address}: the request cannot be stored: {error}"
            raise UnstorableError(message) from error
        return formed

    def _everything(self, edit: Edit, held: EditLock) -> Steps[list[StoredItem]]:
        """The items of the queue by id, or those of some keys."""
        queue = edit.queue
        items: list[StoredItem] = []
        if edit.keys is not None:
            place: list[Any] = [1, 0, ""]
            while place:
                named = ["keys", queue, edit.keys, place, edit.heads_only]
                [[behind, found]] = yield from self._while_held(held, [named], recorded=False)
                items += [shown(queue, item, reveal=True) for item in found]
                place = [*behind[:2], raw(behind[2])] if behind else []
            return sorted(items, key=lambda item: item.id)
        after = 0
        states = [
            number
            for number, state in enumerate(STATES)
            if not edit.heads_only or state not in LINE_STATES
        ]
        while True:
            asked = ["browse", queue, states, "", after, PAGE, False]
            [[behind, found]] = yield from self._while_held(held, [asked], recorded=False)
            items += [shown(queue, item, reveal=True) for item in found]
            if not behind:
                return items
            after = int(float(behind))


def _runs(requests: Sequence[Any]) -> Iterator[list[Any]]:
    """Runs of requests about the same queue; a claim over several queues is alone."""
    for queues, run in groupby(requests, queues_of):
        if len(queues) == 1:
            yield [*run]
        else:
            yield from ([request] for request in run)


def _part(request: Claim, number: int, limit: int) -> Claim:
    """What a claim over several queues asks of one of them."""
    return msgspec.structs.replace(
        request,
        queues=((request.queues[number][0], limit),),
        limit=limit,
        lease_time=request.lease_time_of(number),
        urgencies=request.urgencies[number : number + 1],
        lease_times=(),
    )


def _grows(request: Any) -> bool:
    return isinstance(request, Put | Requeue)


def _escape(name: str) -> str:
    """A name that can stand between braces: they say in which slot of a cluster a key is."""
    if not name:
        return "%"  # Empty braces say nothing about a slot.
    return name.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
