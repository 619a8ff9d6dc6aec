"""Who is offered a WorkItem: eligible Agents, best first, and the basis of the choice on record (R-10.3-11). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import UNSET, Struct, field

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


def called(candidates: Iterable[Candidate], name: str) -> str | None:
    """The Agent of that identifier or name; ``None`` unless exactly one is meant."""
    cards = [one.card for one in candidates if one.card.status == "active"]
    for means in (
        [card.agent_id for card in cards if card.agent_id == name],
        [card.agent_id for card in cards if card.display_name == name or card.agent_id.endswith(f":{name}")],
    ):
        if len(means) == 1:
            return means[0]
    return None


class Record(Struct):
    """What the Agents have of one Mission, and how it went so far: read off the board once, not for every choice."""

    load: Counter[str] = field(default_factory=Counter)
    """WorkItems that each Agent has, or is being offered."""
    accepted: dict[str, list[str]] = field(default_factory=dict)
    """WorkItems of each Agent whose results were accepted."""
    failed: Counter[str] = field(default_factory=Counter)


def record_of(board: Board, now: Instant) -> Record:
    """The record of one Mission as it stands. O(WorkItems)."""
    record = Record()
    for work_item_id, view in board.views.items():
        owner = view.owner_id
        if owner is not None and view.state in ("queued", "active"):
            record.load[owner] += 1
        elif owner is not None and view.state == "verified":
            record.accepted.setdefault(owner, []).append(work_item_id)
        if owner is not None and view.failure is not None:
            record.failed[owner] += 1
        if view.state == "offered" and view.item.offers is not UNSET:
            record.load.update(
                {one.agent_id for one in view.item.offers if one.status == "pending" and parse(one.expires_at) > now}
            )
    return record


def rank(
    board: Board,
    view: WorkView,
    candidates: Iterable[Candidate],
    now: Instant,
    record: Record,
    *,
    elsewhere: Mapping[str, int] = {},
    excluded: Sequence[str] = (),
) -> list[Ranked]:
    """Eligible Agents, best first (R-10.3-03).

    Ineligible: the Coordinator, whoever has another part in the Mission, revoked or outdated Cards, Cards without a
    required capability, ``excluded``. Agents that are not present come last; then whoever failed this very WorkItem;
    then free slots, what the Agent already has of this Mission and, by ``elsewhere``, of the Coordinator's others, and
    results accepted against failures decide.
    """
    contract = view.item.contract
    ranked = []
    for candidate in candidates:
        card = candidate.card
        verified = matches(card.capabilities, contract.required_capabilities)
        outdated = card.valid_until is not UNSET and parse(card.valid_until) <= now
        if verified is None or card.status != "active" or outdated or card.agent_id in excluded:
            continue
        if card.agent_id == board.coordinator_id or _has_another_part(board, card.agent_id):
            continue
        presence = candidate.presence
        present = presence is not None and presence.status in ("online", "busy") and parse(presence.expires_at) > now
        load = record.load[card.agent_id] + elsewhere.get(card.agent_id, 0)
        free = 0
        if presence is not None and present:
            # Presence is a moment old: what was given out since then counts too.
            taken = max(presence.capacity.active_slots + presence.capacity.queued_items, load)
            free = max(0, presence.capacity.max_slots - taken)
        accepted = [f"accepted {work_item_id}" for work_item_id in record.accepted.get(card.agent_id, ())]
        failed = record.failed[card.agent_id]
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


def _has_another_part(board: Board, agent_id: str) -> bool:
    """Whether the Agent is a Member who may accept no work: an observer, or the owner of a child Mission."""
    membership = board.memberships.get(agent_id)
    return membership is not None and membership.state == "active" and "work.accept_offer" not in membership.scopes
