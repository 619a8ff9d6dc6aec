"""What is looked at in the two Missions' logs: who did what, when, and in which order."""

from __future__ import annotations

from collections import Counter
from typing import Any

from mwnode.client.http import segment
from mwnode.demo.log import GroupLog
from mwnode.demo.programs import ANSWER, QUESTION
from mwnode.demo.stage import Stage
from mwnode.narrative import short, work_item_of
from mwnode.protocol import jcs
from mwnode.protocol.errors import MissionWeaveError
from mwnode.protocol.instants import parse
from mwnode.trust.registry import Registry
from mwnode.trust.verification import Verified, verify

SHARED = "builder"
STAGES = {
    "feature": ("analysis", "design", "implement", "test", "lint", "review", "integrate", "approval"),
    "repair": ("analysis", "implement", "test", "review", "integrate", "approval"),
}
_ENDS = ("work.submitted", "work.failed", "work.blocked", "work.checkpointed", "work.cancelled")


def at(event: dict[str, Any]) -> int:
    """When the node accepted an Event, in microseconds."""
    return parse(event["occurredAt"]).whole_microseconds()


def runs_of(agent: str, *logs: GroupLog) -> list[tuple[int, int, str, str]]:
    """Begin, end, Mission and WorkItem of every run of an Agent, in order of their beginning."""
    found = []
    for log in logs:
        begun: dict[str, int] = {}
        for event in log.events:
            item = work_item_of(event)
            if item is None:
                continue
            if event["kind"] == "work.started" and short(event["actor"]["id"]) == agent:
                begun[item] = at(event)
            elif event["kind"] in _ENDS and item in begun:
                found.append((begun.pop(item), at(event), log.title, log.names[item]))
    return sorted(found)


def concurrency(stage: Stage, feature: GroupLog, repair: GroupLog) -> None:
    """Both Missions went on at once, and the shared Worker worked for both."""
    created = [at(log.events[0]) for log in (feature, repair)]
    submitted = [at(log.of_kind("mission.submitted_for_approval")[0]) for log in (feature, repair)]
    stage.check(
        "two Missions go on at the same time, each with a Coordinator of its own",
        max(created) < min(submitted)
        and len({log.events[0]["payload"]["mission"]["coordinator"]["agentId"] for log in (feature, repair)}) == 2,
        f"{(min(submitted) - max(created)) / 1e6:.1f} s together",
    )
    runs = runs_of(SHARED, feature, repair)
    done = Counter(mission for _, _, mission, _ in runs)
    stage.check(
        "one Worker owns and does WorkItems of both Missions",
        done["feature"] >= 3 and done["repair"] >= 3,
        f"{SHARED}: {dict(done)}",
    )
    most = max(sum(begin <= moment < end for begin, end, _, _ in runs) for moment, *_ in runs)
    stage.check("its two slots are in use at the same time, and never more", most == 2, f"{most} at once at most")
    queues = {log.title: len(log.about_agent(SHARED, "work.offer.accepted")) for log in (feature, repair)}
    stage.check("it keeps a queue for each Group", all(queues.values()), f"accepted: {queues}")


def graphs(stage: Stage, feature: GroupLog, repair: GroupLog) -> None:
    """The stages are nodes of the graph, and the graph was kept to."""
    for log in (feature, repair):
        stages = STAGES[log.title]
        states = log.states()
        stage.check(
            f"{log.title}: analysis, implementation, testing, review, integration and approval are nodes of the graph",
            set(stages) <= set(states) and all(states[name] == "verified" for name in stages),
            " ".join(f"{name}<{','.join(log.dependencies[name])}" for name in stages if log.dependencies[name]),
        )
        early = [
            (name, before)
            for name in stages
            for before in log.dependencies[name]
            if not 0 < _first(log, "work.result.accepted", before) < _first(log, "work.started", name)
        ]
        stage.check(
            f"{log.title}: no WorkItem starts before what it depends on is verified", not early, early or "in order"
        )
    implementers, reviewers = (
        {short(event["actor"]["id"]) for log in (feature, repair) for event in log.about(name, "work.submitted")}
        for name in ("implement", "review")
    )
    stage.check(
        "whoever reviews is not who implemented",
        bool(reviewers) and not implementers & reviewers,
        f"{' '.join(reviewers)} reviewed {' '.join(implementers)}",
    )


def _first(log: GroupLog, kind: str, name: str) -> int:
    found = log.about(name, kind)
    return int(found[0]["sequence"]) if found else 0


