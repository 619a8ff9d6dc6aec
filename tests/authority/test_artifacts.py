"""Artifacts: manifests of stored bytes, their sources, and the two ways out of their Group."""

from __future__ import annotations

from typing import Any

import pytest

from mwnode.authority.state import ARTIFACTS, CONTENTS
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import ArtifactForwarded, ArtifactPublished
from tests.authority.memory import CAPABILITY, content_hash
from tests.authority.scene import GROUP, Scene, later

FORWARD = "ext.mwnode.core.artifact_forward"
KNOWLEDGE = "ext.mwnode.core.knowledge_publish"
OTHER_GROUP = "urn:example:group:2"


def active(scene: Scene, name: str = "item", worker: str = "anna", **contract: Any) -> str:
    return scene.bring(scene.authorize(name, **contract), "active", scene.workers[worker])


def publication(scene: Scene, item: str, worker: Actor, **changes: Any) -> dict[str, Any]:
    three = scene.three(item)
    return {
        "artifact": scene.artifact(item, worker, **changes),
        "ownershipEpoch": three["ownershipEpoch"],
        "executionLeaseId": three["executionLeaseId"],
    }


@pytest.mark.req("R-15.1-46", "R-15.2-36", "R-13.1-02", "R-13.1-03", "R-13.1-21")
def test_a_published_artifact_is_found_by_id_and_by_content() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene)
    payload = publication(scene, item, anna, data=b"the archive")
    decision = scene.ok(anna, "artifact.publish", payload)
    event = decision.facts[0].payload
    assert isinstance(event, ArtifactPublished)
    assert event.artifact.content_hash == content_hash(b"the archive")
    scene.publish(item, anna, b"the archive")
    content = scene.view.get(CONTENTS, content_hash(b"the archive"))
    assert content is not None
    assert len(content.artifact_ids) == 2
    assert content.group_ids == (GROUP,)
    assert len(scene.item(item).artifacts) == 2
    assert scene.state(item) == "active"


@pytest.mark.req("R-13.1-01", "R-13.1-04", "R-13.1-10", "R-13.1-17", "R-13.1-18", "R-2-14")
def test_manifests_that_are_not_published() -> None:
    scene = Scene(workers=("anna", "bert"))
    anna, bert = scene.workers.values()
    item = active(scene)
    scene.publish(item, anna, artifactId="urn:example:artifact:known")
    missing = content_hash(b"never uploaded")

    def code(**changes: Any) -> str:
        return scene.code(anna, "artifact.publish", publication(scene, item, anna, **changes))

    assert code(artifactId="urn:example:artifact:known") == "INVALID_COMMAND"
    assert code(missionId="urn:example:mission:2") == "INVALID_COMMAND"
    assert code(groupId=OTHER_GROUP) == "INVALID_COMMAND"
    assert code(sizeBytes=1) == "INVALID_COMMAND"
    assert code(uri="https://example.org/archive") == "INVALID_COMMAND"
    assert code(contentHash=missing, uri=f"urn:mwnode:artifact:{missing}") == "INVALID_COMMAND"
    assert code(createdAt=later(scene, 61)) == "INVALID_COMMAND"
    assert code(createdAt=later(scene, 60)) == "accepted"
    version = {"agentId": anna.id, "agentCardVersion": 2, "capabilities": [CAPABILITY]}
    assert code(producer=version) == "REVISION_CONFLICT"
    payload = publication(scene, item, anna)
    forged = {**payload, "artifact": {**payload["artifact"], "mediaType": "text/plain"}}
    assert scene.code(anna, "artifact.publish", forged) == "AUTH_INVALID_SIGNATURE"
    unsigned = {name: value for name, value in payload["artifact"].items() if name != "signature"}
    assert scene.code(anna, "artifact.publish", {**payload, "artifact": unsigned}) == "INVALID_COMMAND"
    others = {**payload, "artifact": {**payload["artifact"], "contentHash": content_hash(b"the archive, changed")}}
    assert scene.code(anna, "artifact.publish", others) == "AUTH_INVALID_SIGNATURE"
    by_bert = publication(scene, item, bert)
    assert scene.code(anna, "artifact.publish", by_bert) == "AUTH_FORBIDDEN"
    differs = scene.refused(anna, "artifact.publish", payload, workItemId="urn:example:work:other")
    assert differs.code is ErrorCode.INVALID_COMMAND
    scene.ok(anna, "artifact.publish", payload, workItemId=item)


def test_a_compatible_card_upgrade_may_publish() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene)
    old = publication(scene, item, anna)
    scene.card(anna, capabilities=({"id": "example.build", "version": "1.3.0"},))
    scene.ok(anna, "artifact.publish", old)
    scene.publish(item, anna)
    scene.card(anna, capabilities=({"id": "example.build", "version": "2.0.0"},))
    incompatible = publication(scene, item, anna)
    assert scene.refused(anna, "artifact.publish", incompatible).code is ErrorCode.REVISION_CONFLICT


