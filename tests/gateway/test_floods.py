"""Peers that send and never read: bounded memory, and nobody else notices (section 17.3)."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest

from mwnode.gateway.flow import Outbox, parcel
from mwnode.gateway.server import serve, server_tls
from mwnode.protocol.limits import Limits
from mwnode.testing import Harness
from tests.gateway.conftest import Served, Start
from tests.gateway.test_server import Tls, tls
from tests.gateway.wire import Wire
from tests.patience import PATIENCE_SECONDS, until

__all__ = ["tls"]
SMALL = {"outbox_frames": 64, "outbox_bytes": 256 * 1024, "frame_bytes": 64 * 1024}


def pause(wire: Wire) -> Any:
    """Stop a client from reading; its transport."""
    transport: Any = wire.socket._response.connection.transport  # type: ignore[union-attr]
    transport.pause_reading()
    return transport


async def flood(wire: Wire, frames: int) -> None:
    for number in range(frames):
        await wire.send(wire.frame("PING", nonce=f"{number:05}".ljust(4000, "A"), sentAt="2030-01-01T00:00:00Z"))


@pytest.fixture
async def stuck(start: Start) -> Any:
    """An Agent that sends PINGs and reads nothing, until the node reads nothing of it either."""
    served = await start(**SMALL)
    wire = await served.agent(served.harness.workers[0])
    connection = served.hub.delivery.live_by_agent[served.harness.workers[0].id]
    transport = pause(wire)
    sending = asyncio.create_task(flood(wire, 6000))
    await until(lambda: connection.braked_at is not None)
    yield served, wire, connection, transport, sending
    sending.cancel()
    transport.resume_reading()


@pytest.mark.req("R-17.3-01", "R-17.3-02")
async def test_answers_that_nobody_reads_stop_the_reading_of_that_connection_only(stuck: Any) -> None:
    served, wire, connection, transport, sending = stuck
    await asyncio.sleep(0.3)
    limits: Limits = served.harness.node.limits
    assert connection.outbox.frames <= limits.outbox_frames + 1
    assert connection.outbox.bytes <= limits.outbox_bytes + limits.frame_bytes
    assert not sending.done(), "the flood came to a standstill"
    other = await served.agent(served.harness.workers[1])
    await other.send(other.frame("PING", nonce="bm9uY2U", sentAt="2030-01-01T00:00:00Z"))
    assert (await other.receive())["replyToNonce"] == "bm9uY2U"
    # Nothing was lost: whoever reads again gets every answer, in order.
    transport.resume_reading()
    for number in range(6000):
        assert int((await wire.receive())["replyToNonce"][:5]) == number
    await sending


@pytest.mark.req("R-17.3-01", "R-19-32")
async def test_a_trickle_of_reads_does_not_keep_a_stuck_connection_for_ever(stuck: Any) -> None:
    served, _, connection, transport, _ = stuck
    since = connection.braked_at
    for _ in range(4):
        served.harness.clock.advance(16)
        transport.resume_reading()
        await asyncio.sleep(0)
        transport.pause_reading()
        await asyncio.sleep(0.05)
        assert connection.braked_at == since or connection.closing is not None
        served.hub.tick()
    assert connection.closing.code == 1013
    assert connection.outbox.bytes < 2000, "only why it is closed still waits"


@pytest.mark.req("R-17.3-01")
async def test_one_frame_causes_a_bounded_number_of_errors(served: Served) -> None:
    wire = await served.agent(served.harness.workers[0])
    frames = await wire.until_mark(await wire.subscribe(*(f"urn:example:{number}" for number in range(3000))))
    assert len(frames) == 1001
    assert {frame["error"]["code"] for frame in frames[:-1]} == {"GROUP_NOT_FOUND"}
    assert frames[-1]["error"]["code"] == "RATE_LIMITED"
    assert frames[-1]["error"]["relatedFrameId"] == frames[0]["error"]["relatedFrameId"]
    await wire.ack({f"urn:example:{number}": 1 for number in range(3000)})
    errors = [await wire.error() for _ in range(1001)]
    assert [error["code"] for error in errors[-2:]] == ["GROUP_NOT_FOUND", "RATE_LIMITED"]
    assert await wire.silent()


@pytest.mark.req("R-17.3-01")
def test_all_groups_together_fill_the_bounds_too() -> None:
    outbox: Any = Outbox(100, 1000)
    for group in range(12):
        outbox.put(f"group {group}", parcel((b"x" * 90,)))
    assert outbox.full
    assert outbox.over("group 0")
    assert not outbox.over("another")
    assert not outbox.flooded
    for _ in range(200):
        outbox.put_first(b"")
    assert outbox.flooded
    assert not outbox.eased(0)
    outbox.drop()
    assert outbox.eased(500)
    assert not outbox.eased(501)


@pytest.mark.req("R-17.3-01", "R-19-32")
async def test_what_others_cause_closes_at_twice_the_bounds(start: Start) -> None:
    served = await start(**SMALL)
    wire, other = await served.agent(served.harness.workers[0]), await served.agent(served.harness.workers[1])
    connection = served.hub.delivery.live_by_agent[served.harness.workers[0].id]
    for _ in range(2 * SMALL["outbox_frames"] + 1):
        connection.outbox.put_first(b"{}")
    connection.touched()
    served.hub.flush()
    assert (await wire.error())["code"] == "BACKPRESSURE"
    assert await wire.closed() == 1013
    assert await other.silent()


@pytest.mark.req("R-17.3-01")
async def test_commands_under_way_count_as_the_receipts_they_will_have(start: Start) -> None:
    served = await start(**SMALL)
    await served.agent(served.harness.workers[0])
    connection = served.hub.delivery.live_by_agent[served.harness.workers[0].id]
    connection.in_flight_bytes = SMALL["outbox_bytes"]
    assert not connection.braked
    connection.in_flight_bytes += 1
    assert connection.braked
    waiting = asyncio.create_task(served.hub.room(connection))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    connection.in_flight_bytes = 0
    connection.relieve()
    await asyncio.wait_for(waiting, PATIENCE_SECONDS)


async def test_a_tls_transport_that_is_torn_down_hinders_nobody(mwnode: Harness, tls: Tls) -> None:
    server = await serve(mwnode.node, tls=server_tls(tls.certificate, tls.key))
    wires = []
    try:
        context = ssl.create_default_context(cafile=str(tls.ca))
        for who in mwnode.workers[:2]:
            wires.append(await Wire.dial(server.url, ssl=context))
            await wires[-1].hello(who)
        live: Any = server.hub.delivery.live_by_agent
        gone, well = (live[who.id] for who in mwnode.workers[:2])
        # Closed twice, asyncio's transport forgets the protocol that its other methods need.
        gone.peer._transport.close()
        gone.peer._transport.close()
        assert not gone.peer.congested
        for connection in (gone, well):
            server.hub._send(connection, server.hub.replies.ping(nonce="bm9uY2U"))
        server.hub.flush()
        assert (await wires[1].receive())["nonce"] == "bm9uY2U"
    finally:
        for wire in wires:
            await wire.close()
        await server.close()


async def test_a_connection_that_cannot_be_written_to_is_cut_alone(served: Served, caplog: Any) -> None:
    wires = [await served.agent(who) for who in served.harness.workers[:2]]
    broken, well = (served.hub.delivery.live_by_agent[who.id] for who in served.harness.workers[:2])

    def fail(_: Any) -> None:
        raise RuntimeError("broken")

    broken.peer.write = fail
    for connection in (well, broken):
        served.hub._send(connection, served.hub.replies.ping(nonce="bm9uY2U"))
    served.hub.flush()
    assert (await wires[1].receive())["nonce"] == "bm9uY2U"
    assert await wires[0].closed() == 1006
    assert "could not be written to" in caplog.text
