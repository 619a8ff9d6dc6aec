"""Links and services that go away and come back: nothing is missed, nothing is done twice, and usage is charged."""

from __future__ import annotations

from collections import Counter

from mwnode.demo.acts import Act
from mwnode.demo.acts.commands import message
from mwnode.demo.documents import HAUL
from mwnode.demo.drill import Drill, pause
from mwnode.demo.stage import Stage

USAGE = "ext.missionweaveprotocol.core.resource_usage_recorded"
REVOKED = "ext.missionweaveprotocol.core.work_execution_lease_revoked"
OFFLINE_SECONDS = 2.5


def link_cut(stage: Stage) -> None:
    """A follower's link is cut again and again while others speak."""
    planner = stage.agent("planner")
    drill = Drill(stage, "Link cut", planner)
    link = stage.link()
    follower = stage.agent("carl", url=link.url)
    drill.add(follower)
    follower.follow(drill.group_id)
    first = follower.session_epoch
    for number in range(3):
        link.cut()
        for text in ("one", "two"):
            planner.send("message.post", message(drill, f"{text} of round {number}"), drill.group_id)
        link.mend()
        planner.send("message.post", message(drill, f"and on, in round {number}"), drill.group_id)
        pause(0.3)
    head = drill.head()

    def sequences() -> list[int]:
        return [event["sequence"] for event in follower.heard if event.get("groupId") == drill.group_id]

    stage.until(lambda: bool(sequences()) and sequences()[-1] == head, "the follower to have caught up")
    seen = sequences()
    stage.check(
        "over a link that is cut three times, a follower misses no Event and gets none twice",
        seen == list(range(seen[0], head + 1)) and link.carried > 1,
        f"Events {seen[0]} to {seen[-1]} over {link.carried} connections",
    )
    now = follower.session_epoch
    stage.check("a new connection is a new Session, under a higher epoch", now > first, f"epoch {first} to {now}")


def outage(stage: Stage) -> None:
    """The Group service goes away while a Worker works: it works on, signs what it reports, and reconciles."""
    hauler = stage.register("hauler", "demo.haul@1.0.0", slots=1)
    drill = Drill(stage, "Outage", stage.agent("planner"))
    drill.add({"type": "agent", "id": hauler})
    ledger = stage.fresh_file("outage")
    command = stage.executor("steady.py", str(ledger))
    hold = stage.hold(ledger)
    stage.start_program("hauler", command, "{}", role="hauler")
    item = drill.authorize(
        "Haul through the outage", requiredCapabilities=[HAUL], run="40 held", sideEffectRisk="reversible"
    )
    drill.offer(item, hauler)
    drill.until(lambda log: bool(log.of_kind("work.progressed")), "the work to make progress")
    stage.processes.stop("node")
    stage.report.step("the Group service is gone", seconds=OFFLINE_SECONDS)
    pause(OFFLINE_SECONDS)
    stage.serve()
    drill.until(lambda log: len(log.of_kind("work.started")) > 1, "the Worker to be back")
    hold.unlink()
    drill.until(lambda log: log.states().get(log.names[item]) == "submitted", "the work to be submitted")
    drill.review(item)
    log = drill.read()
    buffered = [event for event in log.of_kind("message.posted") if event["actor"]["id"] == hauler]
    stage.check(
        "what a Worker reported while it was offline is signed, and taken once the service is back",
        bool(buffered),
        buffered[0]["payload"]["message"]["content"][0]["text"] if buffered else "nothing",
    )
    charged = [event["payload"] for event in log.of_kind(USAGE) if "offlineReconciliation" in event["payload"]]
    seconds = sum(payload["usageDelta"]["wallClockSeconds"] for payload in charged)
    stage.check("the offline time is charged to the budget when it is reconciled", seconds >= 1, f"{seconds} s")
    total = sum(event["payload"]["usageDelta"]["wallClockSeconds"] for event in log.of_kind(USAGE))
    told = log.of_kind(USAGE)[-1]["payload"]["cumulativeUsage"]["wallClockSeconds"]
    stage.check("every second is charged once", total == told, f"{total} s in {len(log.of_kind(USAGE))} records")
    begun = Counter(line.split()[1] for line in ledger.read_text(encoding="utf-8").splitlines())
    epochs = {event["payload"]["ownershipEpoch"] for event in log.of_kind("work.started")}
    stage.check(
        "the work went on meanwhile, was not begun again, and kept its owner",
        begun["begin"] == 1 and epochs == {1} and bool(log.of_kind(REVOKED)),
        f"{begun['part']} parts, begun once; {len(log.of_kind('work.started'))} Execution Leases, Ownership Epoch 1",
    )


ACTS = (
    Act("link-cut", "a link is cut again and again", link_cut, fault=True),
    Act("outage", "the Group service goes away while a Worker works", outage, fault=True),
)
