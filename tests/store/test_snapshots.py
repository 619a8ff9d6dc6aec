"""Snapshots of ended Missions' Groups: signed, kept, uploaded and archived under."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest

from mwnode.authority.state import GROUPS
from mwnode.authority.views import state_body
from mwnode.protocol import jcs
from mwnode.protocol.errors import ErrorCode
from mwnode.store import snapshots
from mwnode.store.errors import StoreUnavailable
from mwnode.store.fold import folded_rows
from mwnode.store.snapshots import Snapshots, archival_snapshot
from mwnode.store.verify import verify
from mwnode.testing import Harness, flip_base64url
from mwnode.trust.keys import sign_mapping
from mwnode.trust.verification import Verified
from mwnode.trust.verification import verify as verify_signed
from tests.store.archives import ARCHIVE, approved, archive, archived, say, snapshot_of
from tests.store.damage import change, flip

BODY_LISTS = ("memberships", "conversations", "workItems", "approvals", "artifacts", "policyLog")


def document(harness: Harness, content_hash: str) -> bytes | None:
    with harness.node.read() as view:
        return view.document(content_hash)


@pytest.mark.req("R-G-11", "R-6.4-09")
def test_the_group_of_an_ended_mission_has_a_signed_snapshot_at_its_head(mwnode: Harness) -> None:
    mission = approved(mwnode)
    raw = mwnode.node.snapshots(mission.group_id)[-1]
    verdict = verify_signed(raw, "group-snapshot", mwnode.node.registry)
    assert isinstance(verdict, Verified)
    assert verdict.principal == mwnode.node.authority_key.principal
    snapshot = json.loads(raw)
    events = mission.events()
    assert snapshot["throughSequence"] == len(events)
    assert snapshot["eventIds"] == [event["eventId"] for event in events]
    body = document(mwnode, snapshot["stateHash"])
    assert body is not None
    assert "sha256:" + hashlib.sha256(body).hexdigest() == snapshot["stateHash"]
    with mwnode.node.read() as view:
        assert state_body(view, mission.group_id) == body
        logged = msgspec.to_builtins(view.policy_log(mission.group_id))
    assert snapshot["policyLog"] == logged != []
    with mwnode.node.read() as view:
        noted = [entry["details"]["eventId"] for entry in logged if "eventId" in entry["details"]]
        assert noted
        assert all(view.event_by_id(event_id) is not None for event_id in noted)


def test_a_group_at_work_or_unknown_has_no_snapshot(mwnode: Harness) -> None:
    mission = mwnode.mission()
    assert mwnode.node.snapshots(mission.group_id) == []
    assert mwnode.node.snapshots("urn:example:group:unknown") == []


def test_a_snapshot_is_made_once_for_a_head_and_again_when_the_group_moves_on(mwnode: Harness) -> None:
    mission = approved(mwnode)
    first = snapshot_of(mission)
    assert snapshot_of(mission) == first
    say(mission, "one more thing")
    second = snapshot_of(mission)
    assert second["throughSequence"] == first["throughSequence"] + 1
    assert second["snapshotId"] != first["snapshotId"]
    # Only the newest one is kept of a Group that is not archived.
    old = "sha256:" + hashlib.sha256(jcs.canonical(first)).hexdigest()
    assert document(mwnode, old) is None
    assert document(mwnode, second["stateHash"]) is not None


@pytest.mark.req("R-7.4-07", "R-G-11")
def test_a_group_at_work_has_a_live_snapshot_that_is_the_fold_of_its_whole_log(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.work("active")
    work.publish(b"result")
    (raw,) = mwnode.node.snapshots(mission.group_id, live=True)
    assert isinstance(verify_signed(raw, "group-snapshot", mwnode.node.registry), Verified)
    snapshot = json.loads(raw)
    events = mission.events()
    assert snapshot["eventIds"] == [event["eventId"] for event in events]
    with mwnode.node.read() as view, folded_rows(view, lambda what, done, total: None) as replayed:  # type: ignore[arg-type]
        with replayed.read() as rows:
            # The policy log is no row, and replay does not make it.
            told = msgspec.json.decode(state_body(rows, mission.group_id))
        body = msgspec.json.decode(document(mwnode, snapshot["stateHash"]) or b"")
        assert {**told, "policyLog": body["policyLog"]} == body
        assert body["policyLog"] == snapshot["policyLog"]
    # Nothing is appended by it, and what follows is few enough to be replayed.
    assert mission.events() == events
    say(mission, "and so on")
    assert mwnode.node.snapshots(mission.group_id, live=True) == [raw]
    assert mwnode.node.snapshots(mission.group_id) == []
    assert mwnode.node.snapshots("urn:example:group:unknown", live=True) == []
    assert verify(mwnode.node.store).ok


def test_a_live_snapshot_that_is_old_is_made_anew(mwnode: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "LIVE_BEHIND", 3)
    monkeypatch.setattr(snapshots, "LIVE_SHARE", 1000)
    mission = mwnode.mission()
    (first,) = mwnode.node.snapshots(mission.group_id, live=True)
    for number in range(3):
        say(mission, f"line {number}")
        assert mwnode.node.snapshots(mission.group_id, live=True) == [first]
    say(mission, "one too many")
    (second,) = mwnode.node.snapshots(mission.group_id, live=True)
    assert json.loads(second)["throughSequence"] == json.loads(first)["throughSequence"] + 4
    assert document(mwnode, "sha256:" + hashlib.sha256(first).hexdigest()) is None
    mwnode.restart()
    assert mwnode.node.snapshots(mission.group_id, live=True) == [second]


@pytest.mark.req("R-16-07")
@pytest.mark.parametrize("part", ["snapshot", "body", "both", "name", "another log"])
def test_a_live_snapshot_that_is_damaged_is_noticed_and_made_anew(
    mwnode: Harness, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    mission, other = mwnode.mission(), mwnode.mission()
    (raw,) = mwnode.node.snapshots(mission.group_id, live=True)
    (alien,) = mwnode.node.snapshots(other.group_id, live=True)
    mine, body = hashlib.sha256(raw).digest(), bytes.fromhex(json.loads(raw)["stateHash"][7:])
    store = mwnode.node.store
    if part in {"snapshot", "both"}:
        change(store, "documents", mine, flip(40))
    if part in {"body", "both"}:
        change(store, "documents", body, flip(40))
    if part == "name":
        change(store, "meta", b"snapshot " + mission.group_id.encode(), flip(-1))
    if part == "another log":
        # Signed for this Group, of a log that is not this one.
        shifted = json.loads(raw)
        shifted["eventIds"] = [*shifted["eventIds"][:-1], json.loads(alien)["eventIds"][-1]]
        del shifted["signature"]
        forged = jcs.canonical(sign_mapping(shifted, mwnode.node.authority_key, shifted["createdAt"]))
        name = f"snapshot {mission.group_id}"
        mwnode.node.call(lambda txn: txn.put_meta(name, txn.put_document(forged).encode())).result()
    (again,) = mwnode.node.snapshots(mission.group_id, live=True)
    snapshot = json.loads(again)
    assert snapshot["eventIds"] == [event["eventId"] for event in mission.events()]
    assert snapshot["snapshotId"] != json.loads(raw)["snapshotId"]
    assert hashlib.sha256(document(mwnode, snapshot["stateHash"]) or b"").hexdigest() == snapshot["stateHash"][7:]
    assert isinstance(verify_signed(again, "group-snapshot", mwnode.node.registry), Verified)
    assert ("made anew" in caplog.text) == (part in {"snapshot", "body", "both"})
    assert mwnode.node.snapshots(other.group_id, live=True) == [alien]


def test_an_ended_missions_damaged_snapshot_is_made_anew_too(mwnode: Harness) -> None:
    mission = approved(mwnode)
    (raw,) = mwnode.node.snapshots(mission.group_id)
    change(mwnode.node.store, "documents", hashlib.sha256(raw).digest(), flip(40))
    change(mwnode.node.store, "documents", bytes.fromhex(json.loads(raw)["stateHash"][7:]), flip(40))
    archive(mission)
    assert verify(mwnode.node.store).findings == ()


def test_a_clock_that_was_set_back_dates_no_snapshot_before_its_events(mwnode: Harness) -> None:
    mission = approved(mwnode)
    mwnode.clock.step(-30)
    assert snapshot_of(mission)["createdAt"] == mission.events()[-1]["occurredAt"]


def test_a_group_that_never_stands_still_has_no_snapshot_for_now(mwnode: Harness) -> None:
    mission = approved(mwnode)
    node = mwnode.node

    class Moving:
        """Says something just before every look at the head."""

        def call(self, change: Any) -> Any:
            say(mission, "and another thing")
            return node.call(change)

    moving = Snapshots(node, Moving(), node.authority_key, mwnode.clock, mwnode.entropy)
    with pytest.raises(StoreUnavailable, match="moves on"):
        moving.of(mission.group_id)


@pytest.mark.req("R-7.4-02", "R-7.4-03", "R-15.1-09", "R-15.2-39")
@pytest.mark.parametrize("uploaded", [False, True])
def test_a_group_is_archived_under_its_snapshot_inline_or_uploaded(mwnode: Harness, uploaded: bool) -> None:
    mission = approved(mwnode)
    snapshot = snapshot_of(mission)
    payload: dict[str, Any] = {"snapshot": snapshot}
    if uploaded:
        # Any spelling of the document will do: what counts is what was signed.
        payload = {"snapshotHash": mwnode.store_bytes(json.dumps(snapshot, indent=1).encode())}
    receipt, created = archive(mission, payload)
    assert (created["kind"], receipt["kind"]) == ("group.snapshot.created", "group.archived")
    assert created["payload"]["snapshotId"] == receipt["payload"]["snapshotId"] == snapshot["snapshotId"]
    with mwnode.node.read() as view:
        group = view.get(GROUPS, mission.group_id)
        named, kept = archival_snapshot(view, mission.group_id)
        body = view.document(snapshot["stateHash"])
    assert group is not None
    assert (group.group.state, group.group.archive_snapshot_id) == ("archived", snapshot["snapshotId"])
    assert json.loads(kept) == snapshot
    assert named == created["payload"]["snapshotHash"] == "sha256:" + hashlib.sha256(kept).hexdigest()
    assert body is not None
    state = json.loads(body)
    assert all(state[name] for name in BODY_LISTS)
    assert mwnode.node.snapshots(mission.group_id) == [kept]
    assert verify(mwnode.node.store).ok


def damaged(snapshot: dict[str, Any]) -> dict[str, Any]:
    signature = snapshot["signature"]
    return {**snapshot, "signature": {**signature, "value": flip_base64url(signature["value"])}}


@pytest.mark.req("R-15.2-40", "R-6.4-79", "R-19-19")
def test_what_was_uploaded_is_verified_like_an_embedded_document(mwnode: Harness) -> None:
    mission = approved(mwnode)
    snapshot = snapshot_of(mission)
    forged = {name: value for name, value in snapshot.items() if name != "signature"}
    organization = mwnode.organization.key
    created_by = msgspec.to_builtins(organization.principal)
    by_another = sign_mapping({**forged, "createdBy": created_by}, organization, snapshot["createdAt"])
    longer = {**snapshot, "throughSequence": snapshot["throughSequence"] + 1}
    cases: dict[str, tuple[bytes, ErrorCode]] = {
        "damaged signature": (jcs.canonical(damaged(snapshot)), ErrorCode.AUTH_INVALID_SIGNATURE),
        "changed after signing": (jcs.canonical(longer), ErrorCode.AUTH_INVALID_SIGNATURE),
        "another service's": (jcs.canonical(by_another), ErrorCode.AUTH_FORBIDDEN),
        "no JSON": (b"{", ErrorCode.INVALID_COMMAND),
        "no snapshot": (b"{}", ErrorCode.INVALID_COMMAND),
    }
    head = len(mission.events())
    for name, (raw, code) in cases.items():
        payload = {"snapshotHash": mwnode.store_bytes(raw)}
        error = mwnode.organization.refused(ARCHIVE, payload, group_id=mission.group_id)
        assert error.code is code, name
    absent = {"snapshotHash": "sha256:" + "0" * 64}
    error = mwnode.organization.refused(ARCHIVE, absent, group_id=mission.group_id)
    assert (error.code, error.rejection.details) == (ErrorCode.INVALID_COMMAND, {"path": "/payload/snapshotHash"})
    assert len(mission.events()) == head, "a refusal leaves neither of the two Events"
    # One of the refusals was a decision on authorization, which the policy log and so the next snapshot tell of.
    assert snapshot_of(mission) != snapshot
    archive(mission)


def test_a_snapshot_of_the_past_is_a_revision_conflict(mwnode: Harness) -> None:
    mission = approved(mwnode)
    past = {"snapshotHash": mwnode.store_bytes(jcs.canonical(snapshot_of(mission)))}
    say(mission, "wait")
    error = mwnode.organization.refused(ARCHIVE, past, group_id=mission.group_id)
    assert error.code is ErrorCode.REVISION_CONFLICT
    archive(mission)


def test_the_snapshot_of_an_archived_group_stays_when_a_tombstone_follows(mwnode: Harness) -> None:
    mission = approved(mwnode)
    said = say(mission, "something to forget")
    archive(mission)
    before = mwnode.node.snapshots(mission.group_id)
    mwnode.organization.send(
        "ext.mwnode.core.event_tombstone",
        {"eventId": said["eventId"], "policyReason": "a request by law"},
        group_id=mission.group_id,
        expected_revision=mission.revision,
    )
    assert mwnode.node.snapshots(mission.group_id) == before


def test_a_group_that_is_not_archived_has_no_archival_snapshot(mwnode: Harness) -> None:
    mission = approved(mwnode)
    with mwnode.node.read() as view, pytest.raises(KeyError):
        archival_snapshot(view, mission.group_id)
    done = archived(mwnode)
    with mwnode.node.read() as view:
        assert archival_snapshot(view, done.group_id)[0].startswith("sha256:")
