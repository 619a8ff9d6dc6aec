"""Who may be offered a WorkItem, and how much one Agent may take on."""

from __future__ import annotations

from msgspec import UNSET

from mwnode.authority.case import Case, refuse
from mwnode.authority.items import as_agent
from mwnode.authority.state import AGENTS, AgentRow
from mwnode.protocol.capabilities import covers, satisfies
from mwnode.protocol.documents import CapabilityRef, Membership, WorkContract
from mwnode.protocol.errors import ErrorCode


def check_card(case: Case, agent_id: str, contract: WorkContract) -> AgentRow:
    """The Agent's Card is in force and covers the contract: AUTH_FORBIDDEN (R-7.1-31, decision D9)."""
    agent = case.view.get(AGENTS, agent_id)
    if agent is None or agent.card.status != "active":
        refuse(
            ErrorCode.AUTH_FORBIDDEN, f"{agent_id} has no active Agent Card", "R-19-14", details={"agentId": agent_id}
        )
    if agent.card.valid_until is not UNSET and case.passed(agent.card.valid_until):
        refuse(
            ErrorCode.AUTH_FORBIDDEN, f"the Agent Card of {agent_id} is over", "R-19-14", details={"agentId": agent_id}
        )
    if not covers(agent.card.capabilities, contract.required_capabilities):
        refuse(
            ErrorCode.AUTH_FORBIDDEN,
            f"{agent_id} does not have every capability that the contract requires",
            "R-7.1-31",
            details={"agentId": agent_id},
        )
    return agent


def check_candidate(case: Case, agent_id: str, contract: WorkContract) -> AgentRow:
    """Candidates are Members already, and may accept offers (decisions D11, D14)."""
    member = case.membership(as_agent(agent_id))
    held = None if member is None else member.membership
    if held is None or held.state == "ended" or _lapsed(case, held):
        refuse(
            ErrorCode.MEMBERSHIP_REQUIRED,
            f"{agent_id} is no Member of this Group; send membership.change first",
            "R-19-16",
            details={"agentId": agent_id},
        )
    if "work.accept_offer" not in held.scopes:
        refuse(
            ErrorCode.AUTH_FORBIDDEN,
            f"the Membership of {agent_id} does not let it accept offers",
            "R-19-14",
            details={"agentId": agent_id},
        )
    return check_card(case, agent_id, contract)


def _lapsed(case: Case, membership: Membership) -> bool:
    """A provisional Membership past its end is over, without an Event (decision D43)."""
    until = membership.provisional_expires_at
    return membership.state == "provisional" and until is not UNSET and case.passed(until)


def active_limit(case: Case, agent: AgentRow) -> int:
    """Active WorkItems that an Agent may have: policy's number or its Card's, the smaller (decision D60)."""
    return min(case.policy.active_work_items, agent.card.max_concurrency)


def pins_of(agent: AgentRow, contract: WorkContract) -> tuple[CapabilityRef, ...]:
    """For each required capability the version that the Agent has."""
    return tuple(
        CapabilityRef(
            id=required.id, version=next(h.version for h in agent.card.capabilities if satisfies(h, required))
        )
        for required in contract.required_capabilities
    )
