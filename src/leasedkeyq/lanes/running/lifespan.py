"""`WorkerLifespan`: opens the resources of a worker before its first command, and closes them."""

import asyncio
from asyncio import Future, Task
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal

from leasedkeyq.lanes.commands.resources import NamedLifespan, Resources
from leasedkeyq.lanes.errors import LifespanError, ManagerClosedError

PATIENCE = 30.0
"""Seconds that the lifespans have to end."""


class WorkerLifespan:
    """The lifespans of a worker, one within the other, in a task of their own.

    They begin and end in one task, as task groups and cancel scopes in them need it.

    Args:
        lifespans: The first one is the outermost.
        failed: Told if they end while the worker runs.
    """

    def __init__(
        self,
        lifespans: Sequence[NamedLifespan],
        failed: Callable[[LifespanError], None],
    ) -> None:
        self._lifespans = lifespans
        self._failed = failed
        self._leave = asyncio.Event()
        self._leaving = False
        self._entered: Future[Resources] = asyncio.get_running_loop().create_future()
        self._task: Task[None] | None = None

    async def enter(self) -> Resources:
        """Open the resources. If this is cancelled, those that were opened are closed.

        Raises:
            LifespanError: A lifespan failed. Those before it have been closed.
            ManagerClosedError: The manager was closed meanwhile.
        """
        self._task = task = asyncio.create_task(self._live(), name="leasedkeyq lifespan")
        try:
            waits: set[Future[Any]] = {task, self._entered}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            self._leaving = True
            task.cancel()
            await asyncio.wait({task})
            raise
        if not self._entered.done():
            self._leaving = True
            if task.cancelled():
                raise ManagerClosedError("the manager was closed while it opened its resources")
            task.result()
            raise LifespanError("the lifespans of the worker ended at the start")
        task.add_done_callback(self._ended)
        return self._entered.result()

    async def leave(self) -> None:
        """Close the resources.

        Raises:
            LifespanError: A lifespan failed, or did not end in time. All have been closed that
                could be.
        """
        task = self._task
        if task is None or task.done():
            return  # it has failed before, and that was told
        self._leaving = True
        self._leave.set()
        if not self._entered.done():
            task.cancel()  # the manager is closed while it starts
        await asyncio.wait({task}, timeout=PATIENCE)
        if not task.done():
            task.cancel()
            raise LifespanError(
                f"the lifespans of the worker did not end within {PATIENCE:g} s, and were cancelled"
            )
        if self._entered.done() and not task.cancelled():
            task.result()

    def _ended(self, task: Task[None]) -> None:
        if self._leaving:
            return
        error = None if task.cancelled() else task.exception()
        if not isinstance(error, LifespanError):
            error = LifespanError(f"the lifespans of the worker ended while it ran: {error!r}")
        self._failed(error)

    async def _live(self) -> None:
        resources = Resources()
        async with AsyncExitStack() as stack:
            for lifespan in self._lifespans:
                resources.add(await stack.enter_async_context(_told(lifespan)))
            self._entered.set_result(resources)
            await self._leave.wait()


@asynccontextmanager
async def _told(lifespan: NamedLifespan) -> AsyncGenerator[Any]:
    """A lifespan whose errors tell its name, and when it failed."""
    when: Literal["at the start", "while the worker ran", "at the end"] = "at the start"
    try:
        async with lifespan.open() as yielded:
            when = "while the worker ran"
            yield yielded
            when = "at the end"
    except LifespanError:
        raise  # of one further in
    except Exception as error:
        text = f"the lifespan {lifespan.name} failed {when}: {type(error).__name__}: {error}"
        raise LifespanError(text) from error
