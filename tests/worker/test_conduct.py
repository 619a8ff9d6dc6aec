"""How Agents conduct themselves: whom they talk to, what they send inline, and what a corrected envelope is worth."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import msgspec
import pytest

from mwnode.client.transports import WebSocketTransport
from mwnode.protocol.errors import AuthInvalidSignature
from mwnode.protocol.jcs import canonical
from mwnode.testing import Harness
from tests.worker.desk import CHECKED, Run, desk
from tests.worker.test_runner import SORT, World, world

__all__ = ["world"]


BLOCKED_FIRST = """\
if [ ! -e {flag} ]; then
  touch {flag}
  echo '{{"blocked": {{"reason": "no words", "requiredResolution": "bring them"}}}}' >> "$MWNODE_PROGRESS"
  sleep 600
fi
sort inputs/words.txt > outputs/sorted.txt
"""


class _Connections:
    """Where this process connects to while it listens; an audit hook cannot be taken away, so it is switched off."""

    def __init__(self) -> None:
        self.addresses: set[Any] = set()
        self.on = True
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.on and event in ("socket.connect", "socket.sendto"):
            connecting, address = arguments[0], arguments[1]
            if connecting.family in (socket.AF_INET, socket.AF_INET6):
                self.addresses.add(tuple(address[:2]))


@pytest.mark.req("R-4-11")
async def test_agents_talk_to_the_node_alone_and_every_message_is_on_record(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, Any]] = []
    send = WebSocketTransport.send

    async def recording(self: WebSocketTransport, messages: Any) -> None:
        sent.extend(msgspec.json.decode(message) for message in messages)
        await send(self, messages)

    monkeypatch.setattr(WebSocketTransport, "send", recording)
    connections = _Connections()
    flag = world.path / "asked"
    script = world.path / "sort.sh"
    script.write_text(BLOCKED_FIRST.format(flag=flag))
    (world.path / "words.txt").write_text("pear\napple\n")
    (world.path / "plan.toml").write_text(SORT)
    world.coordinate()
    for who in world.harness.workers:
        world.work(who, command=f"sh {script}")
    mission = await world.mission()
    await world.until(lambda: any(event["kind"] == "message.posted" for event in mission.events()))
    answer = {
        "messageId": world.harness.new_id(),
        "conversationId": f"{mission.group_id}:mission",
        "content": "They are there now.",
    }
    await asyncio.to_thread(world.harness.owner.send, "message.post", answer, group_id=mission.group_id)
    await world.until(lambda: mission.state == "awaiting_approval")
    connections.on = False
    assert connections.addresses == {("127.0.0.1", world.port)}, "no Agent connects to another one"
    commands = [frame["command"] for frame in sent if frame["frameType"] == "COMMAND"]
    assert {frame["frameType"] for frame in sent} <= {
        "HELLO",
        "SUBSCRIBE",
        "COMMAND",
        "ACK",
        "PING",
    }
    assert {command["groupId"] for command in commands} == {mission.group_id}
    events = mission.events()
    causes = {event["cause"]["id"] for event in events}
    said = [command for command in commands if command["kind"].startswith("message.")]
    assert said, "the Coordinator passed on what blocks the work"
    assert {command["actionId"] for command in said} <= causes
    conversations = {
        event["payload"]["message"]["conversationId"] for event in events if event["kind"] == "message.posted"
    }
    known = {f"{mission.group_id}:mission", *(item for item in _conversations(events))}
    assert conversations <= known, "owner and Coordinator read every one of them"


def _conversations(events: list[dict[str, Any]]) -> list[str]:
    return [
        event["payload"]["conversation"]["conversationId"] for event in events if event["kind"] == "work.authorized"
    ]


@pytest.mark.req("R-17.4-03")
def test_large_content_travels_by_reference(mwnode: Harness) -> None:
    mission = mwnode.mission()
    worker = mwnode.workers[0]
    mission.add(worker)
    large = "x" * 70_000

    def post(block: dict[str, Any]) -> dict[str, Any]:
        return {"messageId": mwnode.new_id(), "conversationId": f"{mission.group_id}:mission", "content": [block]}

    inline = {"type": "data_ref", "schema": "urn:example:schema:log", "data": {"log": large}}
    head = len(mission.events())
    error = worker.refused("message.post", post(inline), group_id=mission.group_id)
    assert error.code.value == "INVALID_COMMAND"
    assert "artifact_ref" in error.message
    assert len(mission.events()) == head
    content_hash = mwnode.store_bytes(large.encode())
    reference = {"type": "artifact_ref", "artifactHash": content_hash}
    worker.send("message.post", post(reference), group_id=mission.group_id)
    posted = mission.events()[-1]["payload"]["message"]["content"][0]
    assert posted["artifactHash"] == content_hash


@pytest.mark.req("R-17.4-03")
def test_results_of_any_size_travel_as_artifacts(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    large = b"y" * 1_000_000
    worker = desk(mwnode, behave=lambda assignment: Run(files={"report": large})).step()
    assert work.state == "submitted"
    assert max(len(canonical(effect.payload)) for effect in worker.sent) < 16_384, "no Command grows with the result"
    (content_hash,) = work.row.item.submission.artifact_hashes  # type: ignore[union-attr]  # it was submitted
    assert b"".join(mwnode.node.artifacts.read(content_hash)) == large


@pytest.mark.req("R-19-06")
def test_a_corrected_envelope_keeps_its_action_id(mwnode: Harness) -> None:
    mission = mwnode.mission()
    worker = mwnode.workers[0]
    mission.add(worker)
    payload = {"messageId": mwnode.new_id(), "conversationId": f"{mission.group_id}:mission", "content": "ready"}
    good = worker.command("message.post", payload, group_id=mission.group_id)
    wrong = msgspec.json.decode(good)
    wrong["signature"]["keyId"] = "urn:example:key:unknown"
    head = len(mission.events())
    with pytest.raises(AuthInvalidSignature):
        mwnode.send(canonical(wrong))
    assert len(mission.events()) == head
    receipt = mwnode.send(good)
    assert receipt[0]["cause"]["id"] == wrong["actionId"]
    assert mwnode.send(good)[0]["eventId"] == receipt[0]["eventId"]
    assert len(mission.events()) == head + 1, "one transition"


@pytest.mark.req("R-19-06")
def test_a_corrected_envelope_is_too_late_when_it_is_not_fresh(mwnode: Harness) -> None:
    mission = mwnode.mission()
    worker = mwnode.workers[0]
    mission.add(worker)
    payload = {"messageId": mwnode.new_id(), "conversationId": f"{mission.group_id}:mission", "content": "ready"}
    good = worker.command("message.post", payload, group_id=mission.group_id)
    mwnode.advance(mwnode.node.policy.freshness_window + mwnode.node.policy.clock_skew + 1)
    head = len(mission.events())
    with pytest.raises(AuthInvalidSignature):
        mwnode.send(good)
    assert len(mission.events()) == head
