"""Test against a real node, in process, with a clock that you control.

The pytest fixture ``mwnode`` opens a node on a temporary file, without sockets and without fsync, and makes a
MissionOwner, a Coordinator and two Workers::

    def test_release(mwnode):
        mission = mwnode.mission()
        work = mission.authorize(goal="Run the tests")
        work.run()
        assert work.state == "verified"
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mwnode.authority.state import (
    AGENTS,
    GROUPS,
    MEMBERSHIPS,
    MISSIONS,
    WORK_ITEMS,
    MembershipRow,
    MissionRow,
    WorkItemRow,
    membership_key,
)
from mwnode.client.commands import signed_command
from mwnode.enrolment import Capability, draft_card
from mwnode.genesis import binding_of, service_command, valid_from
from mwnode.home import make_key
from mwnode.node import Node
from mwnode.protocol.commands import CORE, EXT
from mwnode.protocol.documents import COORDINATOR_COMMAND_KINDS, GENESIS_COMMAND_KINDS, Actor
from mwnode.protocol.errors import MissionWeaveError
from mwnode.protocol.identifiers import artifact_uri, uuid7_urn
from mwnode.protocol.instants import Instant, parse
from mwnode.trust.keys import SigningKey, sign_mapping

START = "2030-01-01T00:00:00Z"
RESOURCE = "urn:example:repository"


class ManualClock:
    """A clock that stands until it is told to move; a ``protocol.ports.Clock``."""

    def __init__(self, start: str = START) -> None:
        self._now = parse(start)
        self._elapsed = 0.0

    def now(self) -> Instant:
        return self._now

    def monotonic(self) -> float:
        return self._elapsed

    def advance(self, seconds: int) -> None:
        """Let that many seconds pass."""
        if seconds < 0:
            raise ValueError("advance only goes forward; use step to set the wall clock back")
        self._now = self._now.plus(seconds)
        self._elapsed += seconds

    def step(self, seconds: int) -> None:
        """Set the wall clock forward or back without any time passing, as an operator or NTP might."""
        self._now = self._now.plus(seconds)


class SeededEntropy:
    """Bytes that look random and are the same for the same seed; a ``protocol.ports.Entropy``. Never for real keys."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._drawn = 0

    def random(self, n: int) -> bytes:
        self._drawn += 1
        return hashlib.shake_256(f"{self._seed} {self._drawn}".encode()).digest(n)


class Participant:
    """One Principal with its key. ``send`` fills in the epochs, signs, and waits until the node has decided."""

    def __init__(self, harness: Harness, name: str, key: SigningKey) -> None:
        self.harness = harness
        self.name = name
        self.key = key
        self.session_epoch: int | None = None

    @property
    def id(self) -> str:
        return self.key.principal.id

    @property
    def principal(self) -> Actor:
        return self.key.principal

    def connect(self) -> int:
        """Open a Session; the new Session Epoch. Fences the earlier one."""
        grant = self.harness.node.open_session(self.id, self.key.key_id).result()
        epoch = getattr(grant, "session_epoch", None)
        assert isinstance(epoch, int), grant
        self.session_epoch = epoch
        return epoch

    def command(self, kind: str, payload: Mapping[str, Any], **envelope: Any) -> bytes:
        """The signed bytes of a Command; envelope members not given are filled in from the node's present state."""
        members: dict[str, Any] = {**self._epochs(kind, envelope.get("group_id")), **envelope}
        action_id = members.pop("action_id", None) or self.harness.new_id()
        issued_at = members.pop("issued_at", None) or self.harness.clock.now().text()
        return signed_command(self.key, kind, payload, action_id=action_id, issued_at=issued_at, **members)

    def send(self, kind: str, payload: Mapping[str, Any], **envelope: Any) -> list[dict[str, Any]]:
        """Send a Command; the Events, receipt first. Raises the MissionWeaveError of a refusal."""
        return self.harness.send(self.command(kind, payload, **envelope))

    def refused(self, kind: str, payload: Mapping[str, Any], **envelope: Any) -> MissionWeaveError:
        """Send a Command that must be refused; the error. Fails the test when it is accepted."""
        try:
            events = self.send(kind, payload, **envelope)
        except MissionWeaveError as error:
            return error
        raise AssertionError(f"{kind} was accepted: {[event['kind'] for event in events]}")

    def sign(self, **members: Any) -> dict[str, Any]:
        """A Signed Document of this Principal, signed now; ``members`` by wire name without the signature."""
        return sign_mapping(members, self.key, self.harness.clock.now().text())

    def _epochs(self, kind: str, group_id: str | None) -> dict[str, Any]:
        if self.principal.type == "service" or kind in GENESIS_COMMAND_KINDS:
            return {}
        members: dict[str, Any] = {}
        if self.principal.type == "agent":
            members["session_epoch"] = self.session_epoch
        if group_id is None:
            return members
        with self.harness.node.read() as view:
            member = view.get(MEMBERSHIPS, membership_key(group_id, self.principal))
            group = view.get(GROUPS, group_id)
            mission = view.get(MISSIONS, group.group.mission_id) if group else None
        members["membership_epoch"] = member.membership.membership_epoch if member else 1
        if self.principal.type == "agent" and mission is not None:
            current = mission.mission.coordinator
            if current.agent_id == self.id or kind in COORDINATOR_COMMAND_KINDS:
                members["coordinator_epoch"] = current.coordinator_epoch
        return members


