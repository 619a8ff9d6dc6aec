"""Trimming archived Groups: what goes, what stays, and how the file still proves itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import mwnode.store.trim as trimming
from mwnode.authority.state import AGENTS, CONTENTS, DUPLICATES, GROUPS, MESSAGES, MISSIONS, RATES, Table
from mwnode.protocol import jcs
from mwnode.protocol.commands import CORE
from mwnode.protocol.errors import CursorTooOld
from mwnode.store.carry import compact
from mwnode.store.fold import rebuild
from mwnode.store.trim import NotTrimmed, Trimmed, find_group, trim_group
from mwnode.store.verify import Report, verify
from mwnode.testing import Harness, MissionHandle
from tests.store.archives import approved, archived, say, snapshot_of
from tests.store.damage import change, flip

TOMBSTONE = f"{CORE}.event_tombstone"


def trim(harness: Harness, mission: MissionHandle) -> Trimmed:
    """Trim through the writer of the live node, as policy does."""
    return trim_group(lambda step: harness.node.call(step).result(), mission.group_id)  # type: ignore[arg-type]


def found(report: Report) -> set[tuple[str, str]]:
    return {(finding.kind, finding.where) for finding in report.findings}


@pytest.mark.req("R-16-60", "R-7.4-02", "R-7.4-03")
def test_the_events_that_a_snapshot_tells_of_go_and_the_file_still_proves_itself(mwnode: Harness) -> None:
    mission = archived(mwnode)
    before = mission.events()
    snapshot = snapshot_of(mission)
    other = mwnode.mission()
    done = trim(mwnode, mission)
    assert (done.events, done.through_sequence) == (len(before) - 2, snapshot["throughSequence"])
    assert done.snapshot_artifact_hash == "sha256:" + hashlib.sha256(jcs.canonical(snapshot)).hexdigest()
    assert mission.events() == before[-2:]
    with mwnode.node.read() as view:
        assert view.head(mission.group_id) == len(before)
        assert view.event_by_id(before[0]["eventId"]) is None
        assert view.event_ids(mission.group_id, 0, len(before)) == [event["eventId"] for event in before]
        assert view.event_ids(mission.group_id, 2, 5) == [event["eventId"] for event in before[2:5]]
        body = view.document(snapshot["stateHash"])
    assert body is not None
    state = msgspec.json.decode(body)
    assert all(state[part] for part in ("policyLog", "workItems", "approvals", "artifacts"))
    report = verify(mwnode.node.store)
    assert report.ok, report.findings
    # Again is nothing, and other Groups go on.
    assert trim(mwnode, mission).events == 0
    other.authorize()
    assert verify(mwnode.node.store).ok


@pytest.mark.req("R-7.4-01", "R-16-58", "R-16-05")
def test_a_group_that_is_not_archived_keeps_every_event(mwnode: Harness, tmp_path: Path) -> None:
    mission, ended = mwnode.mission(), approved(mwnode)
    mission.authorize().run()
    before, before_ended = mission.events(), ended.events()
    mwnode.node.snapshots(ended.group_id)
    mwnode.node.call(lambda txn: txn.put_cursor(mwnode.coordinator.id, mission.group_id, len(before))).result()
    for each in (mission, ended):
        with pytest.raises(NotTrimmed, match="archive it first"):
            trim(mwnode, each)
    with pytest.raises(NotTrimmed, match="there is no Group"):
        trim_group(mwnode.node.store.write, "urn:example:unknown")
    mwnode.node.close()
    compact(mwnode.node.store.path)
    mwnode.restart()
    assert mission.events() == before
    assert ended.events() == before_ended


def test_a_large_group_is_trimmed_in_steps_and_may_be_left_half_way(
    mwnode: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trimming, "EVENTS_PER_STEP", 4)
    mission = archived(mwnode)
    before = mission.events()
    steps = 0

    def write(step: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise KeyboardInterrupt
        return mwnode.node.call(step).result()

    with pytest.raises(KeyboardInterrupt):
        trim_group(write, mission.group_id)
    with mwnode.node.read() as view:
        trimmed = view.trimmed(mission.group_id)
    assert trimmed is not None
    assert trimmed.through == 8
    assert [event["sequence"] for event in mission.events()] == list(range(9, len(before) + 1))
    assert verify(mwnode.node.store).ok
    trim(mwnode, mission)
    assert mission.events() == before[-2:]
    assert verify(mwnode.node.store).ok


def test_a_command_whose_events_were_trimmed_is_not_accepted_twice(mwnode: Harness) -> None:
    mission = approved(mwnode)
    payload = {"messageId": mwnode.new_id(), "conversationId": f"{mission.group_id}:mission", "content": "once"}
    raw = mwnode.owner.command("message.post", payload, group_id=mission.group_id)
    mwnode.send(raw)
    mwnode.organization.send(
        "ext.missionweaveprotocol.core.group_archive", {"snapshot": snapshot_of(mission)}, group_id=mission.group_id
    )
    trim(mwnode, mission)
    with pytest.raises(CursorTooOld, match="only in the archived snapshot"):
        mwnode.send(raw)
    assert len(mission.events()) == 2


@pytest.mark.req("R-G-11", "R-16-60")
def test_what_stands_for_trimmed_events_is_proven(mwnode: Harness) -> None:
    mission = archived(mwnode)
    snapshot = snapshot_of(mission)
    done = trim(mwnode, mission)
    store = mwnode.node.store
    where = f"group {mission.group_id}"
    key = bytes.fromhex(done.snapshot_artifact_hash[7:])
    for damaged in (key, bytes.fromhex(snapshot["stateHash"][7:])):
        change(store, "documents", damaged, flip(40))
        assert ("snapshot", where) in found(verify(store))
        change(store, "documents", damaged, flip(40))
    with store.read() as view:
        number = view.group_number(mission.group_id)
    assert number is not None
    trim_key = number.to_bytes(4, "big")
    for place in (8, 9, 50):  # the through sequence, the chain value, the snapshot's hash
        change(store, "trims", trim_key, flip(place))
        assert any(mission.group_id in finding.where for finding in verify(store).findings), place
        change(store, "trims", trim_key, flip(place))
    assert verify(store).ok


def test_rows_of_a_trimmed_group_are_compared_with_its_snapshot(mwnode: Harness) -> None:
    mission, bystander = archived(mwnode), mwnode.mission()
    trim(mwnode, mission)
    row = mission.row
    other = msgspec.structs.replace(row.mission, objective="something else")
    mwnode.node.call(lambda txn: txn.put(MISSIONS, msgspec.structs.replace(row, mission=other))).result()
    assert found(verify(mwnode.node.store)) == {("snapshot", f"group {mission.group_id}")}
    mwnode.node.call(lambda txn: txn.put(MISSIONS, row)).result()
    # Groups that were not trimmed are still compared with the fold of their own log.
    theirs = bystander.row
    changed = msgspec.structs.replace(theirs, title="another")
    mwnode.node.call(lambda txn: txn.put(MISSIONS, changed)).result()
    assert found(verify(mwnode.node.store)) == {("projection", f"missions {bystander.mission_id}")}
    assert rebuild(mwnode.node.store, lambda what, done, total: None) > 0
    assert verify(mwnode.node.store).ok
    assert bystander.row == theirs
    with mwnode.node.read() as view:
        group = view.get(GROUPS, mission.group_id)
    assert group is not None


@pytest.mark.req("R-7.4-05", "R-7.4-06")
@pytest.mark.parametrize("erased_first", [False, True])
def test_words_are_erased_from_a_trimmed_group_too(mwnode: Harness, erased_first: bool) -> None:
    mission = approved(mwnode)
    said = say(mission, "the word that must go")

    def erase() -> dict[str, Any]:
        return mwnode.organization.send(
            TOMBSTONE,
            {"eventId": said["eventId"], "policyReason": "a request by law"},
            group_id=mission.group_id,
            expected_revision=mission.revision,
        )[0]

    if erased_first:
        erase()
    mwnode.organization.send(
        "ext.missionweaveprotocol.core.group_archive", {"snapshot": snapshot_of(mission)}, group_id=mission.group_id
    )
    trim(mwnode, mission)
    if not erased_first:
        receipt = erase()
        assert receipt["payload"]["sequence"] == said["sequence"]
        assert receipt["payload"]["eventId"] == said["eventId"]
    with mwnode.node.read() as view:
        kept = [value for db in ("log", "commands", "entities") for _, value in view.pages.scan(db, b"")]
        message = view.get(MESSAGES, said["payload"]["message"]["messageId"])
    assert message is not None
    assert not any(b"the word that must go" in value for value in kept)
    assert {finding.kind for finding in verify(mwnode.node.store).findings} <= {"erasure"}
    # A Command that lost its bytes without any entry of a policy log is no erasure.
    mwnode.node.call(lambda txn: txn.put_meta("erased commands", b"[1,2,3]")).result()
    assert "tombstone" in {finding.kind for finding in verify(mwnode.node.store).findings}


def test_a_group_is_found_by_any_unmistakable_part(mwnode: Harness) -> None:
    first, second = mwnode.mission(), mwnode.mission()
    with mwnode.node.read() as view:
        assert find_group(view, first.group_id) == first.group_id
        assert find_group(view, second.mission_id[-12:]) == second.group_id
        for name in ("urn:uuid", "nothing of that name"):
            with pytest.raises(NotTrimmed, match="name one"):
                find_group(view, name)


def test_children_of_a_trimmed_mission_are_left_out_of_the_comparison_not_of_the_proof(mwnode: Harness) -> None:
    mission = archived(mwnode)
    follow_up = mwnode.owner.send(
        "mission.create_follow_up",
        {
            "missionId": mwnode.new_id(),
            "groupId": (group_id := mwnode.new_id()),
            "followUpToMissionId": mission.mission_id,
            "coordinatorAgentId": mwnode.coordinator.id,
            "objective": "Once more",
            "definitionOfDone": [{"criterionId": "c", "description": "d", "evidenceRequired": ["deterministic_test"]}],
            "budget": {"wallClockSecondsLimit": 86_400},
            "deadline": mwnode.clock.now().plus(172_800).text(),
            "approvalPolicy": {"finalHumanApproval": True, "highRiskExecutionApproval": True},
        },
        group_id=group_id,
    )[0]
    assert follow_up["groupId"] == group_id
    trim(mwnode, mission)
    report = verify(mwnode.node.store)
    assert report.ok, report.findings


def _put(harness: Harness, table: Table[Any], row: Any) -> None:
    harness.node.call(lambda txn: txn.put(table, row)).result()


def _row(harness: Harness, table: Table[Any], wanted: Callable[[Any], bool]) -> Any:
    with harness.node.store.read() as view:
        return next(row for row in view.each(table) if wanted(row))


ORGANIZATION_ROWS: dict[str, tuple[Table[Any], dict[str, Any]]] = {
    "an Agent's Session Epoch": (AGENTS, {"session_epoch": 77}),
    "an Agent's queued WorkItems": (AGENTS, {"queued": 5}),
    "an Agent's active WorkItems": (AGENTS, {"active_ids": ("urn:example:none",)}),
    "the manifests of trimmed bytes": (CONTENTS, {"artifact_ids": ()}),
    "the Groups of trimmed bytes": (CONTENTS, {"group_ids": ("urn:example:elsewhere",)}),
    "what was said in another Group": (RATES, {"times": (1, 2, 3)}),
    "contracts in another Group": (DUPLICATES, {"count": 9}),
}


@pytest.mark.parametrize("what", ORGANIZATION_ROWS)
def test_rows_of_the_organization_are_compared_after_a_trim(mwnode: Harness, what: str) -> None:
    mission = archived(mwnode)
    other = mwnode.mission()
    other.work("active")
    say(other, "still at work")
    trim(mwnode, mission)
    store = mwnode.node.store
    assert verify(store).ok
    table, changes = ORGANIZATION_ROWS[what]

    def chosen(row: Any) -> bool:
        if table is AGENTS:
            return row.active > 0
        if table is CONTENTS:
            return mission.group_id in row.group_ids
        return other.group_id in row.key or other.mission_id in row.key

    row = _row(mwnode, table, chosen)
    _put(mwnode, table, msgspec.structs.replace(row, **changes))
    assert {(kind, where.split(" ")[0]) for kind, where in found(verify(store))} == {("projection", table.name)}
    _put(mwnode, table, row)
    assert verify(store).ok
