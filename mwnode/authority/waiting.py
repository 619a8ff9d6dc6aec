"""Who must act next, on what, since when, by when, and what happens otherwise; and why a thing is where it is.

Neither asks anybody: both are read off the state and the log (decision G8).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from mwnode.authority.event_rules import EVENT_RULES, rule_of_action
from mwnode.authority.items import child_is_running, is_satisfied
from mwnode.authority.overrides import requested
from mwnode.authority.policy import Policy
from mwnode.authority.progress import awaits_approval, is_settled
from mwnode.authority.requests import text_of, unanswered
from mwnode.authority.state import AGENTS, CONVERSATIONS, MESSAGES, MISSIONS, WORK_ITEMS, MissionRow, WorkItemRow
from mwnode.authority.table import MISSION, MISSION_LIVE, WORK_ITEM
from mwnode.authority.view import View
from mwnode.protocol.capabilities import matches
from mwnode.protocol.commands import CORE
from mwnode.protocol.documents import Actor, Event, Lease
from mwnode.protocol.identifiers import mission_conversation_id
from mwnode.protocol.instants import Instant, parse


class Wait(Struct, frozen=True, rename="camel"):
    """One thing that waits for somebody."""

    who: Actor
    action: str
    on: dict[str, str]
    since: str
    deadline: str | None
    if_nothing: str


def waiting(view: View, row: MissionRow, policy: Policy, now: Instant) -> list[Wait]:
    """Everything in a Mission that waits for somebody; most pressing deadline first."""
    if row.mission.state not in MISSION_LIVE:
        return []
    found = [*_on_mission(view, row, policy, now), *_on_questions(view, row)]
    if row.mission.state == "active":
        found += _on_overrides(view, row, now)
        for item in view.in_group(WORK_ITEMS, row.mission.group_id):
            found += _on_item(view, row, item, policy, now)
        found += _on_request(view, row, found)
    return sorted(found, key=lambda wait: (wait.deadline is None, parse(wait.deadline or wait.since), wait.on["id"]))


def _coordinator(row: MissionRow) -> Actor:
    return Actor(type="agent", id=row.mission.coordinator.agent_id)


def _over(lease: Lease | None, now: Instant) -> bool:
    return lease is None or lease.state != "active" or parse(lease.expires_at) <= now


def _on_mission(view: View, row: MissionRow, policy: Policy, now: Instant) -> Iterator[Wait]:
    mission = row.mission
    on = {"kind": "mission", "id": mission.mission_id}
    since = row.state_since or mission.created_at
    if mission.state == "awaiting_approval":
        who, action = mission.mission_owner, "mission.approve or mission.request_changes"
        final = mission.approval_policy.final_human_approval or policy.root_approval_of_children
        if mission.parent is not UNSET and final and not row.root_approval_ids and row.root_owner is not None:
            who, action = row.root_owner, "ext.mwnode.core.root_approval_grant"
        yield Wait(who, action, on, since, mission.deadline, "the Mission keeps waiting for approval")
        return
    lease = row.coordinator_lease
    if _over(lease, now):
        yield Wait(
            mission.mission_owner,
            "mission.assign_coordinator, unless the Coordinator renews its lease",
            on,
            lease.expires_at,
            mission.deadline,
            "nobody coordinates the Mission",
        )
    coordinator = _coordinator(row)
    if policy.reconcile_required and mission.coordinator.coordinator_epoch > row.reconciled_epoch:
        yield Wait(
            coordinator,
            "ext.mwnode.core.coordinator_reconcile",
            on,
            lease.issued_at,
            mission.deadline,
            "no work is authorized or offered",
        )
    items = view.in_group(WORK_ITEMS, mission.group_id)
    if not items:
        yield Wait(coordinator, "work.authorize", on, since, mission.deadline, "no work begins")
    elif all(is_settled(view, item) for item in items):
        last = max((item.state_since or item.item.created_at for item in items), key=parse)
        yield Wait(
            coordinator, "mission.submit_for_approval", on, last, mission.deadline, "the result is not submitted"
        )


def _on_overrides(view: View, row: MissionRow, now: Instant) -> Iterator[Wait]:
    """Whoever may let the Coordinator pass a limit; in a child Mission the human at the root, as the Organization."""
    who = row.root_owner or row.mission.mission_owner
    for message, reason in requested(view, row, now):
        action = f"policy.grant_cooperation_override: {reason}"[:500]
        on = {"kind": "mission", "id": row.mission.mission_id}
        yield Wait(who, action, on, message.committed_at, row.mission.deadline, "what it is about is not done")


def _on_questions(view: View, row: MissionRow) -> Iterator[Wait]:
    """Clarifications that nobody resolved (decision F18): in the main Conversation the MissionOwner's to answer, about
    a WorkItem the Coordinator's, by a corrected contract (R-10.1-21)."""
    mission = row.mission
    for conversation in view.in_group(CONVERSATIONS, mission.group_id):
        item_id = conversation.conversation.primary_work_item_id
        for question_id in conversation.open_questions:
            asked = view.get(MESSAGES, question_id)
            since = row.state_since or mission.created_at if asked is None else asked.message.committed_at
            if item_id is not UNSET:
                item = view.get(WORK_ITEMS, item_id)
                deadline = mission.deadline if item is None else item.item.contract.deadline
                on = {"kind": "work_item", "id": item_id}
                action = "work.offer of a contract that settles the question"
                yield Wait(_coordinator(row), action, on, since, deadline, "nobody accepts the work")
            elif conversation.conversation.conversation_id == mission_conversation_id(mission.group_id):
                on = {"kind": "mission", "id": mission.mission_id}
                text = "" if asked is None else text_of(asked.message)
                action = f"message.post that answers the question{text}"
                yield Wait(mission.mission_owner, action, on, since, mission.deadline, "what it is about is not done")


