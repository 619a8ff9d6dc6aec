"""Leases on the authority's clock: half-open, renewed under one ID, closed once, run out by the timer."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from mwnode.authority.decide import decide_due
from mwnode.authority.state import LEASES, MEMBERSHIPS
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import LeaseExpired
from mwnode.protocol.instants import parse
from tests.authority.scene import GROUP, MISSION, RENEW_EXECUTION, Scene, later

EXPIRED = "ext.mwnode.core.lease_expired"
MEMBERS = ("ownership_lease", "execution_lease", "blocked_lease", "coordinator_lease")
"""Where a lease stands in an Event's payload."""


def active(scene: Scene, name: str = "item") -> str:
    return scene.bring(scene.authorize(name), "active", scene.workers["anna"])


@pytest.mark.req("R-11.3-16", "R-15.2-04", "R-19-27")
def test_the_timer_records_a_lease_that_ran_out_and_moves_nothing() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene)
    before, head = scene.item(item), scene.view.head(GROUP)
    scene.advance(299)
    assert scene.view.head(GROUP) == head
    assert scene.code(anna, RENEW_EXECUTION, {**scene.three(item), "leaseSeconds": 1}) == "INVALID_COMMAND"
    end = later(scene, 1)
    scene.advance(1)
    fact = scene.facts[-1]
    assert fact.kind == EXPIRED
    assert (fact.cause.type, fact.cause.id, fact.actor) == ("timer", scene.lease(item), scene.authority)
    assert fact.command_hash is None
    payload = fact.payload
    assert isinstance(payload, LeaseExpired)
    assert (payload.state, payload.revision) == ("active", before.item.revision)
    closed = payload.execution_lease
    assert closed is not UNSET
    assert (closed.state, closed.closed_at, closed.expires_at) == ("expired", end, end)
    after = scene.item(item)
    assert after.item == before.item
    assert after.execution_lease == closed
    assert scene.view.head(GROUP) == head + 1
    assert scene.run_timers() == []


def test_each_type_of_lease_runs_out() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    queued = scene.bring(scene.authorize("queued"), "queued", anna)
    blocked = scene.bring(scene.authorize("blocked"), "blocked", anna)
    active(scene, "active")
    scene.advance(4000)
    seen = {
        (fact.payload.lease_type, fact.work_item_id) for fact in scene.facts if isinstance(fact.payload, LeaseExpired)
    }
    assert seen == {
        ("ownership", queued),
        ("ownership", blocked),
        ("blocked", blocked),
        ("execution", "urn:example:work:active"),
        ("ownership", "urn:example:work:active"),
        ("coordinator", None),
    }
    assert scene.mission_row(MISSION).coordinator_lease.state == "expired"
    assert not [row for row in scene.view.all(LEASES) if row.lease.state == "active"]
    expired = [fact.payload for fact in scene.facts if isinstance(fact.payload, LeaseExpired)]
    for payload in expired:
        carried = [name for name in MEMBERS if getattr(payload, name) is not UNSET]
        assert carried == [f"{payload.lease_type}_lease"]
    assert [parse(lease_end(payload)) for payload in expired] == sorted(parse(lease_end(p)) for p in expired)


def lease_end(payload: LeaseExpired) -> str:
    for name in MEMBERS:
        lease = getattr(payload, name)
        if lease is not UNSET:
            end: str = lease.expires_at
            return end
    raise AssertionError("the Event carries its lease")


def test_a_renewed_or_closed_lease_is_not_due() -> None:
    scene = Scene()
    item = active(scene)
    lease = scene.lease(item)
    scene.advance(200)
    scene.renew(item, scene.workers["anna"], 600)
    scene.advance(200)
    assert decide_due(scene.view, LEASES.code, lease, scene.context()) is None
    scene.hand_in(item, scene.workers["anna"])
    scene.advance(1000, timers=False)
    assert decide_due(scene.view, LEASES.code, lease, scene.context()) is None
    assert decide_due(scene.view, LEASES.code, "urn:example:lease:none", scene.context()) is None
    assert decide_due(scene.view, MEMBERSHIPS.code, "nobody", scene.context()) is None


