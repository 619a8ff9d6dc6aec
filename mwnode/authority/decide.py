"""``decide``: a Command against the state, to Events or a refusal. The common checks in their fixed order, then the
handler of the kind.

Order (reading 2; decisions A6 to A8, D1, D2): payload, embedded documents, session, Group, replaced Coordinator,
Membership, Coordinator epoch and lease, extensions, role, archive; the handlers go on with ended items, Ownership
Epoch, state, object-bound authority, lease, expected revision, policy and budget.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from mwnode.authority import cooperation, leases, membership, offline
from mwnode.authority.aggregates import DECIDERS
from mwnode.authority.case import Admitted, Case, Context, Refused, refuse
from mwnode.authority.request import Decision, Request
from mwnode.authority.secrets import may_hold_token, token_shaped
from mwnode.authority.standing import AUTHORITY, MAY_SEND, PROVISIONAL_MAY_SEND
from mwnode.authority.state import (
    AGENTS,
    GROUPS,
    LEASES,
    MEMBERSHIPS,
    MISSIONS,
    PRINCIPALS,
    PROFILES,
    GroupRow,
    MembershipRow,
    MissionRow,
    membership_key,
    principal_key,
)
from mwnode.authority.table import MISSION_ADMITS, MISSION_LIVE
from mwnode.authority.view import View
from mwnode.protocol.documents import GENESIS_COMMAND_KINDS, Command, PinnedProfile
from mwnode.protocol.errors import ErrorCode, Rejection
from mwnode.protocol.identifiers import CORE_EXTENSION, OFFLINE_EXTENSION
from mwnode.protocol.instants import Instant
from mwnode.trust.verification import Failure

_BY_ENVELOPE = frozenset({"message.post", "message.correct", "message.retract", "artifact.publish"})
"""Kinds whose common checks ask nothing of the payload: the ones that come in numbers."""


def decide(view: View, request: Request, context: Context) -> Decision | Rejection:
    """Decide one verified Command. Pure: the same arguments give the same answer; a refusal changes nothing."""
    case = Case(view, context, request)
    try:
        _admit(case)
        offline.check_kind(case)
        DECIDERS[case.command.kind](case)
        cooperation.settle(case)
    except Refused as refused:
        return refused.rejection
    return case.decision()


def decide_due(view: View, table_code: int, key: str, context: Context) -> Decision | Instant | None:
    """Decide what the authority's timer found due: a lease that ran out, a Membership without obligations.

    An ``Instant`` says when to look again: policy, which no row knows, sets it. ``None`` when nothing is to be
    recorded; the caller drops the due entry then.
    """
    case = Case(view, context, None)
    again: Instant | None = None
    if table_code == LEASES.code:
        leases.expire(case, key)
    elif table_code == MEMBERSHIPS.code:
        again = membership.end_idle(case, key)
    return case.decision() if case.facts else again


def _admit(case: Case) -> None:
    """The checks that every kind shares."""
    assert case.request is not None
    command = case.command
    if isinstance(case.request.payload, Rejection):
        raise Refused(case.request.payload)
    for embedded in case.request.embedded:
        if isinstance(embedded.verdict, Failure):
            refuse(ErrorCode.AUTH_INVALID_SIGNATURE, "signed document rejected", "R-6.4-81")
    _check_secrets(case)
    if _admitted_before(case):
        return
    if command.actor.type == "service":
        _admit_service(case)
        return
    if command.actor.type == "agent":
        _check_session(case)
    elif case.view.get(PRINCIPALS, principal_key(command.actor)) is None:
        refuse(ErrorCode.AUTH_FORBIDDEN, "this human is not registered with the Organization", "R-19-14")
    if command.kind in GENESIS_COMMAND_KINDS:
        _check_extensions(case, None)
        return
    group, mission_row = _find_group(case)
    _check_replaced_coordinator(case, mission_row)
    member = _check_membership(case)
    letters = _letters(case, mission_row, member)
    _check_coordinator(case, mission_row, letters)
    _check_extensions(case, mission_row)
    if not letters:
        refuse(
            ErrorCode.AUTH_FORBIDDEN,
            f"{command.actor.type} {command.actor.id} may not send {command.kind} here",
            "R-19-14",
        )
    case.roles = letters
    _check_archive(case, group)
    _remember(case, group, mission_row, member)


def _repeatable(case: Case) -> tuple[object, ...] | None:
    """What else the common checks depend on, for Commands of Agents that pass them by their envelope alone."""
    command = case.command
    if command.kind not in _BY_ENVELOPE or command.actor.type != "agent" or command.extensions is not UNSET:
        return None
    return (
        command.kind,
        command.actor.id,
        command.group_id,
        command.session_epoch,
        command.membership_epoch,
        command.coordinator_epoch,
    )


def _admitted_before(case: Case) -> bool:
    """Whether a Command of the same envelope passed, and nothing that was looked at has changed since."""
    known = case.context.admitted
    key = _repeatable(case) if known else None
    found = None if key is None else known.get(key)
    if found is None:
        return False
    get = case.view.get
    same = (
        get(AGENTS, case.command.actor.id) is found.agent
        and get(GROUPS, case.group_id) is found.group
        and get(MISSIONS, found.mission.mission.mission_id) is found.mission
        and get(MEMBERSHIPS, found.member_key) is found.member
        and case.now == found.now
    )
    if same:
        case.roles = found.roles
    return same


def _remember(case: Case, group: GroupRow, mission_row: MissionRow, member: MembershipRow) -> None:
    key = _repeatable(case)
    agent = case.view.get(AGENTS, case.command.actor.id) if key is not None else None
    if key is not None and agent is not None:
        member_key = membership_key(case.group_id, case.command.actor)
        case.context.admitted[key] = Admitted(agent, group, mission_row, member, member_key, case.now, case.roles)


def _check_secrets(case: Case) -> None:
    """No token of this node enters Events, Messages, Artifacts, Cards or packages (R-12-13, decision F27)."""
    assert case.request is not None
    is_token = case.context.is_token
    document = case.request.verified.canonical
    if is_token is None or not may_hold_token(document):
        return
    if any(is_token(text) for text in token_shaped(document)):
        refuse(ErrorCode.INVALID_COMMAND, "the Command holds a token of this node; leave it out", "R-12-13")


def _admit_service(case: Case) -> None:
    """Services are authorized by Organization policy, without Membership (R-8-05)."""
    command = case.command
    required = MAY_SEND.get(command.kind, {}).get("S")
    services = case.context.services
    entitled = services.authority if required == AUTHORITY else services.organization
    group, mission_row = None, None
    if required is not None:
        _check_place(case)
        if command.group_id is not UNSET:
            group, mission_row = _find_group(case)
    _check_extensions(case, mission_row)
    if required is None or command.actor != entitled:
        refuse(ErrorCode.AUTH_FORBIDDEN, f"policy lets {command.actor.id} send no {command.kind}", "R-8-05")
    case.roles = frozenset({"S"})
    if group is not None:
        _check_archive(case, group)


def _check_place(case: Case) -> None:
    """Extension kinds may leave ``groupId`` out by schema; each of ours either needs it or has none (decision F32)."""
    in_group = case.command.kind in MISSION_ADMITS
    if in_group == (case.command.group_id is not UNSET):
        return
    what = "is about one Group: state groupId" if in_group else "belongs to the Organization: leave groupId out"
    refuse(ErrorCode.INVALID_COMMAND, f"{case.command.kind} {what}", "R-15.1-02", details={"path": "/groupId"})


def _check_session(case: Case) -> None:
    """An Agent acts under its newest Session Epoch only (R-19-12)."""
    command = case.command
    agent = case.view.get(AGENTS, command.actor.id)
    if agent is None:
        refuse(ErrorCode.AUTH_FORBIDDEN, "this Agent has no Agent Card", "R-6.4-18")
    if agent.card.status == "revoked":
        refuse(ErrorCode.AUTH_FORBIDDEN, "this Agent's Card is revoked", "R-19-14")
    if command.session_epoch != agent.session_epoch:
        refuse(
            ErrorCode.AUTH_STALE_SESSION,
            "the Session Epoch is not the current one; connect again",
            "R-19-12",
            details={"currentSessionEpoch": agent.session_epoch},
        )


def _find_group(case: Case) -> tuple[GroupRow, MissionRow]:
    group = case.view.get(GROUPS, case.group_id) if case.command.group_id is not UNSET else None
    if group is None:
        refuse(ErrorCode.GROUP_NOT_FOUND, "no such Group", "R-19-15")
    mission_row = case.view.get(MISSIONS, group.group.mission_id)
    assert mission_row is not None
    return group, mission_row


def _check_replaced_coordinator(case: Case, mission_row: MissionRow) -> None:
    """A replaced Coordinator learns that first, whatever its Membership is now (decision A7, R-7.2-09)."""
    epoch = case.command.coordinator_epoch
    if epoch is UNSET or epoch >= mission_row.mission.coordinator.coordinator_epoch:
        return
    if (epoch, case.command.actor.id) in mission_row.former_coordinators:
        _stale_coordinator(mission_row)


def _stale_coordinator(mission_row: MissionRow) -> None:
    refuse(
        ErrorCode.AUTH_STALE_COORDINATOR,
        "the Coordinator Epoch is not the current one",
        "R-19-13",
        details={"currentCoordinatorEpoch": mission_row.mission.coordinator.coordinator_epoch},
    )


def _check_membership(case: Case) -> MembershipRow:
    command = case.command
    member = case.view.get(MEMBERSHIPS, membership_key(case.group_id, command.actor))
    if member is None:
        refuse(ErrorCode.GROUP_NOT_FOUND, "no such Group", "R-19-15")
    held = member.membership
    if held.state == "ended" or (
        held.state == "provisional"
        and held.provisional_expires_at is not UNSET
        and case.passed(held.provisional_expires_at)
    ):
        refuse(ErrorCode.MEMBERSHIP_REQUIRED, "the Membership in this Group has ended", "R-19-16")
    if command.membership_epoch != held.membership_epoch:
        refuse(
            ErrorCode.MEMBERSHIP_STALE,
            "the Membership Epoch is not the current one",
            "R-19-17",
            details={"currentMembershipEpoch": held.membership_epoch},
        )
    if held.state == "provisional" and command.kind not in PROVISIONAL_MAY_SEND:
        refuse(ErrorCode.MEMBERSHIP_REQUIRED, "a provisional Member accepts or declines its offer first", "R-19-16")
    return member


def _letters(case: Case, mission_row: MissionRow, member: MembershipRow) -> frozenset[str]:
    """Where the actor stands, cut to what the kind allows and the Membership's scopes cover (decision F1)."""
    command = case.command
    actor = command.actor
    stands = {"M"}
    if actor.type == "agent":
        stands |= {"W", "K"}
        if actor.id == mission_row.mission.coordinator.agent_id and member.membership.role == "coordinator":
            stands.add("C")
        if getattr(case.request.payload if case.request else None, "delegation_grant_id", None) is not None:
            stands.add("G")
    if actor == mission_row.mission.mission_owner and member.membership.role == "mission_owner":
        stands.add("O")
    if mission_row.root_owner is not None and actor == mission_row.root_owner:
        stands.add("RO")
    scopes = member.membership.scopes
    return frozenset(
        [letter for letter, scope in MAY_SEND[command.kind].items() if letter in stands and scope in scopes]
    )


