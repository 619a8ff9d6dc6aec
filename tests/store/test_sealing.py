"""Sealed Events are the canonical bytes that the Event's own type gives, and verify."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mwnode.authority.request import EventFact
from mwnode.protocol import jcs
from mwnode.protocol.documents import Actor, Cause, Event, Extension, Message, TextBlock
from mwnode.protocol.events import MessageCommitted
from mwnode.protocol.jcs import JcsFault
from mwnode.store import batch
from mwnode.store.commit import Accepted
from mwnode.store.projections import encode_row
from mwnode.store.sealing import Sealer
from mwnode.store.verify import verify as verify_store
from mwnode.testing import Harness
from mwnode.trust.verification import Verified, verify
from tests.store.test_commit import held, message

AT = "2030-01-01T00:00:00.123Z"
AGENT = Actor(type="agent", id="urn:example:agent")


def fact(**members: Any) -> EventFact:
    """A Message's Event."""
    text = members.pop("text", "hello")
    said = Message(
        message_id="urn:example:message",
        mission_id="urn:example:mission",
        group_id="urn:example:group",
        conversation_id="urn:example:conversation",
        author=AGENT,
        kind="message",
        authority=False,
        content=(TextBlock(text=text),),
        committed_at=AT,
    )
    return EventFact(
        **{
            "event_id": "urn:example:event",
            "kind": "message.posted",
            "actor": AGENT,
            "cause": Cause(type="command", id="urn:example:action"),
            "correlation_id": "urn:example:correlation",
            "occurred_at": AT,
            "payload": MessageCommitted(revision=2, state="active", message=said),
            "group_id": "urn:example:group",
            "sequence": 7,
            "aggregate_revision": 2,
            "conversation_id": "urn:example:conversation",
            "command_hash": f"sha256:{'0' * 64}",
            **members,
        }
    )


FLOATS = {"urn:example:extension": Extension(critical=False, version="1.0.0", data={"half": 0.5, "much": 1e21})}


@pytest.mark.req("R-17.4-01", "R-6.4-42")
@pytest.mark.parametrize(
    "members",
    [
        {},
        {"work_item_id": "urn:example:item"},
        {"extensions": FLOATS, "conversation_id": None, "command_hash": None},
        {"text": 'quotes " and \\ and \u2028 and \U0001f600 and \x01'},
    ],
)
def test_sealed_bytes_are_canonical_and_verify(mwnode: Harness, members: dict[str, Any]) -> None:
    node = mwnode.node
    sealer = Sealer(node.authority_key, node.authority_key.principal)
    (sealed,) = sealer.seal([sealer.draft(fact(**members))])
    event = msgspec.json.decode(sealed.encoded, type=Event)
    assert jcs.canonical(event) == sealed.encoded
    verified = verify(sealed.encoded, "event", node.registry)
    assert isinstance(verified, Verified)
    assert verified.signing_hash == f"sha256:{sealed.signing_hash.hex()}"


@pytest.mark.parametrize("members", [{"sequence": None}, {"group_id": None}, {"kind": "work.started"}])
def test_an_event_without_its_place_or_of_another_kind_is_not_signed(mwnode: Harness, members: dict[str, Any]) -> None:
    sealer = Sealer(mwnode.node.authority_key, AGENT)
    with pytest.raises(ValueError, match=r"together|no payload"):
        sealer.draft(fact(**members))


def test_an_event_that_json_cannot_hold_is_not_signed(mwnode: Harness) -> None:
    sealer = Sealer(mwnode.node.authority_key, AGENT)
    infinite = {"urn:example:extension": Extension(critical=False, version="1.0.0", data={"all": float("inf")})}
    with pytest.raises(JcsFault):
        sealer.draft(fact(extensions=infinite))


@pytest.mark.req("R-15.1-15")
def test_a_row_that_cannot_be_written_costs_its_own_command_only(
    mwnode: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    mission = mwnode.mission()
    bad, good = message(mwnode, mission, "bad"), message(mwnode, mission, "good")

    def breaks(table: Any, row: Any) -> bytes:
        if table.name == "messages" and "bad" in repr(row):
            raise msgspec.ValidationError("a fault of ours")
        return encode_row(table, row)

    monkeypatch.setattr(batch, "encode_row", breaks)
    with held(mwnode) as submit:
        answers = [submit(bad), submit(good)]
    assert not isinstance(answers[0].result(20), Accepted)
    assert isinstance(answers[1].result(20), Accepted)
    assert [event["kind"] for event in mission.events()].count("message.posted") == 1
    assert verify_store(mwnode.node.store).ok


@pytest.mark.req("R-15.1-15")
def test_a_fault_found_while_another_command_is_decided_costs_its_own_command_only(
    mwnode: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    mission = mwnode.mission()
    bad, good = message(mwnode, mission, "bad"), message(mwnode, mission, "good")
    # Deciding this one asks whether a Command was accepted: what waits is written before the answer.
    asking = mwnode.owner.command(
        "policy.grant_cooperation_override",
        {
            "grantId": mwnode.new_id(),
            "policyName": "message_rate",
            "beneficiary": {"type": "agent", "id": mwnode.coordinator.id},
            "targetCommandKind": "message.post",
            "targetActionId": mwnode.new_id(),
            "reason": "this once",
            "expiresAt": mwnode.clock.now().plus(600).text(),
        },
        group_id=mission.group_id,
    )

    def breaks(table: Any, row: Any) -> bytes:
        if table.name == "messages" and "bad" in repr(row):
            raise msgspec.ValidationError("a fault of ours")
        return encode_row(table, row)

    monkeypatch.setattr(batch, "encode_row", breaks)
    with held(mwnode) as submit:
        answers = [submit(raw) for raw in (bad, asking, good)]
    outcomes = [answer.result(20) for answer in answers]
    assert [isinstance(outcome, Accepted) for outcome in outcomes] == [False, True, True], outcomes
    assert verify_store(mwnode.node.store).ok