class MissionHandle:
    """One Mission, with the Commands that its people send in the ordinary case."""

    def __init__(self, harness: Harness, mission_id: str, group_id: str) -> None:
        self.harness = harness
        self.mission_id = mission_id
        self.group_id = group_id

    @property
    def row(self) -> MissionRow:
        with self.harness.node.read() as view:
            row = view.get(MISSIONS, self.mission_id)
        assert row is not None
        return row

    @property
    def state(self) -> str:
        return self.row.mission.state

    @property
    def revision(self) -> int:
        return self.row.mission.revision

    def events(self) -> list[dict[str, Any]]:
        """The whole log of the Group."""
        with self.harness.node.read() as view:
            return [msgspec.json.decode(stored.event) for stored in view.events(self.group_id, 0, 1_000_000)]

    def membership(self, who: Participant) -> MembershipRow | None:
        with self.harness.node.read() as view:
            return view.get(MEMBERSHIPS, membership_key(self.group_id, who.principal))

    def add(self, who: Participant, role: str = "worker", **payload: Any) -> dict[str, Any]:
        """The Coordinator makes somebody an active Member; the receipt Event."""
        return self.harness.coordinator.send(
            "membership.change",
            {"principal": msgspec.to_builtins(who.principal), "role": role, **payload},
            group_id=self.group_id,
        )[0]

    def authorize(self, **contract: Any) -> WorkHandle:
        """The Coordinator authorizes a WorkItem; ``contract`` replaces members of the harness's default contract."""
        work_item_id = self.harness.new_id()
        self.harness.coordinator.send(
            "work.authorize",
            {"workItemId": work_item_id, "contract": self.harness.contract(**contract)},
            group_id=self.group_id,
        )
        return WorkHandle(self, work_item_id)

    def submit(self, artifact_hashes: Sequence[str]) -> dict[str, Any]:
        """The Coordinator submits the Mission for approval of exactly these Artifacts."""
        return self.harness.coordinator.send(
            "mission.submit_for_approval",
            {"artifactHashes": list(artifact_hashes), "missionRevision": self.revision},
            group_id=self.group_id,
        )[0]

    def approval(self, decision: str = "approved", **members: Any) -> dict[str, Any]:
        """A signed final Approval by the owner of what was submitted."""
        row = self.row
        document = {
            "approvalId": self.harness.new_id(),
            "kind": "mission_final",
            "decision": decision,
            "missionId": self.mission_id,
            "groupId": self.group_id,
            "missionRevision": row.submitted_revision if row.submitted_revision is not None else self.revision,
            "artifactHashes": list(row.submitted_artifacts),
            "acceptancePolicyVersion": "1.0.0",
            "approver": msgspec.to_builtins(self.harness.owner.principal),
            "comments": "",
            "conditions": [],
            "occurredAt": self.harness.clock.now().text(),
        }
        return self.harness.owner.sign(**{**document, **members})

    def approve(self) -> dict[str, Any]:
        """The owner approves exactly what was submitted."""
        return self.harness.owner.send("mission.approve", {"approval": self.approval()}, group_id=self.group_id)[0]

    def request_changes(self, feedback: str = "Please correct this") -> dict[str, Any]:
        """The owner sends the submission back."""
        return self.harness.owner.send(
            "mission.request_changes",
            {"approval": self.approval("changes_requested"), "feedback": feedback},
            group_id=self.group_id,
        )[0]


