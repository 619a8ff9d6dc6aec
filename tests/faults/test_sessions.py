"""Sessions and connections, over real sockets."""

from __future__ import annotations

import json
import threading

from mwnode.protocol.commands import EXT
from mwnode.testing import Harness, assert_refused
from mwnode.trust.keys import sign_mapping
from tests.gateway.conftest import Served
from tests.gateway.test_frames_socket import alive, message
from tests.patience import PATIENCE_SECONDS


async def test_a_live_connection_outlives_its_token_and_its_work(served: Served) -> None:
    harness = served.harness
    work = harness.work("active")
    worker = harness.workers[0]
    wire = await served.agent(worker)
    work.start(worker)
    seconds = harness.node.policy.session_token_lifetime + 60
    for _ in range(seconds // 60):
        await served.advance(60)
        await alive(wire)
        renew = worker.command(f"{EXT}.core.work_execution_lease_renew", work.held, group_id=work.mission.group_id)
        await wire.command(renew)
        assert (await wire.event())["kind"] == "work.progressed"
    assert work.state == "active"


async def test_a_session_that_could_not_be_opened_hinders_no_later_one(served: Served) -> None:
    harness = served.harness
    worker = harness.workers[0]
    for _ in range(2):
        with harness.faults.fill():
            wire = await served.dial()
            await wire.send(wire.client_init(worker))
            await wire.send(wire.client_response(worker, await wire.receive()))
            assert (await wire.error())["code"] == "INTERNAL_ERROR"
    mission = harness.mission()
    mission.add(worker)
    wire = await served.agent(worker)
    await wire.command(worker.command("message.post", message(served, mission.group_id), group_id=mission.group_id))
    assert (await wire.event())["kind"] == "message.posted", "the epoch of the new session is the current one"


async def test_an_agent_without_a_card_connects_as_soon_as_it_has_one(served: Served) -> None:
    harness = served.harness
    newcomer = harness.stranger("newcomer")
    harness.bind(newcomer)
    for _ in range(2):
        wire = await served.dial()
        await wire.send(wire.client_init(newcomer))
        frame = await wire.receive()
        if frame["frameType"] == "HELLO":
            await wire.send(wire.client_response(newcomer, frame))
            frame = await wire.receive()
        assert frame["error"]["code"] == "AUTH_FORBIDDEN"
    harness.register(newcomer)
    await alive(await served.agent(newcomer))


async def test_a_handshake_does_not_wait_for_another_one(served: Served) -> None:
    harness = served.harness
    first, second = harness.workers
    entered, release = threading.Event(), threading.Event()

    def occupy(_: object) -> None:
        entered.set()
        release.wait(PATIENCE_SECONDS)

    one, two = await served.dial(), await served.dial()
    await one.send(one.client_init(first))
    challenge = await one.receive()
    harness.node.call(occupy)
    assert entered.wait(PATIENCE_SECONDS)
    try:
        await one.send(one.client_response(first, challenge))
        # The store is busy with the session of the first: the second is challenged all the same.
        await two.send(two.client_init(second))
        asked = await two.receive()
        assert asked["phase"] == "server_challenge"
        assert await one.silent(0.05)
    finally:
        release.set()
    assert (await one.receive())["phase"] == "server_accept"
    await two.send(two.client_response(second, asked))
    assert (await two.receive())["phase"] == "server_accept"


async def test_new_agents_and_new_keys_need_no_restart(served: Served) -> None:
    harness = served.harness
    late = harness.agent("late", slots=1)
    await alive(await served.agent(late))
    second = harness.stranger("late")
    harness.register(late, second, version=2)
    mission = harness.mission()
    mission.add(late)
    wire = await served.agent(second)
    await wire.command(second.command("message.post", message(served, mission.group_id), group_id=mission.group_id))
    assert (await wire.event())["actor"]["id"] == late.id


def test_a_service_is_who_signs_as_one_also_in_process(mwnode: Harness) -> None:
    mission = mwnode.mission()
    cancel = {"kind": "mission.cancel", "payload": {"reason": "because"}, "group_id": mission.group_id}
    pretender = mwnode.stranger("pretender", "service")
    assert pretender.refused(**cancel).code == "AUTH_INVALID_SIGNATURE"
    posing = json.loads(mwnode.organization.command(**cancel))
    del posing["signature"]
    forged = sign_mapping(posing, mwnode.workers[0].key, mwnode.clock.now().text())
    anything = {**forged, "signature": {**forged["signature"], "value": "A" * 86}}
    for document in (forged, anything):
        assert_refused("AUTH_INVALID_SIGNATURE", lambda sent=document: mwnode.send(json.dumps(sent).encode()))
    assert mission.state == "active"