_STUCK = ("work.offer", "work.unblock", "work.accept_result")
"""What a Coordinator may be unable to do without its owner's help."""


def _on_request(view: View, row: MissionRow, waits: Iterable[Wait]) -> Iterator[Wait]:
    """The MissionOwner, where the Coordinator is to act, and has said in a Message to them what keeps it from it."""
    stuck = any(wait.who == _coordinator(row) and wait.action.startswith(_STUCK) for wait in waits)
    if not stuck and not any(unanswered(view, child) for child in _running_children(view, row)):
        return
    for asked in unanswered(view, row).values():
        on = {"kind": "mission", "id": row.mission.mission_id}
        action = f"message.post that answers the Coordinator, or what it asks for{text_of(asked)}"
        since, deadline = asked.committed_at, row.mission.deadline
        yield Wait(row.mission.mission_owner, action, on, since, deadline, "what it is about is not done")


def _running_children(view: View, row: MissionRow) -> Iterator[MissionRow]:
    """The child Missions that go on, whose questions their owner passes on to the MissionOwner here (R-14-21)."""
    for child_id in row.children:
        child = view.get(MISSIONS, child_id)
        if child is not None and child.mission.state in MISSION_LIVE:
            yield child


def _on_item(view: View, row: MissionRow, item: WorkItemRow, policy: Policy, now: Instant) -> Iterator[Wait]:
    document = item.item
    on = {"kind": "work_item", "id": document.work_item_id}
    since, deadline = item.state_since or document.created_at, document.contract.deadline
    coordinator = _coordinator(row)
    owner = Actor(type="agent", id=document.owner.agent_id) if document.owner is not UNSET else coordinator
    offer_again = Wait(coordinator, "work.offer", on, since, deadline, "nobody does the work")
    match document.state:
        case "open":
            yield offer_again
        case "failed":
            if not is_settled(view, item):
                action = "work.offer, or work.authorize of a substitute"
                yield Wait(coordinator, action, on, since, deadline, "the Mission cannot be submitted")
        case "offered":
            offers = document.offers if document.offers is not UNSET else ()
            live = [offer for offer in offers if offer.status == "pending" and parse(offer.expires_at) > now]
            for offer in live:
                candidate = Actor(type="agent", id=offer.agent_id)
                action = "work.accept_offer or ext.mwnode.core.offer_decline"
                yield Wait(candidate, action, on, since, offer.expires_at, "the offer expires without an Event")
            if not live:
                yield offer_again
        case "queued":
            yield from _on_queued(view, row, item, policy, now, offer_again)
        case "active":
            lease = item.execution_lease
            if _over(lease, now) or lease is None:
                yield offer_again
            else:
                action = "work.submit, or renewal of its Execution Lease"
                yield Wait(owner, action, on, since, lease.expires_at, "the Execution Lease runs out")
        case "blocked":
            if not child_is_running(view, item):
                blocked = item.blocked_lease
                until = blocked.expires_at if blocked is not None and blocked.state == "active" else deadline
                need = f": {item.required_resolution}" if item.required_resolution else ""
                yield Wait(coordinator, f"work.unblock{need}", on, since, until, "the WorkItem stays blocked")
        case "submitted":
            action = "work.accept_result or work.fail"
            yield Wait(coordinator, action, on, since, deadline, "the result stays unreviewed")


