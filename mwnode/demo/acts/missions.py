"""Two software Missions at once, with a Worker that they share: from a human's order to the same human's word."""

from __future__ import annotations

from functools import partial
from typing import Any

from mwnode.client.commands import signed_command
from mwnode.demo.acts import Act, mission_checks, release_checks
from mwnode.demo.agents import answer_of, in_seconds, new_id
from mwnode.demo.documents import approval, execution_approval
from mwnode.demo.log import GroupLog
from mwnode.demo.stage import HUMAN, Stage
from mwnode.home import load_key
from mwnode.protocol.errors import MissionWeaveError

BUILDS = ("analyse", "implement", "ask-first", "test", "lint", "integrate")
RESOLUTION = "Wrong usage ends with exit status 2."
CORRECTION = "integrate: please put a LICENSE into the archive"


class Order:
    """One of the Missions: what it is called, its identifier, its log."""

    def __init__(self, stage: Stage, plan: str) -> None:
        self.stage = stage
        self.plan = plan
        self.mission_id, self.log = stage.create(plan)

    def view(self) -> dict[str, Any]:
        return self.stage.human.mission(self.mission_id)

    def item(self, name: str) -> dict[str, Any]:
        """The newest WorkItem of a name, as the node shows it."""
        wanted = self.log.item_of(name)
        return next(item for item in self.view()["workItems"] if item["workItemId"] == wanted)

    def state(self, name: str) -> str:
        return self.log.states().get(name, "")


def play(stage: Stage) -> None:
    """Order both, tend to them as their human, and look at what came of it."""
    _hire(stage)
    feature, repair = Order(stage, "feature"), Order(stage, "repair")
    both = (feature.log, repair.log)
    stage.until(lambda: repair.state("implement") == "blocked", "the repair to ask its question", both)
    _resolve(stage, repair)
    for order in (feature, repair):
        stage.until(partial(_is_gated, order), "the work that a human must allow", both)
        _gate(stage, order)
    stage.until(lambda: _awaiting(*both), "both Missions to await Approval", both)
    mission_checks.concurrency(stage, feature.log, repair.log)
    _refuse_another_set(stage, feature)
    first = release_checks.archive_of(stage, feature.log)
    _correct(stage, feature, both)
    for order in (feature, repair):
        stage.report.step("the human approves exactly what was submitted", mission=order.plan)
        stage.cli("mission", "approve", order.mission_id, "--yes")
    stage.until(lambda: feature.log.over and repair.log.over, "both Approvals", both)
    mission_checks.graphs(stage, feature.log, repair.log)
    mission_checks.cooperation(stage, feature.log)
    mission_checks.late_member(stage, feature.log, feature.view())
    mission_checks.owner_sees_all(stage, feature.mission_id, repair.log)
    release_checks.approvals(stage, feature.log, repair.log)
    release_checks.corrected(stage, feature.log, first)
    release_checks.slots(stage, feature.log, repair.log)
    release_checks.released(stage, feature.log, repair.log)


def _hire(stage: Stage) -> None:
    """Everybody who works on the two Missions, each a process of its own."""
    stage.register("foreman")
    stage.register("reviewer", "demo.code.review@1.0.0", slots=2)
    analyst = stage.register("analyst", "demo.requirements.analyse@1.0.0")
    stage.register("architect", "demo.design@1.0.0")
    stage.start_worker("builder", stage.executor("develop.py", *BUILDS))
    stage.start_worker("scribe", stage.executor("develop.py", "example", "sign-off"))
    stage.start_worker("reviewer", stage.executor("develop.py", "review"))
    stage.start_program("analyst", stage.executor("develop.py", "analyse"))
    stage.start_program("architect", analyst)
    stage.start_coordinator("lead", "feature")
    stage.start_coordinator("foreman", "repair")


def _is_gated(order: Order) -> bool:
    return order.state("approval") == "queued"


def _awaiting(*logs: GroupLog) -> bool:
    return all(log.mission_state == "awaiting_approval" for log in logs)


def _resolve(stage: Stage, repair: Order) -> None:
    """The executor asked; its human answers, and the Coordinator lets it go on."""
    item = repair.item("implement")
    blocked = repair.log.about("implement", "work.blocked")[-1]
    entries = stage.human.get("/v0.1/waiting")["waiting"]
    waiting = [entry["action"] for entry in entries if entry["on"]["id"] == item["workItemId"]]
    stage.check(
        "work that cannot go on is blocked, with its checkpoint, and says what it needs",
        item["state"] == "blocked" and bool(blocked["payload"]["checkpoint"]["completedMilestones"]),
        blocked["payload"]["requiredResolution"],
    )
    stage.check("the node names the blocked work among what waits", bool(waiting), " ".join(waiting))
    stage.report.step("the human answers", said=RESOLUTION)
    stage.cli("mission", "direct", repair.mission_id, RESOLUTION)
    stage.until(lambda: repair.state("implement") == "verified", "the blocked work to be done", [repair.log])
    resumed = repair.log.about("implement", "work.unblocked")[-1]
    owners = {
        event["payload"]["owner"]["ownershipEpoch"] for event in repair.log.about("implement", "work.offer.accepted")
    }
    stage.check(
        "the human's words resolve the block, and its owner resumes under the same Ownership Epoch",
        owners == {1} and RESOLUTION in resumed["payload"].get("resolution", ""),
        f"Event {resumed['sequence']}: {resumed['payload'].get('resolution')}",
    )


