"""What a Principal is shown of a Mission: pure functions over a view, in the JSON of the HTTP surface.

``mission_list`` and ``mission_view`` are cut to what the caller may see; ``state_body`` is what a Group Snapshot's
``stateHash`` covers (decisions A1, A22, A38, G8).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from mwnode.authority import budget
from mwnode.authority.access import (
    Sight,
    in_conversation,
    is_over,
    may_fetch_cited,
    may_fetch_package,
    may_read,
    may_read_artifact,
    may_read_input,
    sees,
    sight_of,
    sight_under,
    visible_items,
)
from mwnode.authority.founding import priority_of
from mwnode.authority.items import document
from mwnode.authority.policy import Policy
from mwnode.authority.progress import progress
from mwnode.authority.state import (
    ACCOUNTS,
    APPROVALS,
    ARTIFACTS,
    CONVERSATIONS,
    GROUPS,
    MEMBERSHIPS,
    MISSIONS,
    WORK_ITEMS,
    MissionRow,
)
from mwnode.authority.view import View
from mwnode.authority.waiting import Reason, Wait, group_of, to_json, waiting, why
from mwnode.protocol.documents import Actor, Lease, Message, PolicyLogEntry
from mwnode.protocol.errors import ErrorCode, Rejection
from mwnode.protocol.instants import Instant, parse
from mwnode.protocol.jcs import canonical, signing_hash

__all__ = [
    "Reason",
    "Sight",
    "Wait",
    "effective_message",
    "group_of",
    "may_fetch_cited",
    "may_fetch_package",
    "may_read",
    "may_read_artifact",
    "may_read_input",
    "mission_list",
    "mission_view",
    "policy_log",
    "progress",
    "sees",
    "sight_of",
    "state_body",
    "to_json",
    "waiting",
    "waiting_for",
    "why",
    "why_on",
]


def _json(value: Any) -> Any:
    return msgspec.to_builtins(value)


# --- lists ------------------------------------------------------------------------------------------------------------


def missions_of(view: View, principal: Actor, now: Instant) -> list[tuple[MissionRow, Sight]]:
    """Every Mission in whose Group the Principal is an active or provisional Member (decision A1); for services all."""
    if principal.type == "service":
        return [(row, Sight(principal, row.mission.group_id, True, 1, None)) for row in view.all(MISSIONS)]
    found = []
    for member in view.all(MEMBERSHIPS):
        if member.membership.member != principal or is_over(member.membership, now):
            continue
        row = view.get(MISSIONS, member.membership.mission_id)
        sight = sight_under(member, now)
        if row is not None and isinstance(sight, Sight):
            found.append((row, sight))
    return sorted(found, key=lambda entry: (entry[0].mission.created_at, entry[0].mission.mission_id))


def view_head(view: View, row: MissionRow, sight: Sight) -> dict[str, Any]:
    """The head of a Mission view (decision G8)."""
    mission = row.mission
    return {
        "missionId": mission.mission_id,
        "groupId": mission.group_id,
        "state": mission.state,
        "revision": mission.revision,
        "objective": mission.objective,
        "title": row.title,
        "priority": priority_of(mission) or "usual",
        "coordinator": _json(mission.coordinator),
        "headSequence": view.head(mission.group_id),
        "membership": None if sight.membership is None else _json(sight.membership),
    }


def mission_list(view: View, principal: Actor, now: Instant) -> list[dict[str, Any]]:
    """The heads of all Missions that the Principal takes part in."""
    return [view_head(view, row, sight) for row, sight in missions_of(view, principal, now)]


# --- one Mission ------------------------------------------------------------------------------------------------------


def mission_view(
    view: View, principal: Actor, mission_id: str, policy: Policy, now: Instant
) -> dict[str, Any] | Rejection:
    """One Mission as far as the Principal sees it, or GROUP_NOT_FOUND, MEMBERSHIP_REQUIRED, AUTH_FORBIDDEN.

    Members without ``mission.inspect`` get the WorkItems that concern them or moved since they came, their own
    Membership and leases, and the Conversations open to them (decision A22).
    """
    row = view.get(MISSIONS, mission_id)
    if row is None:
        return Rejection(ErrorCode.GROUP_NOT_FOUND, "no such Group", "R-19-15")
    sight = sight_of(view, principal, row.mission.group_id, now)
    if isinstance(sight, Rejection):
        return sight
    group_id = row.mission.group_id
    group = view.get(GROUPS, group_id)
    assert group is not None
    memberships = [
        member.membership
        for member in view.in_group(MEMBERSHIPS, group_id)
        if sight.whole or member.membership.member == principal
    ]
    conversations = [
        held.conversation
        for held in view.in_group(CONVERSATIONS, group_id)
        if in_conversation(sight, held.conversation)
    ]
    return {
        "mission": _json(row.mission),
        "workItems": [_json(document(item)) for item in visible_items(view, sight)],
        "progress": progress(view, row, policy, now),
        "headSequence": view.head(group_id),
        "memberships": _json(memberships),
        "leases": _json(_leases(view, row, sight)),
        "conversations": _json(conversations),
        "group": _json(group.group),
        "budget": _budget(view, mission_id),
    }


def _leases(view: View, row: MissionRow, sight: Sight) -> list[Lease]:
    """The active leases: all of them, or the reader's own."""
    leases: list[Lease | None] = [row.coordinator_lease]
    for item in view.in_group(WORK_ITEMS, row.mission.group_id):
        leases += [item.ownership_lease, item.execution_lease, item.blocked_lease]
    return [
        lease
        for lease in leases
        if lease is not None
        and lease.state == "active"
        and (sight.whole or lease.holder_agent_id == sight.principal.id or lease.lease_type == "coordinator")
    ]


