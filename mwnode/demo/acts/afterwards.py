"""After the Approval: what the Organization may use from now on, and the archive."""

from __future__ import annotations

from mwnode.client.http import segment
from mwnode.demo.acts import Act
from mwnode.demo.acts.commands import message
from mwnode.demo.agents import Agent
from mwnode.demo.documents import hash_of, sha256
from mwnode.demo.drill import Drill
from mwnode.demo.processes import run
from mwnode.demo.stage import Stage
from mwnode.protocol import jcs
from mwnode.protocol.errors import MissionWeaveError
from mwnode.trust.registry import Registry
from mwnode.trust.verification import Verified, verify

LESSON = b"Count the words before you sort them.\n"


def afterwards(stage: Stage) -> None:
    """Make a result knowledge of the Organization, and archive the Group under a signed snapshot."""
    planner, ann, bob = stage.agent("planner"), stage.agent("ann"), stage.agent("bob")
    drill = Drill(stage, "Afterwards", planner)
    drill.add(ann)
    item = drill.authorize("Write down what was learnt")
    lesson = drill.finish(drill.take(item, ann), ann, LESSON)
    drill.submit_mission()
    stage.cli("mission", "approve", drill.mission_id, "--yes")
    _knowledge(stage, drill, bob, lesson)
    _archive(stage, drill, ann)


def _reads(who: Agent, content_hash: str) -> str:
    try:
        return "served" if b"".join(who.http.artifact_chunks(content_hash)) == LESSON else "other bytes"
    except MissionWeaveError as error:
        return error.code.value


def _knowledge(stage: Stage, drill: Drill, stranger: Agent, lesson: str) -> None:
    before = _reads(stranger, lesson)
    payload = {"artifactHash": lesson, "classification": "internal", "reason": "useful beyond this Mission"}
    stage.human.send("ext.mwnode.core.knowledge_publish", payload, group_id=drill.group_id, membership_epoch=1)
    after = _reads(stranger, lesson)
    published = drill.read().of_kind("ext.mwnode.core.knowledge_published")[-1]
    stage.check(
        "a result is reusable outside its Group once its owner has published it as knowledge, classified",
        before == "GROUP_NOT_FOUND" and after == "served",
        f"to a stranger: {before}, then {after} as {published['payload'].get('classification')}",
    )


def _archive(stage: Stage, drill: Drill, member: Agent) -> None:
    archived = run("mission", "archive", drill.mission_id, "--home", str(stage.home))
    head = drill.head()
    snapshots = stage.human.get(f"/v0.1/groups/{segment(drill.group_id)}/snapshots")["snapshots"]
    snapshot = next(one for one in snapshots if one["snapshotId"] == archived["snapshotId"])
    known = Registry.from_evidence(stage.human.get("/v0.1/registry"))
    body = b"".join(stage.human.artifact_chunks(snapshot["stateHash"]))
    named = [event["eventId"] for event in drill.read().events[: snapshot["throughSequence"]]]
    stage.check(
        "an archived Group lies under a snapshot that the authority signed",
        isinstance(verify(jcs.canonical(snapshot), "group-snapshot", known), Verified)
        and archived["snapshotHash"] == hash_of(snapshot),
        f"through Event {snapshot['throughSequence']}",
    )
    stage.check(
        "the snapshot's state is what its hash says, and it names every Event that it was made from",
        sha256(body) == snapshot["stateHash"] and snapshot["eventIds"] == named,
        f"{len(body)} bytes, {len(named)} Events",
    )
    answer = member.answer("message.post", message(drill, "One more thing"), drill.group_id)
    stage.check(
        "an archived Group takes nothing more, and stays readable",
        answer == "INVALID_STATE_TRANSITION" and drill.head() == head and len(drill.log.events) == head,
        f"{answer}; {head} Events",
    )


ACTS = (Act("afterwards", "reusable knowledge, and the archive", afterwards),)
