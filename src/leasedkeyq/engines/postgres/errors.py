"""The driver for PostgreSQL, and its errors: what they mean, and what to do then."""

import re
import ssl
from collections.abc import Collection
from typing import Final, NamedTuple

from leasedkeyq.errors import StoreError, StoreUnavailableError

try:
    import asyncpg
except ModuleNotFoundError as error:
    if error.name != "asyncpg":
        raise
    raise ModuleNotFoundError(
        'the PostgreSQL store needs asyncpg: pip install "leasedkeyq[postgres]"', name=error.name
    ) from error

__all__ = [
    "LOST",
    "REPEATABLE",
    "UNDONE",
    "UNSTORABLE",
    "asyncpg",
    "explain",
    "is_hopeless",
    "names_missing_file",
]

REPEATABLE: Final = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
"""The server has undone all of it, and it may be tried again."""
LOST: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,
)
"""The server or the way to it has gone, maybe for a moment."""
UNDONE: Final = (
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
)
"""Those of them with which a server says that it has done nothing."""
UNSTORABLE: Final = (asyncpg.DataError, TypeError, ValueError, OverflowError, UnicodeError)
"""A request cannot be stored at all, whatever is done with the others of its batch."""


class Trouble(NamedTuple):
    """One kind of failure: classes of errors, a pattern in the text of one, and what to do."""

    kinds: tuple[type[BaseException], ...]
    said: str
    advice: str


PROXY: Final = (
    "a proxy gives each transaction another connection, as PgBouncer does with "
    "pool_mode = transaction; open the store with prepared=False, listen=False, or have the proxy "
    "keep a connection for each client (pool_mode = session)"
)

