"""What a peer may cost the others (section 17.3)."""

from __future__ import annotations

import asyncio
import json
import resource
import ssl
import subprocess
import sys
from typing import Any

import aiohttp
import pytest

from mwnode.gateway import budget as budget_module
from mwnode.gateway import server as server_module
from mwnode.gateway import web
from mwnode.gateway.budget import (
    ADDRESS_SHARE,
    BURST_SECONDS,
    DEBT_SECONDS,
    KEPT_MAX,
    OTHERS_SECONDS,
    PEER_SHARE,
    Budget,
    Budgets,
)
from mwnode.gateway.doors import Doors
from mwnode.gateway.listener import Exchange
from mwnode.gateway.server import serve, server_tls
from mwnode.protocol.errors import Backpressure
from mwnode.protocol.limits import Limits
from mwnode.testing import Harness
from tests.gateway.conftest import Served
from tests.gateway.test_server import Tls, message, tls

__all__ = ["tls"]


@pytest.mark.req("R-17.3-01")
def test_a_peer_gets_its_share_and_no_more_in_the_long_run() -> None:
    budget, now, spent = Budget(0.05), 100.0, 0.0
    while now < 160.0:
        wait = budget.wait(now)
        if wait:
            now += wait
        budget.charge(0.001, now)
        spent += 0.001
        now += 0.001
    assert BURST_SECONDS + 0.05 * 60 * 0.99 <= spent <= BURST_SECONDS + 0.05 * 60 * 1.01 + 0.002


def test_what_was_of_use_is_paid_back_but_never_saved_up() -> None:
    budget = Budget(0.5)
    budget.charge(BURST_SECONDS + 1.0, 10.0)
    assert budget.wait(10.0) == pytest.approx(2.0)
    budget.credit(1.0)
    assert budget.wait(10.0) == pytest.approx(0.0)
    for _ in range(100):
        budget.credit(1.0)
    budget.charge(BURST_SECONDS + 1.0, 11.0)
    assert budget.wait(11.0) == pytest.approx(2.0)


def test_a_debt_is_bounded() -> None:
    budget = Budget(0.05)
    budget.charge(1000.0, 0.0)
    assert budget.wait(0.0) == pytest.approx(DEBT_SECONDS)


def test_nobody_waits_for_those_who_are_not_there() -> None:
    doors = Doors(100, 100)
    flooder, agent, gone = (doors.enter(address, 0.0, lambda: None) for address in ("::1:1", "192.0.2.1", "192.0.2.2"))
    assert flooder is not None
    assert agent is not None
    assert gone is not None
    doors.know(agent, "agent urn:x:1", 0.0)
    doors.know(flooder, "agent urn:x:2", 0.0)
    doors.spent(flooder, 1.0, 0.0)
    assert doors.owed(flooder, 0.0) == 0
    doors.spent(agent, 0.001, 0.1)
    assert doors.owed(flooder, 0.1) > 0
    doors.spent(flooder, 0.001, 0.2)
    assert doors.owed(flooder, 0.2) > 0, "what the flooder does itself changes nothing"
    assert doors.owed(agent, 0.2) == 0
    doors.spent(gone, 1.0, 0.3)
    assert doors.owed(gone, 0.3) > 0
    assert doors.owed(flooder, 0.1 + OTHERS_SECONDS) == 0
    doors.spent(gone, 1.0, 9.0)
    assert doors.owed(flooder, 9.0) == 0, "peers that nobody knows are no reason to wait"


def test_budgets_are_bounded_and_who_owes_is_remembered() -> None:
    budgets = Budgets(0.05)
    debtor = budgets.of("debtor", 0.0)
    debtor.charge(10.0, 0.0)
    for number in range(2 * KEPT_MAX):
        budgets.of(f"urn:x:{number}", 1.0)
    assert len(budgets) <= KEPT_MAX
    assert budgets.of("debtor", 1.0) is debtor


def test_the_unknown_of_an_address_share_one_budget_and_the_known_have_their_own() -> None:
    doors = Doors(100, 100)
    first, second, other = (doors.enter(address, 0.0, lambda: None) for address in ("::1:1", "::1:2", "192.0.2.1"))
    assert first is not None
    assert second is not None
    assert other is not None
    first.budget.charge(0.5, 0.0)
    assert second.budget.wait(0.0) == pytest.approx((0.5 - BURST_SECONDS) / ADDRESS_SHARE)
    assert other.budget.wait(0.0) == 0
    doors.know(first, "agent urn:x:1", 0.0)
    assert first.budget.wait(0.0) == 0
    first.budget.charge(0.4, 0.0)
    # Whoever comes again, from wherever, owes what it owed.
    doors.know(other, "agent urn:x:1", 0.0)
    assert other.budget.wait(0.0) == pytest.approx((0.4 - BURST_SECONDS) / PEER_SHARE)


