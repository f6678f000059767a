"""Rounds on stores that read the clock of the machine: memory, file and SQLite."""

from pathlib import Path
from random import Random

from leasedkeyq.engines.file.store import FileStore
from leasedkeyq.engines.memory import MemoryStore
from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.stores.store import Store
from tests.torture.clocks.jumping_clock import JumpingClock
from tests.torture.clocks.session import LONGEST, Session

STEPS = 30


class Place:
    """Where the stores of a round are, and the clock of their machine."""

    def __init__(self, engine: str, folder: Path, suffix: str, clock: JumpingClock) -> None:
        self._engine = engine
        self._path = folder / ("q.db" if engine == "sqlite" else f"queue.{suffix}")
        self._clock = clock
        self.shared = engine != "memory"

    def open(self) -> Store:
        if self._engine == "memory":
            return MemoryStore(clock=self._clock)
        if self._engine == "sqlite":
            return SqliteStore(self._path, clock=self._clock, durability="normal")
        store = FileStore(self._path, clock=self._clock)
        store.engine.file.settled = 0.0
        return store


async def play(place: Place, clock: JumpingClock, dice: Random, session: Session) -> int:
    """Work while the clock jumps; returns how often it did.

    Two stores are open on a file, and now and then one of them is opened anew: an open store goes
    on from the latest time that it knows, a new one from what the clock says.
    """
    stores = [place.open() for _ in range(2 if place.shared else 1)]
    jumps = 0
    for _ in range(STEPS):
        if dice.random() < 0.15:
            clock.jump()
            jumps += 1
        else:
            clock.pass_time()
        number = dice.randrange(len(stores))
        if place.shared and dice.random() < 0.05:
            await stores[number].close()
            stores[number] = place.open()
        await session.step(stores[number])
    # By then every lease and every delay is over, whatever the clock said when it began.
    clock.set(clock.latest + LONGEST)
    await session.drain(stores[0])
    for store in stores:
        await store.close()
    return jumps
