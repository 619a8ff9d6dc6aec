"""Decisions that no other file is about: the Group's clock, where a Command belongs, revisions of the archive."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from mwnode.protocol.commands import CORE, EXT
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import OfferAccepted, OfferCreated
from mwnode.protocol.instants import parse
from tests.authority.scene import GROUP, MISSION, RECORD_USAGE, Scene, later, usage
from tests.authority.staging import Stage
from tests.authority.test_organization_archival import snapshot

HASH = "sha256:" + "0" * 64


# --- A44: the Group's clock -------------------------------------------------------------------------------------------


@pytest.mark.req("R-11.3-02")
def test_a_clock_that_steps_back_stands_still_for_the_group() -> None:
    """Events and leases run on one clock, which never goes back (decision A44)."""
    scene = Scene()
    anna = scene.workers["anna"]
    item = scene.authorize("item")
    before = scene.now.text()
    scene.now = scene.now.plus(-3600)
    offered = scene.offer(item, anna).facts[0]
    assert isinstance(offered.payload, OfferCreated)
    assert offered.occurred_at == before
    assert offered.payload.work_item.offers is not UNSET
    assert offered.payload.work_item.offers[0].expires_at == parse(before).plus(300).text()
    accepted = scene.ok(anna, "work.accept_offer", {"workItemId": item}).facts[0]
    assert isinstance(accepted.payload, OfferAccepted)
    lease = accepted.payload.ownership_lease
    assert lease is not UNSET
    assert (lease.issued_at, lease.starts_at) == (before, before)
    assert lease.expires_at == parse(before).plus(900).text()
    scene.start(item, anna)
    scene.now = parse(before).plus(10)
    assert scene.renew(item, anna).facts[0].occurred_at == scene.now.text()


# --- F32, R-15.1-02: the place of a Command ---------------------------------------------------------------------------

IN_A_GROUP: dict[str, dict[str, Any]] = {
    f"{CORE}.event_tombstone": {"eventId": "urn:example:event:1", "policyReason": "the law"},
    f"{CORE}.knowledge_publish": {"artifactHash": HASH, "classification": "internal", "reason": "useful"},
    f"{EXT}.core.group_archive": {"snapshotHash": HASH},
    RECORD_USAGE: {
        "workItemId": "urn:example:work:item",
        "ownershipEpoch": 1,
        "executionLeaseId": "urn:example:lease:1",
        "usageDelta": usage(toolCalls=1),
    },
}


@pytest.mark.req("R-15.1-02")
@pytest.mark.parametrize("kind", IN_A_GROUP)
def test_a_service_names_the_group_that_a_kind_is_about(kind: str) -> None:
    scene = Scene()
    refusal = scene.refused(scene.organization, kind, IN_A_GROUP[kind])
    assert refusal.code is ErrorCode.INVALID_COMMAND
    assert refusal.details == {"path": "/groupId"}
    named = scene.refused(scene.organization, kind, IN_A_GROUP[kind], groupId=GROUP)
    assert named.details != {"path": "/groupId"}
    unknown = scene.refused(scene.organization, kind, IN_A_GROUP[kind], groupId="urn:example:group:none")
    assert unknown.code is ErrorCode.GROUP_NOT_FOUND


@pytest.mark.req("R-15.1-02")
def test_registry_kinds_have_no_group() -> None:
    """Decision F32."""
    scene = Scene()
    payload = {"keyId": scene.keys[scene.owner.id].key_id, "validUntil": later(scene, 100)}
    kind = f"{CORE}.key_restrict"
    refusal = scene.refused(scene.organization, kind, payload, groupId=GROUP)
    assert (refusal.code, refusal.details) == (ErrorCode.INVALID_COMMAND, {"path": "/groupId"})


@pytest.mark.req("R-8-05")
def test_which_service_may_send_a_kind_comes_before_the_state() -> None:
    """Role before state (decision A8), for services too."""
    stage = Stage()
    stage.approved()
    stage.ok(stage.organization, f"{EXT}.core.group_archive", {"snapshot": snapshot(stage)}, groupId=GROUP)
    wrong = stage.refused(stage.authority, "mission.cancel", {"reason": "no"}, groupId=GROUP)
    assert wrong.code is ErrorCode.AUTH_FORBIDDEN
    late = stage.refused(stage.organization, "mission.cancel", {"reason": "no"}, groupId=GROUP)
    assert late.code is ErrorCode.INVALID_STATE_TRANSITION


# --- A25: the aggregate of expectedRevision ---------------------------------------------------------------------------


@pytest.mark.req("R-19-21", "R-15.3-01")
def test_an_archival_is_compared_with_the_missions_revision() -> None:
    stage = Stage()
    stage.approved()
    kind, payload = f"{EXT}.core.group_archive", {"snapshot": snapshot(stage)}
    revision = stage.mission_row(MISSION).mission.revision
    refusal = stage.refused(stage.organization, kind, payload, groupId=GROUP, expectedRevision=revision + 1)
    assert refusal.code is ErrorCode.REVISION_CONFLICT
    stage.ok(stage.organization, kind, payload, groupId=GROUP, expectedRevision=revision)


# --- D67: a Coordinator Epoch where none is asked for -----------------------------------------------------------------


@pytest.mark.req("R-15.1-10")
@pytest.mark.parametrize("epoch", [1, 7])
def test_a_coordinator_epoch_on_a_workers_command_is_not_looked_at(epoch: int) -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item"), "queued", anna)
    payload = {"workItemId": item, "ownershipEpoch": 1}
    assert scene.code(anna, "work.start", payload, coordinatorEpoch=epoch) == "accepted"
