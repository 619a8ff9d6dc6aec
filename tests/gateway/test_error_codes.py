"""Each of the 27 error codes, provoked over a real socket (R-19-01, R-19-09 to R-19-35)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mwnode.protocol.commands import EXT
from mwnode.protocol.errors import RETRYABLE, ErrorCode
from mwnode.store.errors import StoreFull
from mwnode.testing import Harness, MissionHandle, Participant, WorkHandle, flip_base64url
from tests.gateway.conftest import Served, Start
from tests.gateway.wire import Wire


class Stage:
    """A node with a Mission, its coordinator and two workers connected over raw sockets."""

    def __init__(self, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        self.served = served
        self.monkeypatch = monkeypatch
        self.harness: Harness = served.harness
        self.mission: MissionHandle = self.harness.mission()
        self.coordinator, self.workers = self.harness.coordinator, self.harness.workers
        for worker in self.workers:
            self.mission.add(worker)
        self._wires: dict[str, Wire] = {}

    async def wire(self, who: Participant) -> Wire:
        if who.id not in self._wires:
            self._wires[who.id] = await self.served.agent(who)
        return self._wires[who.id]

    async def refused(self, who: Participant, kind: str, payload: dict[str, Any], **envelope: Any) -> dict[str, Any]:
        """Send a Command over the Agent's socket; the error it is refused with."""
        wire = await self.wire(who)
        raw = who.command(kind, payload, group_id=envelope.pop("group_id", self.mission.group_id), **envelope)
        before = len(self.mission.events())
        await wire.command(raw)
        error = await self.error(wire)
        assert error["relatedActionId"] == json.loads(raw)["actionId"]
        assert len(self.mission.events()) == before
        return error

    async def error(self, wire: Wire) -> dict[str, Any]:
        """The next ERROR; Events before it are passed over."""
        while True:
            frame = await wire.receive()
            if frame["frameType"] == "ERROR":
                error: dict[str, Any] = frame["error"]
                return error

    def message(self, **members: Any) -> dict[str, Any]:
        conversation = f"{self.mission.group_id}:mission"
        return {"messageId": self.harness.new_id(), "conversationId": conversation, "content": "x", **members}

    def started(self, **contract: Any) -> WorkHandle:
        """A WorkItem that the first worker has started."""
        work = self.mission.authorize(**contract)
        work.offer(self.workers[0])
        work.accept(self.workers[0])
        work.start(self.workers[0])
        return work


Case = Callable[[Stage], Awaitable[dict[str, Any]]]
CASES: dict[ErrorCode, Case] = {}


def provokes(code: ErrorCode) -> Callable[[Case], Case]:
    def keep(case: Case) -> Case:
        CASES[code] = case
        return case

    return keep


@provokes(ErrorCode.UNSUPPORTED_VERSION)
async def _(stage: Stage) -> dict[str, Any]:
    wire = await stage.served.dial()
    await wire.send(wire.client_init(stage.workers[0], supportedVersions=["9.9"]))
    return await wire.error()


@provokes(ErrorCode.AUTH_REQUIRED)
async def _(stage: Stage) -> dict[str, Any]:
    wire = await stage.served.dial()
    await wire.subscribe(stage.mission.group_id)
    return await wire.error()


@provokes(ErrorCode.AUTH_INVALID_SIGNATURE)
async def _(stage: Stage) -> dict[str, Any]:
    wire = await stage.wire(stage.coordinator)
    command = json.loads(stage.coordinator.command("message.post", stage.message(), group_id=stage.mission.group_id))
    command["signature"]["value"] = flip_base64url(command["signature"]["value"])
    await wire.send(wire.frame("COMMAND", command=command))
    return await wire.error()


@provokes(ErrorCode.AUTH_STALE_SESSION)
async def _(stage: Stage) -> dict[str, Any]:
    await stage.wire(stage.coordinator)
    return await stage.refused(stage.coordinator, "message.post", stage.message(), session_epoch=1)


