"""What Events tell of Missions, WorkItems and Memberships, and how parents and children hang together."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mwnode.authority.state import MEMBERSHIPS
from mwnode.protocol.commands import EXT
from mwnode.testing import Harness, MissionHandle, assert_refused, assert_state
from mwnode.testing.work import NO_USAGE


def one(mission: MissionHandle, kind: str) -> dict[str, Any]:
    (event,) = [event for event in mission.events() if event["kind"] == kind]
    return event


def roles(mission: MissionHandle, agent_id: str) -> list[str]:
    with mission.harness.node.read() as view:
        rows = [row.membership for row in view.in_group(MEMBERSHIPS, mission.group_id)]
    return [row.role for row in rows if row.member.id == agent_id and row.state != "ended"]


def test_identifiers_of_events_are_the_same_wherever_they_are_told(mwnode: Harness) -> None:
    work = mwnode.work()
    child = work.promote(mwnode.agent("lead"))
    created = one(work.mission, "mission.child.created")
    assert one(child, "mission.created")["payload"]["parentEventId"] == created["eventId"]
    child.to("approved")
    approved, result = one(child, "mission.approved"), one(work.mission, "work.result.accepted")
    assert result["cause"] == {"type": "event", "id": approved["eventId"]}
    work.mission.to("approved")
    (raw,) = mwnode.node.snapshots(work.mission.group_id)
    for event in work.mission.events():
        assert event["eventId"].startswith("urn:uuid:")
    assert f'"throughSequence":{len(work.mission.events())}'.encode() in raw


def test_every_event_tells_the_revision_that_the_next_command_has_to_state(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize()
    group = {"group_id": mission.group_id}

    def newest() -> int:
        """The revision of the WorkItem as its Events tell it, and nothing else."""
        told = [
            event["payload"]["revision"]
            for event in mission.events()
            if work.work_item_id
            in (event["payload"].get("workItemId"), event["payload"].get("workItem", {}).get("workItemId"))
        ]
        return int(told[-1])

    cancel = ("work.cancel", {"workItemId": work.work_item_id, "reason": "because"})
    for step in (work.offer, work.accept, work.start, work.block, work.unblock):
        stale = newest()
        event = step()
        assert event["aggregateRevision"] == event["payload"]["revision"] == newest() == work.row.item.revision > stale
        error = mwnode.coordinator.refused(*cancel, expected_revision=stale, **group)
        assert (error.code, error.rejection.current_revision) == ("REVISION_CONFLICT", newest())
    mwnode.coordinator.send(*cancel, expected_revision=newest(), **group)
    for event in mission.events():
        if event["kind"].startswith("membership."):
            assert event["payload"]["membership"]["membershipEpoch"] >= 1, "the epoch to state is told"


def test_renewing_an_execution_lease_shortens_no_ownership(mwnode: Harness) -> None:
    work = mwnode.work("active")

    def ownership() -> str:
        lease = work.row.ownership_lease
        assert lease is not None
        return lease.expires_at

    before = ownership()
    mwnode.advance(10)
    for seconds in (300, 301, 400):
        work.renew(leaseSeconds=seconds)
        assert ownership() >= before


def test_a_replaced_coordinator_that_comes_back_as_a_worker_is_one(mwnode: Harness) -> None:
    mission = mwnode.mission()
    former, successor = mwnode.coordinator, mwnode.agent("successor")
    mwnode.owner.send("mission.assign_coordinator", {"coordinatorAgentId": successor.id}, group_id=mission.group_id)
    assert roles(mission, former.id) in ([], ["observer"], ["worker"])
    row = mission.membership(former)
    epoch = {} if row is None else {"expectedMembershipEpoch": row.membership.membership_epoch}
    mission.coordinator = successor
    mission.add(former, role="worker", **epoch)
    assert roles(mission, former.id) == ["worker"]
    payload = {"workItemId": mwnode.new_id(), "contract": mwnode.contract()}
    error = former.refused("work.authorize", payload, group_id=mission.group_id, coordinator_epoch=1)
    assert error.code == "AUTH_STALE_COORDINATOR"


def test_a_terminated_mission_takes_its_descendants_with_it(mwnode: Harness) -> None:
    work = mwnode.work()
    lead, under = mwnode.agent("lead"), mwnode.agent("under")
    child = work.promote(lead)
    grandchild = child.authorize().promote(under)
    report = work.evidence(mwnode.coordinator, "failure_report", "failed")
    work.mission.terminate(evidence=[report])
    assert (work.state, work.mission.state) == ("failed", "failed")
    for below in (child, grandchild):
        assert below.state in {"cancelled", "failed"}
        assert_refused("INVALID_STATE_TRANSITION", below.authorize)


def test_a_cancelled_child_is_told_to_its_parent_whose_item_goes_on(mwnode: Harness) -> None:
    work = mwnode.work()
    child = work.promote(mwnode.agent("lead"))
    assert_refused("INVALID_STATE_TRANSITION", work.unblock)
    assert_refused("INVALID_STATE_TRANSITION", work.offer)
    before = len(work.mission.events())
    child.cancel()
    told = work.mission.events()[before:]
    assert [event["payload"].get("workItemId") for event in told] == [work.work_item_id]
    assert_state(work, "blocked")
    second = work.promote(mwnode.agent("second"))
    second.cancel()
    work.unblock()
    assert_state(work, "open")
    work.to("verified")


def test_the_root_owner_approves_an_execution_in_a_child(mwnode: Harness) -> None:
    work = mwnode.work()
    child = work.promote(mwnode.agent("lead"))
    risky = child.work("queued", executionApproval="human_required", sideEffectRisk="high_risk")
    assert_refused("APPROVAL_REQUIRED", risky.start)
    risky.approve_execution(mwnode.owner)
    risky.start()
    assert_state(risky, "active")


@pytest.mark.parametrize("state", ["open", "offered", "queued", "active"])
def test_ending_a_promoted_item_ends_its_child_for_good(mwnode: Harness, state: str) -> None:
    work = mwnode.work(state)
    child = work.promote(mwnode.agent("lead"))
    inner = child.work("verified")
    work.cancel()
    assert (work.state, child.state, inner.state) == ("cancelled", "cancelled", "verified")
    assert_refused("INVALID_STATE_TRANSITION", child.submit)
    assert_state(work, "cancelled")


def test_an_archived_group_takes_no_usage_that_comes_late(mwnode: Harness) -> None:
    work = mwnode.work("verified")
    held = work.row
    work.mission.to("approved")
    snapshot = msgspec.json.decode(mwnode.node.snapshots(work.mission.group_id)[0])
    mwnode.organization.send(f"{EXT}.core.group_archive", {"snapshot": snapshot}, group_id=work.mission.group_id)
    usage = {
        "workItemId": work.work_item_id,
        "ownershipEpoch": held.ownership_epoch,
        "executionLeaseId": held.execution_lease.lease_id if held.execution_lease else mwnode.new_id(),
        "usageDelta": {**NO_USAGE, "toolCalls": 1},
    }
    before = len(work.mission.events())
    kind = f"{EXT}.core.resource_usage_record"
    assert_refused(
        "INVALID_STATE_TRANSITION", lambda: mwnode.organization.send(kind, usage, group_id=work.mission.group_id)
    )
    assert len(work.mission.events()) == before
