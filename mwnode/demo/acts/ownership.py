"""Exactly one owner at a time: leases that run out, and who comes back too late."""

from __future__ import annotations

from mwnode.demo.acts import Act
from mwnode.demo.agents import ACCEPTED, in_seconds, new_id
from mwnode.demo.drill import Drill
from mwnode.demo.stage import Stage

EXPIRED = "ext.mwnode.core.lease_expired"
LEASE_SECONDS = 2


def expiry(stage: Stage) -> None:
    """A Worker goes silent: its lease runs out by the node's own timer, and somebody else is given the work."""
    drill = Drill(stage, "Lease expiry", stage.agent("planner"))
    ann, bob = stage.agent("ann"), stage.agent("bob")
    drill.add(ann)
    drill.add(bob)
    item = drill.authorize("Count to ten")
    late = drill.take(item, ann, executionLeaseSeconds=LEASE_SECONDS)
    stage.report.step("the owner says nothing more", leaseSeconds=LEASE_SECONDS)
    log = drill.until(lambda seen: bool(seen.of_kind(EXPIRED)), "the Execution Lease to run out")
    expired = log.of_kind(EXPIRED)[-1]
    stage.check(
        "the node itself notices that a lease ran out; nobody has to ask",
        expired["cause"]["type"] == "timer" and expired["payload"]["leaseType"] == "execution",
        f"Event {expired['sequence']}, cause {expired['cause']['type']}",
    )
    held = drill.take(item, bob)
    stage.check(
        "the work is given to another Worker under a higher Ownership Epoch",
        drill.item(item)["owner"]["agentId"] == bob.id and held["ownershipEpoch"] > late["ownershipEpoch"],
        f"epoch {late['ownershipEpoch']} to {held['ownershipEpoch']}",
    )
    head = drill.head()
    renewal = ann.answer(
        "ext.missionweaveprotocol.core.work_execution_lease_renew", {**late, "leaseSeconds": 60}, drill.group_id
    )
    checkpoint = {"checkpointId": new_id(), "phase": "late", "completedMilestones": [], "createdAt": in_seconds(0)}
    progress = ann.answer("work.checkpoint", {**late, "checkpoint": checkpoint}, drill.group_id)
    stage.check(
        "the former owner is fenced by its Ownership Epoch, whatever it sends",
        renewal == progress == "WORK_STALE_OWNERSHIP" and drill.head() == head,
        f"renewal: {renewal}, checkpoint: {progress}; head still {head}",
    )
    drill.finish(held, bob, b"1 2 3 4 5 6 7 8 9 10\n")
    accepted = drill.read().of_kind("work.result.accepted")
    stage.check("its successor completes it, once", len(accepted) == 1, f"Event {accepted[0]['sequence']}")


def ownership(stage: Stage) -> None:
    """Two Workers are offered one WorkItem; and an owner cites an epoch that was never granted."""
    drill = Drill(stage, "One owner", stage.agent("planner"))
    ann, bob = stage.agent("ann"), stage.agent("bob")
    drill.add(ann)
    drill.add(bob)
    item = drill.authorize("Take this")
    drill.offer(item, ann.id, bob.id)
    epoch = drill.accept(item, ann)
    loser = bob.answer("work.accept_offer", {"workItemId": item}, drill.group_id)
    stage.check("of two who accept one offer, one owns and the other is told so", loser == "WORK_ALREADY_OWNED", loser)
    wrong = ann.answer("work.start", {"workItemId": item, "ownershipEpoch": epoch + 1}, drill.group_id)
    other = bob.answer("work.start", {"workItemId": item, "ownershipEpoch": epoch}, drill.group_id)
    right = ann.answer("work.start", {"workItemId": item, "ownershipEpoch": epoch}, drill.group_id)
    stage.check(
        "nobody starts work under another Ownership Epoch, or another's",
        wrong == "WORK_STALE_OWNERSHIP" and other == "AUTH_FORBIDDEN" and right == ACCEPTED,
        f"epoch {epoch + 1}: {wrong}; not the owner: {other}; the owner: {right}",
    )


ACTS = (
    Act("lease-expiry", "a Worker goes silent, and its work is given to another", expiry, fault=True),
    Act("stale-ownership", "two Workers want one WorkItem", ownership, fault=True),
)
