"""Cooperation limits: how much one Principal may say, propose, delegate and take on, and the one way past a limit.

A limit is passed only with a Cooperation Override Grant made for exactly that Command (R-20-07). The Grant is consumed
by the Command's acceptance and by nothing else: a refused Command leaves it whole (R-20-11).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache

from msgspec import UNSET, structs

from mwnode.authority.case import Case, refuse
from mwnode.authority.request import EventFact
from mwnode.authority.state import OVERRIDES, RATE_TIMES_KEPT, RATES, OverrideRow, RateRow
from mwnode.authority.table import admit_mission
from mwnode.authority.view import Overlay
from mwnode.protocol.commands import CORE, PolicyGrantCooperationOverride, PolicyName
from mwnode.protocol.documents import Cause
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import CooperationOverrideGrant, OverrideGranted, ThresholdCrossed
from mwnode.protocol.identifiers import policy_cause_id
from mwnode.protocol.instants import parse

WINDOW_MICROSECONDS = 60_000_000
"""Rates are counted over a sliding minute of accepted Events (decision D59)."""

LIMITED: dict[PolicyName, frozenset[str]] = {
    "message_rate": frozenset({"message.post"}),
    "proposal_rate": frozenset({"work.propose"}),
    "delegation_depth": frozenset({"mission.create_child", "work.authorize", "membership.grant_delegation"}),
    "queued_work_items": frozenset({"work.accept_offer"}),
    "active_work_items": frozenset({"work.accept_offer", "work.start"}),
}
"""Which Command kinds each limit can stop, and an override can let pass."""

RECEIPTS: dict[str, str] = {
    "message.post": "message.posted",
    "work.propose": "work.proposed",
    "mission.create_child": "mission.child.created",
    "work.authorize": "work.authorized",
    "membership.grant_delegation": "membership.delegation.granted",
    "work.accept_offer": "work.offer.accepted",
    "work.start": "work.started",
}
"""The Event that consumes an override of a Command of that kind."""


# --- limits -----------------------------------------------------------------------------------------------------------


def pass_limit(
    case: Case, policy_name: PolicyName, exceeded: bool, message: str, *, rule: str, retry_after_ms: int | None = None
) -> None:
    """Let the Command through unless it exceeds a limit and cites no override that fits (R-20-07).

    RATE_LIMITED without an override, with ``retry_after_ms`` where waiting helps; AUTH_FORBIDDEN when the override
    cited does not fit (reading 13).
    """
    if not exceeded:
        return
    grant_id = case.command.cooperation_override_grant_id
    if grant_id is UNSET:
        refuse(
            ErrorCode.RATE_LIMITED,
            f"{message}; wait, or ask the MissionOwner for a Cooperation Override Grant",
            rule,
            details={"policyName": policy_name},
            retry_after_ms=retry_after_ms,
        )
    _check_override(case, grant_id, policy_name)
    case.override_used = grant_id


def _check_override(case: Case, grant_id: str, policy_name: PolicyName) -> None:
    """Everything that a Grant binds must fit (R-20-09, R-20-10, R-20-13)."""
    row = case.view.get(OVERRIDES, grant_id)
    if row is None:
        refuse(ErrorCode.AUTH_FORBIDDEN, f"no Cooperation Override Grant {grant_id} is known", "R-20-09")
    grant = row.grant
    if grant.consumed_at is not UNSET or case.override_used is not None:
        refuse(
            ErrorCode.AUTH_FORBIDDEN, "the Cooperation Override Grant is consumed; it passes one limit once", "R-20-13"
        )
    if case.passed(grant.expires_at):
        refuse(ErrorCode.AUTH_FORBIDDEN, "the Cooperation Override Grant has expired", "R-20-09")
    command, mission = case.command, case.mission().mission
    fits = {
        "missionId": grant.mission_id == mission.mission_id,
        "groupId": grant.group_id == case.group_id,
        "beneficiary": grant.beneficiary == command.actor,
        "targetCommandKind": grant.target_command_kind == command.kind,
        "targetActionId": grant.target_action_id == command.action_id,
        "policyName": grant.policy_name == policy_name,
        "approver": grant.approver.type == "service" or grant.approver == mission.mission_owner,
    }
    wrong = [name for name, fit in fits.items() if not fit]
    if wrong:
        refuse(
            ErrorCode.AUTH_FORBIDDEN,
            f"the Cooperation Override Grant was made for another Command: {', '.join(wrong)} differ",
            "R-20-10",
            details={"members": wrong},
        )


def settle(case: Case) -> None:
    """After the handler: an override that was cited must have been needed; its use enters the Policy Log (R-20-12)."""
    _warn_of_long_logs(case)
    grant_id = case.command.cooperation_override_grant_id
    if grant_id is UNSET:
        return
    if case.override_used is None:
        refuse(
            ErrorCode.INVALID_COMMAND,
            "cooperationOverrideGrantId is cited, but this Command exceeds no limit; send it without",
            "R-20-11",
            details={"path": "/cooperationOverrideGrantId"},
        )
    row = case.view.get(OVERRIDES, grant_id)
    assert row is not None, "pass_limit found the Grant"
    grant = row.grant
    assert grant.consumed_event_id is not UNSET, "the receipt consumed the Grant"
    case.note_policy(
        "cooperation override consumed",
        {
            "grantId": grant.grant_id,
            "missionId": grant.mission_id,
            "groupId": grant.group_id,
            "policyName": grant.policy_name,
            "targetCommandKind": grant.target_command_kind,
            "targetActionId": grant.target_action_id,
            "consumedEventId": grant.consumed_event_id,
        },
        group_id=grant.group_id,
    )


def _warn_of_long_logs(case: Case) -> None:
    """A soft threshold: the Coordinator is told once, and work goes on (R-20-04, decision F18)."""
    limit = case.policy.group_event_warning
    for group_id, head in list(case.view.heads.items()):
        if limit <= head and case.view.base.head(group_id) < limit:
            mission = case.mission(group_id).mission
            case.emit(
                f"{CORE}.threshold_crossed",
                ThresholdCrossed(
                    revision=mission.revision,
                    state=mission.state,
                    threshold="group_event_warning",
                    limit=limit,
                    value=head,
                ),
                group_id=group_id,
                cause=Cause(type="policy", id=policy_cause_id("group_event_warning")),
                actor=case.context.services.authority,
            )


def _fold_threshold(view: Overlay, fact: EventFact) -> None:
    """A notice; the state does not change."""


def consume(view: Overlay, fact: EventFact) -> None:
    """Fold the acceptance of a Command that cited an override: the Grant is consumed (R-20-11)."""
    assert fact.override_grant_id is not None
    row = view.get(OVERRIDES, fact.override_grant_id)
    if row is None or row.grant.consumed_at is not UNSET or RECEIPTS.get(row.grant.target_command_kind) != fact.kind:
        return
    consumed = structs.replace(row.grant, consumed_at=fact.occurred_at, consumed_event_id=fact.event_id)
    view.put(OVERRIDES, OverrideRow(consumed))


# --- rates ------------------------------------------------------------------------------------------------------------


def _rate_key(policy_name: str, group_id: str, actor_type: str, actor_id: str) -> str:
    return f"{policy_name} {group_id} {actor_type} {actor_id}"


def rated_in(row: RateRow) -> str:
    """The Group in which the actor did what is counted."""
    return row.key.split(" ")[1]


@lru_cache(maxsize=256)
def _microseconds(timestamp: str) -> int:
    return parse(timestamp).whole_microseconds()


def check_rate(case: Case, policy_name: PolicyName, limit: int) -> None:
    """Refuse one more than ``limit`` within a minute, per actor and Group (R-20-01, decision D59).

    Exact to the microsecond up to ``RATE_TIMES_KEPT``; a higher limit counts what is older by whole seconds.
    """
    actor = case.command.actor
    row = case.view.get(RATES, _rate_key(policy_name, case.group_id, actor.type, actor.id))
    retry_after_ms = None
    if row is not None and len(row.times) + sum([count for _, count in row.older]) >= limit:
        retry_after_ms = _wait_for_room(row, case.now.whole_microseconds(), limit)
    pass_limit(
        case,
        policy_name,
        retry_after_ms is not None,
        f"at most {limit} per minute are allowed by {policy_name}",
        rule="R-20-01",
        retry_after_ms=retry_after_ms,
    )


def _wait_for_room(row: RateRow, now: int, limit: int) -> int | None:
    """Milliseconds until one more is allowed, started ones in full; ``None`` when it is allowed now."""
    since = now - WINDOW_MICROSECONDS
    if len(row.times) >= limit:
        # Room comes when the limit-th newest has left the window.
        leaves = row.times[-limit]
    else:
        # The limit-th newest lies in some whole second before the exact ones: room comes when that second has passed.
        missing = limit - len(row.times)
        leaves = 0
        for second, count in reversed(row.older):
            missing -= count
            if missing <= 0:
                leaves = (second + 1) * 1_000_000
                break
    return -((since - leaves) // 1000) if leaves > since else None


def count_rate(view: Overlay, policy_name: PolicyName, fact: EventFact) -> None:
    """Fold one accepted Event whose rate is limited."""
    assert fact.group_id is not None
    key = _rate_key(policy_name, fact.group_id, fact.actor.type, fact.actor.id)
    row = view.get(RATES, key) or RateRow(key)
    time = _microseconds(fact.occurred_at)
    since = time - WINDOW_MICROSECONDS
    times = row.times
    start = 0 if not times or times[0] > since else bisect_right(times, since)
    older = row.older
    if older and older[0][0] < since // 1_000_000:
        older = tuple(entry for entry in older if entry[0] >= since // 1_000_000)
    if len(times) - start >= RATE_TIMES_KEPT:
        second = times[start] // 1_000_000
        start += 1
        if older and older[-1][0] == second:
            older = (*older[:-1], (second, older[-1][1] + 1))
        else:
            older = (*older, (second, 1))
    view.put(RATES, RateRow(key, (*times[start:], time), older))


# --- policy.grant_cooperation_override --------------------------------------------------------------------------------


def grant_override(case: Case) -> None:
    """Issue one Cooperation Override Grant for one Command to come (R-20-08)."""
    payload = case.payload(PolicyGrantCooperationOverride)
    mission = case.mission().mission
    admit_mission(mission.state, case.command.kind)
    case.unused(OVERRIDES, payload.grant_id, "Cooperation Override Grant")
    if payload.target_command_kind not in LIMITED[payload.policy_name]:
        refuse(
            ErrorCode.INVALID_COMMAND,
            f"{payload.policy_name} never stops {payload.target_command_kind}",
            "R-20-10",
            details={"path": "/payload/targetCommandKind"},
        )
    if case.passed(payload.expires_at) or parse(payload.expires_at) > parse(mission.deadline):
        refuse(
            ErrorCode.INVALID_COMMAND,
            "expiresAt must lie after now and not after the Mission's deadline",
            "R-20-08",
            details={"path": "/payload/expiresAt"},
        )
    member = case.membership(payload.beneficiary)
    if member is None or member.membership.state == "ended":
        refuse(ErrorCode.AUTH_FORBIDDEN, "the beneficiary is no Member of this Group", "R-20-08")
    if case.view.accepted(payload.beneficiary.id, payload.target_action_id):
        refuse(
            ErrorCode.INVALID_STATE_TRANSITION,
            "the target Command was accepted already; nothing is left to pass",
            "R-20-08",
        )
    case.expect_revision(mission.revision)
    grant = CooperationOverrideGrant(
        grant_id=payload.grant_id,
        mission_id=mission.mission_id,
        group_id=mission.group_id,
        policy_name=payload.policy_name,
        beneficiary=payload.beneficiary,
        target_command_kind=payload.target_command_kind,
        target_action_id=payload.target_action_id,
        approver=case.command.actor,
        reason=payload.reason,
        granted_at=case.now_text,
        expires_at=payload.expires_at,
    )
    fact = case.emit(
        "policy.cooperation_override.granted",
        OverrideGranted(revision=mission.revision, state=mission.state, cooperation_override_grant=grant),
    )
    case.note_policy(
        "cooperation override granted",
        {
            "grantId": grant.grant_id,
            "missionId": grant.mission_id,
            "groupId": grant.group_id,
            "policyName": grant.policy_name,
            "beneficiaryType": grant.beneficiary.type,
            "beneficiaryId": grant.beneficiary.id,
            "targetCommandKind": grant.target_command_kind,
            "targetActionId": grant.target_action_id,
            "reason": grant.reason,
            "expiresAt": grant.expires_at,
            "grantedEventId": fact.event_id,
        },
        group_id=grant.group_id,
    )


def _fold_granted(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, OverrideGranted)
    view.put(OVERRIDES, OverrideRow(payload.cooperation_override_grant))


DECIDERS: dict[str, Callable[[Case], None]] = {"policy.grant_cooperation_override": grant_override}
EVOLVERS: dict[str, Callable[[Overlay, EventFact], None]] = {
    "policy.cooperation_override.granted": _fold_granted,
    f"{CORE}.threshold_crossed": _fold_threshold,
}
