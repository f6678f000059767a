"""A proxy between a client and a server, which loses what it is told to lose."""

import select
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

Direction = Literal["request", "reply"]
Verdict = Literal["pass", "cut", "half", "lose"]
Judge = Callable[[Direction, int, bytes], Verdict]
"""Says what becomes of a piece of data: its direction, its number in that direction, the data.

``"cut"``: it is lost, and so is the connection. ``"half"``: the first half of it arrives, then the
connection is lost. ``"lose"``: it is lost, and the connection stays.
"""
SIZE = 1 << 20


def let_all_pass(_: Direction, _number: int, _data: bytes) -> Verdict:
    """Nothing is lost."""
    return "pass"


class Proxy:
    """Listens on a port of its own and passes everything on, piece by piece, as the judge says.

    A client that waits for the reply to each request sends each request as one piece, if it is
    not too large.

    Args:
        target: The port of a server on this machine, or its socket.
        tls: Speaks TLS with the clients.
    """

    def __init__(self, target: int | Path, *, tls: ssl.SSLContext | None = None) -> None:
        self.judge: Judge = let_all_pass
        self.refuse = False
        """Whether new connections are closed at once."""
        self._target = target
        self._tls = tls
        self._counts: Counter[Direction] = Counter()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def count(self, direction: Direction) -> int:
        """How many pieces have come in a direction."""
        return self._counts[direction]

    def begin(self, judge: Judge = let_all_pass) -> None:
        """Count from 0 again, with another judge."""
        with self._lock:
            self._counts.clear()
            self.judge = judge

    def cut_all(self) -> None:
        """Lose all connections."""
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop listening, and lose all connections."""
        self.refuse = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), name="proxy", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server: socket.socket | None = None
        try:
            if self.refuse:
                return
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
            server = self._reach()
            with self._lock:
                self._open |= {client, server}
            self._pass_on(client, server)
        except OSError:
            return
        finally:
            with self._lock:
                self._open -= {client} if server is None else {client, server}
            client.close()
            if server is not None:
                server.close()

    def _reach(self) -> socket.socket:
        if isinstance(self._target, int):
            return socket.create_connection(("127.0.0.1", self._target))
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(self._target))
        return server

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        while True:
            ready: list[socket.socket] = [client]
            if not isinstance(client, ssl.SSLSocket) or not client.pending():
                ready, _, _ = select.select([client, server], [], [])
            for source in ready:
                data = source.recv(SIZE)
                if not data:
                    return
                direction: Direction = "request" if source is client else "reply"
                with self._lock:
                    self._counts[direction] += 1
                    verdict = self.judge(direction, self._counts[direction], data)
                if verdict == "cut":
                    return
                if verdict == "lose":
                    continue
                target = server if source is client else client
                target.sendall(data[: len(data) // 2] if verdict == "half" else data)
                if verdict == "half":
                    return
