"""PgBouncer before a server of the tests: a proxy that gives each transaction another connection.

It comes with no wheel: `LEASEDKEYQ_TEST_PGBOUNCER` names the program where the system has it, and
the tests with it are there only then.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from tests.servers.postgres import PASSWORD, USER, free_port

PROGRAM = os.environ.get("LEASEDKEYQ_TEST_PGBOUNCER", "")
PATIENCE = 30.0


class PgBouncer:
    """In transaction mode, with few connections to the server, so that clients share them."""

    def __init__(self, url: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="leasedkeyq-pgbouncer-"))
        server = urlsplit(url)
        port = free_port()
        self.url = url.replace(f":{server.port}/", f":{port}/")
        users, settings = self.folder / "users", self.folder / "settings"
        users.write_text(f'"{USER}" "{PASSWORD}"\n')
        settings.write_text(
            f"""
            [databases]
            * = host=127.0.0.1 port={server.port}
            [pgbouncer]
            listen_addr = 127.0.0.1
            listen_port = {port}
            unix_socket_dir =
            auth_type = plain
            auth_file = {users}
            pool_mode = transaction
            default_pool_size = 2
            """.replace("            ", "")
        )
        account: dict[str, Any] = {}
        if os.geteuid() == 0:  # it refuses to run as root
            account = {"user": "nobody", "group": "nogroup", "extra_groups": []}
            for path in (self.folder, users, settings):
                shutil.chown(path, "nobody", "nogroup")
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [PROGRAM, settings], stdout=log, stderr=log, cwd=self.folder, **account
            )
        self._wait(port)

    def _wait(self, port: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except ConnectionRefusedError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    said = (self.folder / "log").read_text()
                    raise RuntimeError(f"no PgBouncer: {said[-2000:]}") from None
                time.sleep(0.02)
            else:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
