"""Commands to measure with: an Organization's ordinary traffic, signed ahead of time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from mwnode.authority.policy import Policy
from mwnode.client.commands import signed_command
from mwnode.enrolment import Capability, draft_card
from mwnode.genesis import binding_of, service_command, valid_from
from mwnode.home import create_home, make_key
from mwnode.node import Node
from mwnode.protocol.commands import EXT
from mwnode.protocol.documents import Actor
from mwnode.protocol.identifiers import uuid7_urn
from mwnode.system import OsEntropy, SystemClock
from mwnode.trust.keys import SigningKey, sign_mapping

POLICY = Policy(message_rate=1_000_000_000, group_event_warning=1_000_000_000, freshness_window=86_400)
"""The policy that measuring needs: what it limits is not what is measured."""
TEXT = "The archive is built, its tests pass, and the checksum is the one that the contract names. " * 4

_ENTROPY = OsEntropy()
_CLOCK = SystemClock()


def new_id() -> str:
    """A fresh identifier."""
    return uuid7_urn(_CLOCK.now(), _ENTROPY.random(10))


def open_node(directory: Path, *, durable: bool = True) -> Node:
    """A node on a new HOME, under the bench's own policy."""
    path = directory / "home"
    home = create_home(path, _CLOCK, _ENTROPY)
    settings = path / "mwnode.toml"
    chosen = "".join(
        f"{name} = {getattr(POLICY, name)}\n" for name in ("message_rate", "group_event_warning", "freshness_window")
    )
    settings.write_text(settings.read_text().replace("[policy]\n", f"[policy]\n{chosen}"))
    del home
    return Node.open(path, durable=durable)


class Speaker:
    """An Agent that coordinates Missions and posts Messages: the cheapest Command that is a whole one."""

    def __init__(self, node: Node, name: str = "speaker") -> None:
        self.node = node
        principal = Actor(type="agent", id=f"urn:mwnode:agent:{name}")
        self.key: SigningKey = make_key(name, principal, node.organization_id, _ENTROPY)
        self._register()
        grant = node.open_session(principal.id, self.key.key_id).result()
        epoch = getattr(grant, "session_epoch", None)
        if not isinstance(epoch, int):
            raise RuntimeError(f"the bench could not open a session: {grant}")
        self.session_epoch = epoch

    def _register(self) -> None:
        node, root = self.node, self.node.organization_key
        if root is None:
            raise RuntimeError("the bench needs the organization key of its own HOME")
        binding = binding_of(self.key, valid_from(_CLOCK.now(), node.policy.freshness_window))
        key = {
            "keyId": binding.key_id,
            "algorithm": binding.algorithm,
            "publicKey": binding.public_key,
            "validFrom": binding.valid_from,
        }
        issued_at = _CLOCK.now().text()
        card = draft_card(
            agent_id=self.key.principal.id,
            organization_id=node.organization_id,
            display_name="speaker",
            owner=root.principal,
            capabilities=[Capability()],
            public_keys=[key],
            slots=1,
            endpoint="wss://localhost/ws",
            evidence_id=new_id(),
        )
        signed = sign_mapping({**card, "issuedAt": issued_at}, root, issued_at)
        kind = f"{EXT}.registry.agent_card_register"
        node.send(service_command(root, kind, {"card": signed}, _CLOCK, _ENTROPY))

    def new_group(self) -> str:
        """A Mission of its own; its Group."""
        owner = self.node.home.key("owner")
        group_id = new_id()
        payload = {
            "missionId": new_id(),
            "groupId": group_id,
            "coordinatorAgentId": self.key.principal.id,
            "objective": "Measure",
            "definitionOfDone": [
                {"criterionId": "done", "description": "measured", "evidenceRequired": ["deterministic_test"]}
            ],
            "budget": {"wallClockSecondsLimit": 86_400},
            "deadline": _CLOCK.now().plus(86_400 * 30).text(),
            "approvalPolicy": {"finalHumanApproval": True, "highRiskExecutionApproval": True},
            "coordinatorLeaseSeconds": 3600,
        }
        issued_at = _CLOCK.now().text()
        self.node.send(
            signed_command(owner, "mission.create", payload, action_id=new_id(), issued_at=issued_at, group_id=group_id)
        )
        return group_id

    def admit(self, group_id: str, others: Sequence[Speaker]) -> None:
        """Make others active observers of a Group that this Agent coordinates."""
        for other in others:
            issued_at = _CLOCK.now().text()
            self.node.send(
                signed_command(
                    self.key,
                    "membership.change",
                    {"principal": {"type": "agent", "id": other.key.principal.id}, "role": "observer"},
                    action_id=new_id(),
                    issued_at=issued_at,
                    group_id=group_id,
                    session_epoch=self.session_epoch,
                    membership_epoch=1,
                    coordinator_epoch=1,
                )
            )

    def messages(self, group_ids: Sequence[str], count: int) -> list[bytes]:
        """That many signed Messages, spread over the Groups."""
        issued_at = _CLOCK.now().text()
        return [
            signed_command(
                self.key,
                "message.post",
                {
                    "messageId": new_id(),
                    "conversationId": f"{group_ids[number % len(group_ids)]}:mission",
                    "content": [{"type": "text", "text": TEXT}],
                },
                action_id=new_id(),
                issued_at=issued_at,
                group_id=group_ids[number % len(group_ids)],
                session_epoch=self.session_epoch,
                membership_epoch=1,
            )
            for number in range(count)
        ]


def signing_bytes(command: bytes) -> bytes:
    """What the signature of a Command covers: for floors of the same size."""
    document = msgspec.json.decode(command, type=dict[str, object])
    del document["signature"]
    return msgspec.json.encode(document, order="sorted")
