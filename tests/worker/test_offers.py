"""Which offers are accepted, which are declined with a reason, and what others learn of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mwnode.client.fold import WorkView
from mwnode.protocol.documents import AgentCard, CapabilityRef, Extension
from mwnode.protocol.instants import parse
from mwnode.testing import Harness
from mwnode.worker import scheduler
from mwnode.worker.admission import Decline, consider
from mwnode.worker.presence import presence
from tests.worker.desk import CHECKED, Desk, Run, card_of, desk, never


@pytest.mark.req("R-10.1-19", "R-10.1-20")
def test_an_ambiguous_contract_is_asked_about_instead_of_accepted(mwnode: Harness) -> None:
    mission = mwnode.mission()
    both = [
        {"deliverableId": name, "description": name, "mediaType": "text/plain", "schema": "urn:mwnode:schema:any"}
        for name in ("report", "notes")
    ]
    unclear = {"checks": {"green": "exit 0"}, "deliverables": {"report": {"path": "out"}, "notes": {"path": "out"}}}
    work = mission.authorize(requiredDeliverables=both, constraints=unclear)
    work.offer(mwnode.workers[0])
    worker = desk(mwnode).step()
    worker.pass_time(5)
    assert work.state == "offered"
    assert worker.kinds() == ["message.post"]
    assert worker.engine.scheduler.queued == 0
    posted = mission.events()[-1]
    assert posted["payload"]["message"]["conversationId"] == work.row.item.conversation_id
    assert posted["payload"]["message"]["content"][1]["data"]["resolved"] is False
    clear = {"checks": {"green": "exit 0"}, "deliverables": {"report": {"path": "report"}, "notes": {"path": "notes"}}}
    contract = mwnode.contract(contractVersion=2, requiredDeliverables=both, constraints=clear)
    work.offer(mwnode.workers[0], contract=contract)
    worker.behave = lambda assignment: Run(files={"report": b"1", "notes": b"2"})
    worker.step()
    assert work.state == "submitted"


def _answers(worker: Desk) -> list[str]:
    return [kind for kind in worker.kinds() if kind != "message.post"]


@pytest.mark.req("R-10.3-08", "R-10.3-09", "R-10.3-10")
@pytest.mark.parametrize(
    "contract, settings, reason",
    [
        ({}, {"capabilities": (CapabilityRef(id="acme.other", version="1.0.0"),)}, "capability"),
        ({}, {"capabilities": (CapabilityRef(id="mwnode.generic", version="0.9.0"),)}, "capability"),
        ({}, {"capabilities": (CapabilityRef(id="mwnode.generic", version="2.0.0"),)}, "capability"),
        ({}, {"risks": frozenset({"reversible"})}, "authorization"),
        ({}, {"denied_operations": ("read",)}, "authorization"),
        ({"budget": {"wallClockSecondsLimit": 0}}, {}, "budget"),
        ({"budget": {"toolCallLimit": 5}}, {"run_seconds": 1e6}, "deadline"),
    ],
)
def test_what_cannot_be_done_is_declined_with_its_reason(
    mwnode: Harness, contract: dict[str, Any], settings: dict[str, Any], reason: str
) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**{**CHECKED, **contract})
    worker = desk(mwnode, **settings)
    work.offer(mwnode.workers[0])
    worker.step()
    offer = work.row.item.offers[-1]
    assert (offer.status, offer.decline_reason) == ("declined", reason)
    assert _answers(worker) == ["ext.mwnode.core.offer_decline"]


@pytest.mark.req("R-10.3-08", "R-10.3-10")
@pytest.mark.parametrize("queue_max", [0, 1])
def test_beyond_slots_and_queue_offers_are_declined(mwnode: Harness, queue_max: int) -> None:
    mission = mwnode.mission()
    works = [mission.authorize(**CHECKED, goal=f"{number}") for number in range(3)]
    worker = desk(mwnode, behave=never, queue_max=queue_max)
    for work in works:
        work.offer(mwnode.workers[0])
        worker.step()
    accepted = 1 + queue_max
    assert [work.state for work in works] == ["active", "queued", "offered"][:accepted] + ["offered"] * (3 - accepted)
    declined = [work.row.item.offers[-1] for work in works[accepted:]]
    assert {(offer.status, offer.decline_reason) for offer in declined} == {("declined", "capacity")}


@pytest.mark.req("R-10.3-08", "R-10.3-10")
def test_a_cancelled_dependency_is_declined(mwnode: Harness) -> None:
    mission = mwnode.mission()
    first = mission.authorize(**CHECKED)
    second = mission.authorize(**CHECKED, dependencyWorkItemIds=[first.work_item_id])
    mission.add(mwnode.workers[0], visibilityStartSequence=1)
    second.offer(mwnode.workers[0])
    mwnode.coordinator.send(
        "work.cancel", {"workItemId": first.work_item_id, "reason": "not wanted"}, group_id=mission.group_id
    )
    worker = desk(mwnode).step()
    offer = second.row.item.offers[-1]
    assert (offer.status, offer.decline_reason) == ("declined", "dependency")
    assert "work.accept_offer" not in worker.kinds()


def test_an_offer_that_ran_out_is_left_alone(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    work.offer(mwnode.workers[0], offerExpiresInSeconds=5)
    mwnode.advance(6)
    assert desk(mwnode).step().kinds() == []


@pytest.mark.req("R-11.2-01", "R-11.2-02")
def test_estimates_are_published_at_acceptance_and_when_they_become_wrong(mwnode: Harness) -> None:
    other = mwnode.mission()
    for number in range(3):
        work = other.authorize(**CHECKED, goal=f"somebody else's {number}")
        work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=never, run_seconds=400.0).step()
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    worker.step()
    first = work.row.item.schedule_estimate
    assert first.capacity_status == "queued"
    while work.state != "active":
        worker.end(worker.launched[-1].run_id, 0)
        worker.step()
    worker.pass_time(3)
    assert work.state == "active"
    second = work.row.item.schedule_estimate
    assert second.last_calculated_at >= first.last_calculated_at
    assert second.estimated_completion < first.estimated_completion, "it comes up sooner than was told"
    published = [
        event["payload"]["scheduleEstimate"] for event in mission.events() if "scheduleEstimate" in event["payload"]
    ]
    assert len(published) == 2
    for estimate in published:
        assert set(estimate) == {
            "estimatedStart",
            "estimatedCompletion",
            "confidence",
            "capacityStatus",
            "lastCalculatedAt",
        }
    text = str(mission.events())
    assert other.group_id not in text
    assert other.mission_id not in text
    # Coarse steps: three items ahead and one ahead would be told the same way as two.
    start = parse(first.estimated_start).seconds - parse(first.last_calculated_at).seconds
    assert start % 300 == 0


@pytest.mark.req("R-11.1-13", "R-6.2-05")
def test_presence_tells_slots_and_nothing_of_any_group(mwnode: Harness) -> None:
    mission = mwnode.mission()
    works = [mission.authorize(**CHECKED, goal=f"{number}") for number in range(3)]
    worker = desk(mwnode, behave=never, scheduling=scheduler.Settings(slots=2)).step()
    assert presence(worker.engine, 1).status == "online"
    for work in works:
        work.offer(mwnode.workers[0])
    worker.step()
    full = presence(worker.engine, 1)
    assert (full.status, full.capacity.active_slots, full.capacity.available_slots) == ("busy", 2, 0)
    assert full.capacity.queued_items == 1
    text = msgspec.json.encode(full).decode()
    for secret in (mission.group_id, mission.mission_id, *(work.work_item_id for work in works)):
        assert secret not in text
    worker.end(worker.launched[0].run_id, 0)
    worker.engine.tick()
    worker.step()
    worker.end(worker.launched[1].run_id, 0)
    worker.step()
    assert presence(worker.engine, 1).capacity.active_slots == 1
    card = msgspec.to_builtins(card_of(mwnode))
    del card["maxConcurrency"]
    with pytest.raises(msgspec.ValidationError, match="maxConcurrency"):
        msgspec.convert(card, AgentCard)


@pytest.mark.req("R-18-05")
@pytest.mark.parametrize("critical, accepted", [(True, False), (False, True)])
def test_work_under_an_unknown_critical_extension_is_declined(mwnode: Harness, critical: bool, accepted: bool) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    worker = desk(mwnode)
    extensions = {"urn:example:unknown": Extension(version="1.0.0", critical=critical, data={})}
    contract = msgspec.structs.replace(work.row.item.contract, extensions=extensions)
    view = WorkView(item=msgspec.structs.replace(work.row.item, contract=contract))
    worker.engine.join(mission.group_id, mission.mission_id, ())
    verdict = consider(view, worker.engine.offers.situation(view))
    assert (verdict is None) is accepted
    if not accepted:
        assert verdict == Decline("other", "the critical extension urn:example:unknown is not known here")