@pytest.mark.req("R-17.3-01", "R-17.3-02")
async def test_a_peer_over_its_budget_waits_and_nobody_else_does(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_module, "OTHERS_SECONDS", 60.0)
    bad, good = [await served.agent(who) for who in served.harness.workers[:2]]
    connection = served.hub.delivery.live_by_agent[served.harness.workers[0].id]
    connection.peer.spent(BURST_SECONDS + 0.5 * PEER_SHARE)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for wire in (bad, good):
        await wire.send(wire.frame("PING", nonce="bm9uY2U", sentAt="2030-01-01T00:00:00Z"))
        await wire.send(wire.frame("PING", nonce="bm9uY2Uy", sentAt="2030-01-01T00:00:00Z"))
    assert [(await good.receive())["replyToNonce"] for _ in range(2)] == ["bm9uY2U", "bm9uY2Uy"]
    assert await bad.receive()
    assert (await bad.receive())["replyToNonce"] == "bm9uY2Uy"
    assert loop.time() - began >= 0.3, "the second one had to wait"


async def test_refused_commands_cost_and_accepted_ones_do_not(served: Served) -> None:
    harness = served.harness
    mission = harness.mission()
    wire = await served.agent(harness.coordinator)
    connection = served.hub.delivery.live_by_agent[harness.coordinator.id]
    spent: list[float] = []
    connection.spent = spent.append
    payload = {"messageId": harness.new_id(), "conversationId": f"{mission.group_id}:mission"}
    content = [{"type": "text", "text": "well"}]
    good = harness.coordinator.command("message.post", {**payload, "content": content}, group_id=mission.group_id)
    await wire.command(good)
    await wire.event()
    assert sum(spent) < 0
    spent.clear()
    await wire.command(good)
    await wire.event()
    assert sum(spent) > 0, "a retry is answered, and is of no use"
    spent.clear()
    await wire.command(harness.coordinator.command("message.post", payload, group_id=mission.group_id))
    assert (await wire.error())["code"] == "INVALID_COMMAND"
    assert sum(spent) > 0


@pytest.mark.req("R-17.3-01")
async def test_what_a_peer_cost_is_charged_with_its_next_message_or_when_it_goes(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged: list[float] = []
    monkeypatch.setattr(Exchange, "spent", lambda self, seconds: charged.append(seconds))
    wire = await served.agent(served.harness.coordinator)
    connection = served.hub.delivery.live_by_agent[served.harness.coordinator.id]
    connection.spent(7.0)
    assert sum(charged) < 1
    await wire.send(wire.frame("PING", nonce="bm9uY2U", sentAt="2030-01-01T00:00:00Z"))
    assert await wire.receive()
    assert 7 < sum(charged) < 8
    connection.spent(7.0)
    await wire.close()
    while not connection.gone:
        await asyncio.sleep(0.01)
    assert 14 < sum(charged) < 15
    connection.spent(7.0)
    assert 21 < sum(charged) < 22, "what an answer cost that came too late"


@pytest.mark.req("R-17.3-01", "R-19-32")
async def test_a_principal_has_a_bounded_number_of_requests_under_way(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "REQUESTS_IN_FLIGHT", 2)
    mission = served.harness.mission()
    owner, worker = served.http(served.harness.owner), served.http(served.harness.coordinator)
    await asyncio.to_thread(owner.authenticate)
    polls = [asyncio.create_task(asyncio.to_thread(owner.events, mission.group_id, 1, 1000, 60)) for _ in range(3)]
    # One of them is refused while the other two wait; the next Event ends those.
    await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
    assert (await asyncio.to_thread(worker.get, "/v0.1/missions"))["missions"], "others are served"
    served.harness.owner.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    answers = await asyncio.gather(*polls, return_exceptions=True)
    refused = [each for each in answers if isinstance(each, BaseException)]
    assert [type(each) for each in refused] == [Backpressure]
    assert refused[0].rejection.retry_after_ms == 500  # type: ignore[union-attr]
    assert (await asyncio.to_thread(owner.get, "/v0.1/missions"))["missions"]


async def test_whoever_speaks_no_tls_is_told_so_before_tls_costs_anything(mwnode: Harness, tls: Tls) -> None:
    server = await serve(mwnode.node, tls=server_tls(tls.certificate, tls.key))
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 400 ")
        document: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert document["code"] == "PROTOCOL_VIOLATION"
        assert "https://" in document["message"]
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"\x00\x01\x02")
        assert await reader.read() == b""
        writer.close()
        async with aiohttp.ClientSession() as session:
            context = ssl.create_default_context(cafile=str(tls.ca))
            async with session.get(f"{server.http}/healthz", ssl=context) as response:
                assert response.status == 200
    finally:
        await server.close()


@pytest.mark.req("R-17.3-01")
def test_no_more_connections_are_kept_than_there_are_file_descriptors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 256))
    doors = server_module._doors(Limits())
    entered = [doors.enter(f"192.0.2.{number}", 0.0, lambda: None) for number in range(250)]
    assert sum(visit is not None for visit in entered) <= 256 - server_module.FILES_APART
    assert "256 files" in caplog.text
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (20_000, 20_000))
    caplog.clear()
    server_module._doors(Limits())
    assert not caplog.text


def test_a_served_node_may_open_as_many_files_as_the_machine_allows() -> None:
    text = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (128, 512)); "
        "from mwnode.system import raise_file_limit; raise_file_limit(); "
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "(512, 512)"
