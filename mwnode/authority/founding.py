"""How a Mission begins: with its Group, planning Conversation, first Memberships and Coordinator lease, all at once.

``mission.create`` and ``mission.create_follow_up`` begin root Missions; :mod:`mwnode.authority.lineage` begins children
with the same parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, get_args

import msgspec
from msgspec import UNSET, UnsetType

from mwnode.authority import budget, leases
from mwnode.authority.case import Case, refuse
from mwnode.authority.membership import admit, place
from mwnode.authority.request import EventFact
from mwnode.authority.standing import ROOT_OWNER_SCOPES
from mwnode.authority.state import (
    ACCOUNTS,
    AGENTS,
    APPROVALS,
    CONVERSATIONS,
    GROUPS,
    MISSIONS,
    ApprovalRow,
    ConversationRow,
    GroupRow,
    MissionRow,
)
from mwnode.authority.view import Overlay
from mwnode.protocol.commands import (
    FailurePolicy,
    MissionCreate,
    MissionCreateChild,
    MissionCreateFollowUp,
    Priority,
)
from mwnode.protocol.documents import (
    Actor,
    AgentCard,
    Approval,
    Conversation,
    ConversationAccess,
    Extension,
    Group,
    Mission,
    MissionCoordinator,
    MissionParent,
    ResourceGrant,
)
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import MissionCreated
from mwnode.protocol.identifiers import CORE_EXTENSION, mission_conversation_id

NewMission = MissionCreate | MissionCreateFollowUp | MissionCreateChild


# --- checks -----------------------------------------------------------------------------------------------------------


def misfit(message: str, member: str, rule: str) -> NoReturn:
    """INVALID_COMMAND, naming a member of the payload."""
    refuse(ErrorCode.INVALID_COMMAND, message, rule, details={"path": f"/payload/{member}"})


def active_card(case: Case, agent_id: str) -> AgentCard:
    """The Agent Card of an Agent that may coordinate; INVALID_COMMAND without one that is active."""
    agent = case.view.get(AGENTS, agent_id)
    if agent is None or agent.card.status != "active":
        misfit(f"Agent {agent_id} has no active Agent Card", "coordinatorAgentId", "R-6.4-18")
    return agent.card


def check_new(case: Case, payload: NewMission) -> AgentCard:
    """What every new Mission needs: unused identifiers, time, and a Coordinator, whose Agent Card it gives.

    INVALID_COMMAND where something is missing.
    """
    case.unused(MISSIONS, payload.mission_id, "Mission")
    case.unused(GROUPS, payload.group_id, "Group")
    # WorkItems and Missions share the ledger's name space.
    case.unused(ACCOUNTS, payload.mission_id, "WorkItem")
    case.unused(CONVERSATIONS, mission_conversation_id(payload.group_id), "Conversation")
    card = active_card(case, payload.coordinator)
    if case.passed(payload.deadline):
        misfit("the deadline has passed", "deadline", "R-7.1-01")
    return card


def _check_root(case: Case, payload: MissionCreate | MissionCreateFollowUp) -> AgentCard:
    actor, owners = case.command.actor, case.policy.mission_owners
    if owners and actor.id not in owners:
        refuse(ErrorCode.AUTH_FORBIDDEN, "policy lets this human own no Mission", "R-19-14")
    if payload.group_id != case.group_id:
        misfit("groupId differs between the envelope and the payload", "groupId", "R-15.1-17")
    if not payload.approval_policy.final_human_approval:
        misfit("a root Mission needs finalHumanApproval", "approvalPolicy/finalHumanApproval", "R-7.1-03")
    card = check_new(case, payload)
    case.expect_revision(0)
    budget.check_allocation(case, None, payload.budget)
    return card


# --- documents --------------------------------------------------------------------------------------------------------


def found(
    case: Case,
    payload: NewMission,
    card: AgentCard,
    owner: Actor,
    *,
    parent: MissionParent | UnsetType = UNSET,
    parent_event_id: str | UnsetType = UNSET,
    root_owner: Actor | None = None,
    failure_policy: FailurePolicy | None = None,
    follow_up_to: str | UnsetType = UNSET,
    revocation: Approval | UnsetType = UNSET,
) -> MissionCreated:
    """Everything that a new Mission consists of (R-7.1-04, R-7.1-05). A child has the priority of its parent."""
    above = UNSET if parent is UNSET else case.need(MISSIONS, parent.mission_id, "Mission").mission
    inherited = None if above is UNSET else priority_of(above)
    lease = leases.grant_coordinator(
        case,
        mission_id=payload.mission_id,
        group_id=payload.group_id,
        agent_id=card.agent_id,
        coordinator_epoch=1,
        seconds=payload.coordinator_lease_seconds,
    )
    mission = Mission(
        mission_id=payload.mission_id,
        group_id=payload.group_id,
        revision=1,
        objective=payload.objective,
        definition_of_done=payload.definition_of_done,
        mission_owner=owner,
        coordinator=MissionCoordinator(
            agent_id=card.agent_id,
            agent_card_version=card.card_version,
            coordinator_epoch=1,
            lease_id=lease.lease_id,
        ),
        state="active",
        budget=payload.budget,
        deadline=payload.deadline,
        approval_policy=payload.approval_policy,
        created_at=case.now_text,
        parent=parent,
        follow_up_to_mission_id=follow_up_to,
        pinned_profiles=UNSET if payload.pinned_profiles is None else payload.pinned_profiles,
        extensions=_extensions(case, payload, failure_policy, inherited),
    )
    members = [
        admit(case, mission, owner, "mission_owner"),
        admit(case, mission, Actor(type="agent", id=card.agent_id), "coordinator"),
    ]
    if root_owner is not None:
        members.append(admit(case, mission, root_owner, "observer", scopes=ROOT_OWNER_SCOPES))
    conversation_id = mission_conversation_id(payload.group_id)
    return MissionCreated(
        revision=1,
        state="active",
        mission=mission,
        group=Group(
            group_id=payload.group_id,
            mission_id=payload.mission_id,
            state="active",
            main_conversation_id=conversation_id,
            created_at=case.now_text,
        ),
        conversation=Conversation(
            conversation_id=conversation_id,
            mission_id=payload.mission_id,
            group_id=payload.group_id,
            type="group",
            title=payload.title or "Mission",
            access=ConversationAccess(mode="group"),
            created_by=owner,
            created_at=case.now_text,
            state="active",
            revision=1,
        ),
        memberships=tuple(members),
        coordinator_lease=lease,
        parent_event_id=parent_event_id,
        follow_up_to_mission_id=follow_up_to,
        revocation=revocation,
    )


def _extensions(
    case: Case, payload: NewMission, failure_policy: FailurePolicy | None, inherited: str | None
) -> dict[str, Extension] | UnsetType:
    """What the Mission's schema has no member for, under its payload names (decision D28)."""
    data: dict[str, Any] = {}
    given = case.command.extensions
    # By the hash of its plan a coordinator finds the Mission that it shall run (decision G1).
    if given is not UNSET and CORE_EXTENSION in given and isinstance(given[CORE_EXTENSION].data, dict):
        plan_hash = given[CORE_EXTENSION].data.get("planHash")
        if isinstance(plan_hash, str):
            data["planHash"] = plan_hash
        # Only the human who signs says how urgent a root Mission is to the Organization (R-11.1-08).
        priority = given[CORE_EXTENSION].data.get("priority")
        if case.command.actor.type == "human" and priority in get_args(Priority):
            data["priority"] = priority
    if inherited is not None:
        data["priority"] = inherited
    if payload.title is not None:
        data["title"] = payload.title
    if payload.permissions:
        data["permissions"] = msgspec.json.decode(msgspec.json.encode(payload.permissions))
    if failure_policy is not None:
        data["failurePolicy"] = failure_policy
    return {CORE_EXTENSION: Extension(version="1.0.0", critical=False, data=data)} if data else UNSET


