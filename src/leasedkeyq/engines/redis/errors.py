"""What a Redis or Valkey server, its client or the way between may say, and what to do then."""

import re
import socket
import ssl
from typing import Final

import msgspec

WORDS_TIME: Final = 0.2
"""Seconds for which a server may take to say that it does not want us."""
PROBE_TIME: Final = 2.0
"""Seconds for which a server may think about whether it speaks TLS."""


class RedisTrouble(msgspec.Struct, frozen=True):
    """One kind of failure.

    Attributes:
        said: What the error says, as a pattern: the name of its class, a colon, and its text.
        advice: What has happened and what to do, in words.
        passes: Whether the same call may succeed a little later.
        reached: Whether the server itself has said so.
        full: Whether the server has no memory.
        damage: Whether keys of the store may be damaged.
    """

    said: str
    advice: str
    passes: bool = False
    reached: bool = True
    full: bool = False
    damage: bool = False


# The first that matches counts. An error inside a script carries its code anywhere in its text, and
# before version 7 it has no class of its own.
TROUBLES: Final = (
    # TLS
    RedisTrouble(
        r"CERTIFICATE_VERIFY_FAILED.*(mismatch|not valid for)",
        "the certificate of the server is for another host: name the host in the URL as the "
        "certificate does",
        reached=False,
    ),
    RedisTrouble(
        r"CERTIFICATE_VERIFY_FAILED.*expired",
        "the certificate of the server has expired: renew it",
        reached=False,
    ),
    RedisTrouble(
        r"CERTIFICATE_VERIFY_FAILED",
        "the certificate of the server is signed by nobody who is trusted here: name the file of "
        "its authority, with ?ssl_ca_certs=/path/ca.pem behind the URL",
        reached=False,
    ),
    RedisTrouble(
        r"alert (certificate required|bad certificate|handshake failure|unknown ca)",
        "the server wants a certificate of this client, or another one: name it with "
        "?ssl_certfile=/path/client.pem&ssl_keyfile=/path/client.key behind the URL",
        reached=False,
    ),
    RedisTrouble(
        r"WRONG_VERSION_NUMBER|UNKNOWN_PROTOCOL|RECORD_LAYER_FAILURE",
        "the server speaks no TLS at this port: write redis:// in place of rediss://, or name "
        "another port",
        reached=False,
    ),
    RedisTrouble(
        r"PEM lib|NO_CERTIFICATE_OR_CRL_FOUND|KEY_VALUES_MISMATCH|NO_START_LINE",
        "a file that ssl_ca_certs, ssl_certfile or ssl_keyfile names is no certificate or no key, "
        "or the two do not belong together",
        reached=False,
    ),
    # Who may do what
    RedisTrouble(
        r"DENIED|protected mode",
        "the server takes connections of its own machine only (protected-mode): give it a "
        "password, and name it in the URL",
    ),
    RedisTrouble(
        r"NOAUTH|HELLO must be called with the client already authenticated|Authentication requir",
        "the server wants a password: write redis://user:password@host, or redis://:password@host",
    ),
    RedisTrouble(
        r"without any password configured|no password is set",
        "the URL has a password and the server has none: leave it out, or set one there",
    ),
    RedisTrouble(
        r"WRONGPASS|AuthenticationError|AuthorizationError|invalid username-password",
        "the user or the password in the URL is wrong",
    ),
    RedisTrouble(
        r"NOPERM|NoPermissionError|ACL failure|executing the script can't",
        "the user may not do this: see the guide for the rights that a store needs",
    ),
    # What the server cannot do now
    RedisTrouble(
        r"OutOfMemoryError|\bOOM\b",
        "the server's memory is full (maxmemory): claims and acknowledgements go on and make room; "
        "or raise maxmemory",
        full=True,
    ),
    RedisTrouble(
        r"ReadOnlyError|\bREADONLY\b|MASTERDOWN|MasterDownError",
        "the server is a replica and takes no changes: name its primary in the URL, or the "
        "Sentinels that know it (redis+sentinel://)",
        passes=True,
    ),
    RedisTrouble(
        r"\bMISCONF\b",
        "the server cannot write to its disk, and so takes no changes: its log says why. Mostly "
        "the disk is full",
    ),
    RedisTrouble(
        r"\bNOREPLICAS\b",
        "the server has fewer replicas than its min-replicas-to-write wants, and so takes no "
        "changes: see to its replicas",
        passes=True,
    ),
    RedisTrouble(
        r"BusyLoadingError|\bLOADING\b",
        "the server is reading its data from the disk since it was started: wait until it has, or "
        "raise retry_for",
        passes=True,
    ),
    RedisTrouble(
        r": BUSY |\bBUSY Redis is busy|\bBUSY Valkey is busy",
        "a script of somebody else keeps the server busy: see its SLOWLOG",
        passes=True,
    ),
    RedisTrouble(
        r"max number of clients",
        "the server has no room for another connection: raise its maxclients, or open fewer stores",
        passes=True,
    ),
    RedisTrouble(
        r"\bCLUSTERDOWN\b|ClusterDownError|SlotNotCoveredError",
        "a part of the cluster is away: see CLUSTER INFO",
        passes=True,
    ),
    # What is no server for this
    RedisTrouble(
        r"Cluster mode is not enabled|cluster support disabled",
        "the server is no part of a cluster: write redis:// in place of redis+cluster://",
    ),
    RedisTrouble(
        r"DB index is out of range",
        "the server has no database of the number in the URL: it has as many as its setting "
        "'databases' says, from 0 on",
    ),
    RedisTrouble(
        r"unknown command",
        "the server does not know a command that the store needs: it takes Redis 6.2 or newer, or "
        "Valkey, and what is in front of it must pass on scripts and subscriptions",
    ),
    RedisTrouble(
        r"InvalidResponse|Protocol Error",
        "what answers there is no Redis server: is the port right?",
    ),
    # Damage
    RedisTrouble(
        r"WRONGTYPE|user_script|Error running script|Error compiling script",
        "the script of the store failed",
        damage=True,
    ),
    # The way there
    RedisTrouble(
        r"No Sentinel|MasterNotFoundError|No master found",
        "no Sentinel knows a primary of that name, or none can be reached",
        passes=True,
        reached=False,
    ),
    RedisTrouble(
        r"Name or service not known|name resolution|nodename nor servname|No address associated",
        "the name of the host is not known",
        passes=True,
        reached=False,
    ),
    RedisTrouble(
        r"connecting to (unix|/)",
        "the socket is not there, or may not be used: does the server run, and is the path right?",
        passes=True,
        reached=False,
    ),
    RedisTrouble(
        r"Connection refused",
        "nobody listens there: does the server run, and is the port right?",
        passes=True,
        reached=False,
    ),
    RedisTrouble(
        r"Timeout connecting|timed out|TimeoutError",
        "the server did not answer in time: is the host right, and is there a firewall between?",
        passes=True,
        reached=False,
    ),
)
_PATTERNS: Final = tuple((re.compile(each.said, re.DOTALL), each) for each in TROUBLES)


