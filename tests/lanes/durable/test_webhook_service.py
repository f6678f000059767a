"""The webhook service of the docs, as it is printed: a server, two workers, customers that fail."""

import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.forks import Python
from tests.servers.postgres import free_port
from tests.servers.urls import empty_store

SERVICE = Path(__file__).resolve().parents[3] / "examples" / "webhook_service"
PATIENCE = 60.0
EVENTS = 12
FLAKY = {3: 2, 7: 1}
"""Events that fail, and how often."""
HOPELESS = 5
"""The event that no customer ever takes, until somebody repairs it."""


class Customers:
    """The servers of all customers, in one: what each got, in which order, and whether at once."""

    def __init__(self) -> None:
        self.got: dict[str, list[int]] = {}
        self.attempts: dict[tuple[str, int], int] = {}
        self.overlaps = 0
        self.repaired = False
        self._busy: set[str] = set()
        self._lock = threading.Lock()

    def take(self, customer: str, number: int) -> int:
        """Take an event; returns the status of the answer."""
        with self._lock:
            self.overlaps += customer in self._busy
            self._busy.add(customer)
            attempt = self.attempts[customer, number] = self.attempts.get((customer, number), 0) + 1
        time.sleep(0.005)
        with self._lock:
            self._busy.discard(customer)
            broken = number == HOPELESS and customer == "acme" and not self.repaired
            if broken or attempt <= FLAKY.get(number, 0):
                return 503
            self.got.setdefault(customer, []).append(number)
            return 200


@contextmanager
def serve(customers: Customers) -> Generator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = customers.take(self.path.strip("/"), json.loads(body)["number"])
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name is given
            """Tell nobody."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def program(*arguments: str, url: str) -> Generator[None]:
    """A process of the service, told to end at the end."""
    process = Python("-m", *arguments, cwd=SERVICE, env={**os.environ, "DATABASE_URL": url})
    try:
        yield
        assert process.poll() is None, "it ended by itself"
        process.terminate()
        # uvicorn closes everything, and then lets the signal end it.
        assert process.wait(PATIENCE) in (0, -signal.SIGTERM)
    finally:
        process.kill()
        process.wait()


def ask(method: str, url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.loads(answer.read())


def until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


def answers(url: str) -> bool:
    try:
        return bool(ask("GET", f"{url}/dead-letters") == [])
    except urllib.error.URLError:
        return False


def test_every_event_of_a_customer_is_delivered_in_order(tmp_path: Path) -> None:
    customers = Customers()
    names = ["acme", "zoo", "bank"]
    port = free_port()
    service = f"http://127.0.0.1:{port}"
    with ExitStack() as running:
        database = running.enter_context(empty_store("postgresql", tmp_path))
        hooks = running.enter_context(serve(customers))
        options = ("--port", str(port), "--log-level", "warning")
        running.enter_context(program("uvicorn", "webhooks:app", *options, url=database))
        for _ in range(2):
            worker = ("leasedkeyq", "worker", "webhooks:manager", "--log-level", "error")
            running.enter_context(program(*worker, url=database))
        until(lambda: answers(service))
        for name in names:
            ask("PUT", f"{service}/customers/{name}", {"url": f"{hooks}/{name}"})
        for number in range(EVENTS):
            for name in names:
                ask("POST", f"{service}/customers/{name}/events", {"number": number})
        whole = list(range(EVENTS))
        others = [number for number in whole if number != HOPELESS]
        until(lambda: len(customers.got.get("acme", ())) == len(others))
        until(lambda: all(len(customers.got.get(name, ())) == EVENTS for name in names[1:]))
        until(lambda: ask("GET", f"{service}/dead-letters"))
        [letter] = ask("GET", f"{service}/dead-letters")
        assert letter["customer"] == "acme"
        assert letter["event"]["event"] == {"number": HOPELESS}
        customers.repaired = True
        ask("POST", f"{service}/dead-letters/{letter['id']}/requeue")
        until(lambda: len(customers.got["acme"]) == EVENTS)
    assert customers.got == {"acme": [*others, HOPELESS], "zoo": whole, "bank": whole}
    assert customers.overlaps == 0
    assert customers.attempts["zoo", 3] == 3
