"""Processes that die: the node, a Worker, a Coordinator. What they did stands, and what they were at goes on."""

from __future__ import annotations

import shutil
from collections import Counter
from functools import partial
from pathlib import Path

from mwnode.demo.acts import Act
from mwnode.demo.documents import HAUL
from mwnode.demo.drill import Drill, pause
from mwnode.demo.log import GroupLog
from mwnode.demo.stage import Stage
from mwnode.narrative import short, work_item_of

SURVEYED = {"north", "south", "east", "sum"}
WORKERS = ("builder", "scribe")
ITEMS = 3


def node_kill(stage: Stage) -> None:
    """The node is killed in the middle of a Mission, and started again."""
    ledger = _survey_workers(stage)
    stage.start_coordinator("lead", "survey")
    mission_id, log = stage.create("survey")
    stage.until(lambda: len(log.of_kind("work.started")) >= 2, "two WorkItems to be active", [log])
    before = log.encoded()
    stage.processes.kill("node")
    stage.report.step("the node was killed by SIGKILL", at=f"Event {len(before)}")
    pause(0.5)  # long enough for the Agents to notice
    stage.serve()
    stage.until(lambda: log.mission_state == "awaiting_approval", "the Mission to await Approval", [log])
    stage.cli("mission", "approve", mission_id, "--yes")
    stage.until(lambda: log.over, "the Approval", [log])
    whole = stage.watch("survey, read anew", log.group_id)
    while stage.take(whole):
        pass
    stage.check(
        "every Event seen before the SIGKILL is there unchanged",
        before == whole.encoded()[: len(before)],
        f"{len(before)} Events",
    )
    _accepted_once(stage, whole, "the interrupted Mission completes")
    runs = Counter(ledger.read_text(encoding="utf-8").split())
    stage.check(
        "no executor ran twice for one idempotency key",
        len(runs) == len(SURVEYED) and set(runs.values()) == {1},
        f"{sum(runs.values())} runs, {len(runs)} keys",
    )


def _survey_workers(stage: Stage) -> Path:
    """Two Workers whose executors are slow, and the file in which every run of them shows."""
    ledger = stage.fresh_file("survey")
    for name in WORKERS:
        stage.start_worker(name, stage.executor("survey.py", str(ledger)))
    return ledger


def _accepted_once(stage: Stage, log: GroupLog, what: str) -> None:
    results = Counter(log.names[work_item_of(event) or ""] for event in log.of_kind("work.result.accepted"))
    stage.check(
        f"{what}, each WorkItem accepted exactly once",
        set(results) == SURVEYED and set(results.values()) == {1},
        f"{' '.join(sorted(results))}: {log.mission_state}",
    )


def coordinator_failure(stage: Stage) -> None:
    """A Coordinator is killed; the human puts another Agent in its place, which goes on where the log is."""
    _survey_workers(stage)
    stage.register("relief")
    stage.start_coordinator("lead", "survey")
    mission_id, log = stage.create("survey")
    stage.until(lambda: len(log.of_kind("work.started")) >= 2, "two WorkItems to be active", [log])
    stage.processes.kill("lead")
    stage.report.step("the Coordinator was killed by SIGKILL", at=f"Event {len(log.events)}")
    stage.cli("mission", "replace-coordinator", mission_id, "relief")
    stage.start_coordinator("relief", "survey")
    stage.until(lambda: log.mission_state == "awaiting_approval", "the Mission to await Approval", [log])
    assigned = log.latest("mission.coordinator.assigned")
    reconciled = log.of_kind("ext.mwnode.core.coordinator_reconciled")
    later = [event["sequence"] for event in log.events if event["kind"] == "work.authorized" and _by(event, "relief")]
    stage.check(
        "a replaced Coordinator's successor holds the next epoch, and reconciles before it assigns anything",
        assigned["coordinatorEpoch"] == 2
        and len(reconciled) == 1
        and all(sequence > reconciled[0]["sequence"] for sequence in later),
        f"epoch {assigned['coordinatorEpoch']}, reconciled at {reconciled[0]['sequence']}",
    )
    _accepted_once(stage, log, "the Mission goes on under the new Coordinator")
    names = Counter(log.names[event["payload"]["workItem"]["workItemId"]] for event in log.of_kind("work.authorized"))
    stage.check("nothing was authorized twice", set(names.values()) == {1}, f"{sum(names.values())} WorkItems")
    stage.cli("mission", "approve", mission_id, "--yes")


