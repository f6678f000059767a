"""`StackAnswers`: a worker says where a command is that it runs, when it is asked.

In the event loop it hears of questions as of everything else that is told to workers. While the
loop is blocked, which is when people ask most, the thread that guards leases looks for them.
"""

import asyncio
import logging
from asyncio import Task
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any

import msgspec

from leasedkeyq.lanes.presence.records import ASK, WORKERS_QUEUE
from leasedkeyq.lanes.presence.stack_asks import ANSWER_KEPT, StackAnswer, StackAsk
from leasedkeyq.lanes.running.execution.command_stacks import (
    SAMPLED_EVERY,
    CommandStacks,
    TakenStack,
)
from leasedkeyq.lanes.running.execution.loop_watch import LoopWatch
from leasedkeyq.lanes.running.job import Job
from leasedkeyq.model.requests import Cancel, StoredItem
from leasedkeyq.stores.codec import UNREADABLE
from leasedkeyq.stores.store import Store

logger = logging.getLogger("leasedkeyq")

MOST_AT_ONCE = 20
"""Questions that are answered at a time."""
MOST_APART = 3
"""The same in the thread that has leases to renew, too: a process may take a second to answer."""


class StackAnswers:
    """Answers the questions that are put to one worker.

    Args:
        store: Where they are put.
        stacks: Takes the stacks.
        watch: Watches the event loop.
        in_thread: Calls a function in a thread.
        ran: For how many seconds the command of a job has run.
    """

    def __init__(
        self,
        store: Store,
        stacks: CommandStacks,
        watch: LoopWatch,
        *,
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
        ran: Callable[[Job], float],
    ) -> None:
        self._store = store
        self._stacks = stacks
        self._watch = watch
        self._in_thread = in_thread
        self._ran = ran
        self._tasks: set[Task[None]] = set()
        self._answering: set[int] = set()
        """The ids of questions that are being answered."""
        self._sampling = False

    # In the event loop

    def hear(self, worker: str, items: Iterable[StoredItem]) -> None:
        """Answer the questions among these items that are put to this worker."""
        asked = [item for item in items if item.key.startswith(f"{ASK}{worker}:")]
        for item in asked[: max(0, MOST_AT_ONCE - len(self._tasks))]:
            if item.state == "available" and item.id not in self._answering:
                self._answering.add(item.id)
                self._begin(self._answer(item))

    def close(self) -> None:
        """Answer nothing any more."""
        for task in list(self._tasks):
            task.cancel()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="leasedkeyq stack answers")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, item: StoredItem) -> None:
        try:
            job = self._job(item)
            stack = None if job is None else await self._take(job)
            await self._store.settle([self._written(item, job, stack)])
        except Exception as error:  # nobody's command depends on it, and the asker will ask again
            logger.debug("a question was not answered: %s", error)
        finally:
            self._answering.discard(item.id)
        if not self._sampling:
            self._begin(self._sample())

    async def _take(self, job: Job) -> TakenStack:
        if self._stacks.in_process(job) is None:
            return self._stacks.take(job)
        stack: TakenStack = await self._in_thread(partial(self._stacks.take, job))
        return stack

    async def _sample(self) -> None:
        """Look at the stacks that somebody has asked for, until nobody wants to know any more."""
        self._sampling = True
        try:
            while sampled := self._stacks.sampled():
                await asyncio.sleep(SAMPLED_EVERY)
                for job in sampled:
                    look = partial(self._stacks.look_again, job)
                    if self._stacks.in_process(job) is None:
                        look()
                    else:
                        await self._in_thread(look)
        finally:
            self._sampling = False

    # While the event loop is blocked, in another thread

    def sample_apart(self) -> None:
        """Look at the stacks that somebody has asked for, but for those in processes."""
        for job in self._stacks.sampled():
            if self._stacks.in_process(job) is None:
                self._stacks.look_again(job)

    async def answer_apart(self, worker: str) -> None:
        """Look for questions that are put to this worker, and answer them."""
        page = await self._store.browse(
            WORKERS_QUEUE, states=("available",), prefix=f"{ASK}{worker}:", limit=MOST_APART
        )
        for item in page.items:
            job = self._job(item)
            stack = None if job is None else self._stacks.take(job)
            await self._store.settle([self._written(item, job, stack)])

    # Both

    def _job(self, item: StoredItem) -> Job | None:
        try:
            ask = msgspec.json.decode(item.value, type=StackAsk)
        except UNREADABLE:
            return None
        return self._stacks.find(ask.queue, ask.id)

    def _written(self, item: StoredItem, job: Job | None, stack: TakenStack | None) -> Cancel:
        """The answer to a question, in the place of the question."""
        answer = StackAnswer(found=False)
        if job is not None and stack is not None:
            answer = StackAnswer(
                found=True,
                where=stack.where,
                frames=stack.frames,
                unchanged_for=self._stacks.unchanged_for(job, stack),
                running_for=self._ran(job),
                memory=stack.memory,
                note="; ".join(filter(None, (stack.note, self._blocked_note()))),
            )
        raw = msgspec.json.encode(answer)
        if len(raw) > self._store.limits.value_size:
            short = msgspec.structs.replace(answer, frames=answer.frames[-5:])
            raw = msgspec.json.encode(short)
        keep = ANSWER_KEPT
        return Cancel(WORKERS_QUEUE, item.key, raw, keep, id=item.id, outcome="completed")

    def _blocked_note(self) -> str:
        seconds = self._watch.blocked_for
        if not seconds:
            return ""
        blocker = self._watch.blocker()
        return f"the event loop of its worker has been blocked for {seconds:.0f} s, by {blocker}"
