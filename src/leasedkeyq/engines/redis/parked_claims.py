"""Claims that are parked on the server: what is put is leased at once, without another trip."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from leasedkeyq.engines.redis.wire import Park, Unpark, given
from leasedkeyq.errors import StoreError
from leasedkeyq.model.admission import check_claims
from leasedkeyq.model.requests import Claim, Claimed
from leasedkeyq.stores.batching import Batcher
from leasedkeyq.stores.store import Claimer, Store, claims_of
from leasedkeyq.stores.take_back import UnwantedClaims

MOST_QUEUES: Final = 50
"""Of a claim that is parked."""
REMEMBERED: Final = 100
"""Items whose messages may be late."""


class ParkedClaimer(Claimer):
    """Claims for one worker, whose claim is parked on the server while it is idle.

    A parked claim has a number, its turn, and each turn is given one item at most. It arrives by
    a message, or, whatever became of the message, by the call that takes the claim back: the first
    of the two counts. A claim is taken back before another one is made, and that one is not made
    if the first has been given something: the worker never has more than it asked for.

    Args:
        store: Where it claims.
        batcher: The calls of the store.
        worker: Its name, which no other worker has.
        lifetime: Seconds for which a claim is parked. As long, a worker that has stopped without
            the server's noticing may still be given an item.
        listen: Has what is published for it passed on, until the returned function is called.
        take: Takes what was leased.
    """

    parks = True

    def __init__(
        self,
        store: Store,
        batcher: Batcher[Any, Any],
        *,
        worker: str,
        lifetime: float,
        listen: Callable[[Callable[[bytes], None]], Callable[[], None]],
        take: Callable[[Claimed], None],
    ) -> None:
        super().__init__(store)
        self._batcher = batcher
        self._worker = worker
        self._lifetime = lifetime
        self._take = take
        self._turn = 0
        self._parked = False
        """Whether the claim of this turn is parked, or may be, and has been given nothing."""
        self._retired = False
        self._tokens: deque[str] = deque(maxlen=REMEMBERED)
        """Of what was given: a message may come when the worker has been given more since."""
        self._unwanted = UnwantedClaims(batcher.submit_many)
        self._stop_listening = listen(self._given)

    async def claim(self, requests: Sequence[Claim], *, idle: bool) -> list[tuple[Claimed, ...]]:
        """As `Claimer.claim`."""
        if self._retired:
            return await super().claim(requests, idle=idle)
        back = self._unpark(len(requests))
        park = self._park(requests) if idle else []
        if not back and not park:
            return await super().claim(requests, idle=idle)
        check_claims(requests)
        return await self._store.call_as("claim", partial(self._claim, back, park), requests)

    async def _claim(
        self, back: Sequence[Unpark], park: Sequence[Park], requests: Sequence[Claim]
    ) -> list[tuple[Claimed, ...]]:
        # If one of them waited for another call, more could be claimed than there is room for.
        answers = await self._batcher.submit_many([*back, *requests, *park], alone=bool(back))
        parked = answers.pop() if park else 0
        if back:
            self._unparked(answers.pop(0))
        if parked == 0:
            self._parked = False
        return claims_of(answers)

    async def close(self) -> None:
        """As `Claimer.close`."""
        try:
            if back := self._unpark(0):
                [answer] = await self._batcher.submit_many(back)
                self._unparked(answer)
                self._parked = False
        finally:
            self.abandon()

    def abandon(self) -> None:
        """As `Claimer.abandon`."""
        self._stop_listening()

    async def retire(self) -> None:
        """Before the store is closed: as `close`, but have taken back what was given meanwhile."""
        self._take = self._refuse
        self._retired = True
        await self.close()
        await self._unwanted.flush()

    def _refuse(self, item: Claimed) -> None:
        self._unwanted.add([item])

    def _park(self, requests: Sequence[Claim]) -> list[Park]:
        queues = sum(len(claim.queues) for claim in requests)
        limited = any(claim.caps or claim.key is not None for claim in requests)
        holders = len({claim.holder for claim in requests})  # what is given has one seed for all
        if limited or holders > 1 or not 0 < queues <= MOST_QUEUES:
            return []
        if not self._parked:
            self._turn += 1
        self._parked = True
        return [Park(self._worker, self._turn, self._lifetime, tuple(requests))]

    def _unpark(self, claims: int) -> list[Unpark]:
        return [Unpark(self._worker, self._turn, claims)] if self._parked else []

    def _unparked(self, answer: tuple[int, Claimed] | StoreError | None) -> None:
        if isinstance(answer, StoreError):
            raise answer
        if answer is not None:
            self._found(*answer)

    def _given(self, message: bytes) -> None:
        self._found(*given(message))

    def _found(self, turn: int, item: Claimed) -> None:
        """A claim was given something, which a message, taking it back, or both tell of."""
        if item.token in self._tokens:
            return
        self._tokens.append(item.token)
        if turn == self._turn and self._parked:
            self._parked = False
            self.observe_given(item)
            self._take(item)
        else:
            # The server has parked a claim a second time, as it has lost what it knew of the first.
            _ = self._unwanted.take_back([item])
