"""What a Redis or Valkey server keeps, by its own settings, and what it must not do."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, get_args

import msgspec

from leasedkeyq.engines.redis.link import Patience, RedisLink
from leasedkeyq.errors import StoreError
from leasedkeyq.model.findings import SchemaState
from leasedkeyq.model.requests import Durability

OLDEST: Final = (6, 2)
WAITAOF_SINCE: Final = (7, 2)
LEVELS: Final[tuple[Durability, ...]] = get_args(Durability)
SETTINGS: Final = ("appendonly", "appendfsync", "maxmemory-policy", "save")
UNKNOWN: Final = "unknown"
REPLICA: Final = ("slave", "replica")
"""What a replica calls itself, by INFO and by HELLO."""
FORMAT: Final = 3
"""How the keys of a store are laid out. Another number means that an older program, or a newer
one, would misread them."""
READABLE_FORMAT: Final = 2
"""The layout before: nothing of it has changed, but an item may have progress in its history."""

CHANGES: Final = {3: "items have progress; no key is written anew"}
"""What each version brings, in words: for people who look before they migrate."""

LOSES_A_SECOND: Final = (
    "the server syncs its append-only file once a second: a crash or a failover may lose the last "
    "second; set appendfsync to always"
)
LOSES_EVERYTHING: Final = (
    "the server keeps no append-only file: a restart loses everything since its last snapshot, or "
    "everything; set appendonly to yes"
)
NOT_SYNCED: Final = (
    "the server leaves it to the operating system when its append-only file reaches the disk: a "
    "crash may lose half a minute; set appendfsync to everysec or always"
)
SYNC_NOT_KNOWN: Final = (
    "this user may not read the server's settings (CONFIG GET): how often it syncs its append-only "
    "file is not known"
)
NOTHING_KNOWN: Final = (
    "this user may not ask the server for its settings (INFO and CONFIG GET): whether it keeps "
    "anything, and whether it throws items away when its memory is full, is not known"
)


class ServerFacts(msgspec.Struct, frozen=True):
    """What is known about a server."""

    durability: Durability
    warnings: list[str]
    version: tuple[int, int]


def examine(link: RedisLink, *, wait_aof: bool, required: Durability | None) -> ServerFacts:
    """Look at the server, or at all primaries of a cluster; the weakest counts.

    Raises:
        StoreError: The server cannot be used as it is set up.
    """
    nodes = _settings_of_primaries(link)
    found = [level_of(settings) for settings in nodes]
    version = min(version_in(settings) for settings in nodes)
    if version < OLDEST:
        raise StoreError(
            f"{link.address}: the server is version {version[0]}.{version[1]}; the Redis store "
            f"needs {OLDEST[0]}.{OLDEST[1]} or newer"
        )
    if wait_aof and version < WAITAOF_SINCE:
        raise StoreError(f"{link.address}: wait_aof needs a server of version 7.2 or newer")
    if wait_aof and any(settings["appendonly"] == "no" for settings in nodes):
        raise StoreError(
            f"{link.address}: wait_aof needs an append-only file; set the server's appendonly "
            "to yes"
        )
    if not link.clustered and any(settings["cluster"] == "1" for settings in nodes):
        raise StoreError(
            f"{link.address}: the server is a part of a cluster: open redis+cluster:// instead"
        )
    evicts = eviction(nodes)
    if evicts:
        raise StoreError(f"{link.address}: {evicts}")
    durability = LEVELS[min(LEVELS.index(level) for level, _ in found)]
    warnings = list(dict.fromkeys(warning for _, warning in found if warning))
    if required is not None and LEVELS.index(durability) < LEVELS.index(required):
        raise StoreError(
            f"{link.address}: the server gives durability {durability!r}, and {required!r} is "
            f"required: {'; '.join(warnings)}"
        )
    return ServerFacts(durability, warnings, version)


def look_again(link: RedisLink) -> list[str]:
    """What is to be said about the settings of a server that may have changed since it was opened.

    Raises:
        Exception: It cannot be asked now.
    """
    nodes = [settings for _, settings in look_at_nodes(link)]
    said = [warning for _, warning in map(level_of, nodes) if warning]
    evicts = eviction(nodes)
    return list(dict.fromkeys([*said, evicts] if evicts else said))


def look_at_nodes(link: RedisLink) -> list[tuple[Any, Mapping[str, str]]]:
    """The server, or all primaries of a cluster, with their settings as of now.

    Raises:
        StoreError: One cannot be asked now.
    """
    return [(node, _settings(link, node, patient=False)) for node in _nodes(link)]


def eviction(nodes: Iterable[Mapping[str, str]]) -> str:
    """What is to be said about servers that would throw items away; empty if none would."""
    for settings in nodes:
        policy = settings.get("maxmemory-policy", "noeviction")
        if policy != "noeviction":
            return (
                f"the server's maxmemory-policy is {policy}: it would throw items away when its "
                "memory is full. Set it to noeviction, or use another server"
            )
    return ""


def format_state(link: RedisLink, prefix: str) -> SchemaState:
    """The version of the layout of the keys of a store.

    Raises:
        StoreError: It cannot be asked now, or they are of a version that we would misread.
    """
    found: bytes | None = link.command("GET", f"{prefix}:format")
    if found is not None and found not in (b"%d" % FORMAT, b"%d" % READABLE_FORMAT):
        raise _unreadable(link, prefix, found)
    version = 0 if found is None else int(found)
    steps = [number for number in CHANGES if version < number]
    return SchemaState(
        version=version,
        wanted=FORMAT,
        changes=tuple(f"version {step}: {CHANGES[step]}" for step in steps)
        if version
        else (f"version {FORMAT}: the key {prefix}:format is set",),
    )


def check_format(link: RedisLink, prefix: str) -> None:
    """Mark the keys of a store with the version of their layout, unless they have a mark.

    Raises:
        StoreError: They are of a version that we would misread.
    """
    key = f"{prefix}:format"
    # Should it fail, as on a server without memory, the next store that is opened does it.
    with suppress(*link.failures):
        link.client.execute_command("SET", key, FORMAT, "NX")
    found: bytes | None = link.command("GET", key)
    if found is None or found == b"%d" % FORMAT:
        return
    if found == b"%d" % READABLE_FORMAT:
        # From now on, a program that could not read such an item is refused.
        with suppress(*link.failures):
            link.client.execute_command("SET", key, FORMAT, "XX")
        return
    raise _unreadable(link, prefix, found)


def _unreadable(link: RedisLink, prefix: str, found: bytes) -> StoreError:
    key = f"{prefix}:format"
    if not found.isdigit():
        return StoreError(
            f"{link.address}: the key {key!r} is not one of leasedkeyq; use another prefix"
        )
    way_out = "upgrade leasedkeyq"
    if int(found) < FORMAT:
        way_out = (
            "empty the queues with the leasedkeyq that filled them and delete the key "
            f"{key!r}, or use another prefix"
        )
    return StoreError(
        f"{link.address}: the prefix {prefix!r} has keys of version {int(found)}, this leasedkeyq "
        f"knows version {FORMAT}: {way_out}"
    )


def _settings_of_primaries(link: RedisLink) -> list[Mapping[str, str]]:
    """The settings of the server, or of all primaries of a cluster.

    Raises:
        StoreError: It is a replica. Sentinels need a while to agree on the next primary.
    """
    patience = Patience(link)
    while True:
        nodes = [_settings(link, node) for node in _nodes(link)]
        replica = next((each for each in nodes if each["role"] in REPLICA), None)
        if replica is None:
            return nodes
        if not link.sentinel:
            primary = replica.get("primary", "")
            raise StoreError(
                f"{link.address}: the server is a replica{primary and f' of {primary}'} and takes "
                "no changes: name its primary in the URL, or the Sentinels that know it "
                "(redis+sentinel://)"
            )
        time.sleep(patience.after(link.replica_error(), sent=False))
        link.client.connection_pool.disconnect()


def _nodes(link: RedisLink) -> Iterable[Any]:
    return link.patiently(link.client.get_primaries) if link.clustered else (None,)


def _settings(link: RedisLink, node: Any, *, patient: bool = True) -> Mapping[str, str]:
    """The settings, or as much of them as this user may see."""
    target = {} if node is None else {"target_nodes": node}

    def ask(*command: str) -> Any:
        def once() -> Any:
            return link.client.execute_command(*command, **target)

        if patient:
            return link.patiently(once)
        try:
            return once()
        except link.failures as error:
            raise link.explain(error) from error

    try:
        info = {_text(name): _text(value) for name, value in _pairs(ask("INFO"))}
    except StoreError as error:
        if not link.is_forbidden(error):
            raise
        hello = {_text(name): _text(value) for name, value in _pairs(ask("HELLO"))}
        return {
            "version": hello.get("version", "0.0"),
            "appendonly": UNKNOWN,
            "role": hello.get("role", ""),
            "cluster": str(int(hello.get("mode") == "cluster")),
        }
    found = {
        "version": info.get("redis_version", "0.0"),
        "appendonly": "yes" if info.get("aof_enabled") == "1" else "no",
        "maxmemory-policy": info.get("maxmemory_policy", "noeviction"),
        "cluster": info.get("cluster_enabled", "0"),
        "role": info.get("role", ""),
        "used-memory": info.get("used_memory", "0"),
        "maxmemory": info.get("maxmemory", "0"),
        "save-status": info.get("rdb_last_bgsave_status", "ok"),
        "append-status": info.get("aof_last_write_status", "ok"),
        "rewrite-status": info.get("aof_last_bgrewrite_status", "ok"),
    }
    if "master_host" in info:
        found["primary"] = f"{info['master_host']}:{info['master_port']}"
    for name in SETTINGS:
        try:
            answer = ask("CONFIG GET", name)
        except StoreError:
            break
        found.update((_text(key), _text(value)) for key, value in _pairs(answer))
    return found


def _pairs(answer: Any) -> Iterator[tuple[Any, Any]]:
    """QueueNames and values, whichever form redis-py gives them."""
    yield from answer.items() if hasattr(answer, "items") else zip(*[iter(answer)] * 2, strict=True)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def version_in(settings: Mapping[str, str]) -> tuple[int, int]:
    """The version of a server, as numbers."""
    major, minor = [*settings["version"].split("."), "0"][:2]
    return int(major), int(minor)


def level_of(settings: Mapping[str, str]) -> tuple[Durability, str]:
    """What is kept, and what is to be said about it.

    WAITAOF does not count: with ``everysec``, many servers answer it before they have synced.
    """
    if settings["appendonly"] == UNKNOWN:
        return "none", NOTHING_KNOWN
    if settings["appendonly"] != "yes":
        return "none", LOSES_EVERYTHING
    sync = settings.get("appendfsync")
    if sync == "always":
        return "power", ""
    if sync == "everysec":
        return "process", LOSES_A_SECOND
    return "process", SYNC_NOT_KNOWN if sync is None else NOT_SYNCED
