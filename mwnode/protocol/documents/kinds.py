"""The names of Command and Event kinds, and the groups of them that the envelope rules speak of."""

from __future__ import annotations

import re

CORE_COMMAND_KINDS: frozenset[str] = frozenset(
    {
        "mission.create",
        "mission.assign_coordinator",
        "mission.renew_coordinator",
        "mission.submit_for_approval",
        "mission.approve",
        "mission.request_changes",
        "mission.cancel",
        "mission.terminate",
        "mission.create_child",
        "mission.create_follow_up",
        "membership.change",
        "membership.end",
        "membership.grant_delegation",
        "message.post",
        "message.correct",
        "message.retract",
        "message.redact",
        "work.propose",
        "work.authorize",
        "work.offer",
        "work.accept_offer",
        "work.start",
        "work.checkpoint",
        "work.block",
        "work.unblock",
        "work.submit",
        "work.accept_result",
        "work.fail",
        "work.cancel",
        "artifact.publish",
        "approval.grant_execution",
        "policy.grant_cooperation_override",
    }
)
"""The 32 core Command kinds (R-15.1-16)."""
CORE_EVENT_KINDS: frozenset[str] = frozenset(
    {
        "mission.created",
        "mission.coordinator.assigned",
        "mission.coordinator.renewed",
        "mission.submitted_for_approval",
        "mission.approved",
        "mission.changes_requested",
        "mission.cancelled",
        "mission.terminated",
        "mission.child.created",
        "mission.follow_up.created",
        "membership.changed",
        "membership.ended",
        "membership.delegation.granted",
        "message.posted",
        "message.corrected",
        "message.retracted",
        "message.redacted",
        "work.proposed",
        "work.authorized",
        "work.offer.created",
        "work.offer.accepted",
        "work.contract.revised",
        "work.started",
        "work.progressed",
        "work.checkpointed",
        "work.blocked",
        "work.unblocked",
        "work.submitted",
        "work.result.accepted",
        "work.failed",
        "work.cancelled",
        "artifact.published",
        "approval.execution.granted",
        "policy.cooperation_override.granted",
        "group.snapshot.created",
        "group.archived",
    }
)
"""The 36 core Event kinds."""
GENESIS_COMMAND_KINDS = frozenset({"mission.create", "mission.create_follow_up"})
ORGANIZATION_COMMAND_KINDS = frozenset(
    {
        "ext.missionweaveprotocol.registry.agent_card_register",
        "ext.missionweaveprotocol.identity.session_open",
    }
)
ORGANIZATION_EVENT_KINDS = frozenset(
    {
        "ext.missionweaveprotocol.registry.agent_card_registered",
        "ext.missionweaveprotocol.identity.session_opened",
    }
)
COORDINATOR_COMMAND_KINDS = frozenset(
    {
        "mission.renew_coordinator",
        "mission.submit_for_approval",
        "mission.create_child",
        "membership.grant_delegation",
        "work.accept_result",
    }
)
_EXTENSION_KIND = re.compile(r"\Aext\.[a-z0-9][a-z0-9_-]*(?:\.[a-z0-9][a-z0-9_-]*){2,}\Z")


def is_extension_kind(kind: str) -> bool:
    """Whether a kind reads ``ext.<organization>.<profile>.<name>`` (R-18-04)."""
    return len(kind) <= 160 and _EXTENSION_KIND.match(kind) is not None