def _budget(view: View, mission_id: str) -> dict[str, Any]:
    account = view.get(ACCOUNTS, mission_id)
    assert account is not None, "every Mission has an account (R-12-19)"
    return {
        "limit": budget.wire_budget(account.limits, account.currency),
        "used": _json(budget.usage_of(account.used)),
        "remaining": budget.remaining_budget(view, mission_id),
    }


# --- waiting, why -----------------------------------------------------------------------------------------------------


def waiting_for(view: View, principal: Actor, policy: Policy, now: Instant) -> list[dict[str, Any]]:
    """What waits for whom in every Mission that the Principal takes part in; a Member that does not see everything is
    shown what waits for itself."""
    found = []
    for row, sight in missions_of(view, principal, now):
        found += [wait for wait in waiting(view, row, policy, now) if sight.whole or wait.who == principal]
    return to_json(found)


def why_on(
    view: View, principal: Actor, on: str, events: list[Any], policy: Policy, now: Instant
) -> list[dict[str, Any]] | Rejection:
    """The chain of facts behind a WorkItem or Mission, from those ``events`` of its Group that the Principal sees."""
    group_id = group_of(view, on)
    if group_id is None:
        return Rejection(ErrorCode.GROUP_NOT_FOUND, "no such Group", "R-19-15")
    sight = sight_of(view, principal, group_id, now)
    if isinstance(sight, Rejection):
        return sight
    seen = [
        event
        for event in events
        if sees(view, sight, event.sequence, None if event.conversation_id is UNSET else event.conversation_id)
    ]
    return to_json(why(view, on, seen, policy, now, whole=sight.whole))


# --- Messages ---------------------------------------------------------------------------------------------------------


def effective_message(message: Message, amendments: Sequence[Message]) -> Message:
    """The newest effective form of a Message: a redaction, else a retraction, else the last correction (R-9.1-42).

    ``amendments`` are in order of commitment and may belong to other Messages too; all of them stay in the log.
    """
    own = [entry for entry in amendments if entry.target_message_id == message.message_id]
    for kind in ("redaction", "retraction", "correction"):
        found = [entry for entry in own if entry.kind == kind]
        if found:
            return found[-1]
    return message


# --- snapshots --------------------------------------------------------------------------------------------------------


def policy_log(view: View, group_id: str, until: Instant | None = None) -> list[PolicyLogEntry]:
    """The whole policy log of one Group, or what of it was there at an instant."""
    entries: list[PolicyLogEntry] = []
    while page := view.policy_log(group_id, len(entries), 1000):
        entries += page
    return entries if until is None else [entry for entry in entries if parse(entry.occurred_at) <= until]


def state_body(view: View, group_id: str, until: Instant | None = None) -> bytes:
    """What a Group Snapshot's ``stateHash`` is the hash of: the JCS of the Group's state, each list sorted by ID
    (R-7.4-03, decision A38). ``until`` bounds the policy log, which may grow while the Group's log stands still."""
    group = view.get(GROUPS, group_id)
    assert group is not None
    row = view.get(MISSIONS, group.group.mission_id)
    assert row is not None

    def by_id(documents: list[Any], name: str) -> list[Any]:
        return _json(sorted(documents, key=lambda entry: str(getattr(entry, name))))  # type: ignore[no-any-return]  # a list of dicts

    body = {
        "mission": _json(row.mission),
        "group": _json(group.group),
        "memberships": by_id([held.membership for held in view.in_group(MEMBERSHIPS, group_id)], "membership_id"),
        "conversations": by_id(
            [held.conversation for held in view.in_group(CONVERSATIONS, group_id)], "conversation_id"
        ),
        "workItems": by_id([document(held) for held in view.in_group(WORK_ITEMS, group_id)], "work_item_id"),
        "approvals": by_id([held.approval for held in view.in_group(APPROVALS, group_id)], "approval_id"),
        "artifacts": by_id([held.artifact for held in view.in_group(ARTIFACTS, group_id)], "artifact_id"),
        "policyLog": by_id(policy_log(view, group_id, until), "entry_id"),
    }
    return canonical(body)


def state_hash(body: bytes) -> str:
    """The hash under which a state body is kept."""
    return signing_hash(body)
