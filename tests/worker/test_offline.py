"""Offline: signed and buffered progress, bound to the lease of then, reconciled before anything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from mwnode.protocol.errors import AuthStaleSession
from mwnode.protocol.identifiers import OFFLINE_EXTENSION
from mwnode.testing import Harness, MissionHandle, WorkHandle
from mwnode.trust.verification import Verified, verify
from mwnode.worker.effects import Assignment
from tests.worker.desk import CHECKED, Desk, Run, desk

PROGRESS = {"progress": {"currentPhase": "linking", "completedMilestones": ["compiled"]}}
USAGE = {"usage": {"toolCalls": 2, "modelTokens": 50}}
USAGE_KIND = "ext.missionweaveprotocol.core.resource_usage_recorded"


def never(assignment: Assignment) -> Run:
    return Run(status=None)


def running(mwnode: Harness) -> tuple[MissionHandle, WorkHandle, Desk, str]:
    """A worker with one item running, and its run."""
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=never).step()
    return mission, work, worker, worker.launched[0].run_id


def cut_off(mwnode: Harness, worker: Desk, seconds: int = 5) -> None:
    """The link goes, and time passes for everybody."""
    worker.lose_link()
    for _ in range(seconds):
        mwnode.clock.advance(1)
        worker.step()


def report(worker: Desk, run_id: str, *lines: dict[str, Any]) -> None:
    for line in lines:
        worker.engine.runs.reported(run_id, line)
    worker.step()


def command(raw: bytes) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(raw)
    return decoded


def binding(raw: bytes) -> dict[str, Any]:
    data: dict[str, Any] = command(raw)["extensions"][OFFLINE_EXTENSION]["data"]
    return data


@pytest.mark.req("R-11.5-05", "R-11.5-09")
def test_progress_while_cut_off_is_signed_and_buffered(mwnode: Harness) -> None:
    mission, work, worker, run_id = running(mwnode)
    cut_off(mwnode, worker)
    head = len(mission.events())
    report(worker, run_id, USAGE, PROGRESS)
    assert len(mission.events()) == head
    (raw,) = worker.buffered.values()
    verdict = verify(raw, "command", mwnode.node.registry)
    assert isinstance(verdict, Verified)
    extension = command(raw)["extensions"][OFFLINE_EXTENSION]
    assert (extension["version"], extension["critical"]) == ("0.1.0", True)
    assert command(raw)["kind"] == "message.post"
    assert work.state == "active"


@pytest.mark.req(
    "R-11.5-10",
    "R-11.5-11",
    "R-11.5-12",
    "R-11.5-13",
    "R-11.5-14",
    "R-11.5-15",
    "R-11.5-16",
    "R-11.5-17",
    "R-11.5-18",
    "R-11.5-19",
    "R-11.5-20",
)
def test_the_binding_records_everything_and_any_other_value_is_refused(mwnode: Harness) -> None:
    mission, work, worker, run_id = running(mwnode)
    lease = work.row.execution_lease
    epoch = worker.agent.session_epoch
    cut_off(mwnode, worker)
    report(worker, run_id, USAGE, PROGRESS)
    (raw,) = worker.buffered.values()
    data = binding(raw)
    now = mwnode.clock.now()
    assert data == {
        "agentId": worker.agent.id,
        "groupId": mission.group_id,
        "workItemId": work.work_item_id,
        "sessionEpoch": epoch,
        "ownershipEpoch": work.row.ownership_epoch,
        "executionLeaseId": lease.lease_id,
        "disconnectedAt": now.plus(-5).text(),
        "bufferedAt": now.text(),
        "graceDeadline": lease.expires_at,
        "executionLeaseExpiresAt": lease.expires_at,
        "resourceUsageDelta": {
            "financialMicrounits": 0,
            "modelTokens": 50,
            "toolCalls": 2,
            "computeSeconds": 0,
            "wallClockSeconds": 5,
            "externalActions": 0,
        },
    }
    worker.agent.connect()
    other: dict[str, Any] = {
        "agentId": mwnode.workers[1].id,
        "groupId": mwnode.new_id(),
        "workItemId": mwnode.new_id(),
        "sessionEpoch": worker.agent.session_epoch,
        "ownershipEpoch": data["ownershipEpoch"] + 1,
        "executionLeaseId": mwnode.new_id(),
        "disconnectedAt": now.plus(1).text(),
        "bufferedAt": now.plus(4000).text(),
        "graceDeadline": now.plus(-5).plus(901).text(),
        "executionLeaseExpiresAt": now.plus(3000).text(),
    }
    for name in data:
        without = {key: value for key, value in data.items() if key != name}
        assert resend(worker, raw, without).code.value == "INVALID_COMMAND", name
        if name in other:
            resend(worker, raw, {**data, name: other[name]})
    for dimension in data["resourceUsageDelta"]:
        delta = {key: value for key, value in data["resourceUsageDelta"].items() if key != dimension}
        assert resend(worker, raw, {**data, "resourceUsageDelta": delta}).code.value == "INVALID_COMMAND"


def resend(worker: Desk, raw: bytes, data: dict[str, Any]) -> Any:
    """Try a buffered Command under another binding; it must be refused."""
    known = command(raw)
    return worker.agent.refused(
        known["kind"],
        known["payload"],
        group_id=known["groupId"],
        work_item_id=known["workItemId"],
        extensions={OFFLINE_EXTENSION: {"version": "0.1.0", "critical": True, "data": data}},
    )


@pytest.mark.req("R-11.5-08", "R-11.5-21", "R-11.5-22")
def test_on_reconnection_the_buffer_comes_first_and_the_binding_stays(mwnode: Harness) -> None:
    mission, work, worker, run_id = running(mwnode)
    cut_off(mwnode, worker)
    report(worker, run_id, USAGE, PROGRESS)
    mwnode.clock.advance(2)
    report(worker, run_id, PROGRESS)
    raws = list(worker.buffered.values())
    assert len(raws) == 2
    worker.end(run_id, 0)
    worker.step()
    before = len(worker.sent)
    worker.reconnect()
    worker.step()
    after = worker.kinds()[before:]
    assert after[:3] == ["message.post", "message.post", "work.start"]
    assert after[-1] == "work.submit"
    assert (work.state, worker.refused, worker.buffered) == ("submitted", [], {})
    posted = [event for event in mission.events() if event["kind"] == "message.posted"]
    for raw, event, sent in zip(raws, posted, worker.sent[before:], strict=False):
        assert event["cause"]["id"] == command(raw)["actionId"] == sent.action_id
        assert event["correlationId"] == f"{sent.action_id}:reconciliation"
        assert sent.extensions == {OFFLINE_EXTENSION: {"version": "0.1.0", "critical": True, "data": binding(raw)}}
    usage = [event["payload"] for event in mission.events() if event["kind"] == USAGE_KIND]
    assert usage[0]["offlineReconciliation"]["executionSessionEpoch"] == binding(raws[0])["sessionEpoch"]
    assert sum(one["usageDelta"]["toolCalls"] for one in usage) == 2, "charged once"


@pytest.mark.req("R-11.5-22")
def test_the_old_session_and_signature_are_refused(mwnode: Harness) -> None:
    _, _, worker, run_id = running(mwnode)
    cut_off(mwnode, worker)
    report(worker, run_id, PROGRESS)
    (raw,) = worker.buffered.values()
    worker.agent.connect()
    with pytest.raises(AuthStaleSession):
        mwnode.send(raw)


def test_a_checkpoint_made_while_cut_off_is_reconciled_under_a_new_lease(mwnode: Harness) -> None:
    _, work, worker, run_id = running(mwnode)
    cut_off(mwnode, worker)
    report(worker, run_id, {"checkpoint": {"phase": "half"}})
    worker.engine.shut_down()
    worker.step()
    assert [command(raw)["kind"] for raw in worker.buffered.values()] == ["work.checkpoint"]
    worker.reconnect()
    worker.step()
    assert worker.kinds()[-2:] == ["work.start", "work.checkpoint"]
    assert (work.state, work.row.checkpoint.phase) == ("queued", "half")
    assert (worker.refused, worker.buffered, worker.engine.idle) == ([], {}, True)


@pytest.mark.req("R-11.5-21")
def test_a_buffer_outlives_the_worker(mwnode: Harness) -> None:
    mission, work, worker, run_id = running(mwnode)
    cut_off(mwnode, worker)
    report(worker, run_id, USAGE, PROGRESS)
    again = desk(mwnode, behave=never)
    again.engine.offline.restore(list(worker.buffered.items()))
    again.buffered = dict(worker.buffered)
    again.agent.connect()
    again.step()
    posted = [event for event in mission.events() if event["kind"] == "message.posted"]
    assert posted[0]["cause"]["id"] == command(next(iter(worker.buffered.values())))["actionId"]
    assert again.buffered == {}
    assert work.state == "active"


def reassigned(mwnode: Harness, work: WorkHandle) -> None:
    mwnode.advance(301)
    work.offer(mwnode.workers[1])
    work.accept(mwnode.workers[1])


def cancelled(mwnode: Harness, work: WorkHandle) -> None:
    mwnode.coordinator.send(
        "work.cancel", {"workItemId": work.work_item_id, "reason": "r"}, group_id=work.mission.group_id
    )


@pytest.mark.parametrize("meanwhile", [reassigned, cancelled])
def test_a_stale_buffer_changes_nothing_and_is_kept_with_the_reason(
    mwnode: Harness, meanwhile: Callable[[Harness, WorkHandle], None]
) -> None:
    mission, work, worker, run_id = running(mwnode)
    cut_off(mwnode, worker)
    report(worker, run_id, PROGRESS)
    meanwhile(mwnode, work)
    head = len(mission.events())
    worker.reconnect()
    worker.step()
    assert worker.buffered == {}
    assert len(worker.set_aside) == 1
    assert worker.set_aside[0][1]
    kinds = [event["kind"] for event in mission.events()[head:]]
    assert "message.posted" not in kinds
    assert worker.killed == [run_id]


def test_nothing_is_buffered_beyond_the_lease(mwnode: Harness) -> None:
    _, _, worker, run_id = running(mwnode)
    cut_off(mwnode, worker, 301)
    report(worker, run_id, PROGRESS)
    assert worker.buffered == {}


@pytest.mark.req("R-11.5-07")
def test_external_actions_are_never_charged_from_offline(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED, budget={"externalSideEffectLimit": 5})
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=never).step()
    run_id = worker.launched[0].run_id
    cut_off(mwnode, worker)
    report(worker, run_id, {"usage": {"externalActions": 1}}, PROGRESS)
    (raw,) = worker.buffered.values()
    assert set(binding(raw)["resourceUsageDelta"].values()) == {0}
    worker.end(run_id, 0)
    worker.reconnect()
    worker.step()
    usage = [event["payload"]["usageDelta"] for event in mission.events() if event["kind"] == USAGE_KIND]
    assert sum(delta["externalActions"] for delta in usage) == 1
    assert work.state == "submitted"