class WorkHandle:
    """One WorkItem and the ordinary steps from offer to verification."""

    def __init__(self, mission: MissionHandle, work_item_id: str) -> None:
        self.mission = mission
        self.harness = mission.harness
        self.work_item_id = work_item_id

    @property
    def row(self) -> WorkItemRow:
        with self.harness.node.read() as view:
            row = view.get(WORK_ITEMS, self.work_item_id)
        assert row is not None
        return row

    @property
    def state(self) -> str:
        return self.row.item.state

    @property
    def held(self) -> dict[str, Any]:
        """What every Command under the Execution Lease cites."""
        row = self.row
        assert row.execution_lease is not None, "the WorkItem was never started"
        return {
            "workItemId": self.work_item_id,
            "ownershipEpoch": row.ownership_epoch,
            "executionLeaseId": row.execution_lease.lease_id,
        }

    def offer(self, *candidates: Participant, **payload: Any) -> dict[str, Any]:
        """The Coordinator offers the WorkItem; candidates become Members first where they are none."""
        chosen = candidates or (self.harness.workers[0],)
        for candidate in chosen:
            if self.mission.membership(candidate) is None:
                self.mission.add(candidate)
        capabilities = [msgspec.to_builtins(ref) for ref in self.row.item.contract.required_capabilities]
        basis = {
            "requiredCapabilities": capabilities,
            "verifiedMatches": capabilities,
            "authorizationEligible": True,
            "availabilityEstimate": self.harness.clock.now().text(),
            "expectedCost": 0,
            "reliabilityEvidence": [],
            "policyRulesApplied": ["capability match"],
        }
        return self.harness.coordinator.send(
            "work.offer",
            {
                "workItemId": self.work_item_id,
                "candidateAgentIds": [candidate.id for candidate in chosen],
                "selectionBasis": basis,
                **payload,
            },
            group_id=self.mission.group_id,
        )[0]

    def accept(self, worker: Participant | None = None, **payload: Any) -> dict[str, Any]:
        """A candidate takes the offer."""
        return self._by(worker).send(
            "work.accept_offer", {"workItemId": self.work_item_id, **payload}, group_id=self.mission.group_id
        )[0]

    def start(self, worker: Participant | None = None, **payload: Any) -> dict[str, Any]:
        """The owner starts under a new Execution Lease."""
        return self._by(worker).send(
            "work.start",
            {"workItemId": self.work_item_id, "ownershipEpoch": self.row.ownership_epoch, **payload},
            group_id=self.mission.group_id,
        )[0]

    def publish(self, content: bytes = b"result\n", worker: Participant | None = None, **members: Any) -> str:
        """The owner stores bytes and publishes their manifest; the content hash."""
        who = self._by(worker)
        content_hash = self.harness.store_bytes(content)
        owner = self.row.item.owner
        assert owner is not msgspec.UNSET
        manifest = {
            "artifactId": self.harness.new_id(),
            "contentHash": content_hash,
            "uri": artifact_uri(content_hash),
            "sizeBytes": len(content),
            "mediaType": "text/plain",
            "schemaUri": "urn:mwnode:schema:any",
            "producer": {
                "agentId": who.id,
                "agentCardVersion": owner.agent_card_version,
                "capabilities": [msgspec.to_builtins(pin) for pin in owner.capability_pins],
            },
            "missionId": self.mission.mission_id,
            "groupId": self.mission.group_id,
            "workItemId": self.work_item_id,
            "sourceArtifactHashes": [],
            "toolVersions": [],
            "modelVersions": [],
            "classification": "internal",
            "createdAt": self.harness.clock.now().text(),
            **members,
        }
        held = self.held
        del held["workItemId"]
        who.send("artifact.publish", {"artifact": who.sign(**manifest), **held}, group_id=self.mission.group_id)
        return content_hash

    def evidence(
        self, who: Participant, kind: str, result: str = "passed", artifact_hashes: Sequence[str] = (), **members: Any
    ) -> dict[str, Any]:
        """Signed Evidence for every criterion of the contract."""
        document = {
            "evidenceId": self.harness.new_id(),
            "missionId": self.mission.mission_id,
            "groupId": self.mission.group_id,
            "workItemId": self.work_item_id,
            "type": kind,
            "subject": {"type": "work_item", "id": self.work_item_id},
            "criterionIds": [criterion.criterion_id for criterion in self.row.item.contract.acceptance_criteria],
            "method": "as the contract says",
            "result": result,
            "artifactHashes": list(artifact_hashes),
            "generatedBy": msgspec.to_builtins(who.principal),
            "createdAt": self.harness.clock.now().text(),
        }
        return who.sign(**{**document, **members})

    def submit(self, artifact_hashes: Sequence[str], worker: Participant | None = None) -> dict[str, Any]:
        """The owner submits with passing Evidence for each criterion."""
        who = self._by(worker)
        evidence = [self.evidence(who, "deterministic_test", artifact_hashes=artifact_hashes)]
        return who.send(
            "work.submit",
            {**self.held, "artifactHashes": list(artifact_hashes), "evidence": evidence},
            group_id=self.mission.group_id,
        )[0]

    def review(self) -> dict[str, Any]:
        """The Coordinator accepts the result."""
        coordinator = self.harness.coordinator
        evidence = [self.evidence(coordinator, "reviewer_assessment")]
        return coordinator.send(
            "work.accept_result",
            {"workItemId": self.work_item_id, "evidence": evidence},
            group_id=self.mission.group_id,
        )[0]

    def run(self, worker: Participant | None = None, content: bytes = b"result\n") -> str:
        """The whole ordinary way from ``open`` to ``verified``; the content hash of the one Artifact."""
        who = worker or self.harness.workers[0]
        self.offer(who)
        self.accept(who)
        self.start(who)
        content_hash = self.publish(content, who)
        self.submit([content_hash], who)
        self.review()
        return content_hash

    def _by(self, worker: Participant | None) -> Participant:
        if worker is not None:
            return worker
        owner = self.row.item.owner
        if owner is msgspec.UNSET:
            return self.harness.workers[0]
        return next(each for each in self.harness.workers if each.id == owner.agent_id)


