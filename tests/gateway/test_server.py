"""Listening, TLS, stopping, and peers that mean no good (sections 17.1, 17.3; decision E15)."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mwnode import certificates
from mwnode.client import Client, HttpClient, Unreachable
from mwnode.gateway import doors
from mwnode.gateway.server import serve, server_tls
from mwnode.system import OsEntropy, SystemClock
from mwnode.testing import Harness
from tests.gateway.conftest import Served, Start
from tests.gateway.wire import Wire
from tests.patience import PATIENCE_SECONDS, until
from tests.protocol.oracle import Oracle


class Tls:
    """A CA of its own and a server certificate for this machine."""

    def __init__(self, directory: Path) -> None:
        clock, entropy = SystemClock(), OsEntropy()
        authority = certificates.issue_authority("urn:example:organization", clock.now(), entropy)
        certificate, key = certificates.issue_server(authority, ["127.0.0.1", "localhost"], clock.now(), entropy)
        self.ca, self.certificate, self.key = (directory / name for name in ("ca.pem", "server.pem", "server.key"))
        self.ca.write_bytes(authority[0])
        self.certificate.write_bytes(certificate)
        self.key.write_bytes(key)


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    return Tls(tmp_path)


@pytest.mark.req("R-17.1-01")
async def test_tls_1_3_and_nothing_older(mwnode: Harness, tls: Tls) -> None:
    server = await serve(mwnode.node, tls=server_tls(tls.certificate, tls.key))
    try:
        assert server.url.startswith("wss://127.0.0.1:")
        client = await Client.connect(server.url, mwnode.workers[0].key, tls.ca, clock=mwnode.clock)
        assert client.connected
        assert (await client.get("/v0.1/missions")) == {"missions": []}
        await client.close()
        older = ssl.create_default_context(cafile=str(tls.ca))
        older.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(aiohttp.ClientConnectorError):
            await Wire.dial(server.url, ssl=older)
        with pytest.raises(aiohttp.ClientError):
            await Wire.dial(server.url.replace("wss://", "ws://"))
    finally:
        await server.close()


async def test_a_server_of_another_ca_is_refused(mwnode: Harness, tls: Tls, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Tls(tmp_path / "other")
    server = await serve(mwnode.node, tls=server_tls(tls.certificate, tls.key))
    try:
        with pytest.raises(Unreachable, match="not trusted"):
            await Client.connect(server.url, mwnode.workers[0].key, other.ca, clock=mwnode.clock)
        http = HttpClient(server.url, mwnode.owner.key, other.ca, clock=mwnode.clock)
        with pytest.raises(Unreachable, match="not trusted"):
            await asyncio.to_thread(http.get, "/healthz")
        http.close()
    finally:
        await server.close()


@pytest.mark.req("R-17.1-01")
async def test_plain_text_is_for_loopback_only(mwnode: Harness) -> None:
    with pytest.raises(ValueError, match="loopback"):
        await serve(mwnode.node, "0.0.0.0")


async def test_a_port_in_use_is_an_error_of_the_system(mwnode: Harness, served: Served) -> None:
    with pytest.raises(OSError, match="in use"):
        await serve(mwnode.node, "127.0.0.1", served.server.port)


def test_a_certificate_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be used"):
        server_tls(tmp_path / "none.pem", tmp_path / "none.key")


def message(served: Served, group_id: str) -> dict[str, Any]:
    return {"messageId": served.harness.new_id(), "conversationId": f"{group_id}:mission", "content": "x"}


async def test_stopping_answers_what_was_accepted_and_says_goodbye(
    mwnode: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await serve(mwnode.node)
    served = Served(mwnode, server)
    mission = mwnode.mission()
    wire = await served.agent(mwnode.coordinator)
    taken: list[bytes] = []
    receive = server.hub.receive

    def counted(connection: Any, data: bytes) -> None:
        receive(connection, data)
        taken.append(data)

    monkeypatch.setattr(server.hub, "receive", counted)
    for _ in range(20):
        await wire.command(
            mwnode.coordinator.command("message.post", message(served, mission.group_id), group_id=mission.group_id)
        )
    await wire.ack({mission.group_id: 1})
    await until(lambda: len(taken) == 21)
    stopping = asyncio.create_task(served.server.close(PATIENCE_SECONDS))
    sequences = [(await wire.event())["sequence"] for _ in range(20)]
    assert sequences == list(range(2, 22))
    assert await wire.closed() == 1001
    await wire.session.close()
    await stopping
    with mwnode.node.read() as view:
        assert view.cursors(mwnode.coordinator.id) == [(mission.group_id, 1)]


async def test_a_stopping_node_takes_no_new_commands(served: Served) -> None:
    mission = served.harness.mission()
    coordinator = served.harness.coordinator
    wire = await served.agent(coordinator)
    connection = next(iter(served.hub.connections.values()))
    connection.engine.accepting = False
    raw = coordinator.command("message.post", message(served, mission.group_id), group_id=mission.group_id)
    await wire.command(raw)
    error = await wire.error()
    assert (error["code"], error["relatedActionId"]) == ("BACKPRESSURE", json.loads(raw)["actionId"])
    assert len(mission.events()) == 1


@pytest.mark.req("R-17.3-01")
async def test_connections_are_bounded(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    # However slow the machine: none of them has been silent for so long that it makes room.
    monkeypatch.setattr(doors, "PATIENCE_SECONDS", 3600.0)
    served = await start(connections=3, unauthenticated_connections=2)
    first, second = await served.dial(), await served.dial()
    third = await served.dial()
    error = await third.error()
    assert (error["code"], error["fatal"]) == ("BACKPRESSURE", True)
    assert await third.closed() == 1013
    await first.hello(served.harness.workers[0])
    fourth = await served.dial()
    assert await fourth.silent()
    fifth = await served.dial()
    assert (await fifth.error())["code"] == "BACKPRESSURE"
    await second.close()
    await until(lambda: len(served.hub.connections) == 2)
    sixth = await served.dial()
    await sixth.hello(served.harness.workers[1])


@pytest.mark.req("R-17.1-05", "R-17.1-12", "R-19-01")
async def test_every_frame_fits_the_normative_schema(served: Served, protocol_bundle: Path) -> None:
    oracle = Oracle(protocol_bundle)
    harness = served.harness
    wire = await served.agent(harness.coordinator)
    mission = harness.mission()
    work = mission.authorize()
    work.run()
    await wire.follow(mission.group_id, after=0)
    await wire.subscribe("urn:example:invented")
    await wire.send_raw(b"{}")
    await wire.send(wire.frame("PING", nonce="bm9uY2U", sentAt="2030-01-01T00:00:00Z"))
    while wire.received[-1].get("replyToNonce") is None:
        await wire.receive()
    for frame in wire.received:
        assert oracle.accepts("websocket-frame", frame), (oracle.reason("websocket-frame", frame), frame)
    types = {frame["frameType"] for frame in wire.received}
    assert types == {"HELLO", "EVENT", "PING", "ERROR"}


@pytest.mark.req("R-17.3-01", "R-8-24")
async def test_one_that_never_reads_hinders_nobody(start: Start) -> None:
    served = await start(outbox_frames=64, outbox_bytes=512 * 1024, frame_bytes=64 * 1024)
    harness = served.harness
    mission = harness.mission()
    stuck = await served.agent(harness.workers[0])
    mission.add(harness.workers[0])
    await stuck.subscribe(mission.group_id)
    reader = await served.agent(harness.coordinator)
    await reader.follow(mission.group_id)
    # Stop reading for good: the kernel's buffers fill, then the transport's, then the outbox.
    transport = stuck.socket._response.connection.transport  # type: ignore[union-attr]
    transport.pause_reading()
    count = 400
    for number in range(count):
        if number % 100 == 99:
            harness.clock.step(60)
        payload = message(served, mission.group_id) | {"content": "x" * 30_000}
        harness.owner.send("message.post", payload, group_id=mission.group_id)
        assert (await reader.event())["sequence"] == number + 3
    connection = served.hub.delivery.live_by_agent[harness.workers[0].id]
    assert connection.outbox.bytes <= 512 * 1024 + 256 * 1024
    assert connection.subscriptions[mission.group_id].mode.name == "PAUSED"
    transport.resume_reading()


async def test_a_connection_that_takes_nothing_for_too_long_is_cut(start: Start) -> None:
    served = await start(send_timeout=0.3, outbox_bytes=16 * 1024 * 1024)
    harness = served.harness
    mission = harness.mission()
    stuck = await served.agent(harness.coordinator)
    await stuck.follow(mission.group_id)
    transport = stuck.socket._response.connection.transport  # type: ignore[union-attr]
    transport.pause_reading()
    for _ in range(100):
        payload = message(served, mission.group_id) | {"content": "x" * 90_000}
        harness.owner.send("message.post", payload, group_id=mission.group_id)
        await asyncio.sleep(0)
    await until(lambda: harness.coordinator.id not in served.hub.delivery.live_by_agent)
    transport.resume_reading()


async def test_revoking_a_key_closes_its_connection_at_once(served: Served) -> None:
    worker = served.harness.workers[0]
    wire = await served.agent(worker)
    raw = served.harness.organization.command(
        "ext.mwnode.core.key_restrict",
        {"keyId": worker.key.key_id, "revokedAt": served.harness.clock.now().text()},
    )
    http = served.http()
    await asyncio.to_thread(http.command, raw)
    error = await wire.error()
    assert (error["code"], error["fatal"]) == ("AUTH_FORBIDDEN", True)
    assert await wire.closed() == 1008
    again = await served.dial()
    await again.send(again.client_init(worker))
    assert (await again.error())["code"] == "AUTH_INVALID_SIGNATURE"


HOSTILE = {
    "an HTTP request smuggled in": b"GET /ws HTTP/1.1\r\nHost: x\r\n\r\n" * 50,
    "nothing but bytes": bytes(range(256)) * 40,
    "an endless header": b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000,
    "a frame with reserved bits": b"\xf1\x80\x00\x00\x00\x00",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
async def test_garbage_on_the_port_leaves_the_node_well(served: Served, data: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port)
    writer.write(data)
    writer.write_eof()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await reader.read()
    writer.close()
    await served.agent(served.harness.workers[0])


async def test_fragments_make_one_message_and_bad_framing_ends_it(served: Served) -> None:
    worker = served.harness.workers[0]
    wire = await served.agent(worker)
    frame = json.dumps(wire.frame("PING", nonce="bm9uY2U", sentAt="2030-01-01T00:00:00Z")).encode()
    transport = wire.socket._response.connection.transport  # type: ignore[union-attr]

    def masked(opcode: int, payload: bytes) -> bytes:
        return bytes((opcode, 0x80 | len(payload))) + bytes(4) + payload

    middle = len(frame) // 2
    transport.write(masked(0x01, frame[:middle]) + masked(0x89, b"") + masked(0x80, frame[middle:]))
    assert (await wire.receive())["replyToNonce"] == "bm9uY2U"
    transport.write(masked(0x80, b"a continuation of nothing"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        message = await wire.socket.receive()
    assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
    await served.agent(worker)
