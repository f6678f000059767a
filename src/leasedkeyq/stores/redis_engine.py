"""Batches of requests, applied by calls of the script. In the thread of the store."""

import logging
import random
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from leasedkeyq.errors import StoreError
from leasedkeyq.stores.contract import Answer, Change, Claim, Limits, Put, Requeue, StoredItem
from leasedkeyq.stores.editing import Edit, EditStoppedError
from leasedkeyq.stores.redis_link import Link
from leasedkeyq.stores.redis_wire import (
    STATES,
    AnyRequest,
    Read,
    answer_of,
    claimed,
    encode,
    form,
    is_list,
    new_ids,
    queues_of,
    rest_of,
    shown,
)

logger = logging.getLogger("leasedkeyq")

REPLY_LIFETIME: Final = 300_000
"""Milliseconds for which the last answer to a store object can be asked for again."""
REGISTERED_FOR: Final = 600.0
"""Seconds after which a queue that is used is named again in the list of queues."""
FORGOTTEN_AFTER: Final = 3600
"""Seconds after which an empty queue may be struck off that list."""
BUSY_STEP: Final = (0.001, 0.004)
"""Seconds between two tries to change a queue that another store edits."""
PAGE: Final = 500

REGISTER: Final = """
local now = redis.call('TIME')[1]
for _, name in ipairs(ARGV) do redis.call('ZADD', KEYS[1], now, name) end
"""
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


class Names(msgspec.Struct, frozen=True):
    """Asks for the names of all queues, or strikes off those that are `empty`."""

    empty: tuple[str, ...] = ()


class Held(msgspec.Struct):
    """A queue that is being edited, and as of when."""

    queue: str
    key: str
    token: str
    now: float | None = None


class Reply(msgspec.Struct):
    """What the script says."""

    answers: list[Any]
    changed: list[bytes]
    dropped: list[bytes]


