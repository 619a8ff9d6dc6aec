"""A node with its clock and its people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from mwnode.authority.state import AGENTS
from mwnode.enrolment import Capability, draft_card
from mwnode.genesis import binding_of, service_command, valid_from
from mwnode.home import Home, make_key
from mwnode.node import Node
from mwnode.protocol.commands import CORE, EXT, Binding
from mwnode.protocol.documents import Actor, PrincipalType
from mwnode.protocol.identifiers import uuid7_urn
from mwnode.testing.clock import ManualClock, SeededEntropy
from mwnode.testing.faults import Faults
from mwnode.testing.mission import MissionHandle
from mwnode.testing.people import Participant
from mwnode.testing.pipe import Switchboard
from mwnode.testing.serving import Served
from mwnode.testing.template import Person, Template, files_of, keys_of
from mwnode.testing.work import WorkHandle
from mwnode.trust.keys import sign_mapping

RESOURCE = "urn:example:repository"
"""What an ordinary Mission may touch."""


class Harness:
    """A node with its clock and its people. The fixture ``mwnode`` yields one.

    The same ``seed`` gives the same identifiers and keys. ``clock`` is a ManualClock unless another is given;
    ``durable`` adds the fsync of a real node. Without ``threads`` the node does everything in the thread that waits for
    it: each run takes the same steps, and nothing can be served or sent from several threads.
    """

    def __init__(
        self,
        home: Path,
        *,
        seed: int = 0,
        workers: int = 2,
        durable: bool = False,
        clock: ManualClock | None = None,
        threads: bool = True,
    ) -> None:
        self.home = home
        self.clock = clock or ManualClock()
        self.entropy = SeededEntropy(seed)
        self.faults = Faults(self)
        self._durable = durable
        self._on_work = None if threads else _nobody_waits
        if clock is None and not durable and not home.exists():
            self._begin_with(_template(seed, workers))
        else:
            self._found(workers)

    def _found(self, workers: int) -> None:
        self.node = self._open()
        assert self.node.organization_key is not None
        self.organization = Participant(self, "organization", self.node.organization_key)
        self.owner = Participant(self, "owner", self.node.home.key("owner"))
        self.coordinator = self.agent("coordinator")
        self.workers = [self.agent(f"worker-{number}") for number in range(1, workers + 1)]

    def _begin_with(self, template: Template) -> None:
        copied = template.copy_to(self.home)
        self.entropy.skip_to(template.drawn)
        self.node = self._open(copied)
        people = [Participant(self, person.name, person.key, person.session_epoch) for person in template.people]
        self.organization, self.owner, self.coordinator, *self.workers = people

    def _open(self, home: Home | None = None) -> Node:
        return Node.open(
            home or self.home, clock=self.clock, entropy=self.entropy, durable=self._durable, on_work=self._on_work
        )

    def close(self) -> None:
        self.node.close()

    def restart(self) -> None:
        """Close the node and open it again on the same file."""
        self.node.close()
        self.node = self._open()
        self.faults.announce()

    def serving(self, *, tls: bool = True) -> Served:
        """Serve the node on a free port of the loopback interface, by TLS 1.3 or in plain text::

        with mwnode.serving() as served:
            served.client(mwnode.owner).get("/v0.1/missions")
        """
        return Served(self, tls=tls)

    def connections(self) -> Switchboard:
        """Connect clients in process, without a socket, on the running event loop::

        async with mwnode.connections() as node:
            client = await node.connect(mwnode.workers[0])
        """
        return Switchboard(self)

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
        participant = self.stranger(name)
        self.register(participant, capabilities=capabilities, slots=slots)
        participant.connect()
        return participant

    def human(self, name: str) -> Participant:
        """Register another human."""
        participant = self.stranger(name, "human")
        self.bind(participant)
        return participant

    def stranger(self, name: str, kind: PrincipalType = "agent") -> Participant:
        """Somebody with a key of whom the node has never heard."""
        principal = Actor(type=kind, id=f"urn:mwnode:{kind}:{name}")
        return Participant(self, name, make_key(name, principal, self.node.organization_id, self.entropy))

    def register(
        self,
        *keys: Participant,
        capabilities: Sequence[Capability] = (Capability(),),
        slots: int = 4,
        version: int = 1,
    ) -> None:
        """Register a version of an Agent's Card. Participants of one Agent with several keys give several keys."""
        who, root = keys[0], self.organization.key
        bindings = [self._binding(each) for each in keys]
        card = draft_card(
            agent_id=who.id,
            organization_id=self.node.organization_id,
            display_name=who.name,
            owner=root.principal,
            capabilities=capabilities,
            public_keys=[
                {
                    "keyId": binding.key_id,
                    "algorithm": binding.algorithm,
                    "publicKey": binding.public_key,
                    "validFrom": binding.valid_from,
                }
                for binding in bindings
            ],
            slots=slots,
            endpoint="wss://localhost/ws",
            evidence_id=self.new_id(),
            version=version,
        )
        card["issuedAt"] = self.clock.now().text()
        signed = sign_mapping(card, root, card["issuedAt"])
        self.serve(f"{EXT}.registry.agent_card_register", {"card": signed})

    def bind(self, who: Participant) -> None:
        """Bind somebody's key in the Registry, and nothing more: an Agent also needs a Card."""
        self.serve(f"{CORE}.key_bind", {"binding": msgspec.to_builtins(self._binding(who))})

    def serve(self, kind: str, payload: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Send a Command of the Organization about itself; its Events."""
        return self.send(service_command(self.organization.key, kind, payload, self.clock, self.entropy))

    def _binding(self, who: Participant) -> Binding:
        known = self.node.registry.resolve(who.key.key_id)
        since = valid_from(self.clock.now(), self.node.policy.freshness_window)
        return binding_of(who.key, known.document.valid_from if known is not None else since)

    def mission(self, state: str = "active", **payload: Any) -> MissionHandle:
        """A Mission of the owner in any state of its lifecycle: ``mwnode.mission("awaiting_approval")``.

        ``payload``, by wire name, replaces members of an ordinary ``mission.create``. ValueError for an unknown state.
        """
        mission_id, group_id = self.new_id(), self.new_id()
        named = {**self.mission_payload(mission_id, group_id, self.coordinator), **payload}
        self.owner.send("mission.create", named, group_id=named["groupId"])
        return MissionHandle(self, named["missionId"], named["groupId"]).to(state)

    def work(self, state: str = "open", **contract: Any) -> WorkHandle:
        """A WorkItem in any state of its lifecycle, in a new Mission: ``mwnode.work("blocked")``."""
        return self.mission().work(state, **contract)

    def mission_payload(self, mission_id: str, group_id: str, coordinator: Participant) -> dict[str, Any]:
        """The payload of an ordinary ``mission.create``."""
        return {
            "missionId": mission_id,
            "groupId": group_id,
            "coordinatorAgentId": coordinator.id,
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


def _nobody_waits() -> None:
    """Told that there is work: whoever asks for its result does it."""


@lru_cache(maxsize=8)
def _template(seed: int, workers: int) -> Template:
    """The HOME that this seed makes, founded once."""
    with TemporaryDirectory(prefix="mwnode-testing-") as directory:
        # A clock that is handed over is what makes a Harness found its own HOME.
        made = Harness(Path(directory) / "home", seed=seed, workers=workers, clock=ManualClock())
        made.close()
        people = (made.organization, made.owner, made.coordinator, *made.workers)
        return Template(
            files=files_of(made.home),
            people=tuple(Person(each.name, each.key, each.session_epoch) for each in people),
            drawn=made.entropy.drawn,
            settings=made.node.home.settings,
            keys=keys_of(made.home),
        )
