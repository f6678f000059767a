"""Rounds in which a server is killed with kill -9, and frozen, while clients work on it."""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from leasedkeyq import connect
from leasedkeyq.model.requests import Ack, Claim, Purge, StoredItem, StoredState
from leasedkeyq.stores import Store
from tests.engines.kill_facts import ClaimDone, PutDone, SettleDone
from tests.engines.kill_judge import Found
from tests.torture.outages.client import Diary
from tests.torture.outages.clients import Client
from tests.torture.outages.judge import OutageJudge, kind_of
from tests.torture.outages.servers import IMPATIENT, PATIENT, MortalServer
from tests.torture.part import Findings

STUCK: Final = "clients stuck"
STRANGE: Final = "errors that are no StoreError"
IMPATIENCE: Final = "calls failed within their patience"
AFTER_KILL: Final = "from the start of a killed server to the first claim"
AFTER_FREEZE: Final = "from the end of a freeze to the first claim"
AWAY: Final = (0.0, 0.05, 0.3, 1.0)
"""Seconds for which a killed server is away, at most."""
FROZEN: Final = (0.05, 0.3, 0.7, 1.5)
"""Seconds for which a server is frozen, at most: less and more than leases and patience last."""
WAITING: Final[tuple[StoredState, ...]] = ("available", "scheduled", "in_flight", "buffered")
LONG: Final = 60.0


class Outages:
    """One server and its clients, for many rounds.

    Args:
        engine: Of the store.
        server: What is killed and frozen.
        folder: For the logs of the clients.
    """

    def __init__(self, engine: str, server: MortalServer, folder: Path) -> None:
        self._server = server
        self._url = server.url
        self._options = PATIENT[engine]
        self._running = ExitStack()
        with self._running as starting:
            # Makes the tables, or the like, before the clients come.
            asyncio.run(connect(server.url).close())
            self._patient, self._impatient = (
                starting.enter_context(Client(name, server.url, options, folder / f"{name}.log"))
                for name, options in (
                    ("patient", PATIENT[engine]),
                    ("impatient", IMPATIENT[engine]),
                )
            )
            self._clients = self._patient, self._impatient
            self._running = starting.pop_all()

    def close(self) -> None:
        """End the clients."""
        self._running.close()

    def round(self, seed: int, dice: random.Random, found: Findings) -> None:
        """Let clients work, kill the server and freeze it, and judge what became of their calls."""
        for client in self._clients:
            client.begin(seed)
        self._go_on(seed, found, "at the beginning")
        faults = [self._kill, self._freeze]
        dice.shuffle(faults)
        moments: list[tuple[str, float]] = []
        away: list[tuple[float, float]] = []
        for fault in faults:
            time.sleep(dice.random() * 0.2)
            began = time.time()
            moments.append(fault(dice))
            away.append((began, time.time()))
            found.tried += 1
            self._go_on(seed, found, moments[-1][0])
        diaries = [client.end() for client in self._clients]
        for name, moment in moments:
            found.counted["kills" if name == AFTER_KILL else "freezes"] += 1
            claimed = first_claim(diaries, moment)
            if claimed is not None:
                found.time(name, claimed - moment)
        self._count(diaries, found)
        self._look_at_errors(seed, diaries, found)
        asyncio.run(self._judge(seed, diaries, away, found))

    # Faults

    def _kill(self, dice: random.Random) -> tuple[str, float]:
        self._server.kill()
        time.sleep(dice.random() * dice.choice(AWAY))
        started = time.time()
        self._server.start()
        return AFTER_KILL, started

    def _freeze(self, dice: random.Random) -> tuple[str, float]:
        self._server.signal(signal.SIGSTOP)
        time.sleep(dice.random() * dice.choice(FROZEN))
        ended = time.time()
        self._server.signal(signal.SIGCONT)
        return AFTER_FREEZE, ended

    # What became of it

    def _go_on(self, seed: int, found: Findings, when: str) -> None:
        for client in self._clients:
            if not client.goes_on():
                words = f"{when}: the {client.name} client has {client.answered()} calls answered"
                found.violation(STUCK, seed, words)

    def _count(self, diaries: Sequence[Diary], found: Findings) -> None:
        facts = [fact for diary in diaries for fact in (*diary.requests, *diary.waits)]
        kinds = Counter(type(fact) for fact in facts)
        found.counted["acknowledged puts"] += kinds[PutDone]
        claims = [fact for fact in facts if isinstance(fact, ClaimDone)]
        found.counted["leases"] += sum(len(claim.leases) for claim in claims)
        found.counted["settlements"] += kinds[SettleDone]
        found.counted["calls that failed"] += sum(diary.failed for diary in diaries)
        found.counted["calls that may have changed something"] += sum(
            diary.unknown for diary in diaries
        )

    def _look_at_errors(self, seed: int, diaries: Sequence[Diary], found: Findings) -> None:
        for client, diary in zip(self._clients, diaries, strict=True):
            for task in diary.stuck:
                found.violation(STUCK, seed, f"the {client.name} client: the last call of {task}")
            for trace in diary.strange:
                found.violation(STRANGE, seed, f"the {client.name} client: {trace}")
            if client is self._patient:
                for words in diary.given_up:
                    found.violation(IMPATIENCE, seed, words)

    async def _judge(
        self,
        seed: int,
        diaries: Sequence[Diary],
        away: Sequence[tuple[float, float]],
        found: Findings,
    ) -> None:
        undone = [value for diary in diaries for value in diary.undone]
        async with connect(self._url, **self._options) as store:
            for queue, by_key in ((f"few-{seed}", False), (f"many-{seed}", True)):
                journals = [diary.waits if by_key else diary.requests for diary in diaries]
                judge = OutageJudge(journals, undone, away)
                left = await browse(store, queue, WAITING)
                kept = {str(i.id): int(i.value) for i in await browse(store, queue, ("done",))}
                items = [
                    Found(i.key if by_key else str(i.id), i.key, i.value.decode()[1:-1], i.attempt)
                    for i in left
                ]
                for complaint in judge.verdict(items, kept, time.time()):
                    found.violation(kind_of(complaint), seed, f"queue {queue}: {complaint.words}")
                missing = await drain(store, queue, {item.key for item in left})
                if missing:
                    words = f"queue {queue}: {sorted(missing)[:5]} cannot be claimed any more"
                    found.violation(STUCK, seed, words)
                await store.settle([Purge(queue)])


