"""Memberships: who is in a Group, as what, since which epoch, and what of its history that shows.

One Membership per Principal and Group. Every change raises its epoch, so that Commands decided on older knowledge are
told apart (R-8-04). Members join just in time and leave when they owe nothing any more (R-8-08, R-8-12).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from msgspec import UNSET, UnsetType, structs

from mwnode.authority import packages
from mwnode.authority.case import Case, refuse
from mwnode.authority.request import EventFact
from mwnode.authority.standing import DEFAULT_SCOPES, KNOWN_SCOPES
from mwnode.authority.state import (
    AGENTS,
    MEMBERSHIPS,
    MISSIONS,
    PRINCIPALS,
    WORK_ITEMS,
    MembershipRow,
    MissionRow,
    membership_key,
    principal_key,
)
from mwnode.authority.table import MISSION_LIVE, admit_mission
from mwnode.authority.view import Overlay
from mwnode.protocol.commands import MembershipChange, MembershipEnd
from mwnode.protocol.documents import Actor, Cause, Membership, Mission, Role
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import MembershipChanged, MembershipEnded
from mwnode.protocol.identifiers import policy_cause_id
from mwnode.protocol.instants import Instant, parse

EXTRA_COORDINATOR_SCOPES = frozenset({"work.accept_offer", "work.execute"})
"""What a MissionOwner may give a Coordinator beside its role, so that it can take work itself (decision F31)."""
IDLE_POLICY = "membership_idle_end"
MISSION_DUTIES: frozenset[Role] = frozenset({"mission_owner", "coordinator", "observer"})
"""Roles whose duty is the Mission itself: they never end for want of WorkItems."""


# --- documents --------------------------------------------------------------------------------------------------------


def admit(
    case: Case,
    mission: Mission,
    principal: Actor,
    role: Role,
    *,
    known: Membership | None = None,
    scopes: tuple[str, ...] | None = None,
    visibility: int = 1,
    provisional_until: str | None = None,
    context_package_id: str | UnsetType = UNSET,
) -> Membership:
    """The Membership document of a Principal: a new one, or the next epoch of ``known`` (R-8-01, R-8-02)."""
    active = provisional_until is None
    activated_at: str | UnsetType = case.now_text if active else UNSET
    if known is not None and known.state == "active" and known.activated_at is not UNSET:
        activated_at = known.activated_at
    return Membership(
        membership_id=known.membership_id if known is not None else case.context.new_id(),
        mission_id=mission.mission_id,
        group_id=mission.group_id,
        member=principal,
        role=role,
        state="active" if active else "provisional",
        membership_epoch=known.membership_epoch + 1 if known is not None else 1,
        scopes=scopes if scopes is not None else DEFAULT_SCOPES[role],
        visibility_start_sequence=visibility,
        granted_at=case.now_text,
        delegation_grants=known.delegation_grants if known is not None else UNSET,
        context_package_id=context_package_id,
        provisional_expires_at=UNSET if provisional_until is None else provisional_until,
        activated_at=activated_at,
    )


def ended(case: Case, membership: Membership) -> Membership:
    """The Membership, over: its epoch rises and authorizes nothing any more (R-15.1-28)."""
    return structs.replace(
        membership, state="ended", membership_epoch=membership.membership_epoch + 1, ended_at=case.now_text
    )


# --- membership.change ------------------------------------------------------------------------------------------------


def change(case: Case) -> None:
    """Grant or change one Membership, compare-and-set on its epoch (R-15.1-27, R-15.3-01).

    Granting the same again is a change too: its epoch fences what was sent and issued under the one before.
    """
    payload = case.payload(MembershipChange)
    mission_row = case.mission()
    mission = mission_row.mission
    admit_mission(mission.state, case.command.kind)
    principal, role = payload.principal, payload.granted_role
    _check_principal(case, principal)
    _check_scopes(payload.scopes)
    row = case.membership(principal)
    known = row.membership if row is not None else None
    _check_terms(case, payload, known)
    package, package_hash = payload.context_package, None
    if package is not None:
        package_hash = packages.check(case, package)
    _check_standing(case, mission_row, principal, role, payload.scopes)
    if known is not None and known.state == "active" and payload.provisional:
        refuse(
            ErrorCode.INVALID_STATE_TRANSITION,
            "an active Membership does not become provisional again; end it",
            "R-8-09",
        )
    _compare_epoch(payload.expected_membership_epoch, known, must_not_exist=True)
    case.expect_revision(mission.revision)
    membership = admit(
        case,
        mission,
        principal,
        role,
        known=known,
        scopes=payload.scopes,
        visibility=_visibility(case, payload.visibility_start_sequence, known),
        provisional_until=_provisional_until(case, payload),
        context_package_id=package.context_package_id if package is not None else _package_of(known),
    )
    case.emit(
        "membership.changed",
        MembershipChanged(
            revision=mission.revision,
            state=mission.state,
            membership=membership,
            context_package_id=UNSET if package is None else package.context_package_id,
            context_package_hash=UNSET if package_hash is None else package_hash,
        ),
    )


def _check_principal(case: Case, principal: Actor) -> None:
    if principal.type == "service":
        _misfit("a service acts by policy and has no Membership", "principal", "R-8-05")
    if principal.type == "agent":
        agent = case.view.get(AGENTS, principal.id)
        if agent is None or agent.card.status != "active":
            _misfit(f"Agent {principal.id} has no active Agent Card", "principal", "R-6.4-18")
    elif case.view.get(PRINCIPALS, principal_key(principal)) is None:
        _misfit(f"human {principal.id} is not registered with the Organization", "principal", "R-6.4-18")


def _check_scopes(scopes: tuple[str, ...] | None) -> None:
    unknown = sorted(set(scopes or ()) - KNOWN_SCOPES)
    if unknown:
        _misfit(f"unknown scopes: {', '.join(unknown)}", "scopes", "R-8-02")


def _check_terms(case: Case, payload: MembershipChange, known: Membership | None) -> None:
    """What a provisional Membership needs, and what only it may have (R-8-09, decision F20)."""
    if payload.provisional:
        if payload.principal.type != "agent":
            _misfit("only an Agent becomes active by accepting an offer", "provisional", "R-8-09")
        if payload.context_package is None:
            _misfit("a provisional Membership needs a contextPackage", "contextPackage", "R-8-10")
    elif payload.provisional_expires_at is not None:
        _misfit("only a provisional Membership has provisionalExpiresAt", "provisionalExpiresAt", "R-8-09")
    if payload.provisional_expires_at is not None and case.passed(payload.provisional_expires_at):
        _misfit("provisionalExpiresAt lies in the past", "provisionalExpiresAt", "R-8-09")
    start = payload.visibility_start_sequence
    if start is not None and start > case.view.head(case.group_id) + 1:
        _misfit("visibilityStartSequence lies beyond the Group's next Event", "visibilityStartSequence", "R-8-02")


def _check_standing(
    case: Case, mission_row: MissionRow, principal: Actor, role: Role, scopes: tuple[str, ...] | None
) -> None:
    """Owner and Coordinator have their places by the Mission's own Commands, not by this one (decision D53)."""
    mission, actor = mission_row.mission, case.command.actor
    coordinator = Actor(type="agent", id=mission.coordinator.agent_id)
    if principal == coordinator and role == "coordinator" and "O" in case.roles and principal != actor:
        allowed = EXTRA_COORDINATOR_SCOPES.union(DEFAULT_SCOPES["coordinator"])
        if scopes is not None and not set(scopes) <= allowed:
            _forbid("a Coordinator's scopes are those of its role, work.accept_offer and work.execute")
        return
    if role in ("mission_owner", "coordinator"):
        _forbid(f"the role {role} comes with the Mission, not by membership.change")
    if principal in (mission.mission_owner, coordinator, mission_row.root_owner):
        # They are the only ones who send this kind, so nobody changes their own Membership either.
        _forbid("the Memberships of MissionOwner, Coordinator and root owner come with the Mission")