@provokes(ErrorCode.AUTH_STALE_COORDINATOR)
async def _(stage: Stage) -> dict[str, Any]:
    successor = stage.harness.agent("successor")
    stage.mission.add(successor)
    stage.harness.owner.send(
        "mission.assign_coordinator", {"coordinatorAgentId": successor.id}, group_id=stage.mission.group_id
    )
    return await stage.refused(
        stage.coordinator, "mission.renew_coordinator", {}, coordinator_epoch=1, membership_epoch=1
    )


@provokes(ErrorCode.AUTH_FORBIDDEN)
async def _(stage: Stage) -> dict[str, Any]:
    payload = {"workItemId": stage.harness.new_id(), "contract": stage.harness.contract()}
    return await stage.refused(stage.workers[0], "work.authorize", payload)


@provokes(ErrorCode.GROUP_NOT_FOUND)
async def _(stage: Stage) -> dict[str, Any]:
    return await stage.refused(stage.workers[0], "message.post", stage.message(), group_id="urn:example:invented")


@provokes(ErrorCode.MEMBERSHIP_REQUIRED)
async def _(stage: Stage) -> dict[str, Any]:
    principal = {"type": "agent", "id": stage.workers[0].id}
    stage.coordinator.send("membership.end", {"principal": principal}, group_id=stage.mission.group_id)
    return await stage.refused(stage.workers[0], "message.post", stage.message())


@provokes(ErrorCode.MEMBERSHIP_STALE)
async def _(stage: Stage) -> dict[str, Any]:
    principal = {"type": "agent", "id": stage.workers[0].id}
    stage.coordinator.send(
        "membership.change",
        {"principal": principal, "role": "reviewer", "expectedMembershipEpoch": 1},
        group_id=stage.mission.group_id,
    )
    return await stage.refused(stage.workers[0], "message.post", stage.message(), membership_epoch=1)


@provokes(ErrorCode.SCHEMA_VALIDATION_FAILED)
async def _(stage: Stage) -> dict[str, Any]:
    wire = await stage.wire(stage.coordinator)
    command = json.loads(stage.coordinator.command("message.post", stage.message(), group_id=stage.mission.group_id))
    await wire.send(wire.frame("COMMAND", command=command | {"foo": 1}))
    return await wire.error()


@provokes(ErrorCode.INVALID_COMMAND)
async def _(stage: Stage) -> dict[str, Any]:
    payload = {
        "amendmentId": stage.harness.new_id(),
        "messageId": "urn:example:no-message",
        "reason": "a mistake",
        "replacementContent": "better",
    }
    return await stage.refused(stage.coordinator, "message.correct", payload)


@provokes(ErrorCode.INVALID_STATE_TRANSITION)
async def _(stage: Stage) -> dict[str, Any]:
    work = stage.mission.authorize()
    payload = {"workItemId": work.work_item_id, "ownershipEpoch": 1}
    return await stage.refused(stage.workers[0], "work.start", payload)


@provokes(ErrorCode.REVISION_CONFLICT)
async def _(stage: Stage) -> dict[str, Any]:
    work = stage.mission.authorize()
    payload = {"workItemId": work.work_item_id, "reason": "no longer needed"}
    error = await stage.refused(stage.coordinator, "work.cancel", payload, expected_revision=3)
    assert (error["expectedRevision"], error["currentRevision"]) == (3, 1)
    return error


@provokes(ErrorCode.ACTION_ID_COLLISION)
async def _(stage: Stage) -> dict[str, Any]:
    action_id = stage.harness.new_id()
    await stage.wire(stage.coordinator)
    stage.coordinator.send("message.post", stage.message(), group_id=stage.mission.group_id, action_id=action_id)
    return await stage.refused(stage.coordinator, "message.post", stage.message(content="y"), action_id=action_id)


@provokes(ErrorCode.UNKNOWN_CRITICAL_EXTENSION)
async def _(stage: Stage) -> dict[str, Any]:
    extension = {"urn:example:extension": {"version": "1.0.0", "critical": True, "data": {}}}
    return await stage.refused(stage.coordinator, "message.post", stage.message(), extensions=extension)


