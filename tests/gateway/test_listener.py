"""Peers that keep the node waiting, and what of theirs is logged (section 17.3)."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import logging
import ssl
import time
from contextlib import suppress
from typing import Any

import pytest

from mwnode.client import HttpClient
from mwnode.gateway import doors
from mwnode.gateway.server import serve, server_tls
from mwnode.protocol.limits import Limits
from mwnode.testing import Harness
from tests.gateway.conftest import Served, Start
from tests.gateway.test_server import Tls, tls
from tests.patience import PATIENCE_SECONDS, until

__all__ = ["tls"]


class Raw:
    """A TCP connection that says what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def dial(cls, server: Any, **options: Any) -> Raw:
        return cls(*await asyncio.open_connection("127.0.0.1", server.port, **options))

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, seconds: float = PATIENCE_SECONDS) -> tuple[int, dict[str, Any]]:
        """Status and document of the next answer."""
        async with asyncio.timeout(seconds):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line)
            return int(head.split()[1]), json.loads(await self.reader.readexactly(length))

    async def over(self, seconds: float = PATIENCE_SECONDS) -> bool:
        """Whether the node ends the connection without another word."""
        try:
            async with asyncio.timeout(seconds):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.writer.transport.abort()


HEAD = b"POST /v0.1/%b HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n"


@pytest.fixture
async def raws() -> Any:
    made: list[Raw] = []
    yield made
    for raw in made:
        raw.close()


@pytest.mark.req("R-17.3-01")
@pytest.mark.parametrize("path", [b"commands", b"sessions/challenge"])
async def test_a_body_that_stalls_is_given_up(start: Start, raws: list[Raw], path: bytes) -> None:
    served = await start(handshake_timeout=1.0)
    raws.append(raw := await Raw.dial(served.server))
    await raw.say(HEAD % (path, b"Content-Length: 1000") + b"{")
    status, error = await raw.answer()
    assert (status, error["code"]) == (408, "PROTOCOL_VIOLATION")
    assert "slowly" in error["message"]
    assert await raw.over()


@pytest.mark.req("R-17.3-01")
async def test_a_trickle_is_no_progress(start: Start, raws: list[Raw]) -> None:
    served = await start(handshake_timeout=1.0)
    raws.append(raw := await Raw.dial(served.server))
    await raw.say(HEAD % (b"commands", b"Content-Length: 100000"))

    async def trickle() -> None:
        # The answer ends it, and with it the connection.
        with suppress(ConnectionError):
            while True:
                await asyncio.sleep(0.05)
                await raw.say(b"a")

    trickling = asyncio.create_task(trickle())
    assert (await raw.answer())[0] == 408
    trickling.cancel()
    await asyncio.gather(trickling, return_exceptions=True)


@pytest.mark.req("R-17.3-01")
async def test_a_slow_upload_that_gets_on_is_taken(start: Start) -> None:
    served = await start(handshake_timeout=3.0)
    http = served.http(served.harness.owner)
    await asyncio.to_thread(http.get, "/v0.1/missions")

    class Slow(io.BytesIO):
        """Takes more time for all than 64 KiB may take, and for each 64 KiB so little that a slow machine keeps up."""

        sending = False

        def read(self, size: int | None = -1) -> bytes:
            if self.sending:
                time.sleep(0.45)
            return super().read(65536)

        def seek(self, *where: int) -> int:
            # What has been hashed is read once more, to be sent.
            self.sending = True
            return super().seek(*where)

    slow = Slow(b"x" * (8 * 65536))
    stored = await asyncio.to_thread(http.put_artifact, slow)
    assert stored["sizeBytes"] == 8 * 65536


@pytest.mark.req("R-17.3-01")
@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: "])
async def test_a_request_that_does_not_come_is_not_waited_for(start: Start, raws: list[Raw], said: bytes) -> None:
    served = await start(handshake_timeout=0.3)
    raws.append(raw := await Raw.dial(served.server))
    await raw.say(said)
    assert await raw.over()
    await until(lambda: len(served.server._listener.doors) == 0)


@pytest.mark.req("R-17.3-01")
async def test_a_known_peer_may_be_idle(start: Start, raws: list[Raw]) -> None:
    served = await start(handshake_timeout=60.0)
    token = await asyncio.to_thread(served.http(served.harness.owner).authenticate)
    served.server._listener._patience = 0.3
    raws.append(raw := await Raw.dial(served.server))
    request = f"GET /v0.1/missions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    for _ in range(2):
        await raw.say(request)
        assert await raw.answer() == (200, {"missions": []})
        # Longer than the listener is patient and than it is between two of its looks.
        await asyncio.sleep(1.5)