def with_core_data(mission: Mission, **members: Any) -> dict[str, Extension]:
    """A Mission's extensions with these members of ours in place of what they were."""
    extensions = {} if mission.extensions is UNSET else dict(mission.extensions)
    held = extensions[CORE_EXTENSION].data if CORE_EXTENSION in extensions else {}
    extensions[CORE_EXTENSION] = Extension(version="1.0.0", critical=False, data={**held, **members})
    return extensions


def priority_of(mission: Mission) -> str | None:
    """The Organization's priority class of a Mission; ``None`` when nobody ever said one (R-11.1-08)."""
    if mission.extensions is UNSET or CORE_EXTENSION not in mission.extensions:
        return None
    found = mission.extensions[CORE_EXTENSION].data.get("priority")
    return found if isinstance(found, str) else None


def note_adoption(case: Case, mission: Mission, event_id: str) -> None:
    """The first row of a Group's policy log: under which policy its Mission began (decision F6)."""
    case.note_policy(
        "policy adopted", {"missionId": mission.mission_id, "eventId": event_id}, group_id=mission.group_id
    )


# --- mission.create, mission.create_follow_up -------------------------------------------------------------------------


def create(case: Case) -> None:
    """Begin a root Mission for the human who signed (R-7.1-07, R-15.1-07)."""
    payload = case.payload(MissionCreate)
    created = found(case, payload, _check_root(case, payload), case.command.actor)
    fact = case.emit("mission.created", created, group_id=payload.group_id)
    note_adoption(case, created.mission, fact.event_id)