def _on_queued(
    view: View, row: MissionRow, item: WorkItemRow, policy: Policy, now: Instant, offer_again: Wait
) -> Iterator[Wait]:
    document, lease = item.item, item.ownership_lease
    if not all(is_satisfied(view, dependency) for dependency in document.contract.dependency_work_item_ids):
        return
    if lease is None or _over(lease, now) or document.owner is UNSET:
        yield offer_again
        return
    until = lease.expires_at
    if lease.start_by is not UNSET and parse(lease.start_by) < parse(until):
        until = lease.start_by
    if parse(until) <= now:
        yield offer_again
    elif awaits_approval(view, item, policy, now):
        who = row.root_owner if row.root_owner is not None else row.mission.mission_owner
        yield Wait(who, "approval.grant_execution", offer_again.on, offer_again.since, until, "the ownership lapses")
    else:
        owner = Actor(type="agent", id=document.owner.agent_id)
        yield Wait(owner, "work.start", offer_again.on, offer_again.since, until, "the ownership lapses")


# --- why --------------------------------------------------------------------------------------------------------------

_MOVES = frozenset(row.event for row in (*WORK_ITEM, *MISSION))


class Reason(Struct, frozen=True, rename="camel"):
    """One fact on the way to where a thing is now. Facts without an Event follow from the clock or from policy."""

    fact: str
    event_id: str | None
    sequence: int | None
    rule: str


def group_of(view: View, on: str) -> str | None:
    """The Group of the WorkItem or Mission with that ID."""
    item = view.get(WORK_ITEMS, on)
    if item is not None:
        return item.item.group_id
    row = view.get(MISSIONS, on)
    return row.mission.group_id if row is not None else None


def why(
    view: View, on: str, events: Iterable[Event], policy: Policy, now: Instant, *, whole: bool = False
) -> list[Reason]:
    """The chain of facts that makes a WorkItem or Mission be where it is; ``events`` are those of its Group that the
    reader may see. ``whole`` readers may inspect the Mission, and are told what the Coordinator asked of its owner."""
    item, row = view.get(WORK_ITEMS, on), view.get(MISSIONS, on)
    found = [_told(event) for event in events if (_is_about_item(event, on) if item else _is_about_mission(event))]
    if item is not None:
        mission_row = view.get(MISSIONS, item.item.mission_id)
        assert mission_row is not None
        waits = waiting(view, mission_row, policy, now)
        mine = [wait for wait in waits if wait.on["id"] == on]
        found += _standing(view, item, policy, now)
        if whole and item.item.state == "blocked":
            found += _by_child(view, item, policy, now)
        if any(wait.action.startswith("work.offer") for wait in mine):
            found += _nobody(view, mission_row, item)
            requests = unanswered(view, mission_row) if whole else {}
            asked = requests.get(on, requests.get(None))
            if asked is not None:
                fact = f"the Coordinator said at {asked.committed_at}{text_of(asked)}"
                found.append(Reason(fact, None, None, EVENT_RULES["message.posted"]))
        found += [_expected(wait) for wait in mine]
    elif row is not None:
        found += [_expected(wait) for wait in waiting(view, row, policy, now)]
    return found


def _by_child(view: View, item: WorkItemRow, policy: Policy, now: Instant) -> Iterator[Reason]:
    """What a promoted WorkItem waits for, told from the child Mission that does it, and from that one's children."""
    child = None if item.child_mission_id is None else view.get(MISSIONS, item.child_mission_id)
    if child is None:
        return
    mission = child.mission
    since = f" since {child.state_since}" if child.state_since else ""
    rule = "R-14-16" if mission.state in MISSION_LIVE else "R-14-17"
    name = f"{mission.mission_id} ({child.title or mission.objective})"
    yield Reason(f"its child Mission {name} does it, and is {mission.state}{since}", None, None, rule)
    if mission.state not in MISSION_LIVE:
        again = f"`mwnode mission retry {item.item.mission_id} {item.item.work_item_id}`"
        yield Reason(f"{again} has the Coordinator begin another child Mission", None, None, rule)
        return
    for one in view.in_group(WORK_ITEMS, mission.group_id):
        if one.item.state not in ("failed", "blocked") or is_settled(view, one):
            continue
        name = f"{one.item.contract.goal} ({one.item.work_item_id})"
        why_not = f": {one.required_resolution}" if one.required_resolution else ""
        yield Reason(f"there {name} is {one.item.state}{why_not}", None, None, "R-14-21")
        if one.child_mission_id is not None:
            yield from _by_child(view, one, policy, now)
        else:
            again = f"`mwnode mission retry {mission.mission_id} {one.item.work_item_id}`"
            yield Reason(f"{again} has it tried again, as the human at the root wishes", None, None, "R-14-21")
    for wait in waiting(view, child, policy, now):
        told = _expected(wait)
        yield Reason(f"there it {told.fact} (on {wait.on['id']})", None, None, told.rule)