@pytest.mark.req("R-17.3-01")
@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01"])
async def test_a_tls_handshake_has_to_end(
    mwnode: Harness, tls: Tls, raws: list[Raw], monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(type(mwnode.node), "limits", Limits(handshake_timeout=0.3))
    server = await serve(mwnode.node, tls=server_tls(tls.certificate, tls.key))
    try:
        raws.append(raw := await Raw.dial(server))
        await raw.say(said)
        assert await raw.over()
        await until(lambda: len(server._listener.doors) == 0)
        # From here on a handshake may take the time that a busy machine needs for it.
        server._listener._patience = PATIENCE_SECONDS
        context = ssl.create_default_context(cafile=str(tls.ca))
        raws.append(well := await Raw.dial(server, ssl=context))
        await well.say(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await well.answer())[0] == 200
    finally:
        await server.close()


@pytest.mark.req("R-17.3-01")
async def test_silent_connections_do_not_keep_an_agent_out(start: Start, raws: list[Raw]) -> None:
    served = await start(unauthenticated_connections=8)
    silent = [await served.dial() for _ in range(7)]
    raws.append(await Raw.dial(served.server))
    await asyncio.sleep(1.1)
    agents = [await served.agent(who) for who in served.harness.workers[:2]]
    assert all(agent.epoch > 0 for agent in agents)
    assert await silent[0].closed() == 1006
    assert await silent[-1].silent()


@pytest.mark.req("R-17.3-01")
async def test_connections_of_one_address_are_refused_beyond_its_share(
    start: Start, raws: list[Raw], monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long it takes to get there: none of them has been silent for so long that it makes room.
    monkeypatch.setattr(doors, "PATIENCE_SECONDS", 3600.0)
    served = await start(unauthenticated_connections=8)
    for _ in range(8):
        raws.append(await Raw.dial(served.server))
    await until(lambda: len(served.server._listener.doors) == 8)
    raws.append(extra := await Raw.dial(served.server))
    assert await extra.over()
    raws[0].close()
    await until(lambda: len(served.server._listener.doors) == 7)
    raws.append(fits := await Raw.dial(served.server))
    await fits.say(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await fits.answer())[0] == 200


@pytest.mark.req("R-13.1-02")
@pytest.mark.parametrize("method, path", [("PUT", "/v0.1/artifacts"), ("POST", "/v0.1/commands")])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "unheard-of"])
async def test_bytes_are_what_they_are(served: Served, raws: list[Raw], method: str, path: str, encoding: str) -> None:
    token = await asyncio.to_thread(served.http(served.harness.owner).authenticate)
    raws.append(raw := await Raw.dial(served.server))
    body = gzip.compress(b"a" * 1000)
    await raw.say(
        f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Encoding: {encoding}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    status, error = await raw.answer()
    assert (status, error["code"]) == (400, "PROTOCOL_VIOLATION")
    assert "Content-Encoding" in error["message"]
    stored = await asyncio.to_thread(served.http(served.harness.owner).put_artifact, body)
    assert stored["sizeBytes"] == len(body)


MALFORMED = [
    b"\0\1\2garbage\r\n\r\n",
    b"POST /v0.1/commands HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    b"POST /v0.1/commands HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


@pytest.mark.parametrize("said", MALFORMED)
async def test_a_malformed_request_is_answered_and_is_one_line_in_the_log(
    served: Served, raws: list[Raw], caplog: pytest.LogCaptureFixture, said: bytes
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(5):
        raws.append(raw := await Raw.dial(served.server))
        await raw.say(said)
        status, error = await raw.answer()
        assert (status, error["code"]) == (400, "PROTOCOL_VIOLATION")
        assert await raw.over()
    assert len(caplog.records) <= 1, caplog.text
    assert "Traceback" not in caplog.text


async def test_a_peer_that_vanishes_leaves_one_line_at_most(
    served: Served, raws: list[Raw], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(5):
        raws.append(raw := await Raw.dial(served.server))
        await raw.say(HEAD % (b"commands", b"Content-Length: 1000") + b"{")
        await asyncio.sleep(0.05)
        raw.close()
    await asyncio.sleep(0.2)
    assert len(caplog.records) <= 1, caplog.text
    assert "Traceback" not in caplog.text
    http: HttpClient = served.http(served.harness.owner)
    assert await asyncio.to_thread(http.get, "/v0.1/missions") == {"missions": []}


async def test_writes_to_the_dead_are_one_line(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    assert served.server.port
    for _ in range(100):
        logging.getLogger("asyncio").warning("socket.send() raised exception.")
    logging.getLogger("asyncio").warning("something else")
    messages = [record.getMessage() for record in caplog.records]
    assert messages.count("socket.send() raised exception.") <= 1
    assert "something else" in messages