def acts_as_coordinator(case: Case, letters: frozenset[str]) -> bool:
    """Whether this Command rests on the Coordinator lease (R-15.1-10, reading 7)."""
    if "C" not in letters:
        return False
    payload: Any = case.request.payload if case.request is not None else None
    if case.command.kind == "work.fail":
        return payload.ownership_epoch is None
    return not (letters & {"W"} and case.command.coordinator_epoch is UNSET)


def _check_coordinator(case: Case, mission_row: MissionRow, letters: frozenset[str]) -> None:
    command = case.command
    current = mission_row.mission.coordinator
    if not acts_as_coordinator(case, letters):
        # A Coordinator Epoch that anybody else states is ignored (decision D67); what they lack is the role.
        if "O" in letters and mission_row.mission.parent is not UNSET and command.actor.type == "agent":
            _check_parent_lease(case, mission_row)
        return
    if command.coordinator_epoch is UNSET or command.coordinator_epoch != current.coordinator_epoch:
        _stale_coordinator(mission_row)
    lease = mission_row.coordinator_lease
    # The lease of a Mission that ended has ended with it; what is refused then is refused for the Mission's state.
    lapsed = mission_row.mission.state in MISSION_LIVE and (lease.state != "active" or case.passed(lease.expires_at))
    if lapsed and command.kind != "mission.renew_coordinator":
        refuse(ErrorCode.WORK_LEASE_EXPIRED, "the Coordinator lease has ended; renew it first", "R-19-27")