@pytest.mark.req("R-13.1-19", "R-13.1-11", "R-13.1-16")
def test_sources_are_known_and_no_more_closed() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    loose = scene.store(b"an input that nobody published")
    item = active(scene, inputArtifacts=[loose])
    internal = scene.publish(item, anna, classification="internal")
    closed = scene.publish(item, anna, classification="restricted")

    def code(*sources: str, **changes: Any) -> str:
        payload = publication(scene, item, anna, sourceArtifactHashes=list(sources), **changes)
        return scene.code(anna, "artifact.publish", payload)

    assert code("sha256:" + "0" * 64) == "INVALID_COMMAND"
    assert code(closed) == "INVALID_COMMAND"
    assert code(internal, classification="public") == "INVALID_COMMAND"
    own = b"its own source"
    assert code(scene.store(own), data=own) == "INVALID_COMMAND"
    assert code(internal, loose, classification="confidential") == "accepted"
    assert code(closed, classification="restricted") == "accepted"


@pytest.mark.req("R-13.3-14", "R-13.3-12")
def test_sources_of_another_mission_are_forwarded_first() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene)
    source = scene.publish(item, anna)
    scene.found("urn:example:mission:2", OTHER_GROUP)
    there = {"groupId": OTHER_GROUP}
    bert = scene.agent("bert")
    scene.ok(
        scene.coordinator,
        "membership.change",
        {"principal": {"type": "agent", "id": bert.id}, "role": "worker"},
        **there,
    )
    other = "urn:example:work:there"
    scene.ok(scene.coordinator, "work.authorize", {"workItemId": other, "contract": scene.contract()}, **there)
    scene.ok(scene.coordinator, "work.offer", scene.offer_payload(other, bert), **there)
    scene.ok(bert, "work.accept_offer", {"workItemId": other}, **there)
    scene.ok(bert, "work.start", {"workItemId": other, "ownershipEpoch": 1}, **there)
    payload = publication(scene, other, bert, sourceArtifactHashes=[source])
    assert scene.refused(bert, "artifact.publish", payload, **there).code is ErrorCode.AUTH_FORBIDDEN
    # The same bytes as an input that the contract states are a source, whoever else has them.
    given = "urn:example:work:given"
    contract = scene.contract(inputArtifacts=[source])
    scene.ok(scene.coordinator, "work.authorize", {"workItemId": given, "contract": contract}, **there)
    scene.ok(scene.coordinator, "work.offer", scene.offer_payload(given, bert), **there)
    scene.ok(bert, "work.accept_offer", {"workItemId": given}, **there)
    scene.ok(bert, "work.start", {"workItemId": given, "ownershipEpoch": 1}, **there)
    stated = publication(scene, given, bert, data=b"made of it", sourceArtifactHashes=[source])
    scene.ok(bert, "artifact.publish", stated, **there)

    forward = {"artifactHash": source, "toGroupId": OTHER_GROUP, "reason": "they need it"}
    assert scene.refused(anna, FORWARD, forward, groupId=GROUP).code is ErrorCode.AUTH_FORBIDDEN
    nowhere = {**forward, "toGroupId": "urn:example:group:none"}
    assert scene.refused(scene.coordinator, FORWARD, nowhere, groupId=GROUP).code is ErrorCode.GROUP_NOT_FOUND
    unknown = {**forward, "artifactHash": "sha256:" + "0" * 64}
    assert scene.refused(scene.coordinator, FORWARD, unknown, groupId=GROUP).code is ErrorCode.INVALID_COMMAND
    decision = scene.ok(scene.coordinator, FORWARD, forward, groupId=GROUP)
    assert [(fact.group_id, fact.cause.type) for fact in decision.facts] == [
        (GROUP, "command"),
        (OTHER_GROUP, "event"),
    ]
    event = decision.facts[1].payload
    assert isinstance(event, ArtifactForwarded)
    assert (event.from_group_id, event.to_group_id, event.classification) == (GROUP, OTHER_GROUP, "internal")
    again = scene.refused(scene.coordinator, FORWARD, forward, groupId=GROUP)
    assert again.code is ErrorCode.INVALID_STATE_TRANSITION
    scene.ok(bert, "artifact.publish", payload, **there)


@pytest.mark.req("R-13.3-14")
def test_forwarding_needs_a_right_in_both_groups() -> None:
    scene = Scene()
    item = active(scene)
    source = scene.publish(item, scene.workers["anna"])
    stranger, other_coordinator = scene.human("stranger"), scene.agent("second")
    payload = scene.mission_payload("urn:example:mission:2", OTHER_GROUP, coordinatorAgentId=other_coordinator.id)
    scene.ok(stranger, "mission.create", payload, groupId=OTHER_GROUP)
    forward = {"artifactHash": source, "toGroupId": OTHER_GROUP, "reason": "r"}
    assert scene.refused(scene.coordinator, FORWARD, forward, groupId=GROUP).code is ErrorCode.GROUP_NOT_FOUND


