"""Offers: considered once, answered once, and raised as a question where the contract is ambiguous."""

from __future__ import annotations

from msgspec import UNSET, Struct

from mwnode.client.fold import WorkView
from mwnode.protocol.commands import CORE, MessagePost, OfferDecline, OwnershipLeaseRenew, WorkAcceptOffer
from mwnode.protocol.documents import DataBlock, Offer, ScheduleEstimate, TextBlock
from mwnode.protocol.errors import ErrorCode, MissionWeaveError
from mwnode.protocol.identifiers import CLARIFICATION_SCHEMA
from mwnode.protocol.instants import parse
from mwnode.worker.admission import Decline, Question, Situation, consider
from mwnode.worker.jobs import Hold
from mwnode.worker.whole import Whole

ESTIMATE_STEP_SECONDS = 300
"""Estimates are rounded up to whole steps, so that nobody can read the length of the queue out of them (R-11.2-02)."""
_AGAIN = frozenset(
    {
        ErrorCode.REVISION_CONFLICT,
        ErrorCode.RATE_LIMITED,
        ErrorCode.INTERNAL_ERROR,
        ErrorCode.BACKPRESSURE,
        ErrorCode.AUTH_STALE_SESSION,
        ErrorCode.MEMBERSHIP_STALE,
    }
)


class _Answer(Struct, frozen=True):
    """What was decided on one offer of one contract version."""

    offer_id: str
    contract_version: int
    step: str


