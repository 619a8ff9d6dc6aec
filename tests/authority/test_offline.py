"""Bounded offline execution: buffered progress is taken inside its window, with its usage, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from mwnode.authority.policy import Policy
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import ResourceUsageRecorded
from mwnode.protocol.identifiers import OFFLINE_EXTENSION, work_item_conversation_id
from tests.authority.scene import GROUP, MISSION, Scene, later, usage

USAGE_RECORDED = "ext.missionweaveprotocol.core.resource_usage_recorded"


class Offline:
    """A Worker that was cut off at 50 s, buffered progress at 100 s, and is back under a new Session at 150 s."""

    def __init__(self, policy: Policy | None = None, **contract: Any) -> None:
        self.scene = scene = Scene(policy, workers=("anna", "bert"))
        self.anna = scene.workers["anna"]
        self.item = scene.bring(scene.authorize("item", **contract), "active", self.anna)
        row = scene.item(self.item)
        assert row.execution_lease is not None
        self.binding: dict[str, Any] = {
            "agentId": self.anna.id,
            "groupId": GROUP,
            "workItemId": self.item,
            "sessionEpoch": 1,
            "ownershipEpoch": 1,
            "executionLeaseId": row.execution_lease.lease_id,
            "disconnectedAt": later(scene, 50),
            "bufferedAt": later(scene, 100),
            "graceDeadline": later(scene, 200),
            "executionLeaseExpiresAt": row.execution_lease.expires_at,
            "resourceUsageDelta": usage(toolCalls=3),
        }
        scene.advance(150)

    def back(self) -> None:
        self.scene.session(self.anna)

    def extension(self, *, version: str = "0.1.0", critical: bool = True, **changes: Any) -> dict[str, Any]:
        data = {name: value for name, value in {**self.binding, **changes}.items() if value is not None}
        return {OFFLINE_EXTENSION: {"version": version, "critical": critical, "data": data}}

    def message(self, actor: Actor | None = None, conversation: str | None = None, **extension: Any) -> str:
        scene = self.scene
        payload = {
            "messageId": f"urn:example:message:{scene.number()}",
            "conversationId": conversation or work_item_conversation_id(GROUP, self.item),
            "content": "half done",
        }
        return scene.code(actor or self.anna, "message.post", payload, extensions=self.extension(**extension))


@pytest.mark.req("R-11.5-22", "R-11.5-27", "R-11.5-28", "R-11.5-29", "R-11.5-30")
def test_buffered_progress_is_charged_before_it_is_applied() -> None:
    case = Offline()
    case.back()
    scene, item = case.scene, case.item
    new_lease = scene.start(item, case.anna)
    payload = {**scene.three(item), "checkpoint": scene.checkpoint()}
    assert payload["executionLeaseId"] == new_lease != case.binding["executionLeaseId"]
    decision = scene.ok(case.anna, "work.checkpoint", payload, extensions=case.extension())
    assert [fact.kind for fact in decision.facts] == [USAGE_RECORDED, "work.checkpointed"]
    assert decision.receipt == 1
    assert decision.facts[0].cause == decision.facts[1].cause
    event = decision.facts[0].payload
    assert isinstance(event, ResourceUsageRecorded)
    assert event.execution_lease_id == case.binding["executionLeaseId"]
    reconciliation = event.offline_reconciliation
    assert reconciliation is not UNSET
    assert (reconciliation["executionSessionEpoch"], reconciliation["reconciliationSessionEpoch"]) == (1, 2)
    assert set(reconciliation) == {
        "disconnectedAt",
        "bufferedAt",
        "graceDeadline",
        "executionSessionEpoch",
        "reconciliationSessionEpoch",
        "reconciledAt",
        "progressActionId",
    }
    assert scene.account(item).used[2] == scene.account(MISSION).used[2] == 3
    assert scene.state(item) == "queued"


@pytest.mark.req("R-11.5-28")
def test_no_usage_no_event() -> None:
    case = Offline()
    case.back()
    head = case.scene.view.head(GROUP)
    assert case.message(resourceUsageDelta=usage()) == "accepted"
    assert case.scene.view.head(GROUP) == head + 1
    assert case.message() == "accepted"
    assert [fact.kind for fact in case.scene.facts[-2:]] == [USAGE_RECORDED, "message.posted"]


@pytest.mark.req(*(f"R-11.5-{n:02}" for n in range(10, 21)))
@pytest.mark.parametrize(
    "changes, code",
    [
        ({"agentId": None}, "INVALID_COMMAND"),
        ({"agentId": "urn:example:agent:bert"}, "AUTH_FORBIDDEN"),
        ({"groupId": None}, "INVALID_COMMAND"),
        ({"groupId": "urn:example:group:other"}, "AUTH_FORBIDDEN"),
        ({"workItemId": None}, "INVALID_COMMAND"),
        ({"workItemId": "urn:example:work:other"}, "AUTH_FORBIDDEN"),
        ({"sessionEpoch": None}, "INVALID_COMMAND"),
        ({"sessionEpoch": 2}, "AUTH_STALE_SESSION"),
        ({"ownershipEpoch": None}, "INVALID_COMMAND"),
        ({"ownershipEpoch": 2}, "WORK_STALE_OWNERSHIP"),
        ({"executionLeaseId": None}, "INVALID_COMMAND"),
        ({"executionLeaseId": "urn:example:lease:other"}, "WORK_LEASE_EXPIRED"),
        ({"disconnectedAt": None}, "INVALID_COMMAND"),
        ({"disconnectedAt": "2030-01-01T00:01:41Z"}, "INVALID_COMMAND"),
        ({"bufferedAt": None}, "INVALID_COMMAND"),
        ({"bufferedAt": "2030-01-01T00:03:20Z"}, "INVALID_COMMAND"),
        ({"graceDeadline": None}, "INVALID_COMMAND"),
        ({"graceDeadline": "2030-01-01T00:05:01Z"}, "INVALID_COMMAND"),
        ({"executionLeaseExpiresAt": None}, "INVALID_COMMAND"),
        ({"executionLeaseExpiresAt": "2030-01-01T00:05:01Z"}, "WORK_LEASE_EXPIRED"),
        ({"resourceUsageDelta": None}, "INVALID_COMMAND"),
        ({"resourceUsageDelta": {"toolCalls": 1}}, "INVALID_COMMAND"),
        ({"resourceUsageDelta": usage(externalActions=1)}, "INVALID_COMMAND"),
        ({"surprise": 1}, "INVALID_COMMAND"),
    ],
)
def test_the_binding_is_whole_and_true(changes: dict[str, Any], code: str) -> None:
    case = Offline()
    case.back()
    before = (case.scene.view.head(GROUP), case.scene.account(MISSION))
    assert case.message(**changes) == code
    assert (case.scene.view.head(GROUP), case.scene.account(MISSION)) == before


@pytest.mark.req("R-11.5-09")
def test_the_binding_is_critical_and_of_its_version() -> None:
    case = Offline()
    case.back()
    assert case.message(critical=False) == "INVALID_COMMAND"
    assert case.message(version="0.2.0") == "INVALID_COMMAND"
    assert case.message(version="1.0.0") == "UNKNOWN_CRITICAL_EXTENSION"
    start = {"workItemId": case.item, "ownershipEpoch": 1}
    refusal = case.scene.refused(case.anna, "work.start", start, extensions=case.extension())
    assert refusal.code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-11.5-23", "R-11.5-18")
def test_progress_outside_the_window_is_refused() -> None:
    case = Offline()
    case.back()
    early = {"disconnectedAt": "2029-12-31T23:59:59Z", "bufferedAt": "2030-01-01T00:00:10Z"}
    assert case.message(**early) == "WORK_LEASE_EXPIRED"
    strict = Offline(Policy(offline_grace=149))
    strict.back()
    assert strict.message() == "WORK_LEASE_EXPIRED"
    exact = Offline(Policy(offline_grace=150))
    exact.back()
    assert exact.message() == "accepted"


@pytest.mark.req("R-11.5-23")
def test_progress_that_claims_to_come_from_the_future_is_refused() -> None:
    case = Offline()
    case.back()
    assert case.message(bufferedAt=later(case.scene, 1), graceDeadline=later(case.scene, 100)) == "INVALID_COMMAND"


@pytest.mark.req("R-11.5-24")
def test_progress_buffered_after_the_lease_was_closed_is_refused() -> None:
    case = Offline()
    scene = case.scene
    # The lease is closed online at 150 s; what was buffered at 160 s comes too late.
    scene.ok(case.anna, "work.checkpoint", {**scene.three(case.item), "checkpoint": scene.checkpoint()})
    scene.advance(30)
    case.back()
    late = {"bufferedAt": later(scene, -20), "graceDeadline": later(scene, 20)}
    assert case.message(**late) == "WORK_LEASE_EXPIRED"
    assert case.message() == "accepted"


@pytest.mark.req("R-11.5-25")
def test_progress_of_a_former_owner_is_refused() -> None:
    case = Offline()
    scene = case.scene
    scene.advance(2000)
    scene.offer(case.item, scene.workers["bert"])
    case.back()
    assert case.message() == "INVALID_STATE_TRANSITION"
    scene.accept(case.item, scene.workers["bert"])
    assert case.message() == "WORK_STALE_OWNERSHIP"


def test_progress_on_a_lapsed_ownership_is_refused() -> None:
    case = Offline()
    case.scene.advance(2000)
    case.back()
    assert case.message() == "WORK_LEASE_EXPIRED"


@pytest.mark.req("R-11.5-26")
def test_buffered_messages_stay_in_their_conversation() -> None:
    case = Offline()
    other = case.scene.authorize("other")
    case.back()
    assert case.message(conversation=f"{GROUP}:mission") == "AUTH_FORBIDDEN"
    assert case.message(conversation=work_item_conversation_id(GROUP, other)) == "AUTH_FORBIDDEN"
    assert case.message(actor=case.scene.workers["bert"]) == "AUTH_FORBIDDEN"


@pytest.mark.req("R-11.5-31", "R-11.5-27")
def test_an_overflow_refuses_charge_and_progress_together() -> None:
    case = Offline(budget={"toolCallLimit": 2})
    case.back()
    scene = case.scene
    before = (scene.view.head(GROUP), scene.account(case.item), scene.item(case.item))
    assert case.message() == "BUDGET_EXCEEDED"
    scene.start(case.item, case.anna)
    started = (scene.view.head(GROUP), scene.item(case.item))
    payload = {**scene.three(case.item), "checkpoint": scene.checkpoint()}
    assert scene.code(case.anna, "work.checkpoint", payload, extensions=case.extension()) == "BUDGET_EXCEEDED"
    assert (scene.view.head(GROUP), scene.item(case.item)) == started
    assert scene.account(case.item) == before[1]
