"""The Organization's own Commands: Agent Cards, sessions, keys, Extension Profiles."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, structs

from mwnode.authority.organization import record
from mwnode.authority.state import AGENTS, KEYS, PRINCIPALS, PROFILES, principal_key
from mwnode.authority.view import Overlay
from mwnode.protocol.commands import CORE, EXT, KeyRestrict
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import ErrorCode, Rejection
from mwnode.protocol.instants import parse
from mwnode.trust.keys import generate
from tests.authority.memory import CAPABILITY, ORGANIZATION, World, content_hash
from tests.authority.scene import GROUP, later
from tests.authority.staging import Stage

REGISTER, SESSION = f"{EXT}.registry.agent_card_register", f"{EXT}.identity.session_open"
BIND, RESTRICT, PROFILE = f"{CORE}.key_bind", f"{CORE}.key_restrict", f"{CORE}.profile_register"


@pytest.fixture
def world() -> World:
    return World()


def as_json(value: Any) -> Any:
    """A record as the answer over HTTP tells it."""
    return msgspec.json.decode(msgspec.json.encode(value))


# --- agent_card_register ----------------------------------------------------------------------------------------------


def card(world: World, actor: Actor, **changes: Any) -> dict[str, Any]:
    key = world.keys[actor.id]
    public = {
        "keyId": key.key_id,
        "algorithm": "Ed25519",
        "publicKey": key.public_key,
        "validFrom": "2029-01-01T00:00:00Z",
        **changes.pop("key", {}),
    }
    return {
        "agentId": actor.id,
        "organizationId": ORGANIZATION,
        "cardVersion": 1,
        "displayName": "an Agent",
        "owner": {"type": "service", "id": world.organization.id},
        "status": "active",
        "protocolVersions": ["0.1"],
        "endpoints": [{"transport": "wss", "uri": "wss://node.example/"}],
        "publicKeys": [public],
        "capabilities": [
            {
                **CAPABILITY,
                "inputSchema": "urn:mwnode:schema:any",
                "inputSchemaHash": content_hash(b"{}"),
                "outputSchema": "urn:mwnode:schema:any",
                "outputSchemaHash": content_hash(b"{}"),
                "constraints": {},
                "verifiedEvidence": ["urn:example:evidence:card"],
            }
        ],
        "maxConcurrency": 1,
        "issuedAt": world.now.text(),
        **changes,
    }


def fresh(world: World, name: str = "fresh") -> Actor:
    """An Agent whose key nobody registered yet."""
    actor = Actor(type="agent", id=f"urn:example:agent:{name}")
    world.keys[actor.id] = generate(
        f"urn:example:key:{name}", actor, ORGANIZATION, hashlib.sha256(name.encode()).digest()
    )
    return actor


@pytest.mark.req("R-6.1-01", "R-6.4-01", "R-15.1-08", "R-15.2-03", "R-6.4-18")
def test_a_card_registers_the_agent_and_its_key(world: World) -> None:
    actor = fresh(world)
    payload = {"card": world.sign(world.organization, card(world, actor))}
    decision = world.ok(world.organization, REGISTER, payload)
    fact = decision.facts[decision.receipt]
    assert (fact.kind, fact.group_id, fact.sequence, fact.aggregate_revision) == (
        f"{EXT}.registry.agent_card_registered",
        None,
        None,
        None,
    )
    agent = world.view.get(AGENTS, actor.id)
    assert agent is not None
    assert (agent.card.card_version, agent.session_epoch) == (1, 0)
    binding = world.registry.resolve(world.keys[actor.id].key_id)
    assert binding is not None
    assert binding.principal == actor
    assert world.view.get(KEYS, world.keys[actor.id].key_id) is not None
    assert world.policy_notes[-1].group_id is None


@pytest.mark.req("R-6.1-04")
def test_versions_rise_and_keep_the_session(world: World) -> None:
    actor = world.agent("anna")
    same = {"card": world.sign(world.organization, card(world, actor, cardVersion=1))}
    assert world.refused(world.organization, REGISTER, same).code is ErrorCode.REVISION_CONFLICT
    world.card(actor, version=5)
    row = world.agent_row(actor)
    assert (row.card.card_version, row.session_epoch) == (5, 1)
    back = {"card": world.sign(world.organization, card(world, actor, cardVersion=4))}
    assert world.refused(world.organization, REGISTER, back).code is ErrorCode.REVISION_CONFLICT


@pytest.mark.req("R-6.4-01", "R-19-14")
def test_cards_are_signed_by_the_registry_service(world: World) -> None:
    actor = fresh(world)
    by_authority = {"card": world.sign(world.authority, card(world, actor))}
    assert world.refused(world.organization, REGISTER, by_authority).code is ErrorCode.AUTH_FORBIDDEN
    by_human = {"card": world.sign(world.human("somebody"), card(world, actor))}
    assert world.refused(world.organization, REGISTER, by_human).code is ErrorCode.AUTH_INVALID_SIGNATURE
    foreign = {"card": world.sign(world.organization, card(world, actor, organizationId="urn:example:other"))}
    assert world.refused(world.organization, REGISTER, foreign).code is ErrorCode.INVALID_COMMAND
    good = {"card": world.sign(world.organization, card(world, actor))}
    assert world.refused(world.authority, REGISTER, good).code is ErrorCode.AUTH_FORBIDDEN


@pytest.mark.req("R-6.4-17", "R-6.4-19", "R-6.4-20", "R-6.4-21", "R-6.4-22", "R-6.4-32")
@pytest.mark.parametrize(
    "key",
    [
        {"publicKey": "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"},  # the identity
        {"publicKey": "AAAA"},
        {"keyId": "urn:example:key:organization"},
        {"validFrom": "2029-01-02T00:00:00Z", "keyId": "urn:example:key:anna"},
    ],
    ids=str,
)
def test_a_card_whose_key_the_registry_refuses(world: World, key: dict[str, str]) -> None:
    anna = world.agent("anna")
    actor = anna if "validFrom" in key else fresh(world)
    document = card(world, actor, cardVersion=2, key=key)
    refusal = world.refused(world.organization, REGISTER, {"card": world.sign(world.organization, document)})
    assert refusal.code is ErrorCode.INVALID_COMMAND
    assert refusal.details is not None
    assert refusal.details["path"] == "/payload/card/publicKeys/0"


@pytest.mark.req("R-6.4-19")
def test_a_public_key_has_one_name(world: World) -> None:
    anna = world.agent("anna")
    actor = fresh(world)
    key = {"publicKey": world.keys[anna.id].public_key}
    refusal = world.refused(
        world.organization, REGISTER, {"card": world.sign(world.organization, card(world, actor, key=key))}
    )
    assert refusal.code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-6.4-32", "R-6.4-33")
def test_a_card_ends_a_key_earlier_and_never_later(world: World) -> None:
    anna = world.agent("anna")
    key_id = world.keys[anna.id].key_id

    def register(version: int, **key: str) -> None:
        document = card(world, anna, cardVersion=version, key=key)
        world.ok(world.organization, REGISTER, {"card": world.sign(world.organization, document)})

    def ends() -> tuple[str | None, int]:
        row, binding = world.view.get(KEYS, key_id), world.registry.resolve(key_id)
        assert row is not None
        assert binding is not None
        assert len(row.binding.validity_history) == len(binding.document.validity_history)
        until = binding.valid_until
        return (None if until is None else until.text()), len(row.binding.validity_history)

    assert ends() == (None, 0)
    register(2, validUntil="2031-01-01T00:00:00Z")
    assert ends() == ("2031-01-01T00:00:00Z", 1)
    register(3, validUntil="2032-01-01T00:00:00Z")
    assert ends() == ("2031-01-01T00:00:00Z", 1)
    register(4)
    assert ends() == ("2031-01-01T00:00:00Z", 1)
    register(5, validUntil="2030-06-01T00:00:00Z", revokedAt="2030-05-01T00:00:00Z")
    assert ends() == ("2030-06-01T00:00:00Z", 2)


@pytest.mark.req("R-11.3-18", "R-19-14")
def test_a_revoked_card_stops_its_agent_and_its_executions() -> None:
    stage = Stage()
    anna = stage.workers["anna"]
    item = stage.bring(stage.authorize("one"), "active", anna)
    waiting = [stage.bring(stage.authorize(state), state, anna) for state in ("queued", "blocked")]
    decision = stage.card(anna, status="revoked")
    assert [fact.kind for fact in decision.facts] == [
        f"{EXT}.registry.agent_card_registered",
        f"{EXT}.core.work_execution_lease_revoked",
    ]
    assert decision.receipt == 0
    assert decision.facts[1].payload.reason == "agent_card_revoked"  # type: ignore[attr-defined]
    row = stage.item(item)
    assert row.execution_lease is not None
    assert row.ownership_lease is not None
    assert (row.item.state, row.execution_lease.state, row.ownership_lease.state) == ("queued", "revoked", "revoked")
    refusal = stage.refused(anna, "work.start", {"workItemId": item, "ownershipEpoch": 1})
    assert refusal.code is ErrorCode.AUTH_FORBIDDEN
    assert stage.refused(stage.authority, SESSION, {"agentId": anna.id}).code is ErrorCode.AUTH_FORBIDDEN
    # Nobody waits for an Agent that cannot come back: all of its work can be offered at once (decision E18).
    ben = stage.worker("ben")
    for held in (item, *waiting):
        stage.offer(held, ben)
        assert stage.accept(held, ben) == stage.item(held).ownership_epoch > 2


# --- session_open -----------------------------------------------------------------------------------------------------


@pytest.mark.req("R-6.3-05", "R-11.3-17", "R-11.3-22", "R-15.1-08", "R-G-13", "R-19-12")
def test_a_session_fences_the_one_before_and_its_executions() -> None:
    stage = Stage(workers=("anna", "ben"))
    anna, ben = stage.workers["anna"], stage.workers["ben"]
    items = [stage.bring(stage.authorize(name), "active", anna) for name in ("one", "two")]
    other = stage.bring(stage.authorize("three"), "active", ben)
    decision = stage.session(anna)
    kinds = [fact.kind for fact in decision.facts]
    assert kinds == [f"{EXT}.identity.session_opened"] + [f"{EXT}.core.work_execution_lease_revoked"] * 2
    assert decision.facts[decision.receipt].group_id is None
    assert [stage.state(item) for item in (*items, other)] == ["queued", "queued", "active"]
    assert stage.agent_row(anna).session_epoch == 2
    for item in items:
        owner = stage.item(item).item.owner
        assert owner is not UNSET
        assert owner.agent_id == anna.id
    payload = {"workItemId": items[0], "ownershipEpoch": 1}
    for epoch in (1, 3):
        refusal = stage.refused(anna, "work.start", payload, sessionEpoch=epoch)
        assert refusal.code is ErrorCode.AUTH_STALE_SESSION
        assert refusal.details == {"currentSessionEpoch": 2}
    stage.start(items[0], anna)


@pytest.mark.req("R-19-14", "R-19-19")
def test_only_the_authority_opens_sessions_of_known_agents(world: World) -> None:
    anna = world.agent("anna")
    assert world.refused(world.organization, SESSION, {"agentId": anna.id}).code is ErrorCode.AUTH_FORBIDDEN
    unknown = world.refused(world.authority, SESSION, {"agentId": "urn:example:agent:none"})
    assert unknown.code is ErrorCode.INVALID_COMMAND
    world.card(anna, status="deprecated")
    assert world.refused(world.authority, SESSION, {"agentId": anna.id}).code is ErrorCode.AUTH_FORBIDDEN


def test_an_agent_without_a_card_sends_nothing(world: World) -> None:
    stage = Stage()
    stranger = stage._principal("agent", "stranger")
    refusal = stage.refused(stranger, "work.propose", {"proposalId": "urn:x:p", "contract": stage.contract()})
    assert (refusal.code, refusal.rule) == (ErrorCode.AUTH_FORBIDDEN, "R-6.4-18")


# --- key_bind, key_restrict -------------------------------------------------------------------------------------------


def binding(world: World, actor: Actor, **changes: Any) -> dict[str, Any]:
    name = actor.id.rsplit(":", 1)[1]
    key = generate(f"urn:example:key:{name}", actor, ORGANIZATION, hashlib.sha256(actor.id.encode()).digest())
    return {
        "keyId": key.key_id,
        "principal": {"type": actor.type, "id": actor.id},
        "algorithm": "Ed25519",
        "publicKey": key.public_key,
        "validFrom": "2029-12-31T00:00:00Z",
        "validityHistory": [],
        **changes,
    }


@pytest.mark.req("R-6.4-18", "R-6.4-22")
def test_a_bound_key_registers_its_human(world: World) -> None:
    human = Actor(type="human", id="urn:example:human:new")
    document = binding(world, human)
    decision = world.ok(world.organization, BIND, {"binding": document, "displayName": "New"})
    assert (decision.facts, as_json(decision.record)) == ((), {"binding": document})
    assert decision.registry is not None
    row = world.view.get(PRINCIPALS, principal_key(human))
    assert row is not None
    assert row.display_name == "New"
    resolved = world.registry.resolve(document["keyId"])
    assert resolved is not None
    assert resolved.principal == human
    second = binding(world, human, keyId="urn:example:key:new-2", publicKey=world_key("other"))
    world.ok(world.organization, BIND, {"binding": second})
    row = world.view.get(PRINCIPALS, principal_key(human))
    assert row is not None
    assert row.display_name == "New"


def world_key(name: str) -> str:
    actor = Actor(type="human", id="urn:example:human:none")
    return generate("urn:example:key:none", actor, ORGANIZATION, hashlib.sha256(name.encode()).digest()).public_key


@pytest.mark.req("R-6.4-17", "R-6.4-19", "R-6.4-21", "R-6.4-22")
@pytest.mark.parametrize(
    "changes",
    [
        {"keyId": "urn:example:key:organization"},
        {"publicKey": "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"},
        {"publicKey": "????"},
        {"algorithm": "RSA"},
        {"validFrom": "yesterday"},
        {"principal": {"type": "system", "id": "urn:x:y"}},
        {"organizationId": ORGANIZATION, "extra": 1},
    ],
    ids=str,
)
def test_a_binding_that_proves_nothing_is_refused(world: World, changes: dict[str, Any]) -> None:
    document = binding(world, Actor(type="human", id="urn:example:human:new"), **changes)
    assert world.refused(world.organization, BIND, {"binding": document}).code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-6.4-32", "R-6.4-33")
def test_a_key_ends_earlier_never_later(world: World) -> None:
    human = world.human("owner")
    document = binding(world, Actor(type="human", id="urn:example:human:new"))
    world.ok(world.organization, BIND, {"binding": document})
    key_id = document["keyId"]
    end = {"keyId": key_id, "validUntil": "2031-01-01T00:00:00Z"}
    decision = world.ok(world.organization, RESTRICT, end)
    assert decision.record is not None
    assert as_json(decision.record)["binding"]["validityHistory"] == [
        {"sequence": 1, "recordedAt": world.now.text(), "validUntil": "2031-01-01T00:00:00Z"}
    ]
    longer = {**end, "validUntil": "2031-01-01T00:00:01Z"}
    assert world.refused(world.organization, RESTRICT, longer).code is ErrorCode.INVALID_COMMAND
    world.ok(world.organization, RESTRICT, {"keyId": key_id, "revokedAt": world.now.text()})
    resolved = world.registry.resolve(key_id)
    assert resolved is not None
    assert resolved.revoked_at == world.now
    both = {**end, "revokedAt": world.now.text()}
    unknown = {**end, "keyId": "urn:example:key:none"}
    for payload in (both, unknown, {"keyId": key_id}):
        assert world.refused(world.organization, RESTRICT, payload).code is ErrorCode.INVALID_COMMAND
    assert world.keys[human.id] is not None


@pytest.mark.req("R-19-14")
def test_only_the_registry_service_changes_the_registry(world: World) -> None:
    payload = {"binding": binding(world, Actor(type="human", id="urn:example:human:new"))}
    assert world.refused(world.authority, BIND, payload).code is ErrorCode.AUTH_FORBIDDEN


def test_replay_makes_the_same_record_of_the_same_command(world: World) -> None:
    document = binding(world, Actor(type="human", id="urn:example:human:new"))
    world.ok(world.organization, BIND, {"binding": document})
    overlay = Overlay(world.shadow)
    record(overlay, KeyRestrict(key_id=document["keyId"], revoked_at=later_text(world)), world.now.text())
    world.ok(world.organization, RESTRICT, {"keyId": document["keyId"], "revokedAt": later_text(world)})
    assert overlay.get(KEYS, document["keyId"]) == world.view.get(KEYS, document["keyId"])


def later_text(world: World) -> str:
    return world.now.plus(60).text()


# --- profile_register -------------------------------------------------------------------------------------------------


def profile(world: World, signer: Actor | None = None, **changes: Any) -> dict[str, Any]:
    signer = signer or world.organization
    document = {
        "profileUri": "urn:example:profile:survey",
        "name": "Survey",
        "version": "1.0.0",
        "schemaUri": "urn:example:profile:survey:schema",
        "schemaHash": content_hash(b"{}"),
        "requiredCapabilities": [],
        "critical": True,
        "commandKinds": ["ext.example.survey.ask"],
        "eventKinds": ["ext.example.survey.asked"],
        "overridesCoreInvariants": False,
        "approvedBy": {"type": signer.type, "id": signer.id},
        "approvedAt": world.now.text(),
        **changes,
    }
    document = {name: value for name, value in document.items() if value is not None}
    return {"profile": world.sign(signer, document, at=str(document.get("approvedAt", world.now.text())))}


@pytest.mark.req("R-18-01", "R-18-02")
def test_an_approved_profile_is_registered_once(world: World) -> None:
    payload = profile(world)
    decision = world.ok(world.organization, PROFILE, payload)
    assert (decision.facts, as_json(decision.record)) == ((), payload)
    row = world.view.get(PROFILES, "urn:example:profile:survey 1.0.0")
    assert row is not None
    assert world.policy_notes[-1].entry.decision == "extension profile registered"
    again = profile(world, name="Another")
    assert world.refused(world.organization, PROFILE, again).code is ErrorCode.INVALID_COMMAND
    world.ok(world.organization, PROFILE, profile(world, version="1.1.0"))


@pytest.mark.req("R-18-02", "R-18-04", "R-18-06")
@pytest.mark.parametrize(
    "changes",
    [
        {"profileUri": None},
        {"version": None},
        {"version": "1"},
        {"schemaUri": None},
        {"schemaHash": None},
        {"requiredCapabilities": None},
        {"critical": None},
        {"overridesCoreInvariants": True},
        {"commandKinds": ["work.authorize"]},
        {"commandKinds": ["ext.acme.name"]},
        {"commandKinds": ["ext.missionweaveprotocol.core.group_archive"]},
        {"eventKinds": ["ext.mwnode.core.lease_expired"]},
        {"eventKinds": ["mission.approved"]},
    ],
    ids=str,
)
def test_a_profile_that_claims_what_is_not_its_own(world: World, changes: dict[str, Any]) -> None:
    assert world.refused(world.organization, PROFILE, profile(world, **changes)).code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-18-02")
def test_a_profile_needs_the_organizations_signature(world: World) -> None:
    human = world.human("somebody")
    assert world.refused(world.organization, PROFILE, profile(world, human)).code is ErrorCode.AUTH_FORBIDDEN
    unsigned = profile(world)
    del unsigned["profile"]["signature"]
    assert world.refused(world.organization, PROFILE, unsigned).code is ErrorCode.INVALID_COMMAND
    forged = profile(world)
    forged["profile"]["name"] = "Another"
    assert world.refused(world.organization, PROFILE, forged).code is ErrorCode.AUTH_INVALID_SIGNATURE


def extension(version: str = "1.0.0", *, critical: bool = False) -> dict[str, Any]:
    return {"urn:example:profile:survey": {"version": version, "critical": critical, "data": {"n": [1, "two"]}}}


@pytest.mark.req("R-18-03", "R-19-23")
def test_a_group_pins_the_major_versions_of_critical_profiles() -> None:
    stage = Stage()
    words = {"messageId": "urn:x:m:1", "conversationId": f"{GROUP}:mission", "content": "hi"}
    stage.ok(stage.owner, "message.post", words, extensions=extension())
    words["messageId"] = "urn:x:m:2"
    for critical in (True, False):
        if not critical:
            stage.ok(stage.organization, PROFILE, profile(stage))  # its own `critical` is enough
        outcome = stage.send(stage.owner, "message.post", words, extensions=extension(critical=critical))
        assert isinstance(outcome, Rejection)
        assert outcome.code is ErrorCode.UNKNOWN_CRITICAL_EXTENSION
    pins = [{"profileUri": "urn:example:profile:survey", "majorVersion": 1}]
    group = "urn:example:group:2"
    stage.found("urn:example:mission:2", group, pinnedProfiles=pins)
    words["conversationId"] = f"{group}:mission"
    decision = stage.ok(stage.owner, "message.post", words, groupId=group, extensions=extension())
    assert decision.facts[0].extensions is not None
    assert structs.asdict(decision.facts[0].extensions["urn:example:profile:survey"])["data"] == {"n": [1, "two"]}
    for version in ("1.0.1", "1.9.0"):  # nobody registered these, but their major version
        words["messageId"] = f"urn:x:m:{version}"
        stage.ok(stage.owner, "message.post", words, groupId=group, extensions=extension(version, critical=True))
        elsewhere = {**words, "conversationId": f"{GROUP}:mission"}
        refusal = stage.refused(stage.owner, "message.post", elsewhere, extensions=extension(version))
        assert refusal.code is ErrorCode.UNKNOWN_CRITICAL_EXTENSION
    stage.ok(stage.organization, PROFILE, profile(stage, version="2.0.0"))
    words["messageId"] = "urn:x:m:3"
    refusal = stage.refused(stage.owner, "message.post", words, groupId=group, extensions=extension("2.0.0"))
    assert refusal.code is ErrorCode.UNKNOWN_CRITICAL_EXTENSION


@pytest.mark.req("R-8-05", "R-8-06")
def test_services_act_by_policy_and_without_membership() -> None:
    stage = Stage()
    for kind, payload in (
        ("message.post", {"messageId": "urn:x:m", "conversationId": f"{GROUP}:mission", "content": "hi"}),
        ("membership.change", {"principal": {"type": "agent", "id": "urn:x:a"}, "role": "worker"}),
    ):
        refusal = stage.refused(stage.organization, kind, payload, groupId=GROUP)
        assert (refusal.code, refusal.rule) == (ErrorCode.AUTH_FORBIDDEN, "R-8-05")
    assert parse(later(stage, 1)) > stage.now
