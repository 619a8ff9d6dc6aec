"""Random histories against the small model of ``model.py``: no disagreement, and the invariants after every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from mwnode.authority.policy import Policy
from mwnode.authority.request import Decision
from mwnode.authority.state import LEASES
from mwnode.protocol.documents import Actor
from tests.authority.model import ACTIVE_LIMIT, ENDED, ITEM_CALLS, OK, OWING, Model, ModelItem
from tests.authority.scene import (
    DECLINE,
    GROUP,
    MISSION,
    RECORD_USAGE,
    RENEW_EXECUTION,
    RENEW_OWNERSHIP,
    Scene,
    usage,
    work_id,
)

WORKERS = ("anna", "bert")
ITEMS = ("one", "two")

STEPS = (
    *("forward",) * 30,
    *("offer", "accept", "start", "submit", "publish", "checkpoint", "block", "unblock", "use", "renew") * 2,
    *("renew ownership", "accept result", "decline", "fail", "give up", "cancel", "session", "again", "advance"),
    *("renew coordinator",) * 2,
    "cancel mission",
)
FORWARD = {
    # What usually comes next, by state; the last number of the step picks one.
    "open": ("offer",),
    "offered": ("accept", "accept", "accept", "decline"),
    "queued": ("start",),
    "active": ("publish", "submit", "checkpoint", "block", "use", "renew"),
    "blocked": ("unblock",),
    "submitted": ("accept result",),
    "verified": ("advance",),
    "failed": ("offer",),
    "cancelled": ("advance",),
}
step = st.tuples(
    st.sampled_from(STEPS),
    st.sampled_from(ITEMS),
    st.sampled_from(WORKERS),
    st.sampled_from(
        (0, 0, 0, 0, 0, 0, 0, 1, 2)
    ),  # which epoch or lease is cited: the current, the one before, the next
    st.sampled_from((1, 2, 3, 5, 10, 30, 61, 299, 300, 900, 901)),
)
history = st.lists(step, min_size=30, max_size=45)
Step = tuple[str, str, str, int, int]


class History:
    """One run of steps in a fresh world, with the model beside it."""

    def __init__(self) -> None:
        # Twice as much as the items may use: the Mission's own limit is watched, the items' decide.
        budget = {"toolCallLimit": ITEM_CALLS * 2, "wallClockSecondsLimit": 10_000}
        policy = Policy(active_work_items=ACTIVE_LIMIT)
        self.scene = Scene(policy, workers=WORKERS, budget=budget)
        retry = {"maxAttempts": 2, "backoff": "none", "maxDelay": "PT1M", "retryableFailures": []}
        for name in ITEMS:
            self.scene.authorize(name, budget={"toolCallLimit": ITEM_CALLS}, retryPolicy=retry)
        self.model = Model(WORKERS, {name: ModelItem() for name in ITEMS})
        self.leases: dict[str, list[str]] = {name: [] for name in ITEMS}
        self.epochs = dict.fromkeys(ITEMS, 0)
        self.last: tuple[bytes, Decision] | None = None

    def cited(self, name: str, shift: int) -> tuple[int, int, dict[str, Any]]:
        """Epoch and lease number to cite, and the three members that cite them."""
        item = self.model.items[name]
        epoch = max(1, item.epoch + (0, -1, 1)[shift])
        lease = max(1, item.lease + (0, -1, 0)[shift])
        known = self.leases[name]
        lease_id = known[lease - 1] if lease <= len(known) else "urn:example:lease:none"
        return epoch, lease, {"workItemId": work_id(name), "ownershipEpoch": epoch, "executionLeaseId": lease_id}

    def run(self, steps: list[Step]) -> None:
        for one in steps:
            self.take(one)
            self.check()

    def take(self, one: Step) -> None:
        kind, name, worker, shift, seconds = one
        scene, model = self.scene, self.model
        if kind == "cancel mission" and seconds != 901:
            kind = "forward"  # an ended Mission has little left to tell, so it ends seldom
        if kind == "forward":
            following, owner = FORWARD[model.items[name].state], model.items[name].owner
            kind, worker, shift = following[seconds % len(following)], owner or worker, 0
        agent, item = scene.workers[worker], work_id(name)
        epoch, lease, three = self.cited(name, shift)
        two = {"workItemId": item, "ownershipEpoch": epoch}
        if kind == "advance":
            scene.advance(seconds)
            model.advance(seconds)
            return
        if kind == "session":
            scene.session(agent)
            model.session(worker)
            return
        if kind == "again":
            if self.last is not None:
                assert scene.submit(self.last[0]) is self.last[1], "a duplicate gets the first answer"
            return
        renewal = {0: 300, 1: 600, 2: 1200}[shift]
        moves: dict[str, Callable[[], tuple[Actor, str, dict[str, Any], str]]] = {
            "offer": lambda: (
                scene.coordinator,
                "work.offer",
                scene.offer_payload(item, *([agent] if shift else scene.workers.values())),
                model.offer(name, (worker,) if shift else WORKERS),
            ),
            "accept": lambda: (agent, "work.accept_offer", {"workItemId": item}, model.accept(name, worker)),
            "decline": lambda: (
                agent,
                DECLINE,
                {"workItemId": item, "reason": "capacity"},
                model.decline(name, worker),
            ),
            "start": lambda: (agent, "work.start", two, model.start(name, worker, epoch)),
            "renew": lambda: (
                agent,
                RENEW_EXECUTION,
                {**three, "leaseSeconds": renewal},
                model.renew(name, worker, epoch, lease, renewal),
            ),
            "renew ownership": lambda: (
                agent,
                RENEW_OWNERSHIP,
                {**two, "leaseSeconds": renewal * 2},
                model.renew_ownership(name, worker, epoch, renewal * 2),
            ),
            "checkpoint": lambda: (
                agent,
                "work.checkpoint",
                {**three, "checkpoint": scene.checkpoint()},
                model.checkpoint(name, worker, epoch, lease),
            ),
            "block": lambda: (
                agent,
                "work.block",
                {**three, "checkpoint": scene.checkpoint(), "reason": "r", "requiredResolution": "q"},
                model.block(name, worker, epoch, lease),
            ),
            "publish": lambda: (
                agent,
                "artifact.publish",
                {
                    "artifact": scene.artifact(item, agent),
                    **{k: three[k] for k in ("ownershipEpoch", "executionLeaseId")},
                },
                model.publish(name, worker, epoch, lease),
            ),
            "submit": lambda: (
                agent,
                "work.submit",
                {**three, "artifactHashes": self.hashes(name), "evidence": [scene.evidence(item, agent)]},
                model.submit(name, worker, epoch, lease),
            ),
            "use": lambda: (
                agent,
                RECORD_USAGE,
                {**three, "usageDelta": usage(toolCalls=1 + shift * 2)},
                model.use(name, worker, epoch, lease, 1 + shift * 2),
            ),
            "give up": lambda: (
                agent,
                "work.fail",
                {**three, "reason": "r", "evidence": [scene.report(item, agent)]},
                model.give_up(name, worker, epoch, lease),
            ),
            "unblock": lambda: (scene.coordinator, "work.unblock", {"workItemId": item}, model.unblock(name)),
            "accept result": lambda: (
                scene.coordinator,
                "work.accept_result",
                {"workItemId": item, "evidence": [scene.review(item, scene.coordinator)]},
                model.accept_result(name),
            ),
            "fail": lambda: (
                scene.coordinator,
                "work.fail",
                {"workItemId": item, "reason": "r", "evidence": [scene.report(item, scene.coordinator)]},
                model.fail(name),
            ),
            "cancel": lambda: (
                scene.coordinator,
                "work.cancel",
                {"workItemId": item, "reason": "r"},
                model.cancel(name),
            ),
            "renew coordinator": lambda: (
                scene.coordinator,
                "mission.renew_coordinator",
                {"leaseSeconds": 3600},
                model.renew_coordinator(),
            ),
            "cancel mission": lambda: (scene.owner, "mission.cancel", {"reason": "r"}, model.cancel_mission()),
        }
        actor, command, payload, expected = moves[kind]()
        raw = scene.command(actor, command, payload)
        outcome = scene.submit(raw)
        code = OK if isinstance(outcome, Decision) else outcome.code.value
        assert code == expected, f"{one}: {code} instead of {expected} ({outcome})"
        if isinstance(outcome, Decision):
            self.last = (raw, outcome)
            if kind == "start":
                self.leases[name].append(scene.lease(item))

    def hashes(self, name: str) -> list[str]:
        artifacts = self.scene.item(work_id(name)).artifacts
        return [artifacts[-1][1]] if artifacts else ["sha256:" + "0" * 64]

    def check(self) -> None:
        scene, model = self.scene, self.model
        open_leases: dict[tuple[str, str], int] = {}
        for row in scene.view.all(LEASES):
            lease = row.lease
            if lease.state == "active" and lease.work_item_id is not UNSET:
                key = (lease.work_item_id, lease.lease_type)
                open_leases[key] = open_leases.get(key, 0) + 1
        for name, expected in model.items.items():
            item = scene.item(work_id(name))
            owner = None if item.item.owner is UNSET else item.item.owner.agent_id.rsplit(":", 1)[1]
            assert (item.item.state, owner, item.ownership_epoch, item.item.revision) == (
                expected.state,
                expected.owner,
                expected.epoch,
                expected.revision,
            ), name
            offers = () if item.item.offers is UNSET else item.item.offers
            assert [offer.status for offer in offers] == [offer.status for offer in expected.offers]
            assert item.ownership_epoch >= self.epochs[name], "epochs never fall"
            self.epochs[name] = item.ownership_epoch
            for lease_type, held in (
                ("ownership", expected.owned),
                ("execution", expected.runs),
                ("blocked", expected.blocks),
            ):
                assert open_leases.get((work_id(name), lease_type), 0) == held, (name, lease_type)
            account = scene.account(work_id(name))
            assert account.used[2] == expected.calls <= ITEM_CALLS
        used = sum(item.calls for item in model.items.values())
        reserved = sum(ITEM_CALLS - item.calls for item in model.items.values() if item.state not in (*ENDED, "failed"))
        mission = scene.account(MISSION)
        assert (mission.used[2], mission.reserved[2]) == (used, reserved)
        assert used + reserved <= ITEM_CALLS * 2
        for worker, actor in scene.workers.items():
            owned = [item for item in model.items.values() if item.owner == worker]
            agent = scene.agent_row(actor)
            assert agent.queued == sum(item.state == "queued" for item in owned)
            assert agent.active == len(agent.active_ids) == sum(item.state == "active" for item in owned)
            assert scene.member(GROUP, actor).obligations == sum(item.state in OWING for item in owned)


@pytest.mark.req("R-10.2-42", "R-10.3-05", "R-12-28", "R-15.1-13", "R-15.1-15", "R-15.2-02", "R-G-13")
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_random_histories_agree_with_the_model(scale: Callable[[int, int], int]) -> None:
    @settings(
        max_examples=scale(200, 10_000),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        # A disagreement names its step; shrinking forty of them takes minutes and says no more.
        phases=(Phase.explicit, Phase.generate),
    )
    @given(history)
    def run(steps: list[Step]) -> None:
        History().run(steps)

    run()


@settings(max_examples=15, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(history)
def test_two_runs_of_one_history_are_the_same_bytes(steps: list[Step]) -> None:
    logs = []
    for _ in range(2):
        run = History()
        run.run(steps)
        logs.append(msgspec.json.encode(run.scene.events))
    assert logs[0] == logs[1]