def _gate(stage: Stage, order: Order) -> None:
    """The last node of the graph starts on a human's word, for exactly this owner, and not before."""
    item = order.item("approval")
    entries = stage.human.get("/v0.1/waiting")["waiting"]
    waiting = [entry["who"]["id"] for entry in entries if entry["on"]["id"] == item["workItemId"]]
    early = _start_as_owner(stage, item)
    stage.check(
        f"{order.plan}: the work that a human must allow does not start before",
        early == "APPROVAL_REQUIRED" and stage.human.principal.id in waiting,
        f"its owner's work.start: {early}; waits for {' '.join(waiting)}",
    )
    good = execution_approval(stage.human, order.view(), item, 600)
    wrong = {**good, "ownershipEpoch": good["ownershipEpoch"] + 1}
    refused = _try(stage, "approval.grant_execution", wrong, order)
    granted = _try(stage, "approval.grant_execution", good, order)
    stage.check(
        f"{order.plan}: an execution Approval counts for the owner that it names, and for no other",
        refused != "accepted" and granted == "accepted",
        f"for another Ownership Epoch: {refused}; as signed: {granted}",
    )


def _start_as_owner(stage: Stage, item: dict[str, Any]) -> str:
    """What the node says when the owner starts now, under the very session of its Worker."""
    name = item["owner"]["agentId"].rpartition(":")[2]
    present = {one["agentId"]: one["sessionEpoch"] for one in stage.human.get("/v0.1/presence")["presence"]}
    payload = {"workItemId": item["workItemId"], "ownershipEpoch": item["owner"]["ownershipEpoch"]}
    view = stage.human.mission(item["missionId"])
    epoch = next(
        one["membershipEpoch"] for one in view["memberships"] if one["member"]["id"] == item["owner"]["agentId"]
    )
    raw = signed_command(
        load_key(stage.key_file(name)),
        "work.start",
        payload,
        action_id=new_id(),
        issued_at=in_seconds(0),
        group_id=item["groupId"],
        session_epoch=present[item["owner"]["agentId"]],
        membership_epoch=epoch,
    )
    return answer_of(stage.human, raw)


def _try(stage: Stage, kind: str, payload: dict[str, Any], order: Order) -> str:
    """What the node says to a Command of the human."""
    mine = next(
        one["membershipEpoch"] for one in order.view()["memberships"] if one["member"]["id"] == stage.human.principal.id
    )
    try:
        stage.human.send(kind, payload, group_id=order.log.group_id, membership_epoch=mine)
    except MissionWeaveError as error:
        return error.code.value
    return "accepted"


def _refuse_another_set(stage: Stage, order: Order) -> None:
    """An Approval of anything but what was submitted is refused and changes nothing."""
    view, submitted = order.view(), order.log.latest("mission.submitted_for_approval")
    waiting = [entry["who"]["id"] for entry in stage.cli("waiting") if entry["on"]["id"] == order.mission_id]
    stage.check(
        "`mwnode waiting` names the human whose Approval is awaited",
        stage.human.principal.id in waiting,
        f"{HUMAN}: {len(submitted['artifactHashes'])} Artifacts",
    )
    fewer = {**submitted, "artifactHashes": submitted["artifactHashes"][:-1]}
    older = {**submitted, "missionRevision": submitted["missionRevision"] - 1}
    answers = [
        _try(stage, "mission.approve", {"approval": approval(stage.human, view, changed)}, order)
        for changed in (fewer, older)
    ]
    after = order.view()
    stage.check(
        "an Approval of another Artifact set or revision is refused, and changes nothing",
        answers == ["REVISION_CONFLICT"] * 2 and after["headSequence"] == view["headSequence"],
        f"{' '.join(answers)}; head still {after['headSequence']}",
    )


def _correct(stage: Stage, order: Order, both: tuple[GroupLog, ...]) -> None:
    """The human wants something changed: exactly that is done again, and the gate is a gate again."""
    stage.report.step("the human requests a change", said=CORRECTION)
    before = order.log.item_of("approval")
    stage.cli("mission", "request-changes", order.mission_id, CORRECTION)
    stage.until(
        lambda: order.log.item_of("approval") != before and order.state("approval") == "queued",
        "the corrective work",
        both,
    )
    payload = execution_approval(stage.human, order.view(), order.item("approval"), 600)
    answer = _try(stage, "approval.grant_execution", payload, order)
    stage.check(
        "corrective work waits for a word of its own: the Approval of before does not count",
        answer == "accepted",
        answer,
    )
    stage.until(lambda: _awaiting(order.log), "the corrected Mission to await Approval", both)


ACTS = (
    Act("missions", "two software Missions at once, with a shared Worker", play),
    Act("change-request", "a human sends a submission back (within the two Missions)", play, fault=True),
    Act("block", "work that cannot go on, and does again (within the two Missions)", play, fault=True),
)
