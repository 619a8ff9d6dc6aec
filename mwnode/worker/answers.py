"""What became of the Commands: receipts and refusals. Part of the engine."""

from __future__ import annotations

from msgspec import UNSET

from mwnode.client.fold import decode_payload
from mwnode.protocol.documents import Event
from mwnode.protocol.errors import ErrorCode, MissionWeaveError
from mwnode.worker.jobs import Blocked, Hold, Job, Phase, Stopped
from mwnode.worker.whole import Whole

# Refusals after which this Worker has nothing more to do with the WorkItem.
LOST = frozenset(
    {
        ErrorCode.WORK_STALE_OWNERSHIP,
        ErrorCode.WORK_ALREADY_OWNED,
        ErrorCode.WORK_OFFER_EXPIRED,
        ErrorCode.GROUP_NOT_FOUND,
        ErrorCode.MEMBERSHIP_REQUIRED,
        ErrorCode.AUTH_FORBIDDEN,
    }
)
# Refusals that pass by themselves: the same is tried again, under a new Action ID.
PASSING = frozenset(
    {
        ErrorCode.REVISION_CONFLICT,
        ErrorCode.RATE_LIMITED,
        ErrorCode.BACKPRESSURE,
        ErrorCode.INTERNAL_ERROR,
        ErrorCode.AUTH_STALE_SESSION,
        ErrorCode.MEMBERSHIP_STALE,
        ErrorCode.AUTH_INVALID_SIGNATURE,
    }
)


class Answers:
    """Turns answers into what the jobs do next."""

    def __init__(self, engine: Whole) -> None:
        self.engine = engine

    def accepted(self, ticket: int, receipt: Event) -> None:
        """A Command was accepted; its receipt is applied ahead of its place in the log."""
        sent = self.engine.take_ticket(ticket)
        job = self.engine.jobs.get(sent.work_item_id)
        if job is not None and job.in_flight == sent.step:
            job.in_flight = None
        if sent.step.startswith("reconcile "):
            self.engine.offline.answered(sent.step)
            job = self.engine.jobs.get(sent.work_item_id)
        if sent.step in ("accept", "decline"):
            self.engine.offers.answered(sent.work_item_id)
        state = self.engine.groups.get(receipt.group_id) if receipt.group_id is not UNSET else None
        payload = decode_payload(receipt)
        if job is not None and payload is not None:
            # Before the view moves on: a submission ends the job.
            self.engine.steps.done(job, sent.step, payload)
        if state is not None and payload is not None:
            self.engine.apply(state, payload)
        if job is not None and sent.step == "start" and self.engine.jobs.get(job.work_item_id) is job:
            self._started(job, sent.sent_at)
        elif job is not None and sent.step == "renew" and job.hold is not None:
            lease = self.engine.view(job).execution_lease
            if lease is not None and lease.lease_id == job.hold.lease_id:
                job.hold = Hold.of(lease, sent.sent_at)
        if job is not None and self.engine.jobs.get(job.work_item_id) is job:
            if sent.step.startswith("reconcile "):
                self.engine.settle(self.engine.view(job))
            self.engine.steps.advance(job)

    def _started(self, job: Job, sent_at: float) -> None:
        view = self.engine.view(job)
        lease = view.execution_lease
        if view.state != "active" or lease is None or lease.state != "active":
            # The answer came late: the session that it was for is gone, and its lease with it.
            self._give_back(job, self.engine.settings.retry_seconds)
            return
        job.hold = Hold.of(lease, sent_at)
        if job.outcome is not None:
            self.engine.steps.close(job, job.outcome)
        elif job.phase is Phase.STARTING and self.engine.draining:
            self.engine.steps.close(job, Stopped("the Worker is shutting down"))
        elif job.phase is Phase.STARTING:
            self.engine.runs.launch(job, view)

    def refused(self, ticket: int, error: MissionWeaveError) -> None:
        """A Command was refused; nothing of it was applied."""
        sent = self.engine.take_ticket(ticket)
        job = self.engine.jobs.get(sent.work_item_id)
        self.engine.note(
            "refused", workItemId=sent.work_item_id, step=sent.step, code=error.code.value, message=error.message
        )
        if sent.step.startswith("reconcile "):
            self.engine.offline.refused(sent.step, error, PASSING)
            if job is not None and self.engine.jobs.get(job.work_item_id) is job:
                if job.outcome is not None and job.hold is not None:
                    self.engine.steps.close(job, job.outcome)
                self.engine.settle(self.engine.view(job))
            return
        if job is None or job.in_flight != sent.step:
            self.engine.offers.refused(sent.work_item_id, sent.step, error)
            return
        job.in_flight = None
        wait = (error.rejection.retry_after_ms or 0) / 1000 or self.engine.settings.retry_seconds
        if error.code in PASSING:
            job.waits_until = self.engine.clock.monotonic() + wait
            if sent.step == "start":
                self._give_back(job, wait)
            else:
                self.engine.steps.again(job, sent.step, error.code)
        elif error.code in LOST:
            self.engine.drop(job, f"{error.code.value}: {error.message}", keep=True)
        elif sent.step == "start":
            self._start_refused(job, error, wait)
        else:
            self._step_refused(job, sent.step, error)

    def _give_back(self, job: Job, wait: float) -> None:
        """The start did not happen: the slot is free, and the item is looked at again after ``wait`` seconds."""
        if job.phase is Phase.STARTING:
            self.engine.free_slot(job)
            job.phase = Phase.QUEUED
        self.engine.offers.revisit(job.work_item_id, self.engine.clock.monotonic() + wait)

    def _start_refused(self, job: Job, error: MissionWeaveError, wait: float) -> None:
        if error.code is ErrorCode.WORK_LEASE_EXPIRED:
            self.engine.drop(job, "it was not started in time", keep=True)
        elif error.code in (ErrorCode.APPROVAL_REQUIRED, ErrorCode.BUDGET_EXCEEDED):
            # A fact of the Group will say when that has changed; a look now and then costs little.
            self._give_back(job, max(wait, 30.0))
        else:
            self._give_back(job, max(wait, 2.0))

    def _step_refused(self, job: Job, step: str, error: MissionWeaveError) -> None:
        view = self.engine.view(job)
        if error.code in (ErrorCode.WORK_LEASE_EXPIRED, ErrorCode.INVALID_STATE_TRANSITION):
            # The lease went with the old session, or ran out. If the item is queued and ours, it is bound anew.
            job.hold = None
            job.steps.clear()
            if view.state == "queued":
                self.engine.settle(view)
            elif self.engine.online and not job.alive:
                self.engine.offers.revisit(
                    job.work_item_id, self.engine.clock.monotonic() + self.engine.settings.retry_seconds
                )
        elif step == "usage" and error.code is ErrorCode.BUDGET_EXCEEDED:
            job.meter.refused = True
            if job.alive:
                self.engine.runs.stop(
                    job, Blocked("the budget is used up", "raise the budget of the WorkItem or of the Mission")
                )
        elif step in ("renew", "usage"):
            job.waits_until = self.engine.clock.monotonic() + self.engine.settings.retry_seconds
        else:
            self.engine.steps.rejected(job, step, error)
