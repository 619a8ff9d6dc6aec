"""Finding somebody for a WorkItem: choose, make a Member, offer; again after a decline, an expiry or a failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from mwnode.client.fold import WorkView
from mwnode.coordinator.candidates import Candidate, Ranked, Record, rank, record_of
from mwnode.coordinator.graph import Instance, replace_contract
from mwnode.coordinator.whole import Whole
from mwnode.protocol import terms
from mwnode.protocol.assessments import request_in
from mwnode.protocol.commands import MembershipChange, WorkOffer
from mwnode.protocol.documents import Actor, Lease, Offer, WorkContract
from mwnode.protocol.errors import ErrorCode, MissionWeaveError
from mwnode.protocol.instants import Instant, parse, parse_duration

OFFER_SECONDS = 120
URGENT_CANDIDATES = 3
"""A critical WorkItem is offered to so many at once (R-10.3-04)."""
MEMBERSHIP_MARGIN_SECONDS = 60
ABSENT_SECONDS = 10.0
"""So long a present candidate is waited for before an absent one is offered the work."""
DECLINED_SECONDS = 30.0
"""After the first decline for a passing reason the same Agent is asked again so many seconds later."""
OFTEN = 3
"""Declines in a row after which the MissionOwner is told."""
LASTING_SECONDS = 900.0
"""After any other decline it is asked again so late, unless its Agent Card changes first."""
PASSING_DECLINES = frozenset({"capacity", "deadline", "budget", "dependency"})
_LATER = ("inputs", "rework", "clarifications", "deliverables")
"""Constraints that may change after a WorkItem was authorized."""
REWORK_FAILURES = frozenset({"REWORK", "EVIDENCE_MISSING", "RESULT_REFUSED"})
ATTEMPTS_MAX = 1000
ASKED_AGAIN = "ASKED_AGAIN"
"""Name of the failure by which work is taken back that has to be accepted anew."""


class Placing:
    """The offers of one Mission. Part of the engine, kept apart because it is an idea of its own."""

    def __init__(self, engine: Whole) -> None:
        self.engine = engine
        self._first_seen: dict[str, float] = {}
        self._record: tuple[int, float, Record] = (-1, 0.0, Record())
        self._declined: dict[str, tuple[float, Instant]] = {}
        """When each decline was first seen, in monotonic seconds and by the clock."""
        self._barred: dict[tuple[str, str], float] = {}
        """WorkItem and Agent that the authority refused to put together, until a monotonic time in seconds."""
        self._overtaken: set[str] = set()
        """Offers that came too late once."""

    def place(
        self,
        instance: Instance,
        instances: Mapping[str, Instance],
        view: WorkView,
        *,
        excluded: Sequence[str] = (),
    ) -> None:
        """Offer the WorkItem to the best eligible candidate, if it needs somebody now."""
        engine = self.engine
        now = engine.clock.now()
        if not self.startable(view):
            return
        if not self._vacant(view, now):
            return
        if view.state == "failed" and not self._again(instance, view):
            return
        if engine.clarifying.holds(instance.local, view):
            return
        urgent = view.item.contract.requested_urgency == "critical"
        # A corrected contract is offered at once: nobody can accept the unclear one meanwhile (R-10.1-21).
        pending = [] if engine.clarifying.is_due(view) else self._pending(view, now)
        if len(pending) >= (URGENT_CANDIDATES if urgent else 1):
            return
        if not engine.have_inputs(instance.local):
            return
        engine.look_up()
        ranked = rank(
            engine.board,
            view,
            engine.people,
            now,
            self.record(now),
            elsewhere=engine.elsewhere(),
            excluded=[*excluded, *pending, *self._excluded(view, now)],
        )
        chosen = self._present_first(view, ranked, now)
        for candidate in chosen[: URGENT_CANDIDATES - len(pending) if urgent else 1]:
            self._approach(instance, instances, view, candidate, now)

    def record(self, now: Instant) -> Record:
        """What the Agents have of this Mission; read anew when an Event came, or after a second."""
        sequence, at, record = self._record
        monotonic = self.engine.clock.monotonic()
        if sequence != self.engine.board.sequence or monotonic > at + 1:
            record = record_of(self.engine.board, now)
            self._record = (self.engine.board.sequence, monotonic, record)
        return record

    def startable(self, view: WorkView) -> bool:
        """Whether everything that the WorkItem depends on is verified."""
        others = (self.engine.board.views.get(one) for one in view.item.contract.dependency_work_item_ids)
        return all(other is not None and other.state == "verified" for other in others)

    def _vacant(self, view: WorkView, now: Instant) -> bool:
        """Whether nobody holds the WorkItem: no owner, or one whose right has run out (decision A18)."""

        def ended(lease: Lease | None) -> bool:
            return lease is None or lease.state != "active" or parse(lease.expires_at) <= now

        match view.state:
            case "open" | "offered" | "failed":
                return True
            case "queued":
                lease = view.ownership_lease
                late = lease is not None and lease.start_by is not UNSET and parse(lease.start_by) <= now
                return ended(lease) or late
            case "active":
                return ended(view.execution_lease)
            case "blocked":
                return view.blocked_lease is not None and ended(view.blocked_lease)
        return False

    def _again(self, instance: Instance, view: WorkView) -> bool:
        """Whether a failed WorkItem is tried once more: within attempts, backoff and deadline (R-11.4-08)."""
        engine = self.engine
        policy = view.item.contract.retry_policy
        key = f"failed {view.work_item_id} {view.attempts}"
        if self.is_final(view):
            if self._asked_again(view):
                return True
            used_up = view.attempts >= policy.max_attempts
            why = f"all {policy.max_attempts} attempts failed" if used_up else "it cannot be tried again"
            reason = _failure(view)[2]
            engine.say(
                key,
                f"{instance.local} failed and {why}: {reason}. "
                f"`mwnode mission retry ID {instance.local}` has it tried again; else cancel the Mission.",
            )
            return False
        delay = _delay(policy.backoff, float(parse_duration(policy.max_delay)), view.attempts)
        return engine.clock.monotonic() >= self._since(key) + delay

    def _asked_again(self, view: WorkView) -> bool:
        """Whether the owner wants another try of what failed for good, and said so after it had failed."""
        asked_at = self.engine.board.retry(view.work_item_id).sequence
        return asked_at > self.engine.board.failed_at.get(view.work_item_id, 0) or _failure(view)[0] == ASKED_AGAIN

    def is_final(self, view: WorkView) -> bool:
        """Whether a failed WorkItem is not tried again: for good, of an unexpected kind, or once too often."""
        policy = view.item.contract.retry_policy
        failure, permanent, _ = _failure(view)
        retryable = failure in policy.retryable_failures or failure in REWORK_FAILURES or failure == ASKED_AGAIN
        return permanent or not retryable or view.attempts >= policy.max_attempts

    def _since(self, key: str) -> float:
        return self._first_seen.setdefault(key, self.engine.clock.monotonic())

    def _pending(self, view: WorkView, now: Instant) -> list[str]:
        if view.state != "offered":
            return []
        return [offer.agent_id for offer in _newest(view).values() if _open(offer, now)]

    def _excluded(self, view: WorkView, now: Instant) -> list[str]:
        """Agents that said no to this contract, or that the authority refused for it."""
        monotonic = self.engine.clock.monotonic()
        excluded = [
            agent for (item, agent), until in self._barred.items() if item == view.work_item_id and monotonic < until
        ]
        people = {one.card.agent_id: one for one in self.engine.people}
        for agent_id, offer in _newest(view).items():
            if offer.status == "declined" and self._still_declined(view, offer, people.get(agent_id)):
                excluded.append(agent_id)
        return excluded

    def _still_declined(self, view: WorkView, offer: Offer, candidate: Candidate | None) -> bool:
        """Whether a decline still stands. No answer is for ever: a new Agent Card may say otherwise, room comes back,
        and after a while the Agent is asked again whatever it was. The pauses double with each decline in a row."""
        clock = self.engine.clock
        monotonic, seen_at = self._declined.setdefault(offer.offer_id, (clock.monotonic(), clock.now()))
        if candidate is not None and candidate.card.card_version != offer.agent_card_version:
            return False
        times = _declines(view, offer.agent_id)
        presence = None if candidate is None else candidate.presence
        first = offer.decline_reason == "capacity" and times == 1
        if first and presence is not None and presence.capacity.available_slots > 0:
            return parse(presence.last_heartbeat) <= seen_at
        if offer.decline_reason not in PASSING_DECLINES:
            return clock.monotonic() - monotonic < LASTING_SECONDS
        pause = min(DECLINED_SECONDS * 2.0 ** (times - 1), LASTING_SECONDS)
        if times >= OFTEN:
            self.engine.say(
                f"declines {view.work_item_id} {offer.agent_id}",
                f"{offer.agent_id} keeps declining {view.item.contract.goal!r} ({offer.decline_reason}): "
                f"it is asked again after pauses of up to {LASTING_SECONDS:.0f} seconds.",
            )
        return clock.monotonic() - monotonic < pause

    def _present_first(self, view: WorkView, ranked: list[Ranked], now: Instant) -> list[Ranked]:
        """Present candidates; absent ones only after somebody was waited for in vain."""
        engine = self.engine
        present = {
            one.card.agent_id
            for one in engine.people
            if one.presence is not None and parse(one.presence.expires_at) > now and one.presence.status != "draining"
        }
        here = [one for one in ranked if one.card.agent_id in present]
        key = f"waiting {view.work_item_id} {view.item.revision}"
        if here:
            self._first_seen.pop(key, None)
            return here
        if engine.clock.monotonic() < self._since(key) + ABSENT_SECONDS:
            return []
        if not ranked:
            wanted = ", ".join(f"{one.id}@{one.version}" for one in view.item.contract.required_capabilities)
            engine.say(f"nobody {key}", f"No Agent can be offered {view.item.contract.goal!r}: it needs {wanted}.")
        return ranked

    def _approach(
        self,
        instance: Instance,
        instances: Mapping[str, Instance],
        view: WorkView,
        candidate: Ranked,
        now: Instant,
    ) -> None:
        """Make the candidate a Member if it is none (R-8-08, R-8-09), then offer (R-8-10)."""
        engine = self.engine
        agent_id = candidate.card.agent_id
        key = f"offer {view.work_item_id}"
        if not engine.free(key):
            return
        contract = self._contract(instance, instances, view, now)
        hashes = (contract or view.item.contract).input_artifacts
        membership = engine.board.memberships.get(agent_id)
        reviews = request_in(view.item.contract) is not None
        standing = membership is not None and membership.state == "active"
        if membership is not None and membership.state == "provisional":
            expires = membership.provisional_expires_at
            standing = expires is not UNSET and parse(expires) > now.plus(MEMBERSHIP_MARGIN_SECONDS)
        active = membership is not None and membership.state == "active"
        if reviews and membership is not None and "work.review" not in membership.scopes:
            standing = False  # its Evidence would count for nothing in a review (decision F1)
        if not standing:
            member_key = f"member {agent_id}"
            if engine.free(member_key):
                change = MembershipChange(
                    principal=Actor(type="agent", id=agent_id),
                    role="reviewer" if reviews else "worker",
                    provisional=not active,
                    context_package=engine.papers.package(engine.board, view, hashes),
                    expected_membership_epoch=None if membership is None else membership.membership_epoch,
                )
                engine.send(member_key, "membership.change", change)
                engine.note("choose", work=instance.local, agentId=agent_id)
            return
        offer = WorkOffer(
            work_item_id=view.work_item_id,
            candidate_agent_ids=(agent_id,),
            selection_basis=candidate.basis,
            offer_expires_in_seconds=OFFER_SECONDS,
            contract=contract,
            context_package=engine.papers.package(engine.board, view, hashes),
        )
        engine.send(key, "work.offer", offer, view=view)
        # Until its Event is here the next choice must know of it too.
        self._record[2].load[agent_id] += 1
        engine.note("offer", work=instance.local, agentId=agent_id)

    def _contract(
        self, instance: Instance, instances: Mapping[str, Instance], view: WorkView, now: Instant
    ) -> WorkContract | None:
        """A revised contract, if results of other works or words of the review must be added; else ``None``."""
        engine = self.engine
        standing = view.item.contract
        failure, _, reason = _failure(view)
        rework = reason if view.state == "failed" and failure in REWORK_FAILURES else None
        wanted = engine.graph.contract(
            instance,
            instances,
            engine.inputs.get(instance.local, {}),
            now,
            version=standing.contract_version,
            rework=rework if rework is not None else _constraint(standing, "rework"),
        )
        wanted = engine.clarifying.amended(view, wanted)
        members: dict[str, Any] = {}
        used_up = view.attempts >= standing.retry_policy.max_attempts
        if view.state == "failed" and used_up and self._asked_again(view):
            # Beyond its attempts it is offered only under a contract that allows more of them (decision D47).
            policy = standing.retry_policy
            attempts = min(view.attempts + policy.max_attempts, ATTEMPTS_MAX)
            members["retry_policy"] = msgspec.structs.replace(policy, max_attempts=attempts)
        budget = engine.board.retry(view.work_item_id).budget
        if budget is not None and budget != standing.budget:
            members["budget"] = budget
        # Only what may have come later is compared: deadlines counted from now would make every contract a new one.
        if not members and all(_constraint(wanted, name) == _constraint(standing, name) for name in _LATER):
            return None
        return replace_contract(
            standing,
            contract_version=standing.contract_version + 1,
            input_artifacts=wanted.input_artifacts,
            constraints=wanted.constraints,
            **members,
        )

    def refused(self, key: str, error: MissionWeaveError) -> float | None:
        """A membership or an offer was refused: for a lasting reason it is left alone for so many seconds."""
        engine = self.engine
        lasting = (ErrorCode.AUTH_FORBIDDEN, ErrorCode.INVALID_COMMAND, ErrorCode.INVALID_STATE_TRANSITION)
        if error.code not in lasting:
            return None
        if error.code is ErrorCode.INVALID_STATE_TRANSITION and key not in self._overtaken:
            # Somebody accepted another offer meanwhile: the Event that tells so is on its way.
            self._overtaken.add(key)
            return None
        target = key.partition(" ")[2]
        until = engine.clock.monotonic() + 2 * DECLINED_SECONDS
        for view in engine.board.views.values():
            if key.startswith("member "):
                self._barred[view.work_item_id, target] = until
        engine.say(f"refused {key} {error.code.value}", f"{key} was refused ({error.code.value}): {error.message}")
        return DECLINED_SECONDS


def _newest(view: WorkView) -> dict[str, Offer]:
    """Each Agent's newest offer of the WorkItem."""
    offers = () if view.item.offers is UNSET else view.item.offers
    return {offer.agent_id: offer for offer in offers}