def create_follow_up(case: Case) -> None:
    """Begin a Mission linked to an approved one of the same human; may carry the revocation of its Approval
    (R-7.1-09, R-7.1-25, R-7.1-26)."""
    payload = case.payload(MissionCreateFollowUp)
    source = case.need(MISSIONS, payload.follow_up_to_mission_id, "Mission")
    if source.mission.mission_owner != case.command.actor:
        refuse(ErrorCode.AUTH_FORBIDDEN, "a follow-up comes from the MissionOwner of the Mission cited", "R-7.1-10")
    if source.mission.state != "approved":
        refuse(
            ErrorCode.INVALID_STATE_TRANSITION,
            f"only an approved Mission is followed up; this one is {source.mission.state}",
            "R-7.1-10",
            details={"state": source.mission.state},
        )
    card = _check_root(case, payload)
    if payload.revocation is not None:
        _check_revocation(case, payload.revocation, source)
    created = found(
        case,
        payload,
        card,
        case.command.actor,
        follow_up_to=source.mission.mission_id,
        revocation=UNSET if payload.revocation is None else payload.revocation,
    )
    fact = case.emit("mission.follow_up.created", created, group_id=payload.group_id)
    note_adoption(case, created.mission, fact.event_id)
    if payload.revocation is not None:
        case.note_policy(
            "approval revoked",
            {
                "approvalId": source.approval_id,
                "revocationId": payload.revocation.approval_id,
                "eventId": fact.event_id,
            },
            group_id=payload.group_id,
        )


def _check_revocation(case: Case, revocation: Approval, source: MissionRow) -> None:
    case.unused(APPROVALS, revocation.approval_id, "Approval")
    expected = {
        "kind": (revocation.kind, "mission_final"),
        "decision": (revocation.decision, "revoked"),
        "missionId": (revocation.mission_id, source.mission.mission_id),
        "groupId": (revocation.group_id, source.mission.group_id),
        "revokesApprovalId": (revocation.revokes_approval_id, source.approval_id),
    }
    for name, (given, right) in expected.items():
        if given != right:
            misfit(f"the revocation's {name} must be {right}", f"revocation/{name}", "R-7.1-26")
    if revocation.approver != case.command.actor:
        refuse(ErrorCode.AUTH_FORBIDDEN, "the MissionOwner revokes the Approval", "R-7.1-26")


# --- folding ----------------------------------------------------------------------------------------------------------


def _fold_created(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, MissionCreated)
    mission = payload.mission
    data: dict[str, Any] = {}
    if mission.extensions is not UNSET and CORE_EXTENSION in mission.extensions:
        data = mission.extensions[CORE_EXTENSION].data
    child = mission.parent is not UNSET
    root_owner = next((held.member for held in payload.memberships if child and held.member.type == "human"), None)
    view.put(GROUPS, GroupRow(payload.group))
    view.put(CONVERSATIONS, ConversationRow(payload.conversation))
    view.put(
        MISSIONS,
        MissionRow(
            mission,
            payload.coordinator_lease,
            title=data.get("title"),
            permissions=msgspec.convert(data.get("permissions", ()), tuple[ResourceGrant, ...]),
            failure_policy=data.get("failurePolicy"),
            root_owner=root_owner,
            state_since=fact.occurred_at,
        ),
    )
    for membership in payload.memberships:
        place(view, membership)
    leases.keep(view, payload.coordinator_lease)
    budget.open_mission_account(
        view, mission.mission_id, mission.budget, None if mission.parent is UNSET else mission.parent.work_item_id
    )
    if payload.revocation is not UNSET:
        view.put(APPROVALS, ApprovalRow(payload.revocation))


DECIDERS: dict[str, Callable[[Case], None]] = {
    "mission.create": create,
    "mission.create_follow_up": create_follow_up,
}
EVOLVERS: dict[str, Callable[[Overlay, EventFact], None]] = {
    "mission.created": _fold_created,
    "mission.follow_up.created": _fold_created,
}
