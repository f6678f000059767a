"""What goes wrong with a Redis or Valkey server: durability, eviction, memory, rights, clocks."""

import time
from collections.abc import Mapping
from typing import Any, Final

from leasedkeyq.engines.redis.link import RedisLink
from leasedkeyq.engines.redis.server import (
    LEVELS,
    REPLICA,
    UNKNOWN,
    WAITAOF_SINCE,
    eviction,
    level_of,
    look_at_nodes,
    version_in,
)
from leasedkeyq.errors import StoreError
from leasedkeyq.model.findings import Finding, Severity
from leasedkeyq.model.requests import Durability
from leasedkeyq.stores.system.clock_check import clock_findings

MEMORY_SHARE: Final = 0.9
"""The share of its memory that a server may use."""
# The script of the store calls these. A server before version 7 cannot be asked without doing it.
RIGHTS: Final = """
local missing = {}
if redis.acl_check_cmd then
    local asked = {
        {'get', KEYS[1]}, {'set', KEYS[1], '1'}, {'del', KEYS[1]},
        {'hset', KEYS[1], 'f', '1'}, {'hget', KEYS[1], 'f'},
        {'zadd', KEYS[1], '1', 'm'}, {'zrange', KEYS[1], '0', '1'},
        {'rpush', KEYS[1], 'm'}, {'pexpire', KEYS[1], '1'},
        {'publish', ARGV[1], 'm'}, {'time'},
    }
    for _, command in ipairs(asked) do
        if not redis.acl_check_cmd(unpack(command)) then
            missing[#missing + 1] = command[1]
        end
    end
end
return missing
"""


def diagnose(
    link: RedisLink, *, prefix: str, channel: str, required: Durability | None
) -> list[Finding]:
    """Look at the server, or at all primaries of a cluster.

    Args:
        link: To the server.
        prefix: Of the keys of the store.
        channel: By which the store tells of changes.
        required: The durability that the store was asked to insist on.

    Raises:
        StoreError: It cannot be asked now.
    """
    found: list[Finding] = []
    for node, settings in look_at_nodes(link):
        where = link.address if node is None else f"{link.address}, node {node.name}"
        found += _of_settings(settings, where, required)
        before = time.time()
        theirs = _time_of(link, node)
        found += clock_findings(where, theirs, before, time.time())
    found += _of_rights(link, prefix, channel)
    return found


def _time_of(link: RedisLink, node: Any) -> float:
    target = {} if node is None else {"target_nodes": node}
    try:
        seconds, microseconds = link.client.execute_command("TIME", **target)
    except link.failures as error:
        raise link.explain(error) from error
    return int(seconds) + int(microseconds) / 1e6


def _of_settings(
    settings: Mapping[str, str], where: str, required: Durability | None
) -> list[Finding]:
    found: list[Finding] = []

    def add(code: str, severity: Severity, what: str, advice: str) -> None:
        found.append(Finding(code=code, severity=severity, what=what, where=where, advice=advice))

    if settings["role"] in REPLICA:
        what = "the server is a replica and takes no changes"
        add("server-read-only", "error", what, "name its primary in the URL, or the Sentinels")
    level, warning = level_of(settings)
    if settings["appendonly"] == UNKNOWN or "appendfsync" not in settings:
        advice = "allow this user INFO and CONFIG GET (ACL SETUSER ... +info +config|get)"
        add("settings-unknown", "note", warning or "not all settings can be read", advice)
    elif warning:
        what, _, advice = warning.rpartition("; ")
        weak = required is not None and LEVELS.index(level) < LEVELS.index(required)
        add("durability-weak", "error" if weak else "warning", what, advice)
    evicts = eviction([settings])
    if evicts:
        what, _, advice = evicts.rpartition(". ")
        add("eviction-policy", "error", what, advice)
    used, most = int(settings.get("used-memory", 0)), int(settings.get("maxmemory", 0))
    if most and used > MEMORY_SHARE * most:
        full = used >= most
        what = (
            f"the server uses {used / 1024**2:,.1f} of {most / 1024**2:,.1f} MiB of memory: "
            f"{'puts are refused' if full else 'soon puts are refused'}"
        )
        advice = "raise maxmemory, purge results and dead letters, or use a larger server"
        add(
            "memory-full" if full else "memory-full-soon",
            "error" if full else "warning",
            what,
            advice,
        )
    for name in ("save-status", "append-status", "rewrite-status"):
        if settings.get(name, "ok") != "ok":
            what = f"the server could not write its data to disk ({name}: {settings[name]})"
            advice = "look into its log; its disk may be full, or its folder not writable"
            add("persistence-failing", "error", what, advice)
    if version_in(settings) < WAITAOF_SINCE:
        what = f"the server is version {settings['version']}, which is not mended any more"
        add("server-old", "note", what, "plan the move to Redis 7.2, Valkey 7.2 or newer")
    return found


def _of_rights(link: RedisLink, prefix: str, channel: str) -> list[Finding]:
    key = f"{prefix}:{{doctor}}"
    try:
        answer = link.command("EVAL", RIGHTS, 1, key, channel)
        missing = [name.decode() if isinstance(name, bytes) else str(name) for name in answer]
    except StoreError as error:
        if not link.is_forbidden(error):
            raise
        missing = ["eval"]
    if not missing:
        return []
    return [
        Finding(
            code="rights-missing",
            severity="error",
            what=f"this user may not call {', '.join(missing)} on the keys {prefix}:* or the "
            f"channel {channel}",
            where=link.address,
            advice=f"ACL SETUSER ... ~{prefix}:* &{prefix}:* +@all -@dangerous +info +config|get",
        )
    ]
