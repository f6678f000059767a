"""`serve`: the web page as a server of its own, until it is told to stop."""

import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leasedkeyq.web.access.guard import LONGEST_ADDRESS, MOST_HEADERS, is_loopback
from leasedkeyq.web.app import Dashboard

if TYPE_CHECKING:
    from uvicorn import Server

BACKLOG: Final = 512
LAST_ANSWERS: Final = 3
"""Seconds for requests that are under way at the end."""
MOST_CONNECTIONS: Final = 2000
LONGEST_REQUEST_HEAD: Final = LONGEST_ADDRESS + MOST_HEADERS


class UnprotectedAddressError(ValueError):
    """The page would answer other machines without asking who they are."""


class AddressInUseError(OSError):
    """The address cannot be had."""


def check_address(dashboard: Dashboard, host: str) -> None:
    """Refuse an address that others can reach, if anybody could use the page there.

    Raises:
        UnprotectedAddressError: Neither a token nor a user is there.
    """
    if dashboard.guard.open and not is_loopback(host):
        raise UnprotectedAddressError(
            f"{host} can be reached from other machines, and the page would ask nobody who they "
            "are: give it a token (--token, or LEASEDKEYQ_WEB_TOKEN) or users with password hashes "
            "(--user), or bind it to 127.0.0.1"
        )


def serve(
    dashboard: Dashboard,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    certificate: str | None = None,
    certificate_key: str | None = None,
    proxy: str | None = None,
    started: Callable[[str], None] | None = None,
) -> None:
    """Serve the page until SIGINT or SIGTERM. Blocks; runs its own event loop.

    Pages that are open end at once, others have three seconds.

    Args:
        dashboard: The page. Its stores are closed at the end.
        host: The address to bind to. One that others can reach needs a token or users.
        port: The port; 0 for any that is free.
        certificate: A file with a TLS certificate, for HTTPS.
        certificate_key: A file with its key.
        proxy: The address of a proxy whose ``X-Forwarded-`` headers are believed.
        started: Told the address of the page when it can be reached.

    Raises:
        UnprotectedAddressError: Anybody could use the page at this address.
        AddressInUseError: The address cannot be had.
        ModuleNotFoundError: uvicorn is not installed; the message says how to.
    """
    check_address(dashboard, host)
    try:
        import uvicorn  # noqa: PLC0415  # mounted elsewhere, the page does not need it
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            'serving the web page needs uvicorn; pip install "leasedkeyq[web]" brings it',
            name="uvicorn",
        ) from None
    bound = _bind(host, port)
    config = uvicorn.Config(
        dashboard,
        log_level="warning",
        access_log=False,  # addresses have keys of items in them
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=LAST_ANSWERS,
        limit_concurrency=MOST_CONNECTIONS,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=LONGEST_REQUEST_HEAD,
        proxy_headers=proxy is not None,
        forwarded_allow_ips=proxy,
        ssl_certfile=certificate,
        ssl_keyfile=certificate_key,
    )
    server = uvicorn.Server(config)
    scheme = "http" if certificate is None else "https"
    name = f"[{host}]" if ":" in host else host
    if started is not None:
        _tell_when_started(server, started, f"{scheme}://{name}:{bound.getsockname()[1]}/")
    with bound:
        server.run(sockets=[bound])


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        address = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0][4]
        return socket.create_server(
            (str(address[0]), port),
            family=family,
            backlog=BACKLOG,
            reuse_port=False,
        )
    except (OSError, OverflowError) as error:
        raise AddressInUseError(
            f"cannot listen at {host}, port {port}: {error}. Choose another --port, or 0 for any"
        ) from error


def _tell_when_started(server: "Server", started: Callable[[str], None], address: str) -> None:
    """Call `started` once the server answers."""
    startup = server.startup

    async def startup_and_tell(sockets: list[socket.socket] | None = None) -> None:
        await startup(sockets)
        if server.started:
            started(address)
            sys.stdout.flush()

    server.startup = startup_and_tell  # type: ignore[method-assign]  # uvicorn has no other hook
