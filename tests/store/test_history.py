"""What the history of a Group promises, on a real file and through a node: nothing in it is ever written over."""

from __future__ import annotations

import itertools
from typing import Any

import lmdb
import msgspec
import pytest

from mwnode.authority.state import TABLES, WORK_ITEMS, Row
from mwnode.node import Node
from mwnode.protocol import jcs
from mwnode.protocol.commands import CORE
from mwnode.protocol.documents import WorkItem
from mwnode.protocol.errors import ErrorCode
from mwnode.store import fold
from mwnode.store.environment import LmdbStore
from mwnode.store.fold import rebuild
from mwnode.store.layout import PLACE
from mwnode.store.verify import verify
from mwnode.testing import Harness, MissionHandle
from mwnode.trust.verification import Verified
from mwnode.trust.verification import verify as verify_signed
from tests.store.archives import approved, archive, say, snapshot_of
from tests.store.damage import change, flip, keys


def records(harness: Harness, mission: MissionHandle) -> list[bytes]:
    """The very bytes that are kept of every Event of the Group."""
    with harness.node.read() as view:
        return [stored.event for stored in view.events(mission.group_id, 0, 10_000)]


@pytest.mark.req("R-7.1-06")
@pytest.mark.parametrize("state", ["active", "awaiting_approval", "approved", "cancelled", "failed"])
def test_a_mission_keeps_its_identifiers_in_every_state(mwnode: Harness, state: str) -> None:
    mission = mwnode.mission("awaiting_approval")
    mission.request_changes()
    first = mission.events()[0]["payload"]["mission"]
    assert mission.mission_id == first["missionId"]
    mission.to(state)
    assert mission.row.mission.state == state
    if state in {"approved", "cancelled", "failed"}:
        archive(mission)
    assert (mission.row.mission.mission_id, mission.row.mission.group_id) == (first["missionId"], first["groupId"])
    events = mission.events()
    assert {event["groupId"] for event in events} == {first["groupId"]}
    named = [entry for entry in (event["payload"].get("mission") for event in events) if entry is not None]
    assert {(entry["missionId"], entry["groupId"]) for entry in named} == {(first["missionId"], first["groupId"])}
    snapshot = snapshot_of(mission) if state in {"approved", "cancelled", "failed"} else None
    assert snapshot is None or snapshot["groupId"] == first["groupId"]