# The first that fits counts. What cannot get better by itself is not tried again.
HOPELESS: Final = (
    Trouble(
        (ssl.SSLCertVerificationError,),
        "(?i)hostname mismatch|ip address mismatch|doesn't match",
        "the certificate of the server is for another host; name the host in the URL as the "
        "certificate does, or check its authority only, with sslmode=verify-ca",
    ),
    Trouble(
        (ssl.SSLCertVerificationError,),
        "(?i)expired",
        "the certificate of the server has expired; renew it",
    ),
    Trouble(
        (ssl.SSLCertVerificationError,),
        "",
        "the certificate of the server is signed by nobody who is trusted here; name the file of "
        "its authority, with ?sslrootcert=/path/ca.pem behind the URL",
    ),
    Trouble(
        (ssl.SSLError,),
        "(?i)PEM|NO_CERTIFICATE_OR_CRL_FOUND|KEY_VALUES_MISMATCH|NO_START_LINE",
        "a file that sslrootcert, sslcert or sslkey names is no certificate or no key, or the two "
        "do not belong together",
    ),
    Trouble(
        (ssl.SSLError,),
        "",
        "no TLS connection could be made; check the certificates, and the TLS versions of both "
        "sides",
    ),
    Trouble(
        (ConnectionError,),
        "rejected SSL upgrade",
        "the server speaks no TLS, and the URL asks for it; set ssl = on at the server, or write "
        "another sslmode than require",
    ),
    Trouble(
        (asyncpg.ClientConfigurationError,),
        "",
        "the URL, or the environment, says what the driver cannot use; correct it",
    ),
    Trouble(
        (asyncpg.ProtocolViolationError,),
        "unsupported startup parameter: default_transaction_isolation",
        "transactions of this user are not read committed, and the proxy before the server does "
        "not let the store set that; ALTER ROLE ... SET default_transaction_isolation = "
        "'read committed'",
    ),
    Trouble(
        (asyncpg.ProtocolViolationError,),
        "unsupported startup parameter",
        "the proxy before the server refuses a setting; take it out of the URL, or name it in "
        "ignore_startup_parameters of PgBouncer",
    ),
)
TROUBLES: Final = (
    *HOPELESS,
    Trouble(
        (asyncpg.InvalidPasswordError,),
        "",
        "the server refuses the user or the password; check those in the URL, and pg_hba.conf",
    ),
    Trouble(
        (asyncpg.InvalidAuthorizationSpecificationError,),
        "client certificate",
        "the server wants a certificate of this client; name it with "
        "?sslcert=/path/client.pem&sslkey=/path/client.key behind the URL",
    ),
    Trouble(
        (asyncpg.InvalidAuthorizationSpecificationError,),
        "",
        "the server does not let this user in from here, or not without TLS; check the URL, its "
        "sslmode, and pg_hba.conf",
    ),
    Trouble(
        (asyncpg.InvalidCatalogNameError,),
        "",
        "there is no such database; create it, or correct the URL",
    ),
    Trouble(
        (asyncpg.InsufficientPrivilegeError,),
        "",
        "this user may not do that; grant it the right, or let the owner of the database run "
        "what python -m leasedkeyq.engines.postgres.schema prints and open the store with "
        "create=False",
    ),
    Trouble(
        (asyncpg.DuplicatePreparedStatementError, asyncpg.InvalidSQLStatementNameError),
        "",
        PROXY,
    ),
    Trouble(
        (asyncpg.TooManyConnectionsError,),
        "",
        "the server has no connection left; raise its max_connections, or open fewer stores",
    ),
    Trouble(
        (
            asyncpg.InvalidSchemaNameError,
            asyncpg.UndefinedTableError,
            asyncpg.UndefinedFunctionError,
            asyncpg.UndefinedObjectError,
        ),
        "",
        "the tables or functions of the store have gone; somebody has dropped its schema, and what "
        "was in it: restore it, or open the store again, which makes an empty one",
    ),
    Trouble(
        (asyncpg.InternalServerError,),
        "cache lookup failed",
        "the tables or functions of the store have gone; somebody has dropped its schema, and what "
        "was in it: restore it, or open the store again, which makes an empty one",
    ),
    Trouble(
        (asyncpg.DiskFullError,),
        "",
        "the disk of the server is full; make room and call again",
    ),
    Trouble(
        (asyncpg.ReadOnlySQLTransactionError,),
        "",
        "the server only reads, as a standby does; connect to the primary, or name all servers in "
        "the URL, with ?target_session_attrs=read-write",
    ),
    Trouble(
        (asyncpg.TargetServerAttributeNotMatched,),
        "",
        "none of the servers in the URL is as target_session_attrs asks; one of them has to be "
        "the primary",
    ),
    Trouble(
        (asyncpg.LockNotAvailableError,),
        "",
        "another transaction keeps the queue locked; end it, or call again",
    ),
    Trouble(
        (asyncpg.QueryCanceledError,),
        "",
        "the server has stopped the call and undone it, as its statement_timeout does; put fewer "
        "items at once, or ALTER ROLE ... SET statement_timeout = '60s' for this user",
    ),
    Trouble(
        (asyncpg.CannotConnectNowError, asyncpg.AdminShutdownError, asyncpg.CrashShutdownError),
        "",
        "the server is starting up or shutting down; call again",
    ),
    Trouble(
        (TimeoutError,),
        "",
        "the server did not answer in time; check that it runs and can be reached",
    ),
    Trouble(
        (OSError, asyncpg.PostgresConnectionError),
        "",
        "the server cannot be reached; check that it runs, and host and port in the URL",
    ),
)


def explain(error: BaseException, where: str) -> StoreError:
    """An error of the server or of the way to it as one of ours: where, what, and what to do."""
    if isinstance(error, StoreError):
        return error
    advice = _advice(error, TROUBLES)
    # What else asyncpg has to say, behind the first line, is for programs without advice.
    text = str(error).split("\n", 1)[0]
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    code = getattr(error, "sqlstate", None)
    told = f"{what}, {code}" if code else what
    away = isinstance(error, LOST) and not is_hopeless(error)
    kind = StoreUnavailableError if away else StoreError
    return kind(f"{where}: {advice} ({told})" if advice else f"{where}: {told}")


def is_hopeless(error: BaseException) -> bool:
    """Whether a connection could not be made, and will not be before somebody changes something."""
    return bool(_advice(error, HOPELESS))


def names_missing_file(error: BaseException, parameters: Collection[str]) -> bool:
    """Whether a file of a TLS connection is missing: that of a socket may come."""
    named = {"sslrootcert", "sslcert", "sslkey", "sslcrl"}.intersection(parameters)
    return isinstance(error, FileNotFoundError | PermissionError) and bool(named)


def _advice(error: BaseException, troubles: tuple[Trouble, ...]) -> str:
    for trouble in troubles:
        if isinstance(error, trouble.kinds) and re.search(trouble.said, str(error)):
            return trouble.advice
    return ""