@pytest.mark.req("R-13.3-13")
def test_knowledge_is_classified_and_has_provenance() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene)
    content = scene.publish(item, anna, classification="internal")
    secret = scene.publish(item, anna, classification="restricted")
    payload = {"artifactHash": content, "classification": "internal", "reason": "useful to all"}
    assert scene.refused(anna, KNOWLEDGE, payload).code is ErrorCode.AUTH_FORBIDDEN
    assert scene.refused(scene.coordinator, KNOWLEDGE, payload).code is ErrorCode.AUTH_FORBIDDEN
    for changes in (
        {"classification": "public"},
        {"artifactHash": "sha256:" + "0" * 64},
        {"artifactHash": secret, "classification": "restricted"},
        {"classification": None},
        {"reason": None},
    ):
        assert scene.refused(scene.owner, KNOWLEDGE, {**payload, **changes}).code is ErrorCode.INVALID_COMMAND
    scene.ok(scene.owner, KNOWLEDGE, payload)
    row = scene.view.get(CONTENTS, content)
    assert row is not None
    assert row.knowledge == "internal"
    artifact = scene.view.get(ARTIFACTS, row.artifact_ids[0])
    assert artifact is not None
    assert artifact.artifact.producer.agent_id == anna.id
    assert scene.policy_notes[-1].entry.decision == "knowledge published"
    scene.ok(scene.organization, KNOWLEDGE, {**payload, "classification": "confidential"}, groupId=GROUP)


_MANIFEST = {
    "contentHash": "R-13.1-05",
    "mediaType": "R-13.1-06",
    "schemaUri": "R-13.1-07",
    "producer": "R-13.1-08",
    "missionId": "R-13.1-10",
    "groupId": "R-13.1-10",
    "workItemId": "R-13.1-10",
    "sourceArtifactHashes": "R-13.1-11",
    "toolVersions": "R-13.1-12",
    "modelVersions": "R-13.1-13",
    "createdAt": "R-13.1-15",
    "classification": "R-13.1-16",
    "sizeBytes": "R-13.1-17",
    "uri": "R-13.1-18",
}


@pytest.mark.req(*sorted(set(_MANIFEST.values())))
@pytest.mark.parametrize("member", _MANIFEST)
def test_a_manifest_without_a_member_is_not_published(member: str) -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene)
    payload = publication(scene, item, anna)
    payload["artifact"] = {name: value for name, value in payload["artifact"].items() if name != member}
    assert scene.refused(anna, "artifact.publish", payload).code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-13.1-05", "R-13.1-08", "R-13.1-09", "R-13.1-12", "R-13.1-13", "R-13.1-14", "R-13.1-16", "R-13.1-18")
@pytest.mark.parametrize(
    "changes",
    [
        {"contentHash": "md5:0"},
        {"producer": {"agentCardVersion": 1, "capabilities": [CAPABILITY]}},
        {"producer": {"agentId": "urn:example:agent:anna", "capabilities": [CAPABILITY]}},
        {"producer": {"agentId": "urn:example:agent:anna", "agentCardVersion": 1}},
        {"producer": {"agentId": "urn:example:agent:anna", "agentCardVersion": 1, "capabilities": []}},
        {"toolVersions": [{"name": "pytest"}]},
        {"modelVersions": [{"provider": "p", "model": "m"}]},
        {"classification": "secret"},
        {"uri": "not a uri"},
    ],
)
def test_a_manifest_with_a_broken_member_is_not_published(changes: dict[str, Any]) -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene)
    payload = publication(scene, item, anna)
    payload["artifact"] = {**payload["artifact"], **changes}
    assert scene.refused(anna, "artifact.publish", payload).code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-6.1-09", "R-6.1-07")
def test_a_manifest_names_only_capabilities_that_the_item_was_accepted_with() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    other = {"id": "example.other", "version": "1.2.0"}
    scene.card(anna, capabilities=(CAPABILITY, other))
    item = active(scene)

    def claiming(version: int, *capabilities: dict[str, str]) -> dict[str, Any]:
        producer = {"agentId": anna.id, "agentCardVersion": version, "capabilities": list(capabilities)}
        return publication(scene, item, anna, producer=producer)

    newer = {**CAPABILITY, "version": "1.3.0"}
    for claimed in ([other], [newer], [CAPABILITY, other], [{**CAPABILITY, "version": "2.0.0"}]):
        refusal = scene.refused(anna, "artifact.publish", claiming(2, *claimed))
        assert refusal.code is ErrorCode.INVALID_COMMAND
        assert refusal.details == {"path": "/payload/artifact/producer/capabilities"}
    scene.ok(anna, "artifact.publish", claiming(2, CAPABILITY))
    # After an upgrade that goes on in place, what the new Card holds may have produced it too.
    scene.card(anna, capabilities=(newer,))
    scene.ok(anna, "artifact.publish", claiming(3, newer))
