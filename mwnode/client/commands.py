"""Making a signed Command, and knowing the receipt Event that answers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from mwnode.protocol import jcs
from mwnode.protocol.commands import CORE, EXT
from mwnode.trust.keys import SigningKey, sign_mapping

RECEIPT_KINDS: dict[str, str | None] = {
    "mission.create": "mission.created",
    "mission.create_follow_up": "mission.follow_up.created",
    "mission.create_child": "mission.child.created",
    "mission.assign_coordinator": "mission.coordinator.assigned",
    "mission.renew_coordinator": "mission.coordinator.renewed",
    "mission.submit_for_approval": "mission.submitted_for_approval",
    "mission.approve": "mission.approved",
    "mission.request_changes": "mission.changes_requested",
    "mission.cancel": "mission.cancelled",
    "mission.terminate": "mission.terminated",
    "membership.change": "membership.changed",
    "membership.end": "membership.ended",
    "membership.grant_delegation": "membership.delegation.granted",
    "message.post": "message.posted",
    "message.correct": "message.corrected",
    "message.retract": "message.retracted",
    "message.redact": "message.redacted",
    "work.propose": "work.proposed",
    "work.authorize": "work.authorized",
    "work.offer": "work.offer.created",
    "work.accept_offer": "work.offer.accepted",
    "work.start": "work.started",
    "work.checkpoint": "work.checkpointed",
    "work.block": "work.blocked",
    "work.unblock": "work.unblocked",
    "work.submit": "work.submitted",
    "work.accept_result": "work.result.accepted",
    "work.fail": "work.failed",
    "work.cancel": "work.cancelled",
    "artifact.publish": "artifact.published",
    "approval.grant_execution": "approval.execution.granted",
    "policy.grant_cooperation_override": "policy.cooperation_override.granted",
    f"{EXT}.registry.agent_card_register": f"{EXT}.registry.agent_card_registered",
    f"{EXT}.identity.session_open": f"{EXT}.identity.session_opened",
    f"{EXT}.core.work_dependency_add": "work.contract.revised",
    f"{EXT}.core.work_execution_lease_renew": "work.progressed",
    f"{EXT}.core.resource_usage_record": f"{EXT}.core.resource_usage_recorded",
    f"{EXT}.core.group_archive": "group.archived",
    f"{CORE}.offer_decline": f"{CORE}.offer_declined",
    f"{CORE}.coordinator_reconcile": f"{CORE}.coordinator_reconciled",
    f"{CORE}.conversation_open": f"{CORE}.conversation_opened",
    f"{CORE}.context_package_publish": f"{CORE}.context_package_published",
    f"{CORE}.artifact_forward": f"{CORE}.artifact_forwarded",
    f"{CORE}.knowledge_publish": f"{CORE}.knowledge_published",
    f"{CORE}.profile_register": None,
    f"{CORE}.key_bind": None,
    f"{CORE}.key_restrict": None,
    f"{CORE}.event_tombstone": f"{CORE}.event_tombstoned",
    f"{CORE}.root_approval_grant": f"{CORE}.root_approval_granted",
    f"{CORE}.budget_amend": f"{CORE}.budget_amended",
    f"{CORE}.mission_prioritize": f"{CORE}.mission_prioritized",
    f"{CORE}.ownership_lease_renew": f"{CORE}.ownership_lease_renewed",
}
"""The kind of the Event that answers each Command kind; ``None`` where a Registry record answers (decision F7)."""


def signed_command(
    key: SigningKey,
    kind: str,
    payload: Mapping[str, Any] | Struct,
    *,
    action_id: str,
    issued_at: str,
    correlation_id: str | None = None,
    group_id: str | None = None,
    session_epoch: int | None = None,
    membership_epoch: int | None = None,
    coordinator_epoch: int | None = None,
    conversation_id: str | None = None,
    work_item_id: str | None = None,
    expected_revision: int | None = None,
    cooperation_override_grant_id: str | None = None,
    caused_by_event_id: str | None = None,
    extensions: Mapping[str, Any] | None = None,
) -> bytes:
    """The canonical bytes of a Command by the key's Principal; ``issued_at`` is the time that the signature covers."""
    members = {
        "protocolVersion": "0.1",
        "actionId": action_id,
        "actor": {"type": key.principal.type, "id": key.principal.id},
        "kind": kind,
        "correlationId": correlation_id or action_id,
        "issuedAt": issued_at,
        "payload": msgspec.to_builtins(payload),
        "groupId": group_id,
        "sessionEpoch": session_epoch,
        "membershipEpoch": membership_epoch,
        "coordinatorEpoch": coordinator_epoch,
        "conversationId": conversation_id,
        "workItemId": work_item_id,
        "expectedRevision": expected_revision,
        "cooperationOverrideGrantId": cooperation_override_grant_id,
        "causedByEventId": caused_by_event_id,
        "extensions": msgspec.to_builtins(extensions),
    }
    command = {name: value for name, value in members.items() if value is not None}
    return jcs.canonical(sign_mapping(command, key, issued_at))
