"""Who and what acts in the Missions: the MissionOwner by a script, the executor, and the world that it changes."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from mwnode.client import ClientError
from mwnode.client.commands import signed_command
from mwnode.coordinator.plan import load_plan
from mwnode.protocol.assessments import BY_OTHERS, BY_REVIEWER, request_in
from mwnode.protocol.commands import CORE
from mwnode.protocol.errors import ErrorCode, GroupNotFound, MissionWeaveError
from mwnode.protocol.identifiers import EVIDENCE_SCHEMA, RETRY_SCHEMA, mission_conversation_id, uuid7_urn
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
RETRY_AFTER_SECONDS = 30.0
WITHOUT_REVIEWER_SECONDS = 120.0
"""After so long the human says what reviewers seem unable to say."""
ASSESS_AGAIN_SECONDS = 30.0
"""When the human says again what did not get through."""
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

    def __init__(
        self,
        *arguments: Any,
        plan: Path,
        orders: list[Order],
        coordinators: list[str],
        generations: int,
        settled: Callable[[], bool],
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.generations = generations
        self.settled = settled
        self.submitted: dict[tuple[str, str], float] = {}
        """Since when each submission has been seen."""
        self.assessed: dict[tuple[str, str, str], float] = {}
        self.failed: dict[str, float] = {}
        """Since when each WorkItem has been seen failed."""
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
        mine = [entry for entry in waiting["waiting"] if entry["who"]["id"] == self.key.principal.id]
        views = [view, *(await self._below(http) if self.generations else ())]
        for entry in mine:
            for one in views:
                if entry["on"]["id"] in {
                    one["mission"]["missionId"],
                    *(item["workItemId"] for item in one["workItems"]),
                }:
                    await self._asked(order, http, one, entry)
                    break
        for one in views:
            await self._assess(http, one)
        await self._retry(http, view, views)

    async def _below(self, http: SimHttp) -> list[dict[str, Any]]:
        """Every child Mission that goes on."""
        listed = (await asyncio.to_thread(http.get, "/v0.1/missions"))["missions"]
        live = [one["missionId"] for one in listed if one["state"] not in TERMINAL]
        views = [await asyncio.to_thread(http.mission, mission_id) for mission_id in live]
        return [view for view in views if "parent" in view["mission"]]

    async def _create(self, order: Order, http: SimHttp) -> None:
        """The same bytes until they are answered; others, for the same Mission, only when those are too old and were
        not accepted: of what is too old nobody is told by its bytes alone whether it was."""
        if order.raw is None and order.mission_id:
            with suppress(GroupNotFound):
                await asyncio.to_thread(http.mission, order.mission_id)
                order.accepted, order.state = True, "active"
                self.trace(self.name, "found", order.mission_id)
                return
        if order.raw is None:
            order.mission_id = order.mission_id or self._new_id()
            order.group_id = order.group_id or self._new_id()
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
        if action.startswith("mission.approve"):
            await self._judge(order, http, view)
        elif action.startswith(f"{CORE}.root_approval_grant"):
            await self._decide_child(http, view)
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
        decision = "approved"
        if order.changes:
            order.changes -= 1
            decision = "changes_requested"
        payload = {"approval": await self._decision(http, view, decision)}
        if decision == "approved":
            await self._act(http, view, "mission.approve", payload)
        else:
            await self._act(http, view, "mission.request_changes", payload | {"feedback": "Once more, please"})

    async def _decide_child(self, http: SimHttp, view: dict[str, Any]) -> None:
        payload = {"approval": await self._decision(http, view, "approved")}
        await self._act(http, view, f"{CORE}.root_approval_grant", payload)
        self.network.injected["children decided at the root"] += 1

    async def _decision(self, http: SimHttp, view: dict[str, Any], decision: str) -> dict[str, Any]:
        """A signed Approval of what was submitted."""
        group_id = view["mission"]["groupId"]
        submitted: dict[str, Any] = {}
        at, head = 0, 1
        while at < head:
            page = await asyncio.to_thread(http.events, group_id, at)
            for event in page["events"]:
                if event["kind"] == "mission.submitted_for_approval":
                    submitted = event["payload"]
            at, head = page["events"][-1]["sequence"], page["headSequence"]
        document = self._approval(view, "mission_final", decision)
        document["missionRevision"] = submitted["missionRevision"]
        document["artifactHashes"] = submitted["artifactHashes"]
        return sign_mapping(document, self.key, document["occurredAt"])

    def _approval(self, view: dict[str, Any], kind: str, decision: str) -> dict[str, Any]:
        mission = view["mission"]
        return {
            "approvalId": self._new_id(),
            "kind": kind,
            "decision": decision,
            "missionId": mission["missionId"],
            "groupId": mission["groupId"],
            "missionRevision": mission["revision"],
            "artifactHashes": [],
            "acceptancePolicyVersion": mission["approvalPolicy"].get("policyVersion", "1.0.0"),
            "approver": {"type": "human", "id": self.key.principal.id},
            "comments": "",
            "conditions": [],
            "occurredAt": self.clock.now().text(),
        }

    async def _grant(self, http: SimHttp, view: dict[str, Any], work_item_id: str) -> None:
        """Let the present owner run the work, for a while that may be too short."""
        item = next(item for item in view["workItems"] if item["workItemId"] == work_item_id)
        if item["state"] != "queued":
            return
        resources = item["contract"]["allowedResources"]
        operations = sorted({name for one in resources for name in one["operations"]})
        seconds = 600 if self.settled() else self.mind.choice((3, 60, 600))
        epoch, expires_at = item["owner"]["ownershipEpoch"], self.clock.now().plus(seconds).text()
        document = self._approval(view, "work_execution", "approved")
        document["workItemId"] = work_item_id
        document["conditions"] = [
            *(f"operation:{one}" for one in operations),
            *(f"resource:{one['resource']}#{','.join(one['operations'])}" for one in resources),
            f"ownershipEpoch:{epoch}",
            f"expiresAt:{expires_at}",
        ]
        payload = {
            "approval": sign_mapping(document, self.key, document["occurredAt"]),
            "ownershipEpoch": epoch,
            "operations": operations,
            "resources": resources,
            "expiresAt": expires_at,
        }
        await self._act(http, view, "approval.grant_execution", payload)
        self.network.injected["executions permitted"] += 1

    async def _assess(self, http: SimHttp, view: dict[str, Any]) -> None:
        """Say of each submission whether it meets what a human is to judge: once, by signed Evidence in a Message.

        What reviewers are to judge only where that takes so long that they seem unable to say.
        """
        for item in view["workItems"]:
            if item["state"] != "submitted":
                continue
            seen = (item["workItemId"], item["submission"]["submittedAt"])
            since = self.submitted.setdefault(seen, self.loop.time())
            for kind in sorted(BY_OTHERS):
                criteria = [
                    one["criterionId"]
                    for one in item["contract"]["acceptanceCriteria"]
                    if kind in one["evidenceRequired"]
                ]
                patience = WITHOUT_REVIEWER_SECONDS if kind == BY_REVIEWER else 0.0
                again = self.assessed.get((*seen, kind), -ASSESS_AGAIN_SECONDS) + ASSESS_AGAIN_SECONDS
                if criteria and max(since + patience, again) <= self.loop.time():
                    self.assessed[(*seen, kind)] = self.loop.time()
                    await self._judge_work(http, view, item, kind, criteria)

    async def _judge_work(
        self, http: SimHttp, view: dict[str, Any], item: dict[str, Any], kind: str, criteria: list[str]
    ) -> None:
        mission, created_at = view["mission"], self.clock.now().text()
        document = {
            "evidenceId": self._new_id(),
            "missionId": mission["missionId"],
            "groupId": mission["groupId"],
            "workItemId": item["workItemId"],
            "type": kind,
            "subject": {"type": "work_item", "id": item["workItemId"]},
            "criterionIds": criteria,
            "method": "looked at",
            "result": "passed" if self.settled() or self.mind.random() < 0.7 else "failed",
            "artifactHashes": item["submission"]["artifactHashes"],
            "generatedBy": {"type": "human", "id": self.key.principal.id},
            "createdAt": created_at,
        }
        evidence = sign_mapping(document, self.key, created_at)
        await self._say(http, view, "As I see it.", {"schema": EVIDENCE_SCHEMA, "data": evidence})
        self.network.injected[f"submissions judged by the human: {kind}"] += 1

    async def _retry(self, http: SimHttp, view: dict[str, Any], views: Sequence[dict[str, Any]]) -> None:
        """Have what stays failed tried again; in a child Mission by way of the Coordinators above it, as
        ``mwnode mission retry`` does."""
        now, known = self.loop.time(), {one["mission"]["missionId"]: one["mission"] for one in views}
        for one in views:
            above, through = one["mission"], list[str]()
            while above["missionId"] != view["mission"]["missionId"]:
                through.insert(0, above["missionId"])
                parent = known.get(above["parent"]["missionId"])
                if parent is None:
                    break  # of another Mission of this human
                above = parent
            else:
                for item in one["workItems"]:
                    if item["state"] != "failed":
                        self.failed.pop(item["workItemId"], None)
                    elif self.failed.setdefault(item["workItemId"], now) + RETRY_AFTER_SECONDS <= now:
                        self.failed[item["workItemId"]] = now
                        data = {"workItemId": item["workItemId"]} | ({"through": through} if through else {})
                        await self._say(http, view, "Again, please.", {"schema": RETRY_SCHEMA, "data": data})
                        self.network.injected["work asked for again"] += 1

    async def _replace(self, http: SimHttp, view: dict[str, Any]) -> None:
        present = view["mission"]["coordinator"]["agentId"]
        other = self.mind.choice([agent for agent in self.coordinators if agent != present])
        await self._act(http, view, "mission.assign_coordinator", {"coordinatorAgentId": other})

    async def _say(self, http: SimHttp, view: dict[str, Any], text: str, data: dict[str, Any] | None = None) -> None:
        content: Any = text if data is None else [{"type": "text", "text": text}, {"type": "data_ref", **data}]
        payload = {
            "messageId": self._new_id(),
            "conversationId": mission_conversation_id(view["mission"]["groupId"]),
            "content": content,
            "announcement": True,
        }
        await self._act(http, view, "message.post", payload)

    async def _act(self, http: SimHttp, view: dict[str, Any], kind: str, payload: dict[str, Any]) -> None:
        me = {"type": "human", "id": self.key.principal.id}
        epoch = next((one["membershipEpoch"] for one in view["memberships"] if one["member"] == me), None)
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
    """The world that work changes: an external system that knows idempotency keys and asks for Capability Tokens.

    It records what it does, and that is what has to be right: whatever is sent to it under a token that does not stand
    is refused, and what comes again under a known key is not done again.
    """

    def __init__(self, checker: Checker, injected: Counter[str]) -> None:
        self._checker = checker
        self._injected = injected
        self.effects: dict[str, tuple[str, int]] = {}
        """What each key stands for: WorkItem and Ownership Epoch."""
        self.done: Counter[str] = Counter()
        """How often something was done under each key."""

    def act(self, agent_id: str, work: Work) -> bool:
        """Do what the WorkItem is about; whether it is done, now or by an earlier run under the same key."""
        assignment = work.assignment
        meant = (assignment.work_item_id, assignment.ownership_epoch)
        held = work.slot.token()
        stands = held is not None and self._checker.shown(agent_id, json.loads(held)["token"], meant)
        self._checker.effect(agent_id, work.idempotency_key, meant)
        if not stands:
            self._injected["side effects refused: no standing token"] += 1
            return False
        known = self.effects.setdefault(work.idempotency_key, meant)
        if known != meant:
            self._checker.fail(f"one idempotency key stands for {known} and for {meant}")
        if work.idempotency_key in self.done:
            self._injected["side effects known by their key"] += 1
            return True
        self._injected["side effects done"] += 1
        self._checker.current(agent_id, meant)
        self.done[work.idempotency_key] += 1
        return True


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
        review = request_in(assignment.contract)
        if review is not None:
            say = "passed" if settled() or mood > 0.6 else chance.choice(("passed", "failed", "inconclusive"))
            for one in review.criteria:
                found = {
                    "criterionId": one.criterion_id,
                    "type": "reviewer_assessment",
                    "result": say,
                    "method": "read",
                }
                work.report(evidence=found)
            return None
        if not outside.act(agent_id, work):
            return 75
        if mood > 0.5:
            # A crash from here on makes a run of what was done already.
            await asyncio.sleep(chance.uniform(0.5, 5.0))
        for deliverable in assignment.contract.required_deliverables:
            (work.outputs / f"{deliverable.deliverable_id}.txt").write_text(f"{assignment.work_item_id}\n")
        return None

    return handler


__all__ = ["Order", "Outside", "OwnerMachine", "handler_of"]
