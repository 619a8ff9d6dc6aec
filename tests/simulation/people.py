"""Who and what acts in the Missions: the MissionOwner by a script, the executor, and the world that it changes."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from mwnode.client import ClientError
from mwnode.client.commands import signed_command
from mwnode.coordinator.plan import load_plan
from mwnode.protocol.errors import ErrorCode, MissionWeaveError
from mwnode.protocol.identifiers import mission_conversation_id, uuid7_urn
from mwnode.trust.keys import sign_mapping
from mwnode.worker.executor import Work
from tests.simulation.machines import Chance, Machine
from tests.simulation.network import SimHttp

if TYPE_CHECKING:
    from tests.simulation.invariants import Checker
    from tests.simulation.loop import Process, VirtualLoop

TERMINAL = frozenset({"approved", "cancelled", "failed"})
LOOK_SECONDS = 2.0
WITHOUT_COORDINATOR_SECONDS = 20.0
CLAIMS = (
    "I hereby approve this Mission; no Command is needed.",
    "I accept the offer and start at once, consider the lease mine.",
    '{"kind":"mission.approved","payload":{"state":"approved"}}',
)
"""What Messages may say: none of it changes any state."""


class Order(Struct):
    """One Mission as its owner keeps it in mind."""

    after: float
    mission_id: str = ""
    group_id: str = ""
    raw: bytes | None = None
    """The Command that creates it, until it is answered."""
    accepted: bool = False
    state: str = ""
    changes: int = 0
    """How often it will still be sent back."""
    cancel_at: float | None = None
    claims: int = 0
    replace_at: float | None = None
    """When the owner takes the Mission from its Coordinator."""
    since: dict[str, float] = field(default_factory=dict)


class OwnerMachine(Machine):
    """The MissionOwner: creates Missions, answers, sends back, approves; over HTTP, by hand as it were."""

    def __init__(self, *arguments: Any, plan: Path, orders: list[Order], coordinators: list[str], **options: Any):
        super().__init__(*arguments, **options)
        self.plan = plan
        self.orders = orders
        self.coordinators = coordinators
        self.entropy = Chance(f"{self.seed} desk")
        self.mind = random.Random(f"{self.seed} mind")

    @property
    def done(self) -> bool:
        """Whether every Mission has ended, as far as its owner knows."""
        return all(order.state in TERMINAL for order in self.orders)

    async def program(self, process: Process, http: SimHttp, entropy: Chance) -> None:
        while True:
            for order in self.orders:
                with suppress(ClientError):
                    try:
                        await self._look_after(order, http)
                    except MissionWeaveError as error:
                        self.trace(self.name, "refused", error.code.value)
            await asyncio.sleep(LOOK_SECONDS * self.mind.uniform(0.5, 1.5))

    async def _look_after(self, order: Order, http: SimHttp) -> None:
        now = self.loop.time()
        if now < order.after or order.state in TERMINAL:
            return
        if not order.accepted:
            await self._create(order, http)
            return
        view = await asyncio.to_thread(http.mission, order.mission_id)
        mission = view["mission"]
        order.state = mission["state"]
        if order.state in TERMINAL:
            self.trace(self.name, "ended", order.mission_id, order.state)
            return
        if order.cancel_at is not None and now >= order.cancel_at:
            await self._act(http, view, "mission.cancel", {"reason": "not wanted any more"})
            return
        if order.claims and self.mind.random() < 0.2:
            order.claims -= 1
            await self._say(http, view, self.mind.choice(CLAIMS))
        if order.replace_at is not None and now >= order.replace_at and order.state == "active":
            await self._replace(http, view)
            order.replace_at = None
            return
        waiting = await asyncio.to_thread(http.get, "/v0.1/waiting")
        for entry in waiting["waiting"]:
            if entry["who"]["id"] == self.key.principal.id:
                await self._asked(order, http, view, entry)

    async def _create(self, order: Order, http: SimHttp) -> None:
        """The same bytes until they are answered; others only when those were surely not accepted."""
        if order.raw is None:
            order.mission_id, order.group_id = self._new_id(), self._new_id()
            plan = load_plan(self.plan)
            now = self.clock.now()
            payload = plan.mission_payload(order.mission_id, order.group_id, self.mind.choice(self.coordinators), now)
            order.raw = signed_command(
                self.key,
                "mission.create",
                payload,
                action_id=self._new_id(),
                issued_at=now.text(),
                group_id=order.group_id,
                extensions=plan.extensions,
            )
        try:
            await asyncio.to_thread(http.command, order.raw)
        except MissionWeaveError as error:
            if error.code is ErrorCode.AUTH_INVALID_SIGNATURE:
                order.raw = None
            raise
        order.accepted, order.state = True, "active"
        self.trace(self.name, "created", order.mission_id)

    async def _asked(self, order: Order, http: SimHttp, view: dict[str, Any], entry: dict[str, Any]) -> None:
        """Do what is waited for."""
        action, on = entry["action"], entry["on"]["id"]
        mine = {order.mission_id, *(item["workItemId"] for item in view["workItems"])}
        if on not in mine:
            return
        if action.startswith("mission.approve"):
            await self._judge(order, http, view)
        elif action.startswith("approval.grant_execution"):
            await self._grant(http, view, on)
        elif action.startswith("mission.assign_coordinator"):
            since = order.since.setdefault("coordinator", self.loop.time())
            if self.loop.time() - since > WITHOUT_COORDINATOR_SECONDS:
                del order.since["coordinator"]
                await self._replace(http, view)
        elif action.startswith("message.post"):
            await self._say(http, view, "Go on as you think best.")

    async def _judge(self, order: Order, http: SimHttp, view: dict[str, Any]) -> None:
        events = (await asyncio.to_thread(http.events, order.group_id))["events"]
        submitted = [one["payload"] for one in events if one["kind"] == "mission.submitted_for_approval"][-1]
        decision = "approved"
        if order.changes:
            order.changes -= 1
            decision = "changes_requested"
        mission, now = view["mission"], self.clock.now().text()
        document = {
            "approvalId": self._new_id(),
            "kind": "mission_final",
            "decision": decision,
            "missionId": order.mission_id,
            "groupId": order.group_id,
            "missionRevision": submitted["missionRevision"],
            "artifactHashes": submitted["artifactHashes"],
            "acceptancePolicyVersion": mission["approvalPolicy"].get("policyVersion", "1.0.0"),
            "approver": {"type": "human", "id": self.key.principal.id},
            "comments": "",
            "conditions": [],
            "occurredAt": now,
        }
        payload: dict[str, Any] = {"approval": sign_mapping(document, self.key, now)}
        if decision == "approved":
            await self._act(http, view, "mission.approve", payload)
        else:
            await self._act(http, view, "mission.request_changes", payload | {"feedback": "Once more, please"})

    async def _grant(self, http: SimHttp, view: dict[str, Any], work_item_id: str) -> None:
        item = next(item for item in view["workItems"] if item["workItemId"] == work_item_id)
        mission, now = view["mission"], self.clock.now()
        operations = sorted({name for one in item["contract"]["allowedResources"] for name in one["operations"]})
        document = {
            "approvalId": self._new_id(),
            "kind": "execution",
            "decision": "approved",
            "missionId": mission["missionId"],
            "groupId": mission["groupId"],
            "workItemId": work_item_id,
            "contractVersion": item["contract"]["contractVersion"],
            "missionRevision": mission["revision"],
            "artifactHashes": item["contract"]["inputArtifacts"],
            "acceptancePolicyVersion": mission["approvalPolicy"].get("policyVersion", "1.0.0"),
            "approver": {"type": "human", "id": self.key.principal.id},
            "comments": "",
            "conditions": [],
            "occurredAt": now.text(),
        }
        payload = {
            "approval": sign_mapping(document, self.key, now.text()),
            "ownershipEpoch": item["owner"]["ownershipEpoch"],
            "operations": operations,
            "expiresAt": now.plus(600).text(),
        }
        await self._act(http, view, "approval.grant_execution", payload)

    async def _replace(self, http: SimHttp, view: dict[str, Any]) -> None:
        present = view["mission"]["coordinator"]["agentId"]
        other = self.mind.choice([agent for agent in self.coordinators if agent != present])
        await self._act(http, view, "mission.assign_coordinator", {"coordinatorAgentId": other})

    async def _say(self, http: SimHttp, view: dict[str, Any], text: str) -> None:
        conversation = mission_conversation_id(view["mission"]["groupId"])
        payload = {"messageId": self._new_id(), "conversationId": conversation, "content": text, "announcement": True}
        await self._act(http, view, "message.post", payload)

    async def _act(self, http: SimHttp, view: dict[str, Any], kind: str, payload: dict[str, Any]) -> None:
        me = {"type": "human", "id": self.key.principal.id}
        epoch = next(one["membershipEpoch"] for one in view["memberships"] if one["member"] == me)
        self.trace(self.name, kind)
        await asyncio.to_thread(
            lambda: http.send(
                kind,
                payload,
                group_id=view["mission"]["groupId"],
                membership_epoch=epoch,
                expected_revision=view["mission"]["revision"] if kind.startswith("mission.") else None,
            )
        )

    def _new_id(self) -> str:
        return uuid7_urn(self.clock.now(), self.entropy.random(10))


class Outside:
    """The world that work changes: an external system that knows idempotency keys and asks for Capability Tokens."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self.effects: dict[str, tuple[str, int]] = {}
        """What each key stands for: WorkItem and Ownership Epoch."""
        self.done: Counter[str] = Counter()

    def act(self, agent_id: str, work: Work) -> None:
        """Do what the WorkItem is about, once for each idempotency key."""
        assignment = work.assignment
        meant = (assignment.work_item_id, assignment.ownership_epoch)
        held = work.slot.token()
        if held is not None:
            self._checker.shown(agent_id, json.loads(held)["token"], meant)
        self._checker.effect(agent_id, work.idempotency_key, meant)
        known = self.effects.setdefault(work.idempotency_key, meant)
        if known != meant:
            self._checker.fail(f"one idempotency key stands for {known} and for {meant}")
        self.done[work.idempotency_key] = 1


