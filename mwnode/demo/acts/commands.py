"""Faults of single Commands: delivered twice, one Action ID for two, and epochs of yesterday."""

from __future__ import annotations

from typing import Any

from mwnode.demo.acts import Act
from mwnode.demo.agents import ACCEPTED, Agent, answer_of, new_id
from mwnode.demo.drill import Drill
from mwnode.demo.stage import Stage
from mwnode.protocol.identifiers import mission_conversation_id


def message(drill: Drill, text: str) -> dict[str, Any]:
    """The payload of a Message to everybody."""
    return {
        "messageId": new_id(),
        "conversationId": mission_conversation_id(drill.group_id),
        "content": text,
    }


def _member(stage: Stage, title: str) -> tuple[Drill, Agent]:
    """A Mission with one more Member, who may speak."""
    drill = Drill(stage, title, stage.agent("planner"))
    ann = stage.agent("ann")
    drill.add(ann)
    return drill, ann


def duplicate(stage: Stage) -> None:
    """One Command is delivered four times, over both ways in."""
    drill, ann = _member(stage, "Duplicate delivery")
    ann.follow(drill.group_id)
    raw = ann.raw("message.post", message(drill, "Said once"), drill.group_id)
    first = ann.http.command(raw)["events"]
    head = drill.head()
    again = [ann.http.command(raw)["events"] for _ in range(2)]
    stage.check(
        "a Command delivered three times has one effect, and the same answer each time",
        all(events == first for events in again) and drill.head() == head,
        f"Event {first[0]['sequence']} each time, head still {head}",
    )
    fixed = {"action_id": new_id()}
    receipt = ann.send("message.post", message(drill, "Over the WebSocket"), drill.group_id, **fixed)
    over_http = ann.answer("message.post", message(drill, "Another text"), drill.group_id, **fixed)
    stage.check(
        "a receipt knows no transport: what came over the WebSocket is known over HTTP",
        over_http == "ACTION_ID_COLLISION",
        f"Event {receipt['sequence']}, then {over_http}",
    )
    stage.dismiss("ann")
    again_ann = stage.agent("ann")
    again_ann.follow(drill.group_id)
    joined = next(event for event in drill.read().events if event["kind"] == "membership.changed")
    logged = [event["eventId"] for event in drill.log.events if event["sequence"] >= joined["sequence"]]

    def heard() -> list[str]:
        return [event["eventId"] for event in again_ann.heard if event.get("groupId") == drill.group_id]

    stage.until(lambda: heard()[-1:] == logged[-1:], "the replay to reach the head")
    stage.check(
        "a replayed Group gives a Member every Event since it joined, in order and once",
        heard() == logged,
        f"{len(logged)} Events, replayed from the beginning",
    )


def collision(stage: Stage) -> None:
    """Two different Commands come under one Action ID."""
    drill, ann = _member(stage, "Action ID collision")
    fixed = {"action_id": new_id()}
    first = ann.answer("message.post", message(drill, "The first"), drill.group_id, **fixed)
    head = drill.head()
    second = ann.answer("message.post", message(drill, "The second"), drill.group_id, **fixed)
    stage.check(
        "an Action ID that stands for another Command is refused, and nothing changes",
        first == ACCEPTED and second == "ACTION_ID_COLLISION" and drill.head() == head,
        f"{first}, then {second}; head still {head}",
    )


def session(stage: Stage) -> None:
    """A runtime goes on after another one has taken its Agent's place."""
    drill, ann = _member(stage, "Stale session")
    before = ann.session_epoch
    stage.dismiss("ann")
    again = stage.agent("ann")
    head = drill.head()
    answer = again.answer("message.post", message(drill, "From the past"), drill.group_id, session_epoch=before)
    now = again.answer("message.post", message(drill, "From now"), drill.group_id)
    stage.check(
        "a Command under a fenced Session Epoch is refused",
        answer == "AUTH_STALE_SESSION" and now == ACCEPTED and drill.head() == head + 1,
        f"epoch {before}: {answer}; epoch {again.session_epoch}: {now}",
    )


def membership(stage: Stage) -> None:
    """A Member acts on what it was before its role was changed, and after it was ended."""
    drill, ann = _member(stage, "Stale membership")
    changed = drill.add(ann, "observer", expectedMembershipEpoch=1)["payload"]["membership"]["membershipEpoch"]
    head = drill.head()
    answer = ann.answer("message.post", message(drill, "As I was"), drill.group_id, membership_epoch=1)
    now = ann.answer("message.post", message(drill, "As I am"), drill.group_id, membership_epoch=changed)
    stage.check(
        "a Command under an older Membership Epoch is refused",
        answer == "MEMBERSHIP_STALE" and now == ACCEPTED and drill.head() == head + 1,
        f"epoch 1: {answer}; epoch {changed}: {now}",
    )
    drill.as_coordinator("membership.end", {"principal": ann.principal, "expectedMembershipEpoch": changed})
    ended = ann.answer("message.post", message(drill, "Nobody now"), drill.group_id, membership_epoch=changed)
    stage.check("whose Membership has ended may say no more", ended == "MEMBERSHIP_REQUIRED", ended)


def coordinator(stage: Stage) -> None:
    """A Coordinator acts on after it was replaced."""
    drill, _ = _member(stage, "Stale coordinator")
    planner, understudy = stage.agent("planner"), stage.agent("understudy")
    stage.cli("mission", "replace-coordinator", drill.mission_id, understudy.id)
    head = drill.head()
    late = planner.answer(
        "message.post", message(drill, "Still me"), drill.group_id, coordinator_epoch=1, membership_epoch=1
    )
    renewal = planner.answer(
        "mission.renew_coordinator", {"leaseSeconds": 300}, drill.group_id, coordinator_epoch=1, membership_epoch=1
    )
    stage.check(
        "a replaced Coordinator is fenced by its Coordinator Epoch",
        late == renewal == "AUTH_STALE_COORDINATOR" and drill.head() == head,
        f"epoch 1: {late}; head still {head}",
    )
    epoch = drill.view()["mission"]["coordinator"]["coordinatorEpoch"]
    member = next(one["membershipEpoch"] for one in drill.view()["memberships"] if one["member"]["id"] == understudy.id)
    now = understudy.answer(
        "mission.renew_coordinator",
        {"leaseSeconds": 900},
        drill.group_id,
        coordinator_epoch=epoch,
        membership_epoch=member,
    )
    stage.check("its successor coordinates under the next epoch", epoch == 2 and now == ACCEPTED, f"{epoch}: {now}")


def tampered(stage: Stage) -> None:
    """A signed Command is changed on its way."""
    drill, ann = _member(stage, "Tampered")
    head = drill.head()
    raw = ann.raw("message.post", message(drill, "Pay 10 to Bob"), drill.group_id)
    answer = answer_of(ann.http, raw.replace(b"Pay 10", b"Pay 99"))
    stage.check(
        "a Command changed after it was signed is refused, and the answer does not tell which check failed",
        answer == "AUTH_INVALID_SIGNATURE" and drill.head() == head,
        answer,
    )


ACTS = (
    Act("duplicate-delivery", "one Command is delivered again and again", duplicate, fault=True),
    Act("action-id-collision", "one Action ID is used for two Commands", collision, fault=True),
    Act("stale-session", "an older runtime of the same Agent speaks", session, fault=True),
    Act("stale-membership", "a Member acts under its earlier Membership", membership, fault=True),
    Act("stale-coordinator", "a replaced Coordinator acts on", coordinator, fault=True),
    Act("tampered-command", "a Command is changed on its way", tampered, fault=True),
)