class Offers:
    """The offers of all Groups. Part of the engine, kept apart because it is an idea of its own."""

    def __init__(self, engine: Whole) -> None:
        self.engine = engine
        self._answers: dict[str, _Answer] = {}
        self._questions: dict[str, int] = {}
        """Contract version about which a question stands, by WorkItem (R-10.1-20)."""
        self._revisits: dict[str, float] = {}
        self._ownership: dict[str, Hold] = {}

    def pending(self, view: WorkView) -> Offer | None:
        """The Agent's own offer of the WorkItem that still waits for an answer."""
        if view.state != "offered" or view.item.offers is UNSET:
            return None
        now = self.engine.clock.now()
        for offer in reversed(view.item.offers):
            if offer.agent_id == self.engine.agent_id:
                open_now = offer.status == "pending" and parse(offer.expires_at) > now
                return offer if open_now else None
        return None

    def revised(self, view: WorkView) -> None:
        """A new contract version settles a question; the offer is considered anew (R-10.1-21)."""
        if self._questions.get(view.work_item_id, 0) < view.item.contract.contract_version:
            self._questions.pop(view.work_item_id, None)

    def look_at(self, view: WorkView) -> None:
        """Answer the Agent's pending offer, if there is one and it was not answered yet."""
        engine = self.engine
        offer = self.pending(view)
        version = view.item.contract.contract_version
        if offer is None or view.work_item_id in self._questions or not engine.online:
            return
        answer = self._answers.get(view.work_item_id)
        if answer is not None and (answer.offer_id, answer.contract_version) == (offer.offer_id, version):
            return
        verdict = consider(view, self.situation(view))
        if isinstance(verdict, Question):
            self._ask(view, verdict)
            return
        step = "decline" if isinstance(verdict, Decline) else "accept"
        self._answers[view.work_item_id] = _Answer(offer.offer_id, version, step)
        if isinstance(verdict, Decline):
            payload = OfferDecline(
                work_item_id=view.work_item_id, offer_id=offer.offer_id, reason=verdict.reason, detail=verdict.detail
            )
            engine.send(f"{CORE}.offer_decline", payload, view, step)
            engine.note("declined", workItemId=view.work_item_id, reason=verdict.reason, detail=verdict.detail)
        else:
            accept = WorkAcceptOffer(
                work_item_id=view.work_item_id,
                offer_id=offer.offer_id,
                contract_version=version,
                ownership_lease_seconds=engine.settings.ownership_lease_seconds,
                schedule_estimate=self.estimate(view),
            )
            engine.send("work.accept_offer", accept, view, step)
            engine.note("accepted", workItemId=view.work_item_id, goal=view.item.contract.goal)

    def situation(self, view: WorkView) -> Situation:
        """What admission control looks at."""
        engine = self.engine
        group = engine.groups[view.item.group_id]
        dependencies = {
            work_item_id: group.views[work_item_id].state
            for work_item_id in view.item.contract.dependency_work_item_ids
            if work_item_id in group.views
        }
        accepting = sum(1 for answer in self._answers.values() if answer.step == "accept")
        return Situation(
            now=engine.clock.now(),
            capabilities=engine.capabilities,
            scopes=group.scopes,
            risks=engine.settings.risks,
            denied_operations=engine.settings.denied_operations,
            slots=engine.settings.scheduling.slots,
            committed=len(engine.jobs) + accepting,
            queue_max=engine.settings.queue_max,
            backlog_seconds=engine.scheduler.backlog_seconds(),
            run_seconds=engine.run_seconds(view),
            draining=engine.draining,
            dependencies=dependencies,
        )

    def estimate(self, view: WorkView) -> ScheduleEstimate:
        """When the WorkItem will be done, in coarse steps that tell nothing of other Groups (R-11.2-01, R-11.2-02)."""
        engine = self.engine
        now = engine.clock.now()
        wait = engine.scheduler.backlog_seconds() / engine.settings.scheduling.slots
        free = engine.scheduler.free_slots > 0 and engine.scheduler.queued == 0
        start = now if free else now.plus(_steps_up(wait))
        return ScheduleEstimate(
            estimated_start=start.text(),
            estimated_completion=start.plus(_steps_up(engine.run_seconds(view))).text(),
            confidence=0.8 if free else 0.5,
            capacity_status="available" if free else "queued",
            last_calculated_at=now.text(),
        )

    def running_estimate(self, view: WorkView, elapsed: float) -> ScheduleEstimate:
        """When a WorkItem that has run for ``elapsed`` seconds will be done, in the same coarse steps."""
        engine = self.engine
        now = engine.clock.now()
        left = max(0.0, engine.run_seconds(view) - elapsed)
        return ScheduleEstimate(
            estimated_start=now.plus(-int(elapsed)).text(),
            estimated_completion=now.plus(_steps_up(left)).text(),
            confidence=0.8,
            capacity_status="available" if engine.scheduler.free_slots else "constrained",
            last_calculated_at=now.text(),
        )

    def _ask(self, view: WorkView, question: Question) -> None:
        """Raise an essential ambiguity in the WorkItem's Conversation, instead of accepting (R-10.1-19)."""
        engine = self.engine
        message_id = engine.papers.new_id()
        self._questions[view.work_item_id] = view.item.contract.contract_version
        payload = MessagePost(
            message_id=message_id,
            conversation_id=view.item.conversation_id,
            content=(
                TextBlock(text=question.text),
                DataBlock(schema=CLARIFICATION_SCHEMA, data={"question": message_id, "resolved": False}),
            ),
        )
        engine.send("message.post", payload, view, "ask", compare=False)
        engine.note("asked", workItemId=view.work_item_id, question=question.text)

    def refused(self, work_item_id: str, step: str, error: MissionWeaveError) -> None:
        """An answer was not taken: for a passing reason it is given again, otherwise the offer is over."""
        if error.code in _AGAIN:
            if step == "ask":
                self._questions.pop(work_item_id, None)
            self._answers.pop(work_item_id, None)
            wait = (error.rejection.retry_after_ms or 0) / 1000 or self.engine.settings.retry_seconds
            self.revisit(work_item_id, self.engine.clock.monotonic() + wait)

    def answered(self, work_item_id: str) -> None:
        """The answer was taken."""
        self._answers.pop(work_item_id, None)

    def revisit(self, work_item_id: str, at: float) -> None:
        """Look at the WorkItem again at that monotonic time, in seconds."""
        self._revisits[work_item_id] = at

    def tick(self, now: float) -> None:
        """Look again at what was put off, and keep the ownership of what waits in the queue."""
        for work_item_id in [one for one, at in self._revisits.items() if at <= now]:
            del self._revisits[work_item_id]
            for group in self.engine.groups.values():
                if group.live and work_item_id in group.views:
                    self.engine.settle(group.views[work_item_id])
        for job in list(self.engine.jobs.values()):
            self._keep_ownership(self.engine.view(job), now)

    def _keep_ownership(self, view: WorkView, now: float) -> None:
        """Renew the ownership lease of an item that waits in the queue, at a third of its length (decision F11)."""
        lease = view.ownership_lease
        held = view.state == "queued" and self.engine.fits(view)
        if not held or lease is None or lease.state != "active":
            self._ownership.pop(view.work_item_id, None)
            return
        hold = self._ownership.get(view.work_item_id)
        if hold is None or hold.lease_id != lease.lease_id or hold.renewal_count < lease.renewal_count:
            # Counted from now on, which is later than the grant by the time the Event took.
            hold = self._ownership[view.work_item_id] = Hold.of(lease, now)
        if now >= hold.renew_at:
            hold.renew_at = now + 5 * self.engine.settings.retry_seconds
            payload = OwnershipLeaseRenew(
                work_item_id=view.work_item_id,
                ownership_epoch=lease.ownership_epoch if lease.ownership_epoch is not UNSET else 1,
                lease_seconds=self.engine.settings.ownership_lease_seconds,
            )
            self.engine.send(f"{CORE}.ownership_lease_renew", payload, view, "keep", compare=False)


def _steps_up(seconds: float) -> int:
    return ESTIMATE_STEP_SECONDS * max(1, -int(-seconds // ESTIMATE_STEP_SECONDS))