def _declines(view: WorkView, agent_id: str) -> int:
    """How often in a row the Agent has declined the WorkItem, up to now."""
    times = 0
    for offer in () if view.item.offers is UNSET else view.item.offers:
        if offer.agent_id == agent_id and offer.status in ("declined", "accepted"):
            times = times + 1 if offer.status == "declined" else 0
    return times


def _open(offer: Offer, now: Instant) -> bool:
    return offer.status == "pending" and parse(offer.expires_at) > now


def _constraint(contract: WorkContract, name: str) -> Any:
    return terms.of(contract).get(name)


def _failure(view: WorkView) -> tuple[str, bool, str]:
    """Name of the last failure, whether it is permanent, and its reason."""
    if view.failure is None:
        return "", False, ""
    details: Mapping[str, Any] = {}
    for evidence in view.failure.evidence:
        if evidence.type == "failure_report" and evidence.details is not UNSET:
            details = evidence.details
    name, _, rest = view.failure.reason.partition(": ")
    failure = str(details.get("failure") or (name if name.isupper() else "EXECUTOR_FAILED"))
    return failure, details.get("permanent") is True, rest or view.failure.reason


def _delay(backoff: str, max_delay: float, attempt: int) -> float:
    if backoff == "none":
        return 0.0
    return max_delay if backoff == "fixed" else float(min(max_delay, 2 ** max(0, attempt - 1)))
