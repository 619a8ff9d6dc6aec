"""Which requirement stands behind each kind of Event, and behind what somebody is waited for to do."""

from __future__ import annotations

from mwnode.authority.table import MISSION, WORK_ITEM
from mwnode.protocol.commands import CORE, EXT

_TABLES = {row.event: row.rule for row in (*reversed(WORK_ITEM), *reversed(MISSION))}

EVENT_RULES: dict[str, str] = {
    **_TABLES,
    "mission.created": "R-15.2-05",
    "mission.follow_up.created": "R-15.2-14",
    "mission.coordinator.assigned": "R-15.2-06",
    "mission.coordinator.renewed": "R-15.2-07",
    "membership.changed": "R-15.2-15",
    "membership.ended": "R-15.2-16",
    "membership.delegation.granted": "R-15.2-17",
    "message.posted": "R-15.2-18",
    "message.corrected": "R-15.2-19",
    "message.retracted": "R-15.2-20",
    "message.redacted": "R-15.2-21",
    "work.proposed": "R-10.2-01",
    "work.authorized": "R-10.2-03",
    "policy.cooperation_override.granted": "R-15.2-38",
    "group.snapshot.created": "R-15.2-39",
    "group.archived": "R-15.2-40",
    f"{EXT}.registry.agent_card_registered": "R-6.1-01",
    f"{EXT}.identity.session_opened": "R-6.3-05",
    f"{CORE}.coordinator_reconciled": "R-7.2-11",
    f"{CORE}.conversation_opened": "R-9-02",
    f"{CORE}.context_package_published": "R-13.3-11",
    f"{CORE}.artifact_forwarded": "R-13.3-14",
    f"{CORE}.knowledge_published": "R-13.3-13",
    f"{CORE}.event_tombstoned": "R-7.4-05",
    f"{CORE}.root_approval_granted": "R-14-15",
    f"{CORE}.budget_amended": "R-12-20",
    f"{CORE}.mission_prioritized": "R-11.1-08",
    f"{CORE}.threshold_crossed": "R-20-04",
}
"""The rule that makes, or asks for, each kind of Event."""

_COMMANDS = {row.command: row.rule for row in (*reversed(WORK_ITEM), *reversed(MISSION)) if row.command is not None}
_EXPECTED = {
    **_COMMANDS,
    "mission.assign_coordinator": "R-7.2-07",
    "work.authorize": "R-10.2-03",
    "message.post": "R-4-02",
    f"{CORE}.coordinator_reconcile": "R-7.2-11",
    f"{CORE}.root_approval_grant": "R-14-15",
}


def rule_of_action(action: str) -> str:
    """The rule behind what somebody is waited for: that of the Command whose kind the text begins with."""
    return _EXPECTED[action.split(" ")[0].rstrip(",:")]
