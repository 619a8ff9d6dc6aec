"""The envelopes of Commands and Events, and Presence: which members they carry, by actor and by kind."""

from __future__ import annotations

from typing import Any

import pytest

from mwnode.protocol import jcs
from mwnode.protocol.documents import Command, Event, PresenceRecord
from mwnode.protocol.documents.kinds import CORE_COMMAND_KINDS, CORE_EVENT_KINDS, ORGANIZATION_EVENT_KINDS
from mwnode.protocol.strict_json import SchemaFault, decode
from mwnode.trust.verification import Failure, verify
from tests.protocol.test_frames import PRESENCE
from tests.trust import makers
from tests.trust.makers import AGENT, AUTHORITY, HUMAN, actor

REGISTRATION = "ext.missionweaveprotocol.registry.agent_card_register"
SESSION = "ext.missionweaveprotocol.identity.session_open"


def fits(document: dict[str, Any], kind: Any) -> bool:
    try:
        decode(jcs.canonical(document), kind)
    except SchemaFault:
        return False
    return True


def without(document: dict[str, Any], *members: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in members}


EPOCHS = ("sessionEpoch", "membershipEpoch", "coordinatorEpoch")
AGENTS = makers.signed("command")
HUMANS = {**without(AGENTS, "sessionEpoch"), "actor": actor(HUMAN), "kind": "mission.approve"}
SERVICES = {**without(AGENTS, *EPOCHS), "actor": actor(AUTHORITY), "kind": "mission.cancel"}
ORGANIZATIONS = {**without(SERVICES, "groupId"), "kind": SESSION}


@pytest.mark.req("R-15.1-01", "R-6.3-07")
def test_a_command_holds_its_eight_members() -> None:
    for envelope in (AGENTS, HUMANS, SERVICES, ORGANIZATIONS):
        assert fits(envelope, Command)
        for member in (
            "protocolVersion",
            "actionId",
            "actor",
            "kind",
            "correlationId",
            "issuedAt",
            "payload",
            "signature",
        ):
            assert not fits(without(envelope, member), Command), member


@pytest.mark.req("R-6.3-07")
def test_an_unsigned_command_or_manifest_is_a_schema_fault() -> None:
    for kind in ("command", "artifact"):
        outcome = verify(jcs.canonical(makers.unsigned(kind)), kind, makers.registry())
        assert isinstance(outcome, Failure)
        assert outcome.code == "SCHEMA_VALIDATION_FAILED"


@pytest.mark.req("R-15.1-02")
@pytest.mark.parametrize("kind", sorted(CORE_COMMAND_KINDS))
def test_every_core_command_names_its_group(kind: str) -> None:
    for envelope in (AGENTS, HUMANS, SERVICES):
        assert not fits({**without(envelope, "groupId"), "kind": kind}, Command)
    assert not fits({**without(AGENTS, "groupId"), "kind": "ext.acme.billing.send"}, Command)


def test_an_agents_command_carries_group_and_epochs() -> None:
    for member in ("groupId", "sessionEpoch", "membershipEpoch"):
        assert not fits(without(AGENTS, member), Command)
    assert not fits({**AGENTS, "sessionEpoch": 0}, Command)


def test_a_humans_command_carries_the_membership_epoch_unless_it_makes_the_group() -> None:
    assert not fits(without(HUMANS, "membershipEpoch"), Command)
    for kind in ("mission.create", "mission.create_follow_up"):
        genesis = {**without(HUMANS, "membershipEpoch"), "kind": kind}
        assert fits(genesis, Command)
        assert not fits({**genesis, "membershipEpoch": 1}, Command)
        assert not fits({**genesis, "coordinatorEpoch": 1}, Command)
        assert not fits({**genesis, "actor": actor(AUTHORITY)}, Command)
        assert not fits({**AGENTS, "kind": kind}, Command)


@pytest.mark.req("R-15.1-05")
def test_only_agents_have_sessions() -> None:
    for envelope in (HUMANS, SERVICES, ORGANIZATIONS):
        assert fits(envelope, Command)
        assert not fits({**envelope, "sessionEpoch": 1}, Command)


@pytest.mark.req("R-15.1-06")
def test_a_service_has_no_epochs() -> None:
    for member in EPOCHS:
        assert not fits({**SERVICES, member: 1}, Command)


@pytest.mark.req("R-15.1-08")
@pytest.mark.parametrize("kind", [REGISTRATION, SESSION])
def test_organization_commands_come_bare_from_a_service(kind: str) -> None:
    bare = {**ORGANIZATIONS, "kind": kind}
    assert fits(bare, Command)
    for member, value in (("groupId", "urn:example:group:1"), *((epoch, 1) for epoch in EPOCHS)):
        assert not fits({**bare, member: value}, Command), member
    assert not fits({**bare, "actor": actor(AGENT)}, Command)
    assert not fits({**bare, "actor": actor(HUMAN)}, Command)


@pytest.mark.parametrize(
    "kind",
    [
        "mission.renew_coordinator",
        "mission.submit_for_approval",
        "mission.create_child",
        "membership.grant_delegation",
        "work.accept_result",
    ],
)
def test_a_coordinators_command_carries_its_epoch(kind: str) -> None:
    assert fits({**AGENTS, "kind": kind, "coordinatorEpoch": 1}, Command)
    assert not fits({**AGENTS, "kind": kind}, Command)
    assert not fits({**HUMANS, "kind": kind, "coordinatorEpoch": 1}, Command)


@pytest.mark.req("R-15.1-16", "R-18-04")
def test_no_other_kinds_are_known() -> None:
    assert len(CORE_COMMAND_KINDS) == 32
    for kind in (
        "mission.pause",
        "work.decline_offer",
        "message.clarify",
        "ext.acme.pause",
        "",
        "Mission.create",
        "work.start\n",
    ):
        assert not fits({**AGENTS, "kind": kind}, Command)
        assert not fits({**makers.signed("event"), "kind": kind}, Event)
    assert fits({**AGENTS, "kind": "ext.acme.billing.send"}, Command)


@pytest.mark.req("R-15.2-01")
def test_a_group_event_holds_its_thirteen_members() -> None:
    assert len(CORE_EVENT_KINDS) == 36
    event = makers.signed("event")
    assert len(event) == 13
    assert fits(event, Event)
    for member in event:
        assert not fits(without(event, member), Event), member
    assert not fits({**event, "sequence": 0}, Event)
    assert not fits({**event, "kind": "work.start"}, Event)


@pytest.mark.req("R-15.2-03")
@pytest.mark.parametrize("kind", sorted(ORGANIZATION_EVENT_KINDS))
def test_organization_events_have_no_place_in_a_group(kind: str) -> None:
    places = {"groupId": "urn:example:group:1", "sequence": 1, "aggregateRevision": 1}
    bare = {**without(makers.signed("event"), *places), "kind": kind, "actor": actor(AUTHORITY)}
    assert fits(bare, Event)
    for member, value in places.items():
        assert not fits({**bare, member: value}, Event), member
    assert not fits({**bare, "actor": actor(AGENT)}, Event)


@pytest.mark.req("R-6.2-02")
def test_a_presence_record_has_seven_members_and_one_more() -> None:
    full = {**PRESENCE, "estimatedResponseMs": 200}
    assert fits(full, PresenceRecord)
    assert fits(PRESENCE, PresenceRecord)
    assert len(PRESENCE) == 7
    for member in PRESENCE:
        assert not fits(without(full, member), PresenceRecord), member
    assert not fits({**full, "credentials": "x"}, PresenceRecord)
