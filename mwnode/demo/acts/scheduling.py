"""One slot and several Groups: who is served, in which share, and what makes room for what."""

from __future__ import annotations

import msgspec

from mwnode.demo.acts import Act
from mwnode.demo.agents import in_seconds
from mwnode.demo.documents import HAUL
from mwnode.demo.drill import Drill
from mwnode.demo.stage import Stage
from mwnode.narrative import work_item_of

SHARE_ITEMS = 3
HOUR_SECONDS = 3600


def high_priority(stage: Stage) -> None:
    """The only slot is taken by long work when something critical comes: it makes room at its checkpoint."""
    hauler = stage.register("hauler", "demo.haul@1.0.0", slots=1)
    member = {"type": "agent", "id": hauler}
    planner = stage.agent("planner")
    usual, urgent = Drill(stage, "Usual work", planner), Drill(stage, "Urgent work", planner)
    usual.add(member)
    urgent.add(member)
    ledger = stage.fresh_file("high-priority")
    hold = stage.hold(ledger)
    settings = msgspec.json.encode({"preempt_margin_seconds": 5}).decode()
    stage.start_program("hauler", stage.executor("steady.py", str(ledger)), settings, role="hauler")
    long = usual.authorize("Long work", requiredCapabilities=[HAUL], run="30 held")
    usual.offer(long, hauler)
    usual.until(lambda log: bool(log.of_kind("work.progressed")), "the long work to have a checkpoint")
    pressing = urgent.authorize(
        "Critical work",
        requiredCapabilities=[HAUL],
        run="5",
        requestedUrgency="critical",
        deadline=in_seconds(HOUR_SECONDS // 2),
    )
    urgent.offer(pressing, hauler)
    urgent.until(lambda log: bool(log.of_kind("work.submitted")), "the critical work to be done")
    hold.unlink()
    urgent.review(pressing)
    usual.until(lambda log: bool(log.of_kind("work.submitted")), "the long work to be done")
    usual.review(long)
    made_room = usual.log.of_kind("work.checkpointed")
    stopped, begun = made_room[0]["occurredAt"], urgent.log.of_kind("work.started")[0]["occurredAt"]
    resumed = usual.log.of_kind("work.started")
    stage.check(
        "work in the only slot makes room for critical work of another Mission, at a safe checkpoint",
        len(made_room) == 1 and stopped <= begun < resumed[1]["occurredAt"],
        f"checkpoint: {made_room[0]['payload']['checkpoint']['phase']}",
    )
    begins = [line.split() for line in ledger.read_text(encoding="utf-8").splitlines() if " begin " in line]
    of_long = [int(part) for key, _, part in begins if key != begins[1][0]]
    stage.check(
        "what made room goes on from its checkpoint, under the same Ownership Epoch, and loses nothing",
        len(of_long) == 2 and of_long[0] == 0 < of_long[1] and len(usual.log.of_kind("work.offer.accepted")) == 1,
        f"begun at part {of_long[0]}, resumed at part {of_long[-1]}",
    )


def fair_share(stage: Stage) -> None:
    """Two Groups want one slot all the time, and one of them weighs twice as much."""
    hauler = stage.register("hauler", "demo.haul@1.0.0", slots=1)
    planner = stage.agent("planner")
    heavy, light = Drill(stage, "Weight 2", planner), Drill(stage, "Weight 1", planner)
    ledger = stage.fresh_file("fair-share")
    items: dict[str, Drill] = {}
    for drill in (heavy, light):
        drill.add({"type": "agent", "id": hauler})
        for number in range(SHARE_ITEMS):
            item = drill.authorize(f"{drill.log.title}, load {number}", requiredCapabilities=[HAUL], run="2")
            drill.offer(item, hauler)
            items[item] = drill
    settings = msgspec.json.encode({"weights": {heavy.group_id: 2.0, light.group_id: 1.0}}).decode()
    stage.start_program("hauler", stage.executor("steady.py", str(ledger)), settings, role="hauler")
    logs = [heavy.log, light.log]

    def submitted() -> int:
        return sum(len(log.of_kind("work.submitted")) for log in logs)

    stage.until(lambda: submitted() == len(items), "all loads to be hauled", logs)
    for item, drill in items.items():
        drill.review(item)
    started = sorted(
        (event["occurredAt"], work_item_of(event) or "") for log in logs for event in log.of_kind("work.started")
    )
    order = ["heavy" if items[item] is heavy else "light" for _, item in started]
    # As long as both Groups have work: until the heavier one, which is served twice as often, has none left.
    contested = order[: max(index for index, one in enumerate(order) if one == "heavy") + 1]
    share = contested.count("light")
    stage.check(
        "two Groups share one slot by their weights, and neither waits for the other's end",
        1 <= share < SHARE_ITEMS and "light" in order[:3],
        f"weights 2 to 1: {' '.join(order)}",
    )


ACTS = (
    Act("fair-share", "two Groups share one slot", fair_share),
    Act("high-priority", "something critical comes while the only slot is taken", high_priority, fault=True),
)
