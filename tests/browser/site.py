"""A page with something in every state: `python -m tests.browser.site FOLDER TOKEN`.

It prints its port when it answers. The store is a SQLite file; one process runs a worker, and
serves the page.
"""

import asyncio
import socket
import sys
import time
from pathlib import Path
from typing import Any

import uvicorn

from leasedkeyq import connect
from leasedkeyq.lanes import (
    LaneConfig,
    QueueManagerBuilder,
    RateLimitConfig,
    RetryPolicy,
    current_command,
)
from leasedkeyq.web import dashboard

LARGE = 12345678901234567890123
CANARY = "canary-5e3f"
PAYLOADS = [
    "<script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    '"><svg onload=window.hacked=1>',
    "'-window.hacked=1-'",
    "javascript:window.hacked=1",
    "<iframe srcdoc='<script>parent.hacked=1</script>'>",
    "{{ 7 * 7 }}{% raw %}",
    "</title><script>window.hacked=1</script>",
    "</textarea><script>window.hacked=1</script>",
    "<a href=javascript:window.hacked=1>x</a>",
    "<style>*{display:none}</style>",
    "<!--<script>-->window.hacked=1",
    "<details open ontoggle=window.hacked=1>",
    "<input autofocus onfocus=window.hacked=1>",
    "<body onload=window.hacked=1>",
    "<math><mtext><script>window.hacked=1</script>",
    "<base href=https://elsewhere.example/>",
    "<link rel=stylesheet href=https://elsewhere.example/x.css>",
    "<meta http-equiv=refresh content='0;url=https://elsewhere.example/'>",
    "<form action=https://elsewhere.example/><button>x",
    "<object data=https://elsewhere.example/x>",
    "<embed src=https://elsewhere.example/x>",
    "<video src=x onerror=window.hacked=1>",
    "<marquee onstart=window.hacked=1>",
    "<template><script>window.hacked=1</script></template>",
    "&lt;script&gt;window.hacked=1&lt;/script&gt;",
    "&#60;script&#62;window.hacked=1&#60;/script&#62;",
    "%3Cscript%3Ewindow.hacked=1%3C/script%3E",
    "\\u003cscript\\u003ewindow.hacked=1\\u003c/script\\u003e",
    "<scr<script>ipt>window.hacked=1</scr</script>ipt>",
    "<SCRIPT>window.hacked=1</SCRIPT>",
    "<svg><script>window.hacked=1</script></svg>",
    "<svg><animate onbegin=window.hacked=1 attributeName=x>",
    "<x onclick=window.hacked=1 tabindex=1 id=x>",
    "data:text/html,<script>window.hacked=1</script>",
    "`${window.hacked=1}`",
    "${window.hacked=1}",
    "#{window.hacked=1}",
    "\u2028window.hacked=1\u2029",
    "\x1b[31mred",
    "\u202egnp.exe",
    "<!DOCTYPE x [<!ENTITY y SYSTEM 'file:///etc/passwd'>]>&y;",
    "data: hello\n\nevent: part\ndata: <script>window.hacked=1</script>",
    "'; DROP TABLE items; --",
    "]]><script>window.hacked=1</script>",
    "<noscript><img src=x onerror=window.hacked=1></noscript>",
    "<select onfocus=window.hacked=1 autofocus>",
    "<img srcset='x 1x' onerror=window.hacked=1>",
    "onmouseover=window.hacked=1 x=",
    '" onmouseover="window.hacked=1',
]
"""Fifty texts that would run, load or redirect, if a page took them for its own."""


async def serve(folder: Path, token: str) -> None:
    store = connect(f"sqlite:///{folder / 'site.db'}")
    quick = LaneConfig(1, 3, retry_policy=RetryPolicy.fixed(1, 0.2))
    slow = LaneConfig(0, 2, retry_policy=RetryPolicy.fixed(2, 3600), timeout=600)
    limited = LaneConfig(0, 2, rate_limit=RateLimitConfig.per_minute(1))
    builder = QueueManagerBuilder().with_lane("orders", quick, 0).with_lane("slow", slow, 1)
    builder.with_lane("limited", limited, 2).with_lane("closed", quick, 3)
    manager = builder.with_storage(store).build()

    @manager.command("order", lane="orders")
    async def order(customer: str, number: int, card: str = "") -> dict[str, Any]:
        """Take an order."""
        if number < 0:
            raise ValueError(f"no order {number} of {customer}")
        return {"customer": customer, "number": number, "large": LARGE, "card": card}

    @manager.command("wait", lane="slow")
    async def wait_for_the_end(seconds: float, label: str = "") -> None:
        current_command().progress(0.42, f"waiting {label}")
        await asyncio.sleep(seconds)

    @manager.command("block", lane="slow")
    def block(seconds: float) -> None:
        time.sleep(seconds)

    @manager.command("fail later", lane="slow")
    async def fail_later(text: str) -> None:
        raise ConnectionError(text)

    manager.schedule("nightly", "0 3 * * 1-5", order("night", 1), tz="Europe/Berlin")
    await manager.start()
    await manager.queue().pause("closed")
    for number in range(40):
        await manager.submit(order(f"customer {number % 5}", number, CANARY), key=f"c{number % 5}")
    for number in range(1, 8):
        await manager.submit(order("somebody", -number))
    await manager.submit(fail_later("the bank did not answer"), key="retry-me")
    await manager.submit("closed", order("held", 1), key="held")
    await manager.submit("closed", order("held", LARGE), key="large")
    for number in range(150):
        await manager.submit("closed", order("held", number, CANARY), key=f"waiting-{number:03}")
    for number in range(5):
        await manager.submit("closed", order("line", number), key="in-line")
    await manager.submit("closed", order("later", 1), key="later", delay=3600)
    await manager.submit(wait_for_the_end(3600, "for ever"), key="runs")
    plain = store.queue("plain")
    for number, payload in enumerate(PAYLOADS):
        await plain.put(
            f"{number} {payload}"[:500].replace("\x00", ""), {payload: payload, "text": "a\nb"}
        )
    bad = store.queue("<img src=x onerror=window.hacked=1>")
    await bad.put("x", "y")
    for payload in PAYLOADS:
        await manager.submit(order(payload, -99), key=payload)
    while (await manager.stats()).lanes["orders"].pending:
        await asyncio.sleep(0.05)
    app = dashboard(
        {"site": store, "other": f"sqlite:///{folder / 'other.db'}"},
        token=token,
        viewer_token=f"viewer-{token}",
        redact=["card"],
        trace_url="https://traces.example/{trace_id}",
        interval=0.5,
    )
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(100)
    config = uvicorn.Config(app, log_level="warning", lifespan="on")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    print(listener.getsockname()[1], flush=True)
    await serving


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