def _is_about_item(event: Event, work_item_id: str) -> bool:
    if event.kind == "mission.child.created":
        return bool(event.payload.get("parentWorkItemId") == work_item_id)
    return event.work_item_id == work_item_id and not event.kind.startswith("message.")


def _is_about_mission(event: Event) -> bool:
    return event.kind.startswith("mission.") or (event.kind in _MOVES and event.work_item_id is UNSET)


def _told(event: Event) -> Reason:
    payload = event.payload
    state = payload.get("state")
    said = [payload.get(name) for name in ("reason", "feedback", "requiredResolution", "resolution", "detail")]
    if event.kind == f"{CORE}.offer_declined":
        offers = [offer for offer in payload.get("offers", ()) if offer.get("agentId") == event.actor.id]
        said = [*(offer.get("declineReason") for offer in offers[-1:]), *said]
    words = "; ".join(text for text in said if isinstance(text, str) and text)
    fact = f"{event.kind} by {event.actor.type} {event.actor.id} at {event.occurred_at}"
    fact += f", then {state}" if isinstance(state, str) else ""
    fact += f": {words}" if words else ""
    sequence = None if event.sequence is UNSET else event.sequence
    return Reason(fact, event.event_id, sequence, EVENT_RULES[event.kind])


def _standing(view: View, item: WorkItemRow, policy: Policy, now: Instant) -> Iterator[Reason]:
    """What holds a WorkItem without any Event saying so: time, dependencies, gates."""
    document = item.item
    for offer in document.offers if document.offers is not UNSET else ():
        if offer.status == "pending" and parse(offer.expires_at) <= now:
            yield Reason(f"the offer to {offer.agent_id} expired at {offer.expires_at}", None, None, "R-10.2-11")
    if document.state in ("open", "offered", "queued"):
        for dependency_id in document.contract.dependency_work_item_ids:
            if not is_satisfied(view, dependency_id):
                dependency = view.get(WORK_ITEMS, dependency_id)
                state = dependency.item.state if dependency is not None else "unknown"
                yield Reason(f"it depends on {dependency_id}, which is {state}", None, None, "R-10.2-16")
    if awaits_approval(view, item, policy, now):
        yield Reason("its execution needs a human's approval", None, None, "R-10.2-16")
    for name, lease in (("ownership", item.ownership_lease), ("execution", item.execution_lease)):
        if lease is not None and lease.state == "active" and parse(lease.expires_at) <= now:
            yield Reason(f"the {name} lease ran out at {lease.expires_at}", None, None, "R-11.3-16")


def _nobody(view: View, row: MissionRow, item: WorkItemRow) -> Iterator[Reason]:
    """What a WorkItem that nobody has needs, who has that, and who declined it."""
    required = item.item.contract.required_capabilities
    wanted = ", ".join(f"{one.id}@{one.version}" for one in required)
    able = [
        agent.card.agent_id
        for agent in view.all(AGENTS)
        if agent.card.status == "active"
        and agent.card.agent_id != row.mission.coordinator.agent_id
        and matches(agent.card.capabilities, required) is not None
    ]
    has = f"which {', '.join(able)} can do" if able else "which no Agent has that may be offered it"
    yield Reason(f"it needs {wanted}, {has}", None, None, "R-10.3-03")
    offers = item.item.offers if item.item.offers is not UNSET else ()
    newest = {offer.agent_id: offer for offer in offers}
    for offer in newest.values():
        if offer.status == "declined":
            reason = "" if offer.decline_reason is UNSET else f": {offer.decline_reason}"
            mine = [one for one in offers if one.agent_id == offer.agent_id]
            times = sum(one.status == "declined" for one in mine)
            often = f" {times} times, last" if times > 1 else ""
            yield Reason(f"{offer.agent_id} declined it{often}{reason}", None, None, "R-10.3-09")


def _expected(wait: Wait) -> Reason:
    until = f" until {wait.deadline}" if wait.deadline is not None else ""
    fact = f"waits for {wait.who.type} {wait.who.id}: {wait.action}{until}"
    return Reason(fact, None, None, rule_of_action(wait.action))


def to_json(entries: Iterable[Wait | Reason]) -> list[dict[str, Any]]:
    """The wire form: every member stands, ``null`` where there is nothing (decision G8)."""
    found: list[dict[str, Any]] = msgspec.to_builtins(list(entries))
    return found