@provokes(ErrorCode.WORK_CONTRACT_INCOMPLETE)
async def _(stage: Stage) -> dict[str, Any]:
    contract = stage.harness.contract()
    del contract["deadline"]
    payload = {"workItemId": stage.harness.new_id(), "contract": contract}
    return await stage.refused(stage.coordinator, "work.authorize", payload)


@provokes(ErrorCode.WORK_OFFER_EXPIRED)
async def _(stage: Stage) -> dict[str, Any]:
    work = stage.mission.authorize()
    work.offer(stage.workers[0], offerExpiresInSeconds=60)
    stage.harness.clock.advance(60)
    return await stage.refused(stage.workers[0], "work.accept_offer", {"workItemId": work.work_item_id})


@provokes(ErrorCode.WORK_ALREADY_OWNED)
async def _(stage: Stage) -> dict[str, Any]:
    work = stage.mission.authorize()
    work.offer(*stage.workers)
    work.accept(stage.workers[0])
    return await stage.refused(stage.workers[1], "work.accept_offer", {"workItemId": work.work_item_id})


@provokes(ErrorCode.WORK_LEASE_EXPIRED)
async def _(stage: Stage) -> dict[str, Any]:
    await stage.wire(stage.workers[0])
    work = stage.started()
    held = work.held
    stage.harness.advance(400)
    checkpoint = {
        "checkpointId": stage.harness.new_id(),
        "phase": "half-way",
        "completedMilestones": [],
        "createdAt": stage.harness.clock.now().text(),
    }
    return await stage.refused(stage.workers[0], "work.checkpoint", {**held, "checkpoint": checkpoint})


@provokes(ErrorCode.WORK_STALE_OWNERSHIP)
async def _(stage: Stage) -> dict[str, Any]:
    await stage.wire(stage.workers[0])
    work = stage.started()
    held = work.held
    stage.harness.advance(1000)
    work.offer(stage.workers[1])
    work.accept(stage.workers[1])
    payload = {**held, "leaseSeconds": 300}
    return await stage.refused(stage.workers[0], f"{EXT}.core.work_execution_lease_renew", payload)


@provokes(ErrorCode.APPROVAL_REQUIRED)
async def _(stage: Stage) -> dict[str, Any]:
    await stage.wire(stage.workers[0])
    work = stage.mission.authorize(executionApproval="human_required")
    work.offer(stage.workers[0])
    work.accept(stage.workers[0])
    payload = {"workItemId": work.work_item_id, "ownershipEpoch": 1}
    return await stage.refused(stage.workers[0], "work.start", payload)


@provokes(ErrorCode.BUDGET_EXCEEDED)
async def _(stage: Stage) -> dict[str, Any]:
    await stage.wire(stage.workers[0])
    work = stage.started(budget={"modelTokenLimit": 100})
    usage = {
        "financialMicrounits": 0,
        "modelTokens": 101,
        "toolCalls": 0,
        "computeSeconds": 0,
        "wallClockSeconds": 0,
        "externalActions": 0,
    }
    kind = f"{EXT}.core.resource_usage_record"
    return await stage.refused(stage.workers[0], kind, {**work.held, "usageDelta": usage})


@provokes(ErrorCode.RATE_LIMITED)
async def _(stage: Stage) -> dict[str, Any]:
    await stage.wire(stage.workers[0])
    for _ in range(stage.harness.node.policy.message_rate):
        stage.workers[0].send("message.post", stage.message(), group_id=stage.mission.group_id)
    error = await stage.refused(stage.workers[0], "message.post", stage.message())
    assert error["retryAfterMs"] > 0
    return error


