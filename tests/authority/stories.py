"""Every Event kind in a few fixed histories: samples for tests of Events, and proof that a history repeats itself.

``python -m tests.authority.stories`` prints the Events of all stories, a line of canonical JSON each.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator

import msgspec

from mwnode.authority.archival import draft_snapshot
from mwnode.authority.policy import Policy
from mwnode.protocol.commands import CORE, EXT
from mwnode.protocol.documents import Actor, Event
from mwnode.protocol.jcs import canonical
from tests.authority.scene import (
    ADD_DEPENDENCY,
    DECLINE,
    GROUP,
    MISSION,
    RECORD_USAGE,
    RENEW_OWNERSHIP,
    later,
    usage,
    work_id,
)
from tests.authority.staging import CHILD, Stage
from tests.authority.test_matrix import approval

MAIN = f"{GROUP}:mission"
OTHER, OTHER_GROUP = "urn:example:mission:2", "urn:example:group:2"


def work() -> Stage:
    """WorkItems through all of their Events, with usage, an Approval, leases that run out and a new Session."""
    stage = Stage(workers=("anna", "bert"))
    anna, bert = stage.workers.values()
    proposal = {"proposalId": "urn:example:proposal:1", "contract": stage.contract()}
    stage.ok(anna, "work.propose", proposal)
    item = work_id("proposed")
    accepted = {"workItemId": item, "contract": proposal["contract"], "proposalId": proposal["proposalId"]}
    stage.ok(stage.coordinator, "work.authorize", accepted)
    stage.offer(item, anna, bert)
    stage.ok(bert, DECLINE, {"workItemId": item, "reason": "capacity"})
    stage.accept(item, anna)
    stage.ok(anna, RENEW_OWNERSHIP, {"workItemId": item, "ownershipEpoch": 1, "leaseSeconds": 1800})
    stage.ok(stage.owner, "approval.grant_execution", approval(stage, item))
    stage.start(item, anna)
    stage.renew(item, anna)
    stage.ok(anna, RECORD_USAGE, {**stage.three(item), "usageDelta": usage(toolCalls=3)})
    stage.ok(anna, "work.checkpoint", {**stage.three(item), "checkpoint": stage.checkpoint()})
    stage.start(item, anna)
    stage.block(item, anna)
    stage.ok(stage.coordinator, "work.unblock", {"workItemId": item})
    stage.start(item, anna)
    stage.session(anna)
    stage.start(item, anna)
    stage.hand_in(item, anna)
    stage.accept_result(item)
    waiting = stage.authorize("waiting")
    stage.ok(stage.coordinator, ADD_DEPENDENCY, {"workItemId": waiting, "dependencyId": item})
    stage.fail(waiting)
    stage.cancel(stage.authorize("needless"))
    lapsed = stage.bring(stage.authorize("lapsed"), "active", bert)
    stage.advance(1000)
    stage.offer(lapsed, anna)
    return stage


def words() -> Stage:
    """Messages and their amendments, Conversations, Context Packages, Memberships, limits and an override."""
    stage = Stage(Policy(message_rate=1, group_event_warning=12))
    anna = stage.workers["anna"]
    said = {"messageId": "urn:example:message:1", "conversationId": MAIN, "content": "hello"}
    stage.ok(anna, "message.post", said)
    amendment = {"messageId": said["messageId"], "reason": "a slip"}
    correction = {**amendment, "amendmentId": "urn:example:message:2", "replacementContent": "good morning"}
    stage.ok(anna, "message.correct", correction)
    stage.ok(anna, "message.retract", {**amendment, "amendmentId": "urn:example:message:3"})
    stage.ok(stage.owner, "message.redact", {**amendment, "amendmentId": "urn:example:message:4"})
    grant = {
        "grantId": "urn:example:override:1",
        "policyName": "message_rate",
        "beneficiary": {"type": anna.type, "id": anna.id},
        "targetCommandKind": "message.post",
        "targetActionId": "urn:example:action:more",
        "reason": "it is urgent",
        "expiresAt": later(stage, 300),
    }
    stage.ok(stage.owner, "policy.grant_cooperation_override", grant)
    more = {**said, "messageId": "urn:example:message:5"}
    envelope = {"actionId": grant["targetActionId"], "cooperationOverrideGrantId": grant["grantId"]}
    stage.ok(anna, "message.post", more, **envelope)
    conversation = {
        "conversationId": "urn:example:conversation:1",
        "missionId": MISSION,
        "groupId": GROUP,
        "type": "review",
        "title": "about the archive",
        "access": {"mode": "group"},
        "createdBy": {"type": anna.type, "id": anna.id},
        "createdAt": stage.now.text(),
        "state": "active",
        "revision": 1,
    }
    stage.ok(anna, f"{CORE}.conversation_open", {"conversation": conversation})
    package = {"contextPackage": stage.context_package(stage.coordinator)}
    stage.ok(stage.coordinator, f"{CORE}.context_package_publish", package)
    delegate = stage.worker("delegate", "work_delegate")
    target = stage.authorize("target")
    given = {
        "grantId": "urn:example:grant:1",
        "granteeAgentId": delegate.id,
        "targetWorkItemId": target,
        "allowedCapabilities": [{"id": "example.build", "version": "1.2.0"}],
        "budget": {
            "currency": "EUR",
            "financialLimit": 1,
            "modelTokenLimit": 1,
            "toolCallLimit": 1,
            "computeSecondsLimit": 1,
            "wallClockSecondsLimit": 1,
            "externalSideEffectLimit": 1,
        },
        "maxDescendantDepth": 1,
        "expiresAt": later(stage, 600),
    }
    stage.ok(stage.coordinator, "membership.grant_delegation", given)
    stage.ok(stage.coordinator, "membership.end", {"principal": {"type": delegate.type, "id": delegate.id}})
    erased = {"eventId": next(e.event_id for e in stage.events if e.kind == "message.posted"), "policyReason": "law"}
    stage.ok(stage.organization, f"{CORE}.event_tombstone", erased, groupId=GROUP)
    stage.ok(stage.owner, f"{CORE}.budget_amend", {"budget": {"toolCallLimit": 2000}, "reason": "more to do"})
    stage.ok(stage.owner, f"{CORE}.mission_prioritize", {"priority": "high", "reason": "the customer waits"})
    return stage


def ends() -> Stage:
    """A Mission sent back, approved, followed up and archived; its result forwarded and made knowledge."""
    stage = Stage()
    hashes = stage.submitted()
    back = stage.approval(hashes, decision="changes_requested")
    stage.ok(stage.owner, "mission.request_changes", {"approval": back, "feedback": "a title is missing"})
    stage.ok(stage.coordinator, "mission.submit_for_approval", {"artifactHashes": hashes})
    stage.ok(stage.owner, "mission.approve", {"approval": stage.approval(hashes)})
    follow_up = stage.mission_payload(OTHER, OTHER_GROUP, followUpToMissionId=MISSION)
    stage.ok(stage.owner, "mission.create_follow_up", follow_up, groupId=OTHER_GROUP)
    artifact = {"artifactHash": hashes[0], "reason": "of use to others"}
    stage.ok(stage.owner, f"{CORE}.artifact_forward", {**artifact, "toGroupId": OTHER_GROUP})
    stage.ok(stage.owner, f"{CORE}.knowledge_publish", {**artifact, "classification": "internal"})
    authority = Actor(type="service", id=stage.authority.id)
    drafted, _ = draft_snapshot(stage.view, GROUP, "urn:example:snapshot:1", authority, stage.now.text())
    document = json.loads(msgspec.json.encode(drafted))
    snapshot = stage.sign(stage.authority, document, at=document["createdAt"])
    stage.ok(stage.organization, f"{EXT}.core.group_archive", {"snapshot": snapshot}, groupId=GROUP)
    stage.ok(stage.owner, "mission.cancel", {"reason": "done already"}, groupId=OTHER_GROUP)
    return stage


def children() -> Stage:
    """A child approved with the root owner's consent, a Coordinator replaced, a child that fails its parent."""
    stage = Stage(workers=("anna", "leader", "heir"))
    anna, leader, heir = stage.workers.values()
    both = {"finalHumanApproval": True, "highRiskExecutionApproval": True}
    stage.promote(stage.authorize("outer"), leader, approvalPolicy=both)
    hashes = stage.child_submitted(leader, anna)
    human = {"approval": stage.approval(hashes, mission_id=CHILD)}
    stage.in_child(stage.owner, f"{CORE}.root_approval_grant", human)
    mine = stage.approval(hashes, signer=stage.coordinator, mission_id=CHILD, kind="child_mission")
    stage.in_child(stage.coordinator, "mission.approve", {"approval": mine})
    stage.advance(60)
    stage.keep_coordinator()
    stage.replace(heir)
    stage.reconcile(heir)
    stage.ok(heir, "mission.terminate", {"reason": "no more money"})
    return stage


STORIES: tuple[Callable[[], Stage], ...] = (work, words, ends, children)


def events() -> Iterator[Event]:
    """The Events of all stories."""
    for story in STORIES:
        yield from story().events


if __name__ == "__main__":
    for event in events():
        sys.stdout.buffer.write(canonical(msgspec.to_builtins(event)) + b"\n")