def cooperation(stage: Stage, log: GroupLog) -> None:
    """A Worker asked another one, and proposed work; words moved nothing, the Coordinator did."""
    said = [(event, event["payload"]["message"]) for event in log.of_kind("message.posted")]
    asked = next((e, m) for e, m in said if m["content"][0].get("text") == QUESTION)
    answered = next((e, m) for e, m in said if m["content"][0].get("text") == ANSWER)
    stage.check(
        "a Worker asks another Worker, and is answered",
        asked[1]["messageId"] in answered[1]["references"] and asked[1]["author"] != answered[1]["author"],
        f"{short(asked[1]['author']['id'])} asked, {short(answered[1]['author']['id'])} answered",
    )
    moved = [
        event["sequence"]
        for event, _ in said
        if event["payload"]["state"] != _state_before(log, event["sequence"])
    ]  # fmt: skip
    stage.check("no Message changes any state", not moved, f"{len(said)} Messages")
    proposed = log.of_kind("work.proposed")[-1]
    proposal = proposed["payload"]["proposal"]
    authorized = next(
        event
        for event in log.of_kind("work.authorized")
        if event["payload"].get("proposalId") == proposal["proposalId"]
    )
    coordinator = log.events[0]["payload"]["mission"]["coordinator"]["agentId"]
    name = log.names[authorized["payload"]["workItem"]["workItemId"]]
    stage.check(
        "work that a Worker proposes is work once the Coordinator has authorized it",
        authorized["actor"]["id"] == coordinator != proposed["actor"]["id"] and log.states()[name] == "verified",
        f"{short(proposed['actor']['id'])} proposed, {short(coordinator)} authorized, {log.board[name][1]} did it",
    )


def _state_before(log: GroupLog, sequence: int) -> str:
    """The Mission's state as the log had it just before an Event."""
    earlier = [event for event in log.events if event["sequence"] < sequence and event["kind"].startswith("mission.")]
    return str(earlier[-1]["payload"]["state"])


def late_member(stage: Stage, log: GroupLog, view: dict[str, Any]) -> None:
    """Whoever joins late gets a signed Context Package, and sees nothing of before."""
    member = next(one for one in view["memberships"] if short(one["member"]["id"]) == "scribe")
    joined = next(
        event
        for event in log.of_kind("membership.changed")
        if event["payload"]["membership"]["member"] == member["member"]
    )
    with stage.client("scribe") as scribe:
        package = scribe.get(f"/v0.1/context-packages/{segment(joined['payload']['contextPackageId'])}")
        page = scribe.events(log.group_id)
    known = Registry.from_evidence(stage.human.get("/v0.1/registry"))
    good = isinstance(verify(jcs.canonical(package), "context-package", known), Verified)
    covers = package["sourceEventRange"]
    stage.check(
        "a late Member gets a Context Package, signed, from the Events up to its joining",
        good and 1 < joined["sequence"] >= covers["toSequence"],
        f"joined at {joined['sequence']}; package of Events {covers['fromSequence']} to {covers['toSequence']}",
    )
    first = page["events"][0]["sequence"]
    stage.check(
        "a late Member is served no Event from before it joined",
        first >= joined["payload"]["membership"]["visibilityStartSequence"] > 1,
        f"from {first} on",
    )
    with stage.client("architect") as outsider:
        try:
            outsider.events(stage.logs[-1].group_id)
            answer = "served"
        except MissionWeaveError as error:
            answer = error.code.value
    stage.check("a Group answers a stranger as if it did not exist", answer == "GROUP_NOT_FOUND", answer)


def owner_sees_all(stage: Stage, mission_id: str, repair: GroupLog) -> None:
    """The MissionOwner is told what matters, and can open every Event behind it (R-8-22)."""
    mine = stage.human.principal.id
    told = [
        event
        for event in repair.of_kind("message.posted")
        if mine in {one["id"] for one in event["payload"]["message"].get("mentions", ())}
    ]
    facts = stage.cli("why", mission_id)
    opened = [stage.human.get(f"/v0.1/groups/{segment(repair.group_id)}/events/{event['sequence']}") for event in told]
    stage.check(
        "the MissionOwner is told in words what stands still, and can open the Event itself",
        bool(told) and [one["eventId"] for one in opened] == [event["eventId"] for event in told],
        f"{len(told)} announcements",
    )
    stage.check("`mwnode why` tells the chain of facts behind the Mission", len(facts) > 1, f"{len(facts)} facts")
