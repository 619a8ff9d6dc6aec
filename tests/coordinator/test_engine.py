"""The Coordinator's engine against a real node, with real Worker engines where somebody has to do the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from mwnode.coordinator.effects import Send
from mwnode.protocol.commands import MissionRenewCoordinator
from mwnode.protocol.documents import CapabilityRef
from mwnode.protocol.errors import AuthStaleCoordinator, ErrorCode, Rejection
from mwnode.testing import Harness, Participant
from mwnode.worker import scheduler
from mwnode.worker.effects import Assignment
from tests.coordinator.desk import PLAN, SINGLE, CoordinatorDesk, coordinate, make_plan
from tests.worker.desk import Desk, Run, desk


def work_together(coordinator: CoordinatorDesk, *workers: Desk, rounds: int = 80) -> None:
    """Everybody takes turns, a second each, until nobody has had anything to do for four of them."""
    idle, known = 0, None
    for _ in range(rounds):
        coordinator.step()
        for worker in workers:
            worker.step()
        coordinator.harness.advance(1)
        now = (coordinator.engine.board.sequence, [len(worker.trace) for worker in workers], len(coordinator.sent))
        idle = idle + 1 if now == known else 0
        known = now
        if idle == 4:
            return


def numbered(assignment: Assignment) -> Run:
    """Every work writes something of its own."""
    return Run(files={"report": assignment.contract.goal.encode()})


def team(mwnode: Harness) -> list[Desk]:
    return [desk(mwnode, who, numbered, scheduling=scheduler.Settings(slots=2)) for who in mwnode.workers]


def test_a_plan_is_carried_out_submitted_and_approved(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode)
    work_together(coordinator, *team(mwnode))
    mission = coordinator.mission
    assert mission.state == "awaiting_approval"
    assert len(mission.row.submitted_artifacts) == 4
    mission.approve()
    coordinator.step()
    assert coordinator.engine.finished
    assert coordinator.refused == []


@pytest.mark.req("R-8-08", "R-8-09", "R-8-10")
def test_a_candidate_becomes_a_member_when_it_is_chosen(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode, plan=make_plan(SINGLE))
    members = [event for event in coordinator.mission.events() if event["kind"] == "membership.changed"]
    assert members == []
    coordinator.step()
    changed = [event["payload"] for event in coordinator.mission.events() if event["kind"] == "membership.changed"]
    assert len(changed) == 1
    membership = changed[0]["membership"]
    assert membership["state"] == "provisional"
    assert membership["provisionalExpiresAt"] > mwnode.clock.now().text()
    assert membership["contextPackageId"] == changed[0]["contextPackageId"]
    assert set(membership["scopes"]) < {
        "message.read",
        "message.post",
        "work.propose",
        "work.accept_offer",
        "work.execute",
        "work.review",
    }
    offers = coordinator.item("lint").item.offers
    assert [offer.status for offer in offers] == ["pending"]
    assert offers[0].expires_at > mwnode.clock.now().text()
    offered = [event["payload"] for event in coordinator.mission.events() if event["kind"] == "work.offer.created"]
    assert offered[0]["contextPackageHash"].startswith("sha256:")


@pytest.mark.req("R-8-10", "R-8-16")
def test_a_candidate_is_told_of_nothing_older_than_its_work_and_what_that_rests_on(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode)
    work_together(coordinator, *team(mwnode))
    facts, papers = coordinator.engine.board.facts, 0
    for offered in coordinator.of_kind("work.offer"):
        package = offered.context_package
        item = next(
            row.item for row in coordinator.mission.work_items() if row.item.work_item_id == offered.work_item_id
        )
        rests_on = [facts[f"accepted {name}"] for name in item.contract.dependency_work_item_ids]
        cited = [event for decision in package.decisions for event in decision.source_event_ids]
        assert cited == rests_on
        assert package.source_event_range.event_ids[0] in (facts[f"authorized {offered.work_item_id}"], *rests_on)
        papers += 1
    assert papers >= 4


@pytest.mark.req("R-10.3-03")
def test_candidates_are_asked_one_after_the_other_best_first(mwnode: Harness) -> None:
    mwnode.agent("worker-3")
    coordinator = coordinate(mwnode, plan=make_plan(SINGLE)).step()
    mwnode.advance(30)
    coordinator.step()
    asked = [payload.candidate_agent_ids for payload in coordinator.of_kind("work.offer")]
    assert asked == [("urn:mwnode:agent:worker-1",)], "the offer is still open"
    mwnode.workers[0].send(
        "ext.mwnode.core.offer_decline",
        {"workItemId": coordinator.item("lint").item.work_item_id, "reason": "capacity"},
        group_id=coordinator.mission.group_id,
    )
    coordinator.step()
    mwnode.advance(130)
    coordinator.step()
    asked = [payload.candidate_agent_ids[0] for payload in coordinator.of_kind("work.offer")]
    assert asked[:2] == ["urn:mwnode:agent:worker-1", "urn:mwnode:agent:worker-2"]
    assert len(asked) == 3, "the second ran out, and somebody else is asked"


@pytest.mark.req("R-10.3-04")
def test_critical_work_is_offered_to_a_bounded_set_at_once(mwnode: Harness) -> None:
    for number in (3, 4, 5):
        mwnode.agent(f"worker-{number}")
    plan = make_plan(SINGLE.replace('goal = "Lint"', 'goal = "Lint"\nurgency = "critical"'))
    coordinator = coordinate(mwnode, plan=plan).step()
    mwnode.advance(5)
    coordinator.step()
    offers = coordinator.item("lint").item.offers
    assert [offer.status for offer in offers] == ["pending"] * 3


@pytest.mark.req("R-10.3-11", "R-10.3-12")
def test_the_basis_of_a_choice_is_on_record_and_holds_facts_only(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode)
    work_together(coordinator, *team(mwnode))
    basis = coordinator.item("ship").item.selection_basis
    assert set(basis.__struct_fields__) == {
        "required_capabilities",
        "verified_matches",
        "authorization_eligible",
        "availability_estimate",
        "expected_cost",
        "reliability_evidence",
        "policy_rules_applied",
    }
    assert basis.verified_matches == (CapabilityRef(id="mwnode.generic", version="1.0.0"),)
    assert basis.reliability_evidence, "earlier accepted results count"
    events = {event["eventId"]: event["kind"] for event in coordinator.mission.events()}
    assert {events[one] for one in basis.reliability_evidence} == {"work.result.accepted"}


@pytest.mark.req("R-10.4-02")
def test_independent_branches_run_side_by_side(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode)
    slow = {"Test", "Write"}

    def behave(assignment: Assignment) -> Run:
        return Run(status=None) if assignment.contract.goal in slow else numbered(assignment)

    workers = [desk(mwnode, who, behave, scheduling=scheduler.Settings(slots=2)) for who in mwnode.workers]
    work_together(coordinator, *workers)
    assert (coordinator.state("test"), coordinator.state("docs")) == ("active", "active")
    assert coordinator.state("ship") == "open"


def test_results_of_earlier_works_reach_the_contract_of_later_ones(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode)
    work_together(coordinator, *team(mwnode))
    contract = coordinator.item("ship").item.contract
    assert contract.contract_version == 2
    assert [entry["path"] for entry in contract.constraints["inputs"]] == [
        "docs/report",
        "lint/report",
        "test/report",
    ]
    hashes = {entry["contentHash"] for entry in contract.constraints["inputs"]}
    assert hashes == set(contract.input_artifacts)


def test_input_files_become_artifacts_under_the_paths_of_the_plan(mwnode: Harness, tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "a.py").write_text("a")
    (tmp_path / "src" / "deep" / "b.py").write_text("b")
    (tmp_path / "src" / ".hidden").write_text("h")
    text = SINGLE.replace('goal = "Lint"', 'goal = "Lint"\ninputs = ["../src/"]')
    coordinator = coordinate(mwnode, plan=make_plan(text, tmp_path / "plans" / "plan.toml")).step()
    inputs = coordinator.item("lint").item.contract.constraints["inputs"]
    assert [entry["path"] for entry in inputs] == ["src/a.py", "src/deep/b.py"]
    assert mwnode.node.artifacts.info(inputs[0]["contentHash"]).size == 1


def test_a_coordinator_that_starts_anew_goes_on_from_the_log(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode)
    workers = team(mwnode)
    for _ in range(3):
        coordinator.step()
        for worker in workers:
            worker.step()
    again = coordinate(mwnode, coordinator.mission, coordinator.engine.plan)
    again.agent.connect()
    work_together(again, *workers)
    assert again.mission.state == "awaiting_approval"
    authorized = [event for event in again.mission.events() if event["kind"] == "work.authorized"]
    assert len(authorized) == 4


@pytest.mark.req("R-7.3-03")
def test_nothing_is_submitted_before_everything_was_reviewed(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode)
    work_together(coordinator, *team(mwnode))
    kinds = coordinator.kinds()
    assert kinds.count("work.accept_result") == 4
    assert kinds.index("mission.submit_for_approval") > max(
        index for index, kind in enumerate(kinds) if kind == "work.accept_result"
    )
    assert len(coordinator.checks) == 4, "the integrity of every result was looked at"


@pytest.mark.req("R-7.3-08")
def test_requested_changes_become_corrective_work(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode)
    workers = team(mwnode)
    work_together(coordinator, *workers)
    before = {local: coordinator.item(local).item.work_item_id for local in ("lint", "test", "docs", "ship")}
    coordinator.mission.request_changes("The docs lack a date.")
    work_together(coordinator, *workers)
    assert coordinator.mission.state == "awaiting_approval"
    after = {local: coordinator.item(local).item.work_item_id for local in before}
    assert {local for local in before if before[local] != after[local]} == {"docs", "ship"}
    contract = coordinator.item("docs").item.contract
    assert contract.constraints["correction"] == {"round": 1, "feedback": "The docs lack a date."}
    assert "The docs lack a date." in contract.goal
    assert set(coordinator.item("docs").item.submission.artifact_hashes) <= set(
        coordinator.mission.row.submitted_artifacts
    )
    coordinator.mission.request_changes("Not good enough")
    work_together(coordinator, *workers)
    assert coordinator.mission.state == "awaiting_approval"
    third = {local: coordinator.item(local).item.work_item_id for local in before}
    assert {local for local in before if third[local] != after[local]} == {"ship"}, "no work was named: the last one"
    again = coordinate(mwnode, coordinator.mission, coordinator.engine.plan).step()
    assert again.kinds() == [], "a restart finds nothing left to do"


@pytest.mark.req("R-13.2-02")
def test_damaged_bytes_stop_the_review_and_the_work_is_done_again(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode, plan=make_plan(SINGLE))
    contents = iter([b"bad", b"good"])
    worker = desk(mwnode, behave=lambda assignment: Run(files={"report": next(contents)}))
    coordinator.absent.add(mwnode.workers[1].id)
    coordinator.damaged.add(mwnode.store_bytes(b"bad"))
    work_together(coordinator, worker)
    failed = [event["payload"] for event in coordinator.mission.events() if event["kind"] == "work.failed"]
    assert failed[0]["reason"].startswith("REWORK: ")
    assert failed[0]["evidence"][0]["details"]["step"] == "integrity"
    assert coordinator.mission.state == "awaiting_approval"
    contract = coordinator.item("lint").item.contract
    assert "its bytes are others" in contract.constraints["rework"], "the next run is told what was wrong"


def test_a_failed_work_is_offered_again_within_its_attempts(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode, plan=make_plan(SINGLE))
    coordinator.absent.add(mwnode.workers[1].id)
    statuses = iter([3, 3, 0])
    worker = desk(mwnode, behave=lambda assignment: Run(status=next(statuses)))
    work_together(coordinator, worker)
    assert coordinator.mission.state == "awaiting_approval"
    assert len(worker.launched) == 3


def test_after_a_failure_somebody_else_is_asked_first(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode, plan=make_plan(SINGLE))
    first = desk(mwnode, behave=lambda assignment: Run(status=3))
    second = desk(mwnode, mwnode.workers[1])
    work_together(coordinator, first, second)
    assert coordinator.item("lint").item.owner.agent_id == mwnode.workers[1].id
    assert coordinator.mission.state == "awaiting_approval"


def test_when_all_attempts_failed_the_owner_is_told_once(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode, plan=make_plan(SINGLE))
    coordinator.absent.add(mwnode.workers[1].id)
    worker = desk(mwnode, behave=lambda assignment: Run(status=3))
    work_together(coordinator, worker)
    assert len(worker.launched) == 3
    assert coordinator.state("lint") == "failed"
    told = [payload.content for payload in coordinator.of_kind("message.post")]
    assert len(told) == 1
    assert "all 3 attempts failed" in told[0]
    again = coordinate(mwnode, coordinator.mission, coordinator.engine.plan).step()
    assert "message.post" not in again.kinds(), "it was said already"


@pytest.mark.req("R-11.4-06")
def test_a_word_of_the_owner_unblocks(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode, plan=make_plan(SINGLE))
    line = {"blocked": {"reason": "no licence", "requiredResolution": "buy one"}}
    runs = iter([Run(status=None, lines=(line,)), Run()])
    worker = desk(mwnode, behave=lambda assignment: next(runs))
    work_together(coordinator, worker)
    assert coordinator.state("lint") == "blocked"
    assert "buy one" in coordinator.of_kind("message.post")[0].content
    mwnode.owner.send(
        "message.post",
        {
            "messageId": mwnode.new_id(),
            "conversationId": f"{coordinator.mission.group_id}:mission",
            "content": "it is bought",
        },
        group_id=coordinator.mission.group_id,
    )
    work_together(coordinator, worker)
    assert coordinator.of_kind("work.unblock")[0].resolution == "it is bought"
    assert coordinator.mission.state == "awaiting_approval"


@pytest.mark.req("R-11.5-01")
def test_a_dead_worker_is_replaced_and_its_checkpoint_goes_on(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode, plan=make_plan(SINGLE))
    line = {"checkpoint": {"phase": "half"}}
    dead = desk(mwnode, behave=lambda assignment: Run(status=None, lines=(line,)), execution_lease_seconds=60)
    for _ in range(3):
        coordinator.step()
        dead.step()
    dead.engine.shut_down()
    dead.step()
    assert coordinator.state("lint") == "queued"
    coordinator.absent.add(mwnode.workers[0].id)
    mwnode.advance(901)
    other = desk(mwnode, mwnode.workers[1])
    coordinator.step()
    mwnode.advance(1)
    work_together(coordinator, other)
    assert coordinator.item("lint").item.owner.agent_id == mwnode.workers[1].id
    assert other.launched[0].checkpoint is not None
    assert other.launched[0].checkpoint.phase == "half"
    assert coordinator.mission.state == "awaiting_approval"


def test_the_coordinator_lease_is_renewed(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode, plan=make_plan(SINGLE)).step()
    for _ in range(12):
        mwnode.advance(60)
        coordinator.step()
    lease = coordinator.mission.row.coordinator_lease
    assert (lease.state, lease.renewal_count >= 5) == ("active", True)
    assert "WORK_LEASE_EXPIRED" not in dict(coordinator.refused).values()


def test_a_lapsed_lease_is_taken_up_again(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode, plan=make_plan(SINGLE))
    mwnode.advance(1000)
    coordinator.step()
    mwnode.advance(5)
    coordinator.step()
    assert coordinator.state("lint") == "offered"


@pytest.mark.req("R-7.2-11")
def test_a_replacement_reconciles_before_it_assigns_anything(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode)
    workers = team(mwnode)
    for _ in range(2):
        coordinator.step()
        for worker in workers:
            worker.step()
    successor: Participant = mwnode.agent("successor")
    mwnode.owner.send(
        "mission.assign_coordinator",
        {"coordinatorAgentId": successor.id},
        group_id=coordinator.mission.group_id,
    )
    coordinator.step()
    assert not coordinator.engine.ours
    after = coordinate(mwnode, coordinator.mission, coordinator.engine.plan, successor)
    work_together(after, *workers)
    assert after.kinds()[0] == "ext.mwnode.core.coordinator_reconcile"
    assert after.mission.state == "awaiting_approval"
    sent = len(coordinator.sent)
    coordinator.step()
    assert len(coordinator.sent) == sent, "the former one is silent"


def test_absent_agents_are_asked_only_after_a_while(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode, plan=make_plan(SINGLE))
    coordinator.absent |= {worker.id for worker in mwnode.workers} | {mwnode.coordinator.id}
    coordinator.step()
    mwnode.advance(5)
    coordinator.step()
    assert "work.offer" not in coordinator.kinds()
    mwnode.advance(6)
    coordinator.step()
    assert "work.offer" in coordinator.kinds()


def test_when_nobody_has_the_capability_the_owner_is_told(mwnode: Harness) -> None:
    text = SINGLE.replace('goal = "Lint"', 'goal = "Lint"\ncapability = ["acme.rare@1.0.0"]')
    coordinator = coordinate(mwnode, plan=make_plan(text)).step()
    for _ in range(3):
        mwnode.advance(6)
        coordinator.step()
    assert "acme.rare@1.0.0" in coordinator.of_kind("message.post")[0].content
    assert len(coordinator.of_kind("message.post")) == 1


@pytest.mark.req("R-10.4-01")
def test_work_starts_before_the_whole_graph_is_known(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode)
    workers = team(mwnode)
    coordinator.step()
    workers[0].step()
    extra = coordinator.mission.authorize(
        goal="found on the way", constraints={"checks": {"green": "exit 0"}}, allowedResources=[]
    )
    extra.offer(mwnode.workers[1])
    work_together(coordinator, *workers)
    assert extra.state == "submitted"
    assert coordinator.mission.state == "active", "what was added is open, so nothing is submitted"
    extra.review()
    work_together(coordinator, *workers)
    assert coordinator.mission.state == "awaiting_approval"


@pytest.mark.req("R-7.1-28")
def test_a_coordinator_never_cancels_its_own_mission(mwnode: Harness) -> None:
    coordinator = coordinate(mwnode, plan=make_plan(SINGLE)).step()
    error = mwnode.coordinator.refused("mission.cancel", {"reason": "r"}, group_id=coordinator.mission.group_id)
    assert error.code.value == "AUTH_FORBIDDEN"
    assert "mission.cancel" not in PLAN + " ".join(coordinator.kinds())
    assert coordinator.mission.state == "active"


@pytest.mark.req("R-7.2-09", "R-7.2-11")
def test_a_refusal_under_an_older_epoch_is_no_news_to_who_coordinates_again(mwnode: Harness) -> None:
    other = mwnode.agent("other")
    coordinator = coordinate(mwnode, plan=make_plan(SINGLE)).step()
    engine, group_id = coordinator.engine, coordinator.mission.group_id
    engine.send("asked before", "mission.renew_coordinator", MissionRenewCoordinator(lease_seconds=300))
    (before,) = [one for one in engine.effects() if isinstance(one, Send)]
    for agent in (other, mwnode.coordinator):
        revision = coordinator.mission.row.mission.revision
        payload = {"coordinatorAgentId": agent.id}
        mwnode.owner.send("mission.assign_coordinator", payload, group_id=group_id, expected_revision=revision)
    coordinator.deliver()
    stale = AuthStaleCoordinator(Rejection(ErrorCode.AUTH_STALE_COORDINATOR, "not the current one"))
    engine.refused(before.ticket, stale)
    assert engine.ours
    coordinator.step()
    assert coordinator.kinds().count("ext.mwnode.core.coordinator_reconcile") == 1
    engine.send("asked now", "mission.renew_coordinator", MissionRenewCoordinator(lease_seconds=300))
    (now,) = [one for one in engine.effects() if isinstance(one, Send)]
    engine.refused(now.ticket, stale)
    assert not engine.ours
