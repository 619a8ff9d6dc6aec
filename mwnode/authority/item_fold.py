"""Folding Events about WorkItems: the row, its leases, and everything that counts WorkItems."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, structs

from mwnode.authority import budget, performance
from mwnode.authority.delegation import bury
from mwnode.authority.items import CLEARABLE, as_agent
from mwnode.authority.leases import keep
from mwnode.authority.membership import MISSION_DUTIES
from mwnode.authority.request import EventFact
from mwnode.authority.state import (
    AGENTS,
    CONVERSATIONS,
    MEMBERSHIPS,
    MISSIONS,
    WORK_ITEMS,
    ConversationRow,
    WorkItemRow,
    membership_key,
)
from mwnode.authority.table import OWNED
from mwnode.authority.view import Overlay
from mwnode.protocol.documents import Conversation


def find(view: Overlay, work_item_id: str) -> WorkItemRow:
    """The row that an Event is about."""
    row = view.get(WORK_ITEMS, work_item_id)
    assert row is not None, "an Event about a WorkItem follows its authorization"
    return row


def fold(
    view: Overlay,
    fact: EventFact,
    row: WorkItemRow,
    *,
    revision: int | None = None,
    state: str | None = None,
    item: dict[str, Any] | None = None,
    **changes: Any,
) -> WorkItemRow:
    """Apply an Event to its WorkItem and to everything that counts WorkItems.

    ``item`` holds changed members of the document, ``changes`` changed members of the row. Revision, state, leases,
    ``cleared`` and the Mission's revision are read from the payload where it has them.
    """
    payload: Any = fact.payload
    members: dict[str, Any] = dict(item) if item else {}
    for name in getattr(payload, "cleared", UNSET) or ():
        members[CLEARABLE[name]] = UNSET
    new_state = state if state is not None else payload.state
    document = structs.replace(
        row.item,
        revision=revision if revision is not None else payload.revision,
        state=new_state,
        updated_at=fact.occurred_at,
        **members,
    )
    for name in ("ownership_lease", "execution_lease", "blocked_lease"):
        lease = getattr(payload, name, UNSET)
        if lease is not UNSET:
            keep(view, lease)
            changes[name] = lease
    if new_state != row.item.state:
        changes["state_since"] = fact.occurred_at
    after = structs.replace(row, item=document, last_sequence=fact.sequence, **changes)
    put(view, row, after, fact.occurred_at)
    performance.note(view, fact, row)
    mission_revision = getattr(payload, "mission_revision", UNSET)
    if mission_revision is not UNSET:
        fold_mission_revision(view, document.mission_id, mission_revision)
    return after


def fold_mission_revision(view: Overlay, mission_id: str, revision: int) -> None:
    """An Event about a WorkItem moved the Mission's revision too (decision A24)."""
    mission_row = view.get(MISSIONS, mission_id)
    assert mission_row is not None
    view.put(MISSIONS, structs.replace(mission_row, mission=structs.replace(mission_row.mission, revision=revision)))


def _load(row: WorkItemRow | None) -> tuple[str, str] | None:
    """Owner and state where the owner owes something."""
    if row is None or row.item.owner is UNSET or row.item.state not in OWNED:
        return None
    return row.item.owner.agent_id, row.item.state


def put(view: Overlay, before: WorkItemRow | None, after: WorkItemRow, occurred_at: str) -> None:
    """Store a changed row, and move the counts of its owner: queued and active items, obligations in the Group."""
    view.put(WORK_ITEMS, after)
    old, new = _load(before), _load(after)
    if old == new:
        return
    for load, step in ((old, -1), (new, 1)):
        if load is not None and load[1] in ("queued", "active"):
            agent = view.get(AGENTS, load[0])
            assert agent is not None, "an owner has an Agent Card"
            counts: dict[str, Any] = {load[1]: getattr(agent, load[1]) + step}
            if load[1] == "active":
                others = (known for known in agent.active_ids if known != after.item.work_item_id)
                counts["active_ids"] = tuple(sorted((*others, after.item.work_item_id) if step > 0 else others))
            view.put(AGENTS, structs.replace(agent, **counts))
    former, owner = old and old[0], new and new[0]
    if former != owner:
        for agent_id, step in ((former, -1), (owner, 1)):
            if agent_id is not None:
                _owe(view, after.item.group_id, agent_id, step, occurred_at)


def _owe(view: Overlay, group_id: str, agent_id: str, step: int, at: str) -> None:
    """Count one WorkItem more or less that a Member owns; with its last obligation gone it is idle (R-8-12)."""
    row = view.get(MEMBERSHIPS, membership_key(group_id, as_agent(agent_id)))
    if row is None:
        return
    obligations = max(0, row.obligations + step)
    idle_since = None
    if obligations == 0 and row.membership.role not in MISSION_DUTIES and row.membership.state == "active":
        idle_since = at
    view.put(MEMBERSHIPS, structs.replace(row, obligations=obligations, idle_since=idle_since))


def put_conversation(view: Overlay, conversation: Conversation) -> None:
    """Store a Conversation that an Event opened."""
    view.put(CONVERSATIONS, ConversationRow(conversation))


def fold_ended(view: Overlay, row: WorkItemRow) -> None:
    """What the end of a WorkItem means elsewhere: its reservation is given back, Grants for it are dead."""
    budget.close_account(view, row.item.work_item_id)
    bury(view, row.item.group_id, row.item.work_item_id)