class Engine:
    """Applies requests.

    Args:
        link: The way to the server.
        prefix: Of all keys.
        me: The name of this store object, which nobody else has.
        limits: How much the store takes.
        edit_time: Seconds that an edit may take.
        durable: A command that waits until a batch is kept, or None.
        clock: Unix time, for tests.
        wake: Told which queues have changed.
    """

    def __init__(
        self,
        link: Link,
        *,
        prefix: str,
        me: str,
        limits: Limits,
        edit_time: float,
        durable: tuple[Any, ...] | None,
        clock: Callable[[], float] | None,
        wake: Callable[[Iterable[str]], None],
    ) -> None:
        self._link = link
        self._prefix = prefix
        self.me = me
        self._limits = limits
        self._edit_time = edit_time
        self._durable = durable
        self._clock = clock
        self._wake = wake
        self._serial = 0
        self._fence = 0
        self._registered: dict[str, float] = {}
        link.when_lost(self._registered.clear)

    def channel(self, queue: str) -> str:
        """Where changes of a queue are told."""
        return f"{self._prefix}:{{{_escape(queue)}}}:w"

    # Batches

    def apply(self, requests: list[Any]) -> list[Any]:
        """Apply a batch, and answer each of its requests."""
        if not requests:
            return []
        if isinstance(requests[0], Edit):
            return [self._edit(requests[0])]
        if isinstance(requests[0], Names):
            return [self._names(requests[0])]
        try:
            forms = [form(request) for request in requests]
            packed = encode(forms)
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            return self._apart(requests, error)
        if self._link.clustered:
            return self._in_runs(requests, forms)
        names = list(dict.fromkeys(name for each in requests for name in queues_of(each)))
        recorded = not all(isinstance(each, Read) for each in requests)
        if recorded:
            self._register(requests)
        key = f"{self._prefix}:a:{self.me}"
        reply = self._call(key, packed, names, recorded=recorded)
        return self._answers(key, requests, reply.answers)

    def _apart(self, requests: list[Any], error: Exception) -> list[Any]:
        """Something cannot be stored at all: each request alone, so that it spoils nobody else."""
        if len(requests) > 1:
            return [self.apply([request])[0] for request in requests]
        refusal = StoreError(f"{self._link.address}: the request cannot be stored: {error}")
        refusal.__cause__ = error
        return [refusal]

    def _in_runs(self, requests: Sequence[AnyRequest], forms: list[list[Any]]) -> list[Any]:
        """On a cluster: one call for each run of requests about the same queue."""
        answers: list[Any] = []
        start = 0
        while start < len(requests):
            queues = queues_of(requests[start])
            end = start + 1
            if len(queues) == 1:
                while end < len(requests) and queues_of(requests[end]) == queues:
                    end += 1
                answers += self._run(queues[0], requests[start:end], forms[start:end])
            else:
                answers.append(self._claim_in_turn(requests[start]))
            start = end
        return answers

    def _run(self, queue: str, requests: Sequence[AnyRequest], forms: list[list[Any]]) -> list[Any]:
        recorded = not all(isinstance(each, Read) for each in requests)
        if recorded:
            self._register(requests)
        self._give_ids(requests, forms)
        key = self._in_slot(queue, f"a:{self.me}")
        reply = self._call(key, encode(forms), [queue], recorded=recorded)
        return self._answers(key, requests, reply.answers)

    def _answers(self, key: str, requests: Sequence[AnyRequest], answers: list[Any]) -> list[Any]:
        """The answers of the contract; claims that took too long for one call are completed."""
        found: list[Any] = []
        for request, answer in zip(requests, answers, strict=True):
            items = answer_of(request, answer)
            if isinstance(request, Claim):
                last = answer
                while (rest := rest_of(request, last, items)) is not None:
                    names = list(queues_of(request))
                    [last] = self._call(key, encode([rest]), names, recorded=True).answers
                    items = (*items, *claimed(request, last))
            found.append(items)
        return found

    def _give_ids(self, requests: Sequence[AnyRequest], forms: list[list[Any]]) -> None:
        """On a cluster: ids for new items, which one key counts for all queues."""
        needed = [new_ids(request) for request in requests]
        if not self._link.clustered or not any(needed):
            return
        first: int = self._link.command("EVAL", RESERVE, 1, f"{self._prefix}:m", sum(needed))
        for number, count in enumerate(needed):
            if count:
                forms[number][-1] = first
                first += count

    def _claim_in_turn(self, request: Any) -> Any:
        """A claim over several queues, which may be on several servers."""
        claimed: list[Any] = []
        for queue, most in request.queues:
            left = request.limit - len(claimed)
            if left <= 0:
                break
            part: Claim = msgspec.structs.replace(request, queues=((queue, most),), limit=left)
            claimed += self._run(queue, [part], [form(part)])[0]
        return tuple(claimed)

    def _call(
        self,
        key: str,
        packed: bytes,
        names: list[str],
        *,
        recorded: bool,
        now: float | None = None,
        edit_token: str = "",
        editing: bool = False,
    ) -> Reply:
        """Have the script apply requests; those that are `recorded`, once, however often asked."""
        self._serial += recorded
        deadline = 0.0
        while True:
            moment = now if now is not None else self._clock() if self._clock else False
            batch = encode(
                [
                    self._prefix,
                    self.me,
                    self._serial if recorded else 0,
                    moment,
                    self._limits.history,
                    self._limits.buried,
                    edit_token,
                    self._link.clustered,
                    self._fence + 1,
                    REPLY_LIFETIME,
                    msgspec.Raw(packed),
                    names,
                    editing,
                ]
            )
            reply = self._sent(key, batch, recorded)
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
            time.sleep(random.uniform(*BUSY_STEP))

    def _sent(self, key: str, batch: bytes, recorded: bool) -> list[Any]:
        if self._durable is None or not recorded:
            reply: list[Any] = self._link.run(key, batch)[0]
            return reply
        reply, answer = self._link.run(key, batch, self._durable)
        wanted = list(self._durable[1:-1])
        kept: list[int] = answer if is_list(answer) else [answer]
        if any(here < want for here, want in zip(kept, wanted, strict=True)):
            raise StoreError(
                f"{self._link.address}: the change was made, but was not confirmed in time: "
                f"{self._durable[0]} was to reach {wanted} and reached {kept}"
            )
        return reply

    def _received(self, reply: list[Any]) -> Reply:
        received = Reply(reply[1], reply[2], reply[3])
        if received.changed:
            self._wake([name.decode() for name in received.changed])
        for at in range(0, len(received.dropped), 2):
            queue, key = received.dropped[at : at + 2]
            logger.warning(
                "queue %r: dropped the oldest buried item, key %r", queue.decode(), key.decode()
            )
        return received

    def _in_slot(self, queue: str, name: str) -> str:
        return f"{self._prefix}:{{{_escape(queue)}}}:{name}"

    # The list of queues

    def _register(self, requests: Sequence[AnyRequest]) -> None:
        """Name the queues that are going to hold something, before they do."""
        now = time.monotonic()
        known = self._registered
        new = {
            request.queue
            for request in requests
            if isinstance(request, Put | Requeue)
            and known.get(request.queue, float("-inf")) < now - REGISTERED_FOR
        }
        if new:
            self._link.command("EVAL", REGISTER, 1, f"{self._prefix}:q", *new)
            known.update(dict.fromkeys(new, now))

    def _names(self, asked: Names) -> list[str]:
        key = f"{self._prefix}:q"
        if asked.empty:
            self._link.command("EVAL", STRIKE_OFF, 1, key, FORGOTTEN_AFTER, *asked.empty)
            return []
        found: list[bytes] = self._link.command("ZRANGE", key, 0, -1)
        return [name.decode() for name in found]

    # Edits

    def _edit(self, edit: Edit) -> list[Answer]:
        """Lock, look, let the work be done, apply and unlock."""
        held = Held(edit.queue, self._in_slot(edit.queue, f"a:{self.me}"), secrets.token_hex(8))
        lock = ["lock", edit.queue, int(self._edit_time * 1000)]
        [moment] = self._while_held(held, [lock], recorded=True)
        held.now = float(moment)
        try:
            changes = edit.changes(self._everything(edit, held))
            forms = [self._formed(change) for change in changes]
            self._register(changes)
            self._give_ids(changes, forms)
        except BaseException:
            self._while_held(held, [["unlock", edit.queue]], recorded=True)
            raise
        answers = self._while_held(held, forms, recorded=True, editing=True)
        if answers and answers[0] == b"refused":
            number: int = answers[1]
            raise EditStoppedError(answer_of(changes[number - 1], answers[2]))
        return [*map(answer_of, changes, answers)]

    def _while_held(
        self, held: Held, forms: list[list[Any]], *, recorded: bool, editing: bool = False
    ) -> list[Any]:
        return self._call(
            held.key,
            encode(forms),
            [held.queue],
            recorded=recorded,
            now=held.now,
            edit_token=held.token,
            editing=editing,
        ).answers

    def _formed(self, change: Put | Change) -> list[Any]:
        try:
            formed = form(change)
            encode(formed)
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            message = f"{self._link.address}: the request cannot be stored: {error}"
            raise StoreError(message) from error
        return formed

    def _everything(self, edit: Edit, held: Held) -> list[StoredItem]:
        """The items of the queue by id, or those of some keys."""
        queue = edit.queue
        items: list[StoredItem] = []
        if edit.keys is not None:
            [found] = self._while_held(held, [["keys", queue, edit.keys]], recorded=False)
            items = [shown(queue, item, reveal=True) for item in found]
            return sorted(items, key=lambda item: item.id)
        after = 0
        states = list(range(len(STATES)))
        while True:
            asked = ["browse", queue, states, "", after, PAGE]
            [[behind, found]] = self._while_held(held, [asked], recorded=False)
            items += [shown(queue, item, reveal=True) for item in found]
            if not behind:
                return items
            after = int(float(behind))


def _escape(name: str) -> str:
    """A name that can stand between braces: they say in which slot of a cluster a key is."""
    return name.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