@pytest.mark.req("R-7.1-24", "R-4-06")
def test_nothing_edits_an_approved_mission(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize()
    result = work.run()
    mission.submit([result])
    mission.approve()
    before, row = records(mwnode, mission), mission.row
    held = {"workItemId": work.work_item_id}
    attempts: list[tuple[Any, str, dict[str, Any]]] = [
        (mwnode.coordinator, "work.authorize", {"workItemId": mwnode.new_id(), "contract": mwnode.contract()}),
        (mwnode.coordinator, "work.cancel", {**held, "reason": "after all"}),
        (mwnode.coordinator, "mission.submit_for_approval", {"artifactHashes": []}),
        (mwnode.owner, "mission.cancel", {"reason": "after all"}),
        (mwnode.owner, f"{CORE}.budget_amend", {"budget": {"toolCallLimit": 1}, "reason": "after all"}),
        (mwnode.owner, "ext.mwnode.core.budget_amend", {"budget": {"toolCallLimit": 1}, "reason": "after all"}),
    ]
    for who, kind, payload in attempts:
        assert who.refused(kind, payload, group_id=mission.group_id).code is not ErrorCode.INTERNAL_ERROR, kind
    assert mwnode.owner.refused(
        "mission.request_changes",
        {"approval": mission.approval("changes_requested"), "feedback": "after all"},
        group_id=mission.group_id,
    ).code in {ErrorCode.INVALID_STATE_TRANSITION, ErrorCode.INVALID_COMMAND, ErrorCode.REVISION_CONFLICT}
    assert records(mwnode, mission) == before
    assert mission.row == row
    assert mission.row.submitted_artifacts == (result,)
    mwnode.restart()
    assert (records(mwnode, mission), mission.row) == (before, row)
    assert verify(mwnode.node.store).ok


@pytest.mark.req("R-7.2-08", "R-4-06")
def test_what_a_former_coordinator_caused_is_replayed_as_it_was(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.work("queued")
    before = records(mwnode, mission)
    successor = mwnode.agent("successor")
    mwnode.owner.send("mission.assign_coordinator", {"coordinatorAgentId": successor.id}, group_id=mission.group_id)
    assert (
        mwnode.coordinator.refused(
            "work.cancel", {"workItemId": work.work_item_id, "reason": "r"}, group_id=mission.group_id
        ).code
        is ErrorCode.MEMBERSHIP_REQUIRED
    )
    after = records(mwnode, mission)
    assert after[: len(before)] == before
    caused = [event for event in map(msgspec.json.decode, before) if event["actor"]["id"] == mwnode.coordinator.id]
    assert len(caused) > 2
    for raw in after:
        assert isinstance(verify_signed(raw, "event", mwnode.node.registry), Verified)
    report = verify(mwnode.node.store)
    assert report.ok, report.findings
    rows = entities(mwnode.node)
    mwnode.node.close()
    rebuilt(mwnode)
    mwnode.restart()
    assert entities(mwnode.node) == rows
    assert work.state == "queued"


def entities(node: Node) -> dict[str, list[Row]]:
    """Every row of the authority's state."""
    with node.read() as view:
        return {table.name: view.all(table) for table in TABLES}


def rebuilt(harness: Harness) -> None:
    """Make every row anew from the log of a node that is closed."""
    store = LmdbStore.open(harness.node.store.path, durable=False)
    rebuild(store, lambda what, done, total: None)
    store.close()


@pytest.mark.req("R-11.1-04")
def test_the_log_prevails_over_whatever_a_row_says(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.work("active")
    told = work.row
    wrong = msgspec.structs.replace(told, item=msgspec.structs.replace(told.item, revision=99), ownership_epoch=9)
    mwnode.node.call(lambda txn: txn.put(WORK_ITEMS, wrong)).result()
    assert work.row.item.revision == 99
    assert [finding.kind for finding in verify(mwnode.node.store).findings] == ["projection"]
    mwnode.node.close()
    rebuilt(mwnode)
    mwnode.restart()
    assert work.row == told
    assert isinstance(work.row.item, WorkItem)
    work.submit([work.publish(b"result")])
    assert verify(mwnode.node.store).ok


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("where", ["evolve", "record"])
def test_a_map_that_fills_while_the_log_is_folded_is_grown_and_nothing_is_left_out(
    mwnode: Harness, monkeypatch: pytest.MonkeyPatch, where: str, times: int
) -> None:
    mission = mwnode.mission()
    for name in ("late", "later", "last"):
        mwnode.agent(name)
    work = mission.work("active")
    mwnode.agent("after-all")
    work.submit([work.publish(b"result")])
    real, count = getattr(fold, where), itertools.count()
    full = range(1, 1 + times)

    def fills(*arguments: Any) -> Any:
        answer = real(*arguments)
        if next(count) in full:
            raise lmdb.MapFullError("full")
        return answer

    monkeypatch.setattr(fold, where, fills)
    report = verify(mwnode.node.store)
    assert report.ok, report.findings
    assert next(count) > max(full)


@pytest.mark.req("R-G-10")
def test_the_policy_log_covers_every_kind_of_decision_and_only_grows(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.work("queued", executionApproval="human_required")
    work.approve_execution()
    message_id = say(mission, "a secret")["payload"]["message"]["messageId"]
    redaction = {"amendmentId": mwnode.new_id(), "messageId": message_id, "reason": "personal data"}
    mwnode.owner.send("message.redact", redaction, group_id=mission.group_id)
    more = {"budget": {"wallClockSecondsLimit": 90_000}, "reason": "it takes longer"}
    mwnode.owner.send("ext.mwnode.core.budget_amend", more, group_id=mission.group_id)
    early = entries(mwnode, mission)
    successor = mwnode.agent("successor")
    mwnode.owner.send("mission.assign_coordinator", {"coordinatorAgentId": successor.id}, group_id=mission.group_id)
    log = entries(mwnode, mission)
    assert log[: len(early)] == early, "what stands there stays"
    decisions = [entry["decision"] for entry in log]
    for decision in (
        "policy adopted",
        "execution approved",
        "message redacted",
        "budget amended",
        "coordinator assigned",
    ):
        assert decision in decisions
    assert len({entry["entryId"] for entry in log}) == len(log)
    # No transaction has a way to change or delete one, and whoever does so behind its back is found out.
    with mwnode.node.read() as view:
        number = view.group_number(mission.group_id)  # type: ignore[attr-defined]
    assert verify(mwnode.node.store).ok
    for edit in (flip(-3), lambda value: None):
        place = PLACE.pack(number, 2)
        assert place in keys(mwnode.node.store, "policy_log")
        change(mwnode.node.store, "policy_log", place, edit)
        assert "policy" in {finding.kind for finding in verify(mwnode.node.store).findings}


def entries(harness: Harness, mission: MissionHandle) -> list[dict[str, Any]]:
    with harness.node.read() as view:
        return list(msgspec.to_builtins(view.policy_log(mission.group_id)))


@pytest.mark.req("R-9-03")
def test_a_restricted_conversation_is_in_the_groups_own_log_and_in_its_snapshot(mwnode: Harness) -> None:
    mission = mwnode.mission()
    place, head = mwnode.new_id(), len(mission.events())
    conversation = {
        "conversationId": place,
        "missionId": mission.mission_id,
        "groupId": mission.group_id,
        "type": "restricted",
        "title": "quiet",
        "access": {"mode": "restricted", "members": [msgspec.to_builtins(mwnode.coordinator.principal)]},
        "createdBy": msgspec.to_builtins(mwnode.owner.principal),
        "createdAt": mwnode.clock.now().text(),
        "state": "active",
        "revision": 1,
    }
    opened = mwnode.owner.send(
        "ext.mwnode.core.conversation_open", {"conversation": conversation}, group_id=mission.group_id
    )[0]
    words = {"messageId": mwnode.new_id(), "conversationId": place, "content": "psst"}
    said = mwnode.owner.send("message.post", words, group_id=mission.group_id)[0]
    assert (opened["sequence"], said["sequence"]) == (head + 1, head + 2)
    mission.cancel()
    archive(mission)
    snapshot = snapshot_of(mission)
    assert snapshot["eventIds"][head : head + 2] == [opened["eventId"], said["eventId"]]
    with mwnode.node.read() as view:
        body = msgspec.json.decode(view.document(snapshot["stateHash"]) or b"{}")
    assert place in [entry["conversationId"] for entry in body["conversations"]]


@pytest.mark.req("R-21-03")
def test_extension_data_that_nobody_knows_comes_out_as_it_went_in(mwnode: Harness) -> None:
    mission = mwnode.mission()
    data = {"any": [1.5, None, {"signature": "x", "𝄞": "😀"}], "n": 1e21}
    extensions = {"urn:example:unknown": {"version": "2.0.0", "critical": False, "data": data}}
    payload = {"messageId": mwnode.new_id(), "conversationId": f"{mission.group_id}:mission", "content": "hello"}
    mwnode.owner.send("message.post", payload, group_id=mission.group_id, extensions=extensions)
    mwnode.restart()
    raw = records(mwnode, mission)[-1]
    event = msgspec.json.decode(raw)
    assert event["extensions"] == extensions
    assert jcs.canonical(event) == raw
    assert isinstance(verify_signed(raw, "event", mwnode.node.registry), Verified)
    assert verify(mwnode.node.store).ok


@pytest.mark.req("R-7.1-26", "R-4-06")
def test_a_revoked_approval_stays_where_it_was(mwnode: Harness) -> None:
    mission = approved(mwnode)
    before = records(mwnode, mission)
    given = next(event for event in mission.events() if event["kind"] == "mission.approved")["payload"]["approval"]
    revoked = mission.approval(
        "revoked", approvalId=mwnode.new_id(), revokesApprovalId=given["approvalId"], comments="it was wrong"
    )
    group_id = mwnode.new_id()
    follow_up = {
        "missionId": mwnode.new_id(),
        "groupId": group_id,
        "followUpToMissionId": mission.mission_id,
        "coordinatorAgentId": mwnode.coordinator.id,
        "objective": "Once more",
        "definitionOfDone": [{"criterionId": "c", "description": "d", "evidenceRequired": ["deterministic_test"]}],
        "budget": {"wallClockSecondsLimit": 86_400},
        "deadline": mwnode.clock.now().plus(172_800).text(),
        "approvalPolicy": {"finalHumanApproval": True, "highRiskExecutionApproval": True},
        "revocation": revoked,
    }
    events = mwnode.owner.send("mission.create_follow_up", follow_up, group_id=group_id)
    assert records(mwnode, mission)[: len(before)] == before
    for document, raw in ((given, given), (revoked, revoked)):
        assert isinstance(verify_signed(jcs.canonical(raw), "approval", mwnode.node.registry), Verified), document
    assert any(revoked["approvalId"] in str(event) for event in events)
    assert mission.state == "approved"
    assert verify(mwnode.node.store).ok