class Harness:
    """A node with its clock and its people. The fixture ``mwnode`` yields one."""

    def __init__(self, home: Path, *, seed: int = 0, workers: int = 2, durable: bool = False) -> None:
        self.home = home
        self.clock = ManualClock()
        self.entropy = SeededEntropy(seed)
        self._durable = durable
        self.node = Node.open(home, clock=self.clock, entropy=self.entropy, durable=durable)
        assert self.node.organization_key is not None
        self.organization = Participant(self, "organization", self.node.organization_key)
        self.owner = Participant(self, "owner", self.node.home.key("owner"))
        self.coordinator = self.agent("coordinator")
        self.workers = [self.agent(f"worker-{number}") for number in range(1, workers + 1)]

    def close(self) -> None:
        self.node.close()

    def restart(self) -> None:
        """Close the node and open it again on the same file."""
        self.node.close()
        self.node = Node.open(self.home, clock=self.clock, entropy=self.entropy, durable=self._durable)

    def new_id(self) -> str:
        return uuid7_urn(self.clock.now(), self.entropy.random(10))

    def send(self, raw: bytes) -> list[dict[str, Any]]:
        """Send the bytes of one Command; the Events, receipt first."""
        return [msgspec.json.decode(event) for event in self.node.send(raw)]

    def advance(self, seconds: int) -> None:
        """Let time pass, and let the authority look at everything that came due."""
        self.clock.advance(seconds)
        self.node.run_timers()

    def agent(self, name: str, capabilities: Sequence[Capability] = (Capability(),), slots: int = 4) -> Participant:
        """Register an Agent and connect it."""
        home = self.node.home
        principal = Actor(type="agent", id=f"urn:mwnode:agent:{name}")
        key = make_key(name, principal, home.organization_id, self.entropy)
        root = self.organization.key
        since = valid_from(self.clock.now(), self.node.policy.freshness_window)
        binding = binding_of(key, since)
        card = draft_card(
            agent_id=principal.id,
            organization_id=home.organization_id,
            display_name=name,
            owner=root.principal,
            capabilities=capabilities,
            public_keys=[
                {
                    "keyId": binding.key_id,
                    "algorithm": binding.algorithm,
                    "publicKey": binding.public_key,
                    "validFrom": binding.valid_from,
                }
            ],
            slots=slots,
            endpoint="wss://localhost/ws",
            evidence_id=self.new_id(),
        )
        card["issuedAt"] = self.clock.now().text()
        signed = sign_mapping(card, root, card["issuedAt"])
        kind = f"{EXT}.registry.agent_card_register"
        self.send(service_command(root, kind, {"card": signed}, self.clock, self.entropy))
        participant = Participant(self, name, key)
        participant.connect()
        return participant

    def human(self, name: str) -> Participant:
        """Register another human."""
        principal = Actor(type="human", id=f"urn:mwnode:human:{name}")
        key = make_key(name, principal, self.node.organization_id, self.entropy)
        since = valid_from(self.clock.now(), self.node.policy.freshness_window)
        payload = {"binding": msgspec.to_builtins(binding_of(key, since))}
        self.send(service_command(self.organization.key, f"{CORE}.key_bind", payload, self.clock, self.entropy))
        return Participant(self, name, key)

    def mission(self, **payload: Any) -> MissionHandle:
        """The owner creates a Mission; ``payload`` replaces members of an ordinary one."""
        mission_id, group_id = self.new_id(), self.new_id()
        ordinary: dict[str, Any] = {
            "missionId": mission_id,
            "groupId": group_id,
            "coordinatorAgentId": self.coordinator.id,
            "title": "Release",
            "objective": "Build, check and publish the archive",
            "definitionOfDone": [
                {
                    "criterionId": "archive",
                    "description": "The archive exists and its tests pass",
                    "evidenceRequired": ["deterministic_test"],
                }
            ],
            "budget": {"wallClockSecondsLimit": 86_400, "toolCallLimit": 10_000},
            "deadline": self.clock.now().plus(172_800).text(),
            "approvalPolicy": {"finalHumanApproval": True, "highRiskExecutionApproval": True},
            "permissions": [{"resource": RESOURCE, "operations": ["read", "write.branch"]}],
            "coordinatorLeaseSeconds": 3600,
        }
        self.owner.send("mission.create", {**ordinary, **payload}, group_id=group_id)
        return MissionHandle(self, mission_id, group_id)

    def contract(self, **members: Any) -> dict[str, Any]:
        """An ordinary Work Contract; ``members`` by wire name replace parts of it."""
        ordinary = {
            "contractVersion": 1,
            "goal": "Run the unit tests",
            "requiredDeliverables": [
                {
                    "deliverableId": "report",
                    "description": "The report",
                    "mediaType": "text/plain",
                    "schema": "urn:mwnode:schema:any",
                }
            ],
            "acceptanceCriteria": [
                {"criterionId": "green", "description": "all pass", "evidenceRequired": ["deterministic_test"]}
            ],
            "inputArtifacts": [],
            "dependencyWorkItemIds": [],
            "allowedResources": [{"resource": RESOURCE, "operations": ["read"]}],
            "requiredCapabilities": [{"id": "mwnode.generic", "version": "1.0.0"}],
            "deadline": self.clock.now().plus(86_400).text(),
            "requestedUrgency": "normal",
            "businessImpact": "The release waits for it",
            "retryPolicy": {
                "maxAttempts": 3,
                "backoff": "none",
                "maxDelay": "PT1M",
                "retryableFailures": ["EXECUTOR_FAILED"],
            },
            "budget": {"wallClockSecondsLimit": 600},
            "sideEffectRisk": "none",
            "executionApproval": "not_required",
        }
        return {**ordinary, **members}

    def store_bytes(self, content: bytes) -> str:
        """Store Artifact bytes; their content hash."""
        writer = self.node.artifacts.begin_put()
        writer.write(content)
        return writer.finish(None).content_hash

    def session_epoch(self, agent: Participant) -> int:
        """The Agent's newest Session Epoch, as the node knows it."""
        with self.node.read() as view:
            row = view.get(AGENTS, agent.id)
        assert row is not None
        return row.session_epoch


def content_hash(content: bytes) -> str:
    """``sha256:`` and the digest of some bytes."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def flip_base64url(text: str) -> str:
    """Another well-formed base64url text of the same length: for damaged signatures."""
    data = bytearray(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    data[len(data) // 2] ^= 1
    return base64.urlsafe_b64encode(bytes(data)).rstrip(b"=").decode()


@pytest.fixture
def mwnode(tmp_path: Path) -> Iterator[Harness]:
    """A node on a temporary file with an owner, a coordinator and two workers."""
    harness = Harness(tmp_path / "home")
    yield harness
    harness.close()
