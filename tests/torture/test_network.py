"""The part `network` must meet every fault with every call, and find what is made twice."""

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from leasedkeyq import connect
from leasedkeyq.stores import Store
from tests.servers.valkey import Server, free_port
from tests.torture.network.calls import VERBS
from tests.torture.network.frames import Frames, PostgresFrames, RedisFrames
from tests.torture.network.proxy import KINDS, Network
from tests.torture.network.rounds import LOST, Line, disturbed_by
from tests.torture.part import Findings, Trial
from tests.torture.parts.network import PART


def message(letter: bytes, body: bytes = b"") -> bytes:
    return letter + (len(body) + 4).to_bytes(4) + body


def test_every_call_meets_every_fault() -> None:
    pairs = {disturbed_by(seed) for seed in range(1, 1 + min(PART.amounts.values()))}
    assert pairs == {(verb, kind) for verb in VERBS for kind in KINDS}


@pytest.mark.parametrize(
    "frames, requests, replies",
    [
        (
            RedisFrames(),
            [b"*1\r\n$4\r\nPING\r\n", b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n"],
            [b"+PONG\r\n", b"*3\r\n:1\r\n$-1\r\n*1\r\n%1\r\n+a\r\n$2\r\n\r\n\r\n"],
        ),
        (
            PostgresFrames(),
            [message(b"Q", b"BEGIN\0"), message(b"B", b"1") + message(b"E") + message(b"S")],
            [
                message(b"C", b"BEGIN\0") + message(b"Z", b"T"),
                message(b"2") + message(b"D", b"Z") + message(b"C") + message(b"Z", b"T"),
            ],
        ),
    ],
)
def test_where_requests_and_replies_end(
    frames: Frames, requests: list[bytes], replies: list[bytes]
) -> None:
    async def run() -> None:
        client, server = asyncio.StreamReader(), asyncio.StreamReader()
        client.feed_data(b"".join(requests))
        server.feed_data(b"".join(replies))
        for request, reply in zip(requests, replies, strict=True):
            assert await frames.request(client) == request
            assert await frames.reply(server, request) == reply

    asyncio.run(run())


def test_a_server_that_forgets_what_it_has_answered_is_found(tmp_path: Path) -> None:
    """It applies what is asked for again a second time."""
    found = Findings()
    seeds = [
        seed
        for seed in range(500)
        if disturbed_by(seed)
        in {
            ("put behind others", "reply cut before it arrives"),
            ("claim", "reply cut before it arrives"),
        }
    ][:3]

    async def run(server: Server, network: Network) -> None:
        def forget() -> None:
            with server.client() as client:
                client.delete(*client.keys("*:a:*"))

        def address(port: int) -> str:
            return f"redis://127.0.0.1:{port}/0"

        direct: Store = connect(server.url)
        line = Line("redis", network, port=server.port, address=address, direct=direct, found=found)
        line.network.applied = forget
        await line.open()
        for seed in seeds:
            await line.round(seed, Trial("redis", range(1), tmp_path).dice(seed))
        await line.close()
        await direct.close()

    with Server(port=free_port()) as server, closing(Network()) as network:
        asyncio.run(run(server, network))
    assert found.wrong[LOST] > 0, found