def _check_parent_lease(case: Case, mission_row: MissionRow) -> None:
    """A Parent Coordinator owns the child only while its own lease lasts (decision F38)."""
    assert mission_row.mission.parent is not UNSET
    parent = case.view.get(MISSIONS, mission_row.mission.parent.mission_id)
    if parent is None:
        return
    lease = parent.coordinator_lease
    if lease.state == "expired" or (lease.state == "active" and case.passed(lease.expires_at)):
        refuse(ErrorCode.WORK_LEASE_EXPIRED, "the Coordinator lease in the parent Mission has ended", "R-19-27")


def _check_extensions(case: Case, mission_row: MissionRow | None) -> None:
    """Critical extension data must be understood; the rest is relayed as it is (R-18-03, R-19-23, reading 11)."""
    command: Command = case.command
    if command.extensions is UNSET:
        return
    pinned: tuple[PinnedProfile, ...] = ()
    if mission_row is not None and mission_row.mission.pinned_profiles is not UNSET:
        pinned = mission_row.mission.pinned_profiles
    for uri, extension in command.extensions.items():
        if uri == CORE_EXTENSION or (uri == OFFLINE_EXTENSION and extension.version.split(".")[0] == "0"):
            continue
        major = extension.version.split(".", 1)[0]
        # A Group pins major versions: whatever is registered of one stands for all of it.
        registered = [
            row.profile
            for row in case.view.all(PROFILES)
            if row.profile.profile_uri == uri and row.profile.version.split(".", 1)[0] == major
        ]
        critical = extension.critical or any(profile.critical for profile in registered)
        known = bool(registered) and PinnedProfile(profile_uri=uri, major_version=int(major)) in pinned
        if critical and not known:
            refuse(
                ErrorCode.UNKNOWN_CRITICAL_EXTENSION,
                f"extension {uri} {extension.version} is critical and not supported in this Group",
                "R-19-23",
                details={"profileUri": uri, "receivedVersion": extension.version},
            )


def _check_archive(case: Case, group: GroupRow) -> None:
    if group.group.state == "archived" and case.command.kind != "ext.mwnode.core.event_tombstone":
        refuse(ErrorCode.INVALID_STATE_TRANSITION, "the Group is archived", "R-7.4-01")