def _compare_epoch(expected: int | None, known: Membership | None, *, must_not_exist: bool) -> None:
    """Compare the Membership Epoch that the sender saw; absent means that there was none (R-15.3-01, decision F10)."""
    current = known.membership_epoch if known is not None else 0
    if expected is None:
        if not must_not_exist:
            return
        expected = 0
    if expected != current:
        refuse(
            ErrorCode.REVISION_CONFLICT,
            f"the Membership Epoch is {current}, not {expected}; state expectedMembershipEpoch {current} to change it",
            "R-15.3-01",
            expected_revision=expected,
            current_revision=current,
        )


def _visibility(case: Case, stated: int | None, known: Membership | None) -> int:
    """Where the Member's sight begins: as stated, as before, or with its own Event (R-8-13, decision D12)."""
    if stated is not None:
        return stated
    return known.visibility_start_sequence if known is not None else case.view.head(case.group_id) + 1


def _provisional_until(case: Case, payload: MembershipChange) -> str | None:
    if not payload.provisional:
        return None
    latest = case.now.plus(case.policy.provisional_membership_max)
    stated = payload.provisional_expires_at
    return stated if stated is not None and parse(stated) <= latest else latest.text()


def _package_of(known: Membership | None) -> str | UnsetType:
    return known.context_package_id if known is not None else UNSET


def _misfit(message: str, member: str, rule: str) -> NoReturn:
    refuse(ErrorCode.INVALID_COMMAND, message, rule, details={"path": f"/payload/{member}"})


def _forbid(message: str) -> NoReturn:
    refuse(ErrorCode.AUTH_FORBIDDEN, message, "R-19-14")


# --- membership.end ---------------------------------------------------------------------------------------------------


