"""The people of a test: Principals with their keys, who sign and send Commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mwnode.authority.state import GROUPS, MEMBERSHIPS, MISSIONS, membership_key
from mwnode.client.commands import signed_command
from mwnode.protocol.documents import COORDINATOR_COMMAND_KINDS, GENESIS_COMMAND_KINDS, Actor
from mwnode.protocol.errors import MissionWeaveError
from mwnode.trust.keys import SigningKey, sign_mapping

if TYPE_CHECKING:
    from mwnode.testing.harness import Harness


class Participant:
    """One Principal with its key. ``send`` fills in the epochs, signs, and waits until the node has decided."""

    def __init__(self, harness: Harness, name: str, key: SigningKey, session_epoch: int | None = None) -> None:
        self.harness = harness
        self.name = name
        self.key = key
        self.session_epoch = session_epoch
        self.skew = 0
        """How many seconds this Participant's clock is ahead of the node's."""
        self.sent = b""
        """The bytes of the Command sent last."""

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
        issued_at = members.pop("issued_at", None) or self.now()
        return signed_command(self.key, kind, payload, action_id=action_id, issued_at=issued_at, **members)

    def send(self, kind: str, payload: Mapping[str, Any], **envelope: Any) -> list[dict[str, Any]]:
        """Send a Command; the Events, receipt first. Raises the MissionWeaveError of a refusal."""
        self.sent = self.command(kind, payload, **envelope)
        return self.resend()

    def resend(self) -> list[dict[str, Any]]:
        """Send the very bytes of the last Command once more; the Events that it led to, receipt first."""
        return self.harness.faults.carry(self, self.sent, self.harness.send)

    def now(self) -> str:
        """What this Participant's clock shows."""
        return self.harness.clock.now().plus(self.skew).text()

    def refused(self, kind: str, payload: Mapping[str, Any], **envelope: Any) -> MissionWeaveError:
        """Send a Command that must be refused; the error. Fails the test when it is accepted."""
        try:
            events = self.send(kind, payload, **envelope)
        except MissionWeaveError as error:
            return error
        raise AssertionError(f"{kind} was accepted: {[event['kind'] for event in events]}")

    def sign(self, **members: Any) -> dict[str, Any]:
        """A Signed Document of this Principal, signed now; ``members`` by wire name without the signature."""
        return sign_mapping(members, self.key, self.now())

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