def trouble_of(error: Exception) -> RedisTrouble | None:
    """What is known about an error of redis-py, or of the system."""
    said = f"{type(error).__name__}: {error}"
    for pattern, trouble in _PATTERNS:
        if pattern.search(said):
            return trouble
    return None


def speaks_plainly(host: str, port: int) -> bool:
    """Whether a server answers without TLS."""
    try:
        with socket.create_connection((host, port), PROBE_TIME) as probe:
            probe.sendall(b"PING\r\n")
            return probe.recv(1) in (b"+", b"-")
    except OSError:
        return False


def _reached(host: str, port: int) -> socket.socket:
    if port:
        return socket.create_connection((host, port), PROBE_TIME)
    probe = socket.socket(socket.AF_UNIX)
    try:
        probe.settimeout(PROBE_TIME)
        probe.connect(host)
    except BaseException:
        probe.close()
        raise
    return probe


def farewell(host: str, port: int) -> str:
    """What a server says to whoever comes, before it closes the connection; mostly nothing.

    Args:
        host: Its name, or the path of its socket.
        port: Its port; 0 for a socket.
    """
    try:
        with _reached(host, port) as probe:
            probe.settimeout(WORDS_TIME)
            said = probe.recv(4096).decode(errors="replace")
    except OSError:
        return ""
    return said[1:].strip() if said.startswith("-") else ""


def speaks_tls(host: str, port: int) -> bool:
    """Whether a server answers by TLS, whatever its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), PROBE_TIME) as probe,
            context.wrap_socket(probe, server_hostname=host),
        ):
            return True
    except ssl.SSLError as error:
        return "alert" in str(error).lower()
    except OSError:
        return False