def _by(event: dict[str, object], name: str) -> bool:
    actor = event["actor"]
    return isinstance(actor, dict) and short(actor["id"]) == name


def worker_restart(stage: Stage) -> None:
    """A Worker with a full queue is killed and loses its memory; its queue is rebuilt from the log."""
    hauler = stage.register("hauler", "demo.haul@1.0.0", slots=1)
    drill = Drill(stage, "Worker restart", stage.agent("planner"))
    drill.add({"type": "agent", "id": hauler})
    ledger = stage.fresh_file("worker-restart")
    hold = stage.hold(ledger)
    command = stage.executor("steady.py", str(ledger))
    items = [
        drill.authorize(f"Haul load {number}", requiredCapabilities=[HAUL], run="25 held") for number in range(ITEMS)
    ]
    stage.start_worker("hauler", command, slots=1)
    for number, item in enumerate(items, 1):
        drill.offer(item, hauler)
        # One after the other: what was accepted in the same instant has no order to keep.
        drill.until(partial(_accepted, number), "the load to be accepted")
    states = drill.log.states

    def full() -> bool:
        return Counter(states().values()) == {"active": 1, "queued": ITEMS - 1}

    stage.until(full, "one WorkItem to run and two to be queued", [drill.log])
    stage.processes.kill("hauler")
    shutil.rmtree(stage.worker_directory("hauler"))
    stage.report.step("the Worker was killed by SIGKILL, and its memory is lost", queued=ITEMS - 1)
    hold.unlink()
    stage.start_worker("hauler", command, slots=1)
    reviewed: set[str] = set()
    while len(reviewed) < ITEMS:
        ready = [item for item in items if item not in reviewed and states().get(drill.log.names[item]) == "submitted"]
        for item in ready:
            drill.review(item)
            reviewed.add(item)
        if not ready:
            drill.until(lambda log: "submitted" in log.states().values(), "the next result")
        drill.read()
    accepted = Counter(work_item_of(event) for event in drill.log.of_kind("work.offer.accepted"))
    results = Counter(work_item_of(event) for event in drill.log.of_kind("work.result.accepted"))
    stage.check(
        "a Worker that was killed finds its whole queue again, under the same Ownership Epochs",
        set(accepted.values()) == {1} and len(accepted) == ITEMS,
        f"{len(accepted)} accepted before, none again after",
    )
    stage.check(
        "it completes every WorkItem, each once", set(results.values()) == {1} and len(results) == ITEMS, len(results)
    )
    started = [work_item_of(event) for event in drill.log.of_kind("work.started")]
    order = list(dict.fromkeys(started))
    stage.check(
        "the rebuilt queue keeps the order in which it was accepted",
        order == list(accepted),
        f"{len(started)} starts of {len(order)} WorkItems",
    )
    keys = {line.split()[0] for line in ledger.read_text(encoding="utf-8").splitlines()}
    stage.check("a run that is begun again has the same idempotency key", len(keys) == ITEMS, f"{len(keys)} keys")


def _accepted(number: int, log: GroupLog) -> bool:
    return len(log.of_kind("work.offer.accepted")) == number


ACTS = (
    Act("worker-restart", "a Worker is killed with a full queue, and loses its memory", worker_restart, fault=True),
    Act("coordinator-failure", "a Coordinator is killed and replaced", coordinator_failure, fault=True),
    Act("node-kill", "the node is killed by SIGKILL and started again", node_kill, fault=True),
)