def end(case: Case) -> None:
    """End one Membership; its WorkItems are not touched, their leases run out (R-15.1-28)."""
    payload = case.payload(MembershipEnd)
    mission_row = case.mission()
    mission = mission_row.mission
    admit_mission(mission.state, case.command.kind)
    row = case.membership(payload.principal)
    if row is None:
        _misfit("that Principal has no Membership in this Group", "principal", "R-19-19")
    if row.membership.state == "ended":
        refuse(ErrorCode.INVALID_STATE_TRANSITION, "the Membership has ended already", "R-19-20")
    coordinator = Actor(type="agent", id=mission.coordinator.agent_id)
    if payload.principal in (mission.mission_owner, coordinator, mission_row.root_owner):
        _forbid("the Memberships of MissionOwner, Coordinator and root owner end with the Mission")
    _compare_epoch(payload.expected_membership_epoch, row.membership, must_not_exist=False)
    case.expect_revision(mission.revision)
    emit_ended(case, mission, row.membership, payload.reason)


def emit_ended(
    case: Case,
    mission: Mission,
    membership: Membership,
    reason: str | None,
    *,
    cause: Cause | None = None,
) -> EventFact:
    """Append ``membership.ended`` for one Member of a Group."""
    return case.emit(
        "membership.ended",
        MembershipEnded(
            revision=mission.revision,
            state=mission.state,
            membership=ended(case, membership),
            reason=UNSET if reason is None else reason,
        ),
        group_id=mission.group_id,
        cause=cause,
    )


# --- the authority's timer --------------------------------------------------------------------------------------------


def end_idle(case: Case, key: str) -> Instant | None:
    """End a Membership whose Member has owed nothing for long enough (R-8-12, decision D15).

    Gives when to look again, or ``None`` when there is nothing to wait for.
    """
    row = case.view.get(MEMBERSHIPS, key)
    if row is None or row.idle_since is None or row.membership.state != "active" or not case.policy.membership_idle_end:
        return None
    membership = row.membership
    if membership.role in MISSION_DUTIES:
        return None
    due = parse(row.idle_since).plus(case.policy.membership_idle_end)
    if due > case.now:
        return due
    mission = case.mission(membership.group_id).mission
    if mission.state in MISSION_LIVE and _reviews(case, membership):
        return case.now.plus(case.policy.membership_idle_end)
    emit_ended(
        case,
        mission,
        membership,
        "neither WorkItems nor reviews are left",
        cause=Cause(type="policy", id=policy_cause_id(IDLE_POLICY)),
    )
    return None


def _reviews(case: Case, membership: Membership) -> bool:
    """Whether a review may still be asked of the Member: something that it did not make awaits one."""
    if "work.review" not in membership.scopes:
        return False
    return any(
        row.item.state == "submitted"
        and row.item.owner is not UNSET
        and row.item.owner.agent_id != membership.member.id
        for row in case.view.in_group(WORK_ITEMS, membership.group_id)
    )


# --- folding ----------------------------------------------------------------------------------------------------------


def place(view: Overlay, membership: Membership) -> None:
    """Set a Membership; what the Member owes stays counted."""
    row = view.get(MEMBERSHIPS, membership_key(membership.group_id, membership.member))
    if row is None:
        view.put(MEMBERSHIPS, MembershipRow(membership))
        return
    idle_since = None if membership.state == "ended" else row.idle_since
    view.put(MEMBERSHIPS, structs.replace(row, membership=membership, idle_since=idle_since))


def retire(view: Overlay, group_id: str, at: str) -> None:
    """Fold the archival of a Group: everybody who was there for work is idle from then on (R-8-12)."""
    for row in view.in_group(MEMBERSHIPS, group_id):
        membership = row.membership
        if membership.state == "active" and membership.role not in MISSION_DUTIES and row.idle_since is None:
            view.put(MEMBERSHIPS, structs.replace(row, idle_since=at))


def _fold_changed(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, MembershipChanged)
    membership = payload.membership
    place(view, membership)
    packages.note(view, fact, payload.context_package_id, (membership.member,))
    mission_row = view.get(MISSIONS, membership.mission_id)
    assert mission_row is not None
    mission = mission_row.mission
    # A child's owner changes with the Coordinator of its parent; what has ended is not rewritten (decision F8).
    if (
        membership.role == "mission_owner"
        and mission.mission_owner != membership.member
        and mission.state in MISSION_LIVE
    ):
        owned = structs.replace(mission, mission_owner=membership.member)
        view.put(MISSIONS, structs.replace(mission_row, mission=owned))


def _fold_ended(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, MembershipEnded)
    place(view, payload.membership)


DECIDERS: dict[str, Callable[[Case], None]] = {"membership.change": change, "membership.end": end}
EVOLVERS: dict[str, Callable[[Overlay, EventFact], None]] = {
    "membership.changed": _fold_changed,
    "membership.ended": _fold_ended,
}