@pytest.mark.req("R-11.3-05")
def test_a_lease_that_lasts_long_enough_is_not_renewed_by_the_way() -> None:
    """Whatever moves a lease's end is a renewal of it; what moves nothing is none (decision F11)."""
    scene = Scene()
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item"), "queued", anna)
    for seconds, count in ((899, 0), (900, 0), (901, 1)):
        scene.ok(anna, "work.start", {"workItemId": item, "ownershipEpoch": 1, "executionLeaseSeconds": seconds})
        ownership = scene.item(item).ownership_lease
        assert ownership is not None
        assert (ownership.renewal_count, ownership.expires_at) == (count, later(scene, 900 + count))
        resume = {"checkpoint": scene.checkpoint(), "resumeWithinSeconds": 1}
        scene.ok(anna, "work.checkpoint", {**scene.three(item), **resume})


@pytest.mark.req("R-11.3-06")
def test_a_lease_tells_the_session_of_its_holder_or_the_first_of_one_that_never_connected() -> None:
    scene = Scene()
    item = scene.bring(scene.authorize("one"), "queued", scene.workers["anna"])
    never = scene.agent("never", connected=False)
    scene.ok(scene.owner, "mission.assign_coordinator", {"coordinatorAgentId": never.id})
    assert scene.agent_row(never).session_epoch == 0
    assert scene.mission_row(MISSION).coordinator_lease.session_epoch == 1
    for _ in range(2):
        scene.session(scene.workers["anna"])
    scene.start(item, scene.workers["anna"])
    lease = scene.item(item).execution_lease
    assert lease is not None
    assert lease.session_epoch == scene.agent_row(scene.workers["anna"]).session_epoch == 3


@pytest.mark.req("R-11.3-16")
def test_expiry_holds_whether_or_not_the_timer_came_first() -> None:
    for timers in (True, False):
        scene = Scene()
        item = active(scene)
        scene.advance(300, timers=timers)
        payload = {**scene.three(item), "checkpoint": scene.checkpoint()}
        refusal = scene.refused(scene.workers["anna"], "work.checkpoint", payload)
        assert refusal.code is ErrorCode.WORK_LEASE_EXPIRED
        scene.cancel(item)
        row = scene.item(item)
        assert row.execution_lease is not None
        assert row.ownership_lease is not None
        assert (row.execution_lease.state, row.ownership_lease.state) == ("expired", "revoked")
        assert row.execution_lease.closed_at == row.execution_lease.expires_at


@pytest.mark.req("R-19-27", "R-15.1-10")
def test_a_coordinator_whose_lease_ran_out_does_nothing_but_renew() -> None:
    scene = Scene()
    item = scene.authorize("item")
    scene.advance(3600)
    payload = scene.offer_payload(item, scene.workers["anna"])
    assert scene.refused(scene.coordinator, "work.offer", payload).code is ErrorCode.WORK_LEASE_EXPIRED
    scene.keep_coordinator()
    scene.ok(scene.coordinator, "work.offer", payload)


@pytest.mark.req("R-11.3-01", "R-11.3-03", "R-11.3-04", "R-11.3-07", "R-11.3-21", "R-11.3-10")
def test_every_lease_document_is_whole() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene)
    scene.renew(item, anna, 900)
    scene.block(item, anna)
    scene.ok(scene.coordinator, "work.unblock", {"workItemId": item})
    scene.start(item, anna)
    scene.cancel(item)
    types = set()
    for row in scene.view.all(LEASES):
        lease = row.lease
        types.add(lease.lease_type)
        assert (lease.state == "active") == (lease.closed_at is UNSET) == (lease.closure_reason is UNSET)
        assert (lease.renewal_count > 0) == (lease.last_renewed_at is not UNSET)
        assert (lease.lease_type == "ownership") == (lease.start_by is not UNSET)
        assert "capability_token_id" not in lease.__struct_fields__
        if lease.lease_type != "coordinator":
            assert lease.ownership_epoch == 1
            assert lease.work_item_id == item
    assert types == {"coordinator", "ownership", "execution", "blocked"}


def test_one_active_lease_of_each_type_at_most() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene)
    for _ in range(3):
        scene.ok(anna, "work.checkpoint", {**scene.three(item), "checkpoint": scene.checkpoint()})
        scene.start(item, anna)
        open_types = [
            row.lease.lease_type
            for row in scene.view.all(LEASES)
            if row.lease.work_item_id == item and row.lease.state == "active"
        ]
        assert sorted(open_types) == ["execution", "ownership"]