@provokes(ErrorCode.BACKPRESSURE)
async def _(stage: Stage) -> dict[str, Any]:
    wire = await stage.wire(stage.coordinator)
    stage.monkeypatch.setattr(stage.harness.node, "submit", lambda *call: None)
    for _ in range(stage.harness.node.limits.commands_in_flight + 1):
        await wire.command(stage.coordinator.command("message.post", stage.message(), group_id=stage.mission.group_id))
    error = await wire.error()
    assert error["retryAfterMs"] > 0
    return error


@provokes(ErrorCode.PROTOCOL_VIOLATION)
async def _(stage: Stage) -> dict[str, Any]:
    wire = await stage.wire(stage.coordinator)
    await wire.send_raw(b'{"truncated":')
    return await wire.error()


@provokes(ErrorCode.INTERNAL_ERROR)
async def _(stage: Stage) -> dict[str, Any]:
    await stage.wire(stage.coordinator)

    def full(change: Any) -> None:
        raise StoreFull("no room")

    with stage.monkeypatch.context() as patch:
        patch.setattr(stage.harness.node.store, "write", full)
        payload = stage.message()
        error = await stage.refused(stage.coordinator, "message.post", payload)
    # With room again the very same Command is accepted.
    stage.coordinator.send("message.post", payload, group_id=stage.mission.group_id)
    return error


ROWS = {
    ErrorCode.UNSUPPORTED_VERSION: "R-19-09",
    ErrorCode.AUTH_REQUIRED: "R-19-10",
    ErrorCode.AUTH_INVALID_SIGNATURE: "R-19-11",
    ErrorCode.AUTH_STALE_SESSION: "R-19-12",
    ErrorCode.AUTH_STALE_COORDINATOR: "R-19-13",
    ErrorCode.AUTH_FORBIDDEN: "R-19-14",
    ErrorCode.GROUP_NOT_FOUND: "R-19-15",
    ErrorCode.MEMBERSHIP_REQUIRED: "R-19-16",
    ErrorCode.MEMBERSHIP_STALE: "R-19-17",
    ErrorCode.SCHEMA_VALIDATION_FAILED: "R-19-18",
    ErrorCode.INVALID_COMMAND: "R-19-19",
    ErrorCode.INVALID_STATE_TRANSITION: "R-19-20",
    ErrorCode.REVISION_CONFLICT: "R-19-21",
    ErrorCode.ACTION_ID_COLLISION: "R-19-22",
    ErrorCode.UNKNOWN_CRITICAL_EXTENSION: "R-19-23",
    ErrorCode.WORK_CONTRACT_INCOMPLETE: "R-19-24",
    ErrorCode.WORK_OFFER_EXPIRED: "R-19-25",
    ErrorCode.WORK_ALREADY_OWNED: "R-19-26",
    ErrorCode.WORK_LEASE_EXPIRED: "R-19-27",
    ErrorCode.WORK_STALE_OWNERSHIP: "R-19-28",
    ErrorCode.APPROVAL_REQUIRED: "R-19-29",
    ErrorCode.BUDGET_EXCEEDED: "R-19-30",
    ErrorCode.RATE_LIMITED: "R-19-31",
    ErrorCode.BACKPRESSURE: "R-19-32",
    ErrorCode.PROTOCOL_VIOLATION: "R-19-34",
    ErrorCode.INTERNAL_ERROR: "R-19-35",
}


@pytest.mark.parametrize(
    "code", [pytest.param(code, marks=pytest.mark.req(row, "R-19-02"), id=code.value) for code, row in ROWS.items()]
)
async def test_the_code_over_a_socket(start: Start, monkeypatch: pytest.MonkeyPatch, code: ErrorCode) -> None:
    served = await start(commands_in_flight=4)
    stage = Stage(served, monkeypatch)
    error = await CASES[code](stage)
    assert error["code"] == code.value, error
    assert error["retryable"] is (code in RETRYABLE)
    assert error["message"]
    monkeypatch.undo()


def test_no_code_is_missing() -> None:
    assert set(ROWS) == set(CASES)
    assert set(ErrorCode) - set(ROWS) == {ErrorCode.CURSOR_TOO_OLD}, "provoked in test_trimmed_groups"
