"""`HealthServer`: tells over HTTP how a worker is, from a thread of its own."""

import io
import logging
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import TCPServer
from typing import Any, ClassVar, Final, NamedTuple, Protocol, cast

logger = logging.getLogger("leasedkeyq.cli.health")

HEAD: Final = 8192
"""Bytes of a request that are read: its first line and its headers. A body is not."""
SLOWEST: Final = 5.0
"""Seconds within which a request must have come."""
AT_A_TIME: Final = 16
"""Requests that are answered at a time; more are turned away."""
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Health(NamedTuple):
    """An answer: whether all is well, and what to tell people."""

    well: bool
    text: str


class HealthSource(Protocol):
    """Knows how a worker is. It is asked in threads, and answers within seconds."""

    def live(self) -> Health:
        """Whether the worker works at all; if not, it should be started anew."""
        ...

    def ready(self) -> Health:
        """Whether it can run commands at present."""
        ...

    def metrics(self) -> str:
        """Its metrics, in the text format of Prometheus."""
        ...


class PortError(Exception):
    """The address for the health server cannot be used."""


class HealthServer:
    """Serves ``/livez``, ``/readyz`` and ``/metrics`` until it is closed.

    Args:
        host: The address to listen at.
        port: The port; 0 for any that is free.

    Attributes:
        port: The port.

    Raises:
        PortError: The address cannot be used.
    """

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._server = _Server((host, port), family)
        except OSError as error:
            where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            why = error.strerror or error
            raise PortError(f"--health: cannot listen at {where}: {why}") from error
        self.port: int = self._server.server_address[1]
        self._thread: threading.Thread | None = None

    def start(self, source: HealthSource) -> None:
        """Begin to answer."""
        self._server.source = source
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, name="leasedkeyq health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop to listen. What is being answered may go on for a moment."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(HTTPServer):
    """Answers each request in a thread, but never more than `AT_A_TIME`."""

    allow_reuse_address = True
    source: HealthSource

    def __init__(self, address: tuple[str, int], family: int) -> None:
        self.address_family = family
        self._free = threading.BoundedSemaphore(AT_A_TIME)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # Not that of `HTTPServer`: it looks the name of the host up, which may take long.
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        thread = threading.Thread(target=self._answer, args=(request, client_address), daemon=True)
        thread.start()

    def _answer(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:
            logger.debug("a request for the health of the worker failed", exc_info=True)
        finally:
            self.shutdown_request(request)
            self._free.release()


class _Handler(BaseHTTPRequestHandler):
    timeout: ClassVar[float | None] = SLOWEST

    def setup(self) -> None:
        super().setup()
        # What is read is bounded here: the request line and the headers, within a time.
        self.rfile = io.BufferedReader(cast("io.RawIOBase", io.BytesIO(self._head())))

    def _head(self) -> bytes:
        """The first line and the headers; what is longer or slower is cut off, and so refused."""
        until = time.monotonic() + SLOWEST
        head = b""
        while b"\r\n\r\n" not in head and len(head) < HEAD:
            self.connection.settimeout(max(0.01, until - time.monotonic()))
            try:
                more = self.connection.recv(HEAD - len(head))
            except OSError:
                return b""
            if not more:
                break
            head += more
        return head if b"\r\n\r\n" in head else b""

    def do_GET(self) -> None:  # the name that http.server looks for
        source = cast("_Server", self.server).source
        path = self.path.partition("?")[0]
        ask: Callable[[], Health | str]
        if path == "/livez":
            ask = source.live
        elif path == "/readyz":
            ask = source.ready
        elif path == "/metrics":
            ask = source.metrics
        else:
            self._send(HTTPStatus.NOT_FOUND, "there are /livez, /readyz and /metrics\n")
            return
        try:
            answer = ask()
        except Exception as error:  # of a store, or of a collector of the program
            logger.exception("%s cannot be answered", path)
            answer = Health(False, repr(error))
        if isinstance(answer, str):
            self._send(HTTPStatus.OK, answer, METRICS_TYPE)
        else:
            status = HTTPStatus.OK if answer.well else HTTPStatus.SERVICE_UNAVAILABLE
            self._send(status, f"{answer.text}\n")

    do_HEAD = do_GET  # noqa: N815  # the name that http.server looks for

    def _send(self, status: HTTPStatus, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "leasedkeyq"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name there
        logger.debug(format, *args)
