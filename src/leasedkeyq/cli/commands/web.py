"""``leasedkeyq web``: the web page of one or several stores, served until it is told to stop."""

import asyncio
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from leasedkeyq.cli.exit_codes import DONE, NO_STORE
from leasedkeyq.cli.store_command import (
    URL_VARIABLE,
    CommandFailedError,
    hidden,
    open_store,
    store_option,
)

if TYPE_CHECKING:
    from leasedkeyq.web import User

_NAMED = re.compile(r"([A-Za-z0-9_.-]+)=(.*)", re.DOTALL)
_EVERYWHERE = ("", "0.0.0.0", "::")  # they are told apart, not listened at


@click.command("web", short_help="Serve the web page of stores.")
@click.argument("stores", nargs=-1, metavar="[STORE]...")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="The port; 0 takes any that is free.",
)
@click.option(
    "--token",
    envvar="LEASEDKEYQ_WEB_TOKEN",
    metavar="TOKEN",
    help="Whoever has it may look and change. Better: LEASEDKEYQ_WEB_TOKEN, which `ps` hides.",
)
@click.option(
    "--viewer-token",
    envvar="LEASEDKEYQ_WEB_VIEWER_TOKEN",
    metavar="TOKEN",
    help="Whoever has it may look. Also: LEASEDKEYQ_WEB_VIEWER_TOKEN.",
)
@click.option(
    "--user",
    "users",
    multiple=True,
    metavar="NAME:[ROLE:]HASH",
    help="Who logs in by name and password, as operator or viewer. HASH: see --hash-password.",
)
@click.option(
    "--users",
    "users_file",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="A file with one such user in each line.",
)
@click.option("--hash-password", is_flag=True, help="Ask for a password, print its hash, and end.")
@click.option("--read-only", is_flag=True, help="Nobody may change anything.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A name by which people reach the page; *.example.com for all below one.",
)
@click.option(
    "--redact",
    multiple=True,
    metavar="FIELD",
    help="A field of values that is not shown: password, or customer.card.number.",
)
@click.option("--trace-url", default="", metavar="URL", help="Of a trace, with {trace_id} in it.")
@click.option("--title", default="leasedkeyq", show_default=True, help="The name of the page.")
@click.option("--certificate", type=click.Path(exists=True), metavar="FILE", help="For HTTPS.")
@click.option("--certificate-key", type=click.Path(exists=True), metavar="FILE", help="Its key.")
@click.option("--proxy", metavar="ADDRESS", help="A proxy whose X-Forwarded headers are believed.")
@click.option(
    "--store-option",
    "store_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option for each of the stores, such as schema=shop.",
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def web(
    stores: Sequence[str],
    *,
    host: str,
    port: int,
    token: str | None,
    viewer_token: str | None,
    users: Sequence[str],
    users_file: Any,
    hash_password: bool,
    read_only: bool,
    allowed_hosts: Sequence[str],
    redact: Sequence[str],
    trace_url: str,
    title: str,
    certificate: str | None,
    certificate_key: str | None,
    proxy: str | None,
    store_options: Sequence[str],
) -> int:
    """Serve the web page of stores until Ctrl-C or SIGTERM.

    Each STORE is a URL, or NAME=URL to give it a name on the page; without one, LEASEDKEYQ_URL.

    It listens at 127.0.0.1. Any other address needs a token or users, or it does not start: all
    that is queued can be seen and changed there.

    \b
    Examples:
      leasedkeyq web sqlite:///jobs.db
      leasedkeyq web shop=postgresql://shop@db/shop mail=redis://cache/0
      leasedkeyq web --hash-password
      leasedkeyq web --host 0.0.0.0 --users users.txt --allowed-host jobs.local
    """
    from leasedkeyq.web.access.users import hash_password as hashed  # noqa: PLC0415

    if hash_password:
        click.echo(hashed(_new_password()))
        return DONE
    # The page is imported late: --hash-password and --help need none of it.
    from leasedkeyq.web import dashboard  # noqa: PLC0415
    from leasedkeyq.web.server import AddressInUseError, serve  # noqa: PLC0415

    options = dict(map(store_option, store_options))
    for secret in filter(None, (token, viewer_token)):
        hidden.add("", {"token": secret})
    lines = [*users, *(users_file.read().splitlines() if users_file is not None else ())]
    page = dashboard(
        _checked(stores, options),
        store_options=options,
        token=token,
        viewer_token=viewer_token,
        users=[_user(line) for line in lines if line.strip() and not line.startswith("#")],
        read_only=read_only,
        allowed_hosts=[*allowed_hosts, *([] if host in _EVERYWHERE else [host])],
        redact=redact,
        secret=os.environ.get("LEASEDKEYQ_WEB_SECRET") or None,
        trace_url=trace_url,
        title=title,
    )
    names = ", ".join(page.stores)

    def started(address: str) -> None:
        click.echo(f"{address} shows {names}. Ctrl-C ends it.")

    try:
        serve(
            page,
            host=host,
            port=port,
            certificate=certificate,
            certificate_key=certificate_key,
            proxy=proxy,
            started=started,
        )
    except AddressInUseError as error:
        raise CommandFailedError(str(error), NO_STORE) from error
    return DONE


def _checked(words: Sequence[str], options: dict[str, Any]) -> dict[str, str] | list[str]:
    """The URLs of the stores by name, or in their order; each store must be there now."""
    given = [word for word in words or [os.environ.get(URL_VARIABLE, "")] if word]
    if not given:
        raise click.UsageError(
            f"no store: write its URL, such as sqlite:///jobs.db, or set {URL_VARIABLE}"
        )
    found = [_NAMED.fullmatch(word) for word in given]
    urls = [word if named is None else named[2] for word, named in zip(given, found, strict=True)]
    for url in urls:
        hidden.add(url, options)
        asyncio.run(_look(url, options))
    names = [named[1] for named in found if named is not None]
    if not names:
        return urls
    if len(set(names)) < len(urls):
        raise click.UsageError("give all stores a name, each its own: NAME=URL")
    return dict(zip(names, urls, strict=True))


async def _look(url: str, options: dict[str, Any]) -> None:
    async with open_store(url, options) as store:
        await store.count(["leasedkeyq.lanes"])


def _user(line: str) -> "User":
    from leasedkeyq.web.access.users import ROLES, Role, User  # noqa: PLC0415

    name, _, rest = line.strip().partition(":")
    role, colon, password_hash = rest.partition(":")
    if not colon:
        role, password_hash = "operator", rest
    roles: dict[str, Role] = {known: known for known in ROLES}
    if role not in roles or not password_hash:
        raise click.UsageError(
            f"a user is NAME:HASH or NAME:ROLE:HASH, and the role viewer or operator; "
            f"that of {name!r} is not"
        )
    return User(name=name, role=roles[role], password_hash=password_hash)


def _new_password() -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\n")
    password: str = click.prompt(
        "Password", hide_input=True, confirmation_prompt="Once more", err=True
    )
    return password
