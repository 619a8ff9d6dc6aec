"""Who is offered a WorkItem: eligible Agents, best first, and the basis of the choice on record (R-10.3-11). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import UNSET, Struct

from mwnode.client.fold import WorkView
from mwnode.coordinator.board import Board
from mwnode.protocol.capabilities import matches
from mwnode.protocol.documents import AgentCard, PresenceRecord, SelectionBasis
from mwnode.protocol.instants import Instant, parse

RULES = ("capability-match", "card-active", "present-first", "free-slots-first", "least-loaded-first", "reliable-first")


class Candidate(Struct, frozen=True):
    """One Agent as the Registry and Presence tell it."""

    card: AgentCard
    presence: PresenceRecord | None


class Ranked(Struct, frozen=True):
    card: AgentCard
    basis: SelectionBasis


def rank(
    board: Board, view: WorkView, candidates: Iterable[Candidate], now: Instant, *, excluded: Sequence[str] = ()
) -> list[Ranked]:
    """Eligible Agents, best first (R-10.3-03).

    Ineligible: the Coordinator, revoked or outdated Cards, Cards without a required capability, ``excluded``. Agents
    that are not present come last; then whoever failed this very WorkItem; then free slots, what the Agent already has
    of this Mission, and results accepted against failures decide.
    """
    contract = view.item.contract
    ranked = []
    for candidate in candidates:
        card = candidate.card
        verified = matches(card.capabilities, contract.required_capabilities)
        outdated = card.valid_until is not UNSET and parse(card.valid_until) <= now
        if verified is None or card.status != "active" or outdated or card.agent_id in excluded:
            continue
        if card.agent_id == board.coordinator_id:
            continue
        presence = candidate.presence
        present = presence is not None and presence.status in ("online", "busy") and parse(presence.expires_at) > now
        load = _load(board, card.agent_id, now)
        free = 0
        if presence is not None and present:
            # Presence is a moment old: what this Mission gave out since then counts too.
            taken = max(presence.capacity.active_slots + presence.capacity.queued_items, load)
            free = max(0, presence.capacity.max_slots - taken)
        accepted = [
            f"accepted {work_item_id}"
            for work_item_id, other in board.views.items()
            if other.owner_id == card.agent_id and other.state == "verified"
        ]
        failed = sum(
            1 for other in board.views.values() if other.failure is not None and other.owner_id == card.agent_id
        )
        failed_this = view.failure is not None and view.owner_id == card.agent_id
        basis = SelectionBasis(
            required_capabilities=contract.required_capabilities,
            verified_matches=verified,
            authorization_eligible=True,
            availability_estimate=(now if free else now.plus(300)).text(),
            expected_cost=0,
            reliability_evidence=tuple(board.facts[fact] for fact in accepted if fact in board.facts),
            policy_rules_applied=RULES,
        )
        order = (not present, failed_this, free == 0, load, failed - len(accepted), card.agent_id)
        ranked.append((order, Ranked(card, basis)))
    return [entry for _, entry in sorted(ranked, key=lambda pair: pair[0])]


def _load(board: Board, agent_id: str, now: Instant) -> int:
    """WorkItems of this Mission that the Agent has, or is being offered."""
    load = 0
    for view in board.views.values():
        offers = () if view.item.offers is UNSET else view.item.offers
        offered = any(
            offer.agent_id == agent_id and offer.status == "pending" and parse(offer.expires_at) > now
            for offer in offers
        )
        if (view.state in ("queued", "active") and view.owner_id == agent_id) or (view.state == "offered" and offered):
            load += 1
    return load
