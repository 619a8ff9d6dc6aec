"""Archival under a signed snapshot, and tombstones (section 7.4)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from mwnode.authority.archival import ERASED, draft_snapshot, erased_payload, remains_of
from mwnode.authority.evolve import evolve, fact_of
from mwnode.authority.state import GROUPS, MEMBERSHIPS, MESSAGES, MessageRow
from mwnode.authority.view import Overlay
from mwnode.authority.views import policy_log, state_body
from mwnode.protocol.commands import CORE, EXT
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import GroupArchived, SnapshotCreated
from mwnode.protocol.identifiers import CLARIFICATION_SCHEMA
from tests.authority.memory import MemoryView, content_hash
from tests.authority.scene import DAY, GROUP, MISSION
from tests.authority.staging import Stage

ARCHIVE, TOMBSTONE = f"{EXT}.core.group_archive", f"{CORE}.event_tombstone"


@pytest.fixture
def stage() -> Stage:
    return Stage()


def snapshot(stage: Stage, signer: Actor | None = None, **changes: Any) -> dict[str, Any]:
    signer = signer or stage.authority
    created_by = Actor(type="service", id=signer.id)
    drafted, body = draft_snapshot(stage.view, GROUP, "urn:example:snapshot:1", created_by, stage.now.text())
    assert body == state_body(stage.view, GROUP)
    document = json.loads(msgspec.json.encode({**drafted, **changes}))
    return stage.sign(signer, document, at=document["createdAt"])


def archive(stage: Stage, document: dict[str, Any] | None = None) -> Any:
    payload = {"snapshot": document or snapshot(stage)}
    return stage.ok(stage.organization, ARCHIVE, payload, groupId=GROUP)


# --- archival ---------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-7.4-02", "R-7.4-03", "R-15.1-09", "R-15.2-39", "R-15.2-40", "R-G-11")
def test_an_ended_missions_group_is_archived_under_its_snapshot(stage: Stage) -> None:
    stage.approved()
    document = snapshot(stage)
    body = state_body(stage.view, GROUP)
    head = stage.view.head(GROUP)
    decision = archive(stage, document)
    created, archived = decision.facts
    assert (created.kind, archived.kind) == ("group.snapshot.created", "group.archived")
    assert (created.sequence, archived.sequence, decision.receipt) == (head + 1, head + 2, 1)
    assert isinstance(created.payload, SnapshotCreated)
    assert isinstance(archived.payload, GroupArchived)
    assert (created.payload.through_sequence, created.payload.state_hash) == (head, document["stateHash"])
    group = stage.view.get(GROUPS, GROUP)
    assert group is not None
    assert (group.group.state, group.group.archived_at, group.group.archive_snapshot_id) == (
        "archived",
        stage.now.text(),
        "urn:example:snapshot:1",
    )
    assert stage.documents[document["stateHash"]] == body
    assert content_hash(body) == document["stateHash"]
    kept = stage.documents[str(created.payload.snapshot_hash)]
    assert msgspec.json.decode(kept) == document
    state = msgspec.json.decode(body)
    assert state["mission"]["state"] == "approved"
    assert [len(state[name]) for name in ("workItems", "approvals", "artifacts", "memberships")] == [1, 1, 1, 3]
    assert [entry["decision"] for entry in state["policyLog"]]


BAD: dict[str, tuple[dict[str, Any], ErrorCode]] = {
    "another Group": ({"groupId": "urn:example:group:2"}, ErrorCode.INVALID_COMMAND),
    "not the head": ({"throughSequence": 2}, ErrorCode.REVISION_CONFLICT),
    "another Event": ({"eventIds": ["urn:example:event:1"]}, ErrorCode.INVALID_COMMAND),
    "another state": ({"stateHash": "sha256:" + "0" * 64}, ErrorCode.INVALID_COMMAND),
    "too old": ({"createdAt": "2029-12-31T23:59:59Z"}, ErrorCode.INVALID_COMMAND),
    "too young": ({"createdAt": "2030-01-01T00:00:01Z"}, ErrorCode.INVALID_COMMAND),
}


@pytest.mark.req("R-15.2-40", "R-G-11")
@pytest.mark.parametrize("name", [*BAD, "a cut policy log", "another signer"])
def test_a_snapshot_that_tells_something_else_archives_nothing(stage: Stage, name: str) -> None:
    stage.approved()
    changes, code = BAD.get(name, ({}, ErrorCode.INVALID_COMMAND))
    signer = None
    if name == "a cut policy log":
        changes = {"policyLog": [msgspec.to_builtins(policy_log(stage.view, GROUP)[0])]}
    if name == "another signer":
        signer, code = stage.organization, ErrorCode.AUTH_FORBIDDEN
    payload = {"snapshot": snapshot(stage, signer, **changes)}
    assert stage.refused(stage.organization, ARCHIVE, payload, groupId=GROUP).code is code
    group = stage.view.get(GROUPS, GROUP)
    assert group is not None
    assert group.group.state == "active"


@pytest.mark.req("R-15.2-40", "R-6.4-83")
def test_what_is_logged_after_a_snapshot_was_made_does_not_hold_up_archival(stage: Stage) -> None:
    """Anybody can have a failed verification noted in the policy log of a Group that he names."""
    stage.approved()
    document = snapshot(stage)
    newest = stage.view.policy[GROUP][-1]
    later = replace(newest, entry_id="urn:example:entry:later", occurred_at=stage.now.plus(1).text())
    stage.view.policy[GROUP].append(later)
    archive(stage, document)
    state = msgspec.json.decode(stage.documents[document["stateHash"]])
    assert later.entry_id not in [entry["entryId"] for entry in state["policyLog"]]


@pytest.mark.req("R-15.2-40")
def test_an_altered_snapshot_and_an_unknown_hash_archive_nothing(stage: Stage) -> None:
    stage.approved()
    altered = {**snapshot(stage), "snapshotId": "urn:example:snapshot:2"}
    refusal = stage.refused(stage.organization, ARCHIVE, {"snapshot": altered}, groupId=GROUP)
    assert refusal.code is ErrorCode.AUTH_INVALID_SIGNATURE
    for payload in ({"snapshotHash": "sha256:" + "0" * 64}, {}):
        assert stage.refused(stage.organization, ARCHIVE, payload, groupId=GROUP).code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-7.4-02", "R-19-14", "R-19-20")
def test_only_the_organization_archives_and_only_what_ended(stage: Stage) -> None:
    early = stage.refused(stage.organization, ARCHIVE, {"snapshot": snapshot(stage)}, groupId=GROUP)
    assert early.code is ErrorCode.INVALID_STATE_TRANSITION
    stage.approved()
    for actor in (stage.owner, stage.coordinator, stage.authority):
        payload = {"snapshot": snapshot(stage)}
        assert stage.refused(actor, ARCHIVE, payload, groupId=GROUP).code is ErrorCode.AUTH_FORBIDDEN
    archive(stage)
    again = stage.refused(stage.organization, ARCHIVE, {"snapshot": snapshot(stage)}, groupId=GROUP)
    assert again.code is ErrorCode.INVALID_STATE_TRANSITION


@pytest.mark.req("R-7.4-01")
def test_nothing_is_added_to_an_archived_group(stage: Stage) -> None:
    stage.approved()
    archive(stage)
    words = {"messageId": "urn:x:m", "conversationId": f"{GROUP}:mission", "content": "hi"}
    assert stage.refused(stage.owner, "message.post", words).code is ErrorCode.INVALID_STATE_TRANSITION


@pytest.mark.req("R-8-12")
def test_after_archival_those_who_came_for_work_leave(stage: Stage) -> None:
    watcher, idle = stage.worker("watcher", "observer"), stage.worker("idle")
    stage.approved()
    archive(stage)
    stage.advance(DAY)
    states = {held.membership.member.id: held.membership.state for held in stage.view.in_group(MEMBERSHIPS, GROUP)}
    assert states == {
        stage.owner.id: "active",
        stage.coordinator.id: "active",
        watcher.id: "active",
        idle.id: "ended",
        stage.workers["anna"].id: "ended",
    }


# --- tombstones -------------------------------------------------------------------------------------------------------


def posted(stage: Stage, number: int = 1, content: Any = "a secret") -> str:
    payload = {
        "messageId": f"urn:example:message:{number}",
        "conversationId": f"{GROUP}:mission",
        "content": content,
        "references": ["urn:example:secret"],
    }
    return stage.ok(stage.workers["anna"], "message.post", payload).facts[0].event_id


def tombstone(event_id: str, **changes: Any) -> dict[str, Any]:
    return {"eventId": event_id, "policyReason": "a court order", **changes}


def message(stage: Stage, number: int = 1) -> MessageRow:
    row = stage.view.get(MESSAGES, f"urn:example:message:{number}")
    assert row is not None
    return row


@pytest.mark.req("R-7.4-05", "R-7.4-06", "R-G-10")
def test_a_tombstone_names_target_reason_and_actor(stage: Stage) -> None:
    event_id = posted(stage)
    ids = stage.view.event_ids(GROUP, 0, stage.view.head(GROUP))
    decision = stage.ok(stage.organization, TOMBSTONE, tombstone(event_id), groupId=GROUP)
    fact = decision.facts[0]
    assert (fact.kind, fact.actor) == (f"{CORE}.event_tombstoned", stage.organization)
    assert msgspec.to_builtins(fact.payload)["eventId"] == event_id
    assert stage.view.event_ids(GROUP, 0, len(ids)) == ids
    assert message(stage).message.content[0].text == ERASED  # type: ignore[union-attr]
    assert message(stage).message.references is msgspec.UNSET
    entry = stage.view.policy_log(GROUP)[-1]
    assert (entry.decision, entry.details["erasedEventId"]) == ("event erased", event_id)


@pytest.mark.req("R-7.4-05", "R-7.4-06", "R-19-14", "R-19-19")
def test_what_cannot_be_erased(stage: Stage) -> None:
    event_id = posted(stage)
    created = stage.view.event_ids(GROUP, 0, 1)[0]
    for target in ("urn:example:event:none", created):
        refusal = stage.refused(stage.organization, TOMBSTONE, tombstone(target), groupId=GROUP)
        assert refusal.code is ErrorCode.INVALID_COMMAND
    for actor in (stage.owner, stage.authority):
        refusal = stage.refused(actor, TOMBSTONE, tombstone(event_id), groupId=GROUP)
        assert refusal.code is ErrorCode.AUTH_FORBIDDEN
    no_reason = {"eventId": event_id}
    assert stage.refused(stage.organization, TOMBSTONE, no_reason, groupId=GROUP).code is ErrorCode.INVALID_COMMAND
    refusal = stage.refused(stage.organization, TOMBSTONE, tombstone(event_id), groupId=GROUP, expectedRevision=9)
    assert refusal.code is ErrorCode.REVISION_CONFLICT
    stage.ok(stage.organization, TOMBSTONE, tombstone(event_id), groupId=GROUP)
    again = stage.refused(stage.organization, TOMBSTONE, tombstone(event_id), groupId=GROUP)
    assert again.code is ErrorCode.INVALID_STATE_TRANSITION


@pytest.mark.req("R-7.4-05")
def test_an_archived_group_allows_a_tombstone(stage: Stage) -> None:
    event_id = posted(stage)
    stage.approved()
    archive(stage)
    stage.ok(stage.organization, TOMBSTONE, tombstone(event_id), groupId=GROUP)
    assert message(stage).message.content[0].text == ERASED  # type: ignore[union-attr]


@pytest.mark.req("R-7.4-06")
def test_a_log_with_an_erased_event_folds_to_the_same_state(stage: Stage) -> None:
    question = {
        "type": "data_ref",
        "schema": CLARIFICATION_SCHEMA,
        "data": {"question": "urn:example:question:1", "resolved": False},
    }
    event_id = posted(stage, content=[{"type": "text", "text": "a secret"}, question])
    decision = stage.ok(stage.organization, TOMBSTONE, tombstone(event_id), groupId=GROUP)
    replayed = MemoryView()
    for event, fact in zip(stage.events, stage.facts, strict=True):
        if event.event_id == event_id:
            payload = erased_payload(event.payload, decision.facts[0].event_id, "a court order")
            assert set(payload) == {"tombstone"}
            assert b"secret" not in msgspec.json.encode(payload)
            event = msgspec.structs.replace(event, payload=payload)
        overlay = Overlay(replayed)
        again = fact_of(event, fact.command_payload)
        if again.group_id is not None:
            overlay.advance(again.group_id, again.event_id, again.occurred_at)
        evolve(overlay, again)
        for table, row in overlay.changes.values():
            replayed.put(table, row)
        replayed.append(again)
    assert replayed.rows[MESSAGES.code] == stage.view.rows[MESSAGES.code]
    assert replayed.rows[4] == stage.view.rows[4]


def test_only_messages_have_remains() -> None:
    with pytest.raises(msgspec.ValidationError):
        erased_payload({"revision": 1, "state": "active", "reason": "no"}, "urn:x:e", "no")
    assert remains_of({"tombstone": "no"}) == {"tombstone": "no"}
    assert MISSION
