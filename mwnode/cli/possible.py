"""What people can do about a Mission in each of its states, as the authority's own table says."""

from __future__ import annotations

from typing import Any

from mwnode.authority.table import MISSION_ADMITS
from mwnode.protocol.commands import CORE, EXT

KIND_OF_VERB = {
    "approve": "mission.approve",
    "request-changes": "mission.request_changes",
    "permit": "approval.grant_execution",
    # The next two are Messages that have the Coordinator do this:
    "review": "work.accept_result",
    "retry": "work.offer",
    "budget": f"{CORE}.budget_amend",
    "priority": f"{CORE}.mission_prioritize",
    "direct": "message.post",
    "replace-coordinator": "mission.assign_coordinator",
    "cancel": "mission.cancel",
    "archive": f"{EXT}.core.group_archive",
}
"""Each `mwnode mission` command that changes something, and the Command kind that it comes to."""


def possible_in(state: str) -> list[str]:
    """The `mwnode mission` commands that a Mission's state admits."""
    return [verb for verb, kind in KIND_OF_VERB.items() if state in MISSION_ADMITS[kind]]


def possible_now(view: dict[str, Any]) -> str:
    """What can be done about a Mission now, for the end of a refusal."""
    mission = view["mission"]
    if view["group"]["state"] == "archived":
        return "its Group is archived, so it can only be read: `mwnode mission show ID`, `mwnode events ID`"
    verbs = ", ".join(possible_in(mission["state"]))
    return f"while it is {mission['state']}, `mwnode mission` can: {verbs}"
