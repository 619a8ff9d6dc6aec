"""Everything that leaves the node, judged by others: the normative schemas, and a second cryptographic library."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource

from mwnode.testing import Harness, MissionHandle

OBJECTS = {
    "mission": "mission",
    "group": "group",
    "conversation": "conversation",
    "membership": "membership",
    "memberships": "membership",
    "coordinatorLease": "lease",
    "previousCoordinatorLease": "lease",
    "ownershipLease": "lease",
    "executionLease": "lease",
    "blockedLease": "lease",
    "workItem": "work-item",
    "contract": "work-contract",
    "artifact": "artifact",
    "evidence": "evidence",
    "approval": "approval",
    "message": "message",
}
"""Payload members that hold a normative object, and its schema."""


class Oracle:
    """The published schemas with format assertion."""

    def __init__(self, bundle: Path) -> None:
        documents = [json.loads(path.read_text()) for path in sorted((bundle / "schemas").glob("*.json"))]
        registry: Registry[Any] = Registry().with_resources(
            (document["$id"], Resource.from_contents(document)) for document in documents
        )
        self._validators = {
            document["$id"].rsplit("/", 1)[1].removesuffix(".schema.json"): Draft202012Validator(
                document, registry=registry, format_checker=FormatChecker()
            )
            for document in documents
        }

    def faults(self, name: str, document: Any) -> list[str]:
        return [f"{name} {error.json_path}: {error.message}" for error in self._validators[name].iter_errors(document)]


def ordinary_life(harness: Harness) -> MissionHandle:
    """A Mission that goes through as many ordinary Events as fit in one life."""
    mission = harness.mission()
    coordinator, owner, worker = harness.coordinator, harness.owner, harness.workers[0]
    harness.advance(5)
    coordinator.send("mission.renew_coordinator", {"leaseSeconds": 3600}, group_id=mission.group_id)
    owner.send(
        "message.post",
        {
            "messageId": harness.new_id(),
            "conversationId": f"{mission.group_id}:mission",
            "content": "Bitte zuerst die Prüfsumme, größer ist nicht besser.",
            "announcement": True,
        },
        group_id=mission.group_id,
    )
    work = mission.authorize()
    work.offer(worker)
    work.accept(worker)
    work.start(worker)
    harness.advance(5)
    worker.send(
        "ext.missionweaveprotocol.core.work_execution_lease_renew",
        {**work.held, "leaseSeconds": 900},
        group_id=mission.group_id,
    )
    worker.send(
        "work.checkpoint",
        {
            **work.held,
            "checkpoint": {
                "checkpointId": harness.new_id(),
                "phase": "half",
                "completedMilestones": ["first"],
                "nextStep": None,
                "createdAt": harness.clock.now().text(),
            },
        },
        group_id=mission.group_id,
    )
    harness.advance(5)
    work.start(worker)
    content_hash = work.publish(b"one\n", worker)
    work.submit([content_hash], worker)
    work.review()
    other = mission.authorize(goal="Something nobody needs")
    coordinator.send(
        "work.cancel", {"workItemId": other.work_item_id, "reason": "not needed"}, group_id=mission.group_id
    )
    mission.submit([content_hash])
    mission.request_changes()
    again = mission.authorize(goal="The correction")
    corrected = again.run(harness.workers[1], b"two\n")
    mission.submit([content_hash, corrected])
    mission.approve()
    return mission


@pytest.fixture
def events(mwnode: Harness) -> Iterator[list[bytes]]:
    mission = ordinary_life(mwnode)
    with mwnode.node.read() as view:
        yield [
            stored.event for stored in (*view.events(mission.group_id, 0, 10_000), *view.organization_events(0, 10_000))
        ]


@pytest.mark.req("R-2-02", "R-2-19", "R-15.2-01", "R-15.2-05", "R-15.2-18", "R-15.2-23", "R-15.2-27", "R-15.2-36")
def test_every_event_and_what_it_carries_fits_the_normative_schemas(events: list[bytes], protocol_bundle: Path) -> None:
    oracle = Oracle(protocol_bundle)
    faults: list[str] = []
    carried: set[str] = set()
    for raw in events:
        event = json.loads(raw)
        faults += oracle.faults("event", event)
        frame = {"protocolVersion": "0.1", "frameId": "urn:example:frame:1", "frameType": "EVENT", "event": event}
        faults += oracle.faults("websocket-frame", frame)
        for member, schema in OBJECTS.items():
            found = event["payload"].get(member, [])
            for document in found if isinstance(found, list) else [found]:
                faults += oracle.faults(schema, document)
                carried.add(member)
    assert faults == []
    assert {"mission", "workItem", "artifact", "evidence", "approval", "message", "executionLease"} <= carried


@pytest.mark.req("R-6.4-06", "R-6.4-42", "R-6.4-43", "R-17.1-09", "R-17.4-01")
def test_every_event_verifies_with_an_independent_library(events: list[bytes], mwnode: Harness) -> None:
    public = mwnode.node.authority_key.public_key
    key = Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(public + "=" * (-len(public) % 4)))
    for raw in events:
        event = json.loads(raw)
        signature = event.pop("signature")
        signed = rfc8785.dumps(event)
        value = signature["value"]
        key.verify(base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)), signed)
        assert signature["createdAt"] == event["occurredAt"]
        assert rfc8785.dumps({**event, "signature": signature}) == raw, "stored in another form than was signed"


@pytest.mark.req("R-15.2-02", "R-16-05", "R-6.4-47")
def test_sequences_have_no_gap_and_events_cite_their_commands(mwnode: Harness) -> None:
    mission = ordinary_life(mwnode)
    events = mission.events()
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert len({event["eventId"] for event in events}) == len(events)
    with mwnode.node.read() as view:
        for event in events:
            if event["cause"]["type"] == "command":
                command = view.command(bytes.fromhex(event["commandHash"].removeprefix("sha256:")))
                assert command is not None
                document = json.loads(command)
                assert document["actionId"] == event["cause"]["id"]
                assert document["actor"] == event["actor"]
                del document["signature"]
                assert hashlib.sha256(rfc8785.dumps(document)).hexdigest() == event["commandHash"][7:]


@pytest.mark.req("R-15.1-13", "R-19-22")
def test_a_command_sent_twice_gives_the_same_bytes_and_changes_nothing(mwnode: Harness) -> None:
    mission = mwnode.mission()
    payload = {"messageId": mwnode.new_id(), "conversationId": f"{mission.group_id}:mission", "content": "once"}
    action_id = mwnode.new_id()
    command = mwnode.owner.command("message.post", payload, group_id=mission.group_id, action_id=action_id)
    first = mwnode.node.send(command)
    shuffled = json.dumps(dict(reversed(json.loads(command).items())), indent=1).encode()
    assert mwnode.node.send(command) == first
    assert mwnode.node.send(shuffled) == first, "member order and spacing are not content"
    collision = mwnode.owner.refused(
        "message.post", {**payload, "content": "twice"}, group_id=mission.group_id, action_id=action_id
    )
    assert collision.code == "ACTION_ID_COLLISION"
    assert [event["kind"] for event in mission.events()].count("message.posted") == 1