def first_claim(diaries: Sequence[Diary], moment: float) -> float | None:
    """When the first lease that began after a moment was in the hands of a client, if one was."""
    claims = (
        fact.at
        for diary in diaries
        for fact in (*diary.requests, *diary.waits)
        if isinstance(fact, ClaimDone) and any(lease.began_at > moment for lease in fact.leases)
    )
    return min(claims, default=None)


async def browse(store: Store, queue: str, states: Sequence[StoredState]) -> list[StoredItem]:
    """All items of a queue in these states."""
    items: list[StoredItem] = []
    cursor: str | None = None
    while True:
        page = await store.browse(queue, states=states, cursor=cursor, limit=1000)
        items += page.items
        cursor = page.cursor
        if cursor is None:
            return items


async def drain(store: Store, queue: str, keys: set[str]) -> set[str]:
    """Claim and acknowledge all that is left, as leases expire; returns what cannot be had."""
    missing = set(keys)
    deadline = time.monotonic() + LONG
    while missing and time.monotonic() < deadline:
        [claimed] = await store.claim([Claim(((queue, 10_000),), 10_000, None, LONG)])
        acks = [Ack(queue, item.key, item.token) for item in claimed]
        answers = await store.settle(acks)
        missing -= {
            item.key for item, answer in zip(claimed, answers, strict=True) if answer is None
        }
        if missing:
            await asyncio.sleep(0.05)
    return missing