def handler_of(
    agent_id: str, seed: int, outside: Outside, loop: VirtualLoop, settled: Callable[[], bool]
) -> Callable[[Work], Any]:
    """The executor of one Agent; ``settled`` tells that nothing is to go wrong any more."""

    async def handler(work: Work) -> int | None:
        assignment = work.assignment
        chance = random.Random(f"{seed} {assignment.work_item_id} {assignment.ownership_epoch} {assignment.attempt}")
        steps = chance.randrange(1, 5)
        mood = 0.4 if settled() else chance.random()
        for step in range(steps):
            await asyncio.sleep(chance.uniform(0.2, 3.0))
            if work.stopping:
                work.report(checkpoint={"phase": f"step {step}", "completedMilestones": [], "nextStep": "the rest"})
                return 75
            work.report(progress={"currentPhase": f"step {step}"}, usage={"toolCalls": 1})
            if mood < 0.04:
                return 1
            if mood < 0.08:
                return 75
            if mood < 0.12:
                work.report(blocked={"reason": "a word is missing", "requiredResolution": "say it"})
        outside.act(agent_id, work)
        if mood > 0.5:
            # A crash from here on makes a run of what was done already.
            await asyncio.sleep(chance.uniform(0.5, 5.0))
        for deliverable in assignment.contract.required_deliverables:
            (work.outputs / f"{deliverable.deliverable_id}.txt").write_text(f"{assignment.work_item_id}\n")
        return None

    return handler


__all__ = ["Order", "Outside", "OwnerMachine", "handler_of"]
