"""Documents are edited faster than they can be rendered, and a worker dies. Watch what happens.

Two editors put documents into a `LeasedKeyQueue`. Three workers render whatever is next, one
worker renders nothing but the front page. A document is never rendered twice at a time; an edit
that comes in meanwhile waits beside it. Then a worker dies with a document in its hands: its
lease expires, and somebody else renders that document.

On a terminal the picture is live. Elsewhere every event is a line.
"""

import asyncio
import sys
from collections import Counter

from leasedkeyq import Lease, LeasedKeyQueue, QueueObserver

DOCUMENTS = ["front page", "sports", "weather", "letters", "recipes", "chess"]
COLOURS = {"available": "33", "in_flight": "36", "buffered": "35", "done": "32", "lost": "31"}


class Screen(QueueObserver[str]):
    """Shows the queue: as a live picture on a terminal, as lines elsewhere."""

    def __init__(self, live: bool) -> None:
        self.live = live
        self.holders: dict[str, str] = {}
        self.rendered = Counter[str]()
        self.rendered_by = Counter[str]()
        self.lost = set[str]()
        self.edits = Counter[str]()
        self.takeovers = 0
        self.news: list[str] = []
        self.drawn = 0

    def say(self, text: str, colour: str = "") -> None:
        now = f"{asyncio.get_running_loop().time() - self.start:5.1f} s  "
        if not self.live:
            print(now + text, flush=True)
        else:
            self.news = [*self.news[-5:], self.paint(now + text, colour)]

    def paint(self, text: str, colour: str) -> str:
        return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if self.live and colour else text

    def on_put(self, key: str) -> None:
        self.edits[key] += 1

    def on_expire(self, key: str, attempt: int, held: float) -> None:
        holder = self.holders.pop(key)
        self.say(f"the lease of {holder} on '{key}' expired after {held:.1f} s", "lost")

    async def watch(self, queue: LeasedKeyQueue[str, int]) -> None:
        self.start = asyncio.get_running_loop().time()
        if not self.live:
            return
        while True:
            await self.draw(queue)
            await asyncio.sleep(0.05)

    async def draw(self, queue: LeasedKeyQueue[str, int]) -> None:
        states: dict[str, list[str]] = {}
        for item in await queue.snapshot():
            states.setdefault(item.key, []).append(item.state)
        lines = ["", f"  {'document':<12} {'state':<37} {'edits':>5} {'rendered':>9}"]
        for name in DOCUMENTS:
            here = states.get(name, [])
            text, colour = "-", ""
            if "in_flight" in here:
                text, colour = f"leased to {self.holders.get(name, '?')}", "in_flight"
                if "buffered" in here:
                    text, colour = text + ", an edit waits", "buffered"
            elif here:
                text, colour = "waits", "available"
            state = self.paint(f"{text:<37}", colour)
            lines.append(f"  {name:<12} {state} {self.edits[name]:>5} {self.rendered[name]:>9}")
        lines += ["", *(f"  {line}" for line in self.news), *[""] * (6 - len(self.news))]
        if self.drawn:
            print(f"\x1b[{self.drawn}A", end="")
        print("".join(f"\x1b[2K{line}\n" for line in lines), end="", flush=True)
        self.drawn = len(lines)


async def edit(name: str, queue: LeasedKeyQueue[str, int], screen: Screen, order: str) -> None:
    for version, letter in enumerate(order, 1):
        document = DOCUMENTS[int(letter)]
        busy = document in await queue.inflight_keys()
        await queue.put(document, version, if_in_flight="buffer")
        screen.say(f"{name} edited '{document}'" + (": waits beside the lease" if busy else ""))
        await asyncio.sleep(0.45)


async def render(name: str, queue: LeasedKeyQueue[str, int], screen: Screen, key: str = "") -> None:
    while True:
        document, _, lease = await (queue.take(key) if key else queue.get())
        screen.holders[document] = name
        taken_over = document in screen.lost
        screen.lost.discard(document)
        screen.takeovers += taken_over
        screen.say(f"{name} took '{document}'" + " over" * taken_over, "in_flight")
        await work(name, document, lease, queue, screen)


async def work(
    name: str, document: str, lease: Lease[str], queue: LeasedKeyQueue[str, int], screen: Screen
) -> None:
    await asyncio.sleep(0.7)
    if name == "worker 2" and screen.rendered_by[name] == 1:
        screen.lost.add(document)
        screen.say(f"{name} died while rendering '{document}'", "lost")
        raise SystemError("the worker died")
    await queue.ack(lease)
    screen.holders.pop(document, None)
    screen.rendered[document] += 1
    screen.rendered_by[name] += 1
    screen.say(f"{name} rendered '{document}'", "done")


INTRODUCTION = """\
Two editors put documents into a queue, four workers render them. Each document
is rendered by one worker at a time; an edit that comes meanwhile waits beside
it. Worker 2 will die with a document in its hands: watch its lease expire.
"""


async def main() -> None:
    print(INTRODUCTION)
    screen = Screen(live=sys.stdout.isatty())
    async with LeasedKeyQueue[str, int](default_lease_timeout=2, observer=screen) as queue:
        watcher = asyncio.create_task(screen.watch(queue))
        await asyncio.sleep(0)
        workers = [
            asyncio.create_task(render(f"worker {number}", queue, screen)) for number in (1, 2, 3)
        ]
        workers.append(asyncio.create_task(render("front desk", queue, screen, "front page")))
        async with asyncio.TaskGroup() as editors:
            editors.create_task(edit("Ada", queue, screen, "01021304101"))
            editors.create_task(edit("Bob", queue, screen, "53201234050"))
        await queue.join()
        for task in (*workers, watcher):
            task.cancel()
        results = await asyncio.gather(*workers, return_exceptions=True)
        if screen.live:
            await screen.draw(queue)
    died = sum(isinstance(result, SystemError) for result in results)
    edits, rendered = sum(screen.edits.values()), sum(screen.rendered.values())
    print(
        f"\n{edits} edits of {len(DOCUMENTS)} documents became {rendered} renderings.\n"
        f"{died} worker died, {screen.takeovers} document was taken over, none was lost."
    )
    if died != 1 or screen.takeovers != 1:
        raise SystemExit("the demo did not go as planned")


if __name__ == "__main__":
    asyncio.run(main())
