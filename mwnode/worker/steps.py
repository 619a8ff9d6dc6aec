"""The Commands of a job under its Execution Lease, one at a time and in order.

Each step's payload is made when it is sent: after a reconnect it cites the lease of then (R-11.3-08). One Command per
WorkItem is under way at a time, so that the revision it states is the one it was made for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UNSET

from mwnode.client.fold import WorkView
from mwnode.protocol.commands import (
    EXT,
    ArtifactPublish,
    Checkpoint,
    ExecutionLeaseRenew,
    Payload,
    ResourceUsageRecord,
    WorkBlock,
    WorkCheckpoint,
    WorkFail,
    WorkSubmit,
)
from mwnode.protocol.documents import ScheduleEstimate
from mwnode.protocol.errors import ErrorCode, MissionWeaveError
from mwnode.protocol.events import ResourceUsageRecorded
from mwnode.protocol.instants import parse
from mwnode.protocol.scalars import SAFE_INTEGER_MAX
from mwnode.worker.effects import Output
from mwnode.worker.jobs import Blocked, Failed, Finished, Job, Outcome, Phase, Stopped
from mwnode.worker.offers import ESTIMATE_STEP_SECONDS
from mwnode.worker.whole import Whole

RENEW = f"{EXT}.core.work_execution_lease_renew"
USAGE = f"{EXT}.core.resource_usage_record"
USAGE_LINE = {
    "financialMicrounits": "financial_microunits",
    "modelTokens": "model_tokens",
    "toolCalls": "tool_calls",
    "computeSeconds": "compute_seconds",
    "wallClockSeconds": "wall_clock_seconds",
    "externalActions": "external_actions",
}


class Steps:
    """What a job sends while it holds an Execution Lease. Part of the engine."""

    def __init__(self, engine: Whole) -> None:
        self.engine = engine
        self._builders: dict[str, Callable[[Job, WorkView], tuple[str, Payload] | None]] = {
            "publish": self._publish,
            "state": self._state,
            "usage": self._usage,
            "submit": self._submit,
            "fail": self._fail,
            "checkpoint": self._checkpoint,
            "block": self._block,
        }

    # --- planning -----------------------------------------------------------------------------------------------------

    def close(self, job: Job, outcome: Outcome) -> None:
        """The run has ended like this: what is still to be sent, in order."""
        job.outcome, job.phase = outcome, Phase.CLOSING
        job.steps.clear()
        view = self.engine.view(job)
        if isinstance(outcome, Finished):
            hashes = tuple(dict.fromkeys(output.content_hash for output in outcome.outputs))
            if not job.evidence:
                evidence, missing = self.engine.papers.submission(view, job, hashes)
                if missing:
                    reason = f"no passed Evidence for {'; '.join(missing)}"
                    self.close(job, Failed("EVIDENCE_MISSING", reason, permanent=False))
                    return
                job.evidence = evidence
            job.steps.extend("publish" for content_hash in hashes if content_hash not in view.artifacts)
            job.steps.extend(("usage", "submit"))
        elif isinstance(outcome, Failed):
            job.evidence = ()
            job.steps.extend(("usage", "fail"))
        elif isinstance(outcome, Blocked):
            job.steps.extend(("state", "usage", "block"))
        elif not self._buffered(job, view):
            job.steps.extend(("state", "usage", "checkpoint"))
        self.advance(job)

    def _buffered(self, job: Job, view: WorkView) -> bool:
        """Whether the checkpoint is, or now was, signed into the offline buffer, from where it is reconciled."""
        offline = self.engine.offline
        if offline.waits(job, "work.checkpoint"):
            return True
        if self.engine.online or job.hold is None or job.state is not None or job.state_pending:
            return False
        payload = self._checkpoint(job, view)[1]
        assert isinstance(payload, WorkCheckpoint), "a checkpoint step makes a checkpoint"
        return offline.checkpoint(job, payload)

    def usage_line(self, job: Job, line: Mapping[str, Any]) -> None:
        """Usage as the executor reports it: what was spent since its last report, any of the six dimensions."""
        for name, member in USAGE_LINE.items():
            amount = line.get(name)
            if not isinstance(amount, int | float) or isinstance(amount, bool) or not amount > 0:
                continue
            if amount > SAFE_INTEGER_MAX or job.meter.spent.get(member, 0.0) + amount > SAFE_INTEGER_MAX:
                self.engine.note("usage_ignored", workItemId=job.work_item_id, because=f"{name}: {amount!r:.100}")
            else:
                job.meter.add(member, float(amount))

    # --- sending ------------------------------------------------------------------------------------------------------

    def advance(self, job: Job) -> None:
        """Send what is due next, if nothing is under way and the lease is held."""
        engine = self.engine
        now = engine.clock.monotonic()
        if job.in_flight is not None or job.hold is None or not engine.online or now < job.waits_until:
            return
        view = engine.view(job)
        if view.state != "active":
            return
        estimate = self._new_estimate(job, view, now)
        if now >= job.hold.renew_at or self._progress_due(job, now) or estimate is not None:
            self._send(job, view, "renew", (RENEW, self._renewal(job, estimate)))
            job.progress, job.progress_sent_at = None, now
            return
        if job.alive and not job.meter.refused and now - job.usage_sent_at >= engine.settings.usage_seconds:
            job.usage_sent_at = now
            built = self._usage(job, view)
            if built is not None:
                self._send(job, view, "usage", built)
                return
        while job.steps:
            step = job.steps[0]
            built = self._builders[step](job, view)
            if built is not None:
                self._send(job, view, step, built)
                return
            job.steps.popleft()

    def _progress_due(self, job: Job, now: float) -> bool:
        due = now - job.progress_sent_at >= self.engine.settings.progress_seconds
        return job.progress is not None and due and job.phase in (Phase.RUNNING, Phase.STOPPING)

    def _new_estimate(self, job: Job, view: WorkView, now: float) -> ScheduleEstimate | None:
        """An estimate, once the one that is published has become materially wrong (R-11.2-01)."""
        if job.phase is not Phase.RUNNING or now - job.launched_at < self.engine.settings.progress_seconds:
            return None
        published = view.item.schedule_estimate
        estimate = self.engine.offers.running_estimate(view, max(0.0, now - job.launched_at))
        if published is UNSET:
            return estimate
        wrong_by = parse(estimate.estimated_completion).seconds - parse(published.estimated_completion).seconds
        return estimate if abs(wrong_by) > ESTIMATE_STEP_SECONDS else None

    def _send(self, job: Job, view: WorkView, step: str, built: tuple[str, Payload]) -> None:
        job.in_flight = step
        # A renewal must not lose against another change of the item: it compares nothing.
        self.engine.send(built[0], built[1], view, step, compare=step not in ("renew", "usage"))

    # --- payloads -----------------------------------------------------------------------------------------------------

    def _lease_id(self, job: Job) -> str:
        assert job.hold is not None, "steps are sent under a lease"
        return job.hold.lease_id

    def _renewal(self, job: Job, estimate: ScheduleEstimate | None) -> ExecutionLeaseRenew:
        return ExecutionLeaseRenew(
            work_item_id=job.work_item_id,
            ownership_epoch=job.epoch,
            execution_lease_id=self._lease_id(job),
            lease_seconds=self.engine.settings.execution_lease_seconds,
            progress=job.progress,
            schedule_estimate=estimate,
        )

    def _publish(self, job: Job, view: WorkView) -> tuple[str, Payload] | None:
        assert isinstance(job.outcome, Finished), "only a finished run publishes its outputs"
        output = next((one for one in job.outcome.outputs if one.content_hash not in view.artifacts), None)
        return None if output is None else self._publication(job, view, output)

    def _publication(self, job: Job, view: WorkView, output: Output) -> tuple[str, Payload]:
        outputs = job.outcome.outputs if isinstance(job.outcome, Finished) else (output,)
        same = [one for one in outputs if one.content_hash == output.content_hash]
        artifact = self.engine.papers.artifact(view, output, same)
        payload = ArtifactPublish(artifact=artifact, ownership_epoch=job.epoch, execution_lease_id=self._lease_id(job))
        return "artifact.publish", payload

    def _state(self, job: Job, view: WorkView) -> tuple[str, Payload] | None:
        """The state file of a checkpoint is published, so that whoever resumes can read it (R-11.3-26)."""
        if job.state is None or job.state.content_hash in view.artifacts:
            return None
        return self._publication(job, view, job.state)

    def _usage(self, job: Job, view: WorkView) -> tuple[str, Payload] | None:
        delta = job.meter.unrecorded(final=not job.alive)
        if delta is None or job.meter.refused:
            return None
        payload = ResourceUsageRecord(
            work_item_id=job.work_item_id,
            ownership_epoch=job.epoch,
            execution_lease_id=self._lease_id(job),
            usage_delta=delta,
        )
        return USAGE, payload

    def _submit(self, job: Job, view: WorkView) -> tuple[str, Payload]:
        assert isinstance(job.outcome, Finished), "only a finished run is submitted"
        payload = WorkSubmit(
            work_item_id=job.work_item_id,
            ownership_epoch=job.epoch,
            execution_lease_id=self._lease_id(job),
            artifact_hashes=tuple(dict.fromkeys(output.content_hash for output in job.outcome.outputs)),
            evidence=job.evidence,
        )
        return "work.submit", payload

    def _fail(self, job: Job, view: WorkView) -> tuple[str, Payload]:
        assert isinstance(job.outcome, Failed), "only a failed run is failed"
        if not job.evidence:
            job.evidence = (self.engine.papers.failure(view, job, job.outcome),)
        payload = WorkFail(
            work_item_id=job.work_item_id,
            ownership_epoch=job.epoch,
            execution_lease_id=self._lease_id(job),
            reason=f"{job.outcome.failure}: {job.outcome.reason}"[:4000],
            evidence=job.evidence,
        )
        return "work.fail", payload

    def _point(self, job: Job) -> Checkpoint:
        """The newest checkpoint, or one that says that the run has to begin again."""
        if job.checkpoint is not None:
            return job.checkpoint
        job.checkpoint = Checkpoint(
            checkpoint_id=self.engine.papers.new_id(),
            phase="interrupted",
            completed_milestones=(),
            created_at=self.engine.clock.now().text(),
            next_step="run the executor from the beginning",
        )
        return job.checkpoint

    def _resume_within(self, job: Job) -> int:
        own = job.outcome.resume_within if isinstance(job.outcome, Stopped) else None
        return self.engine.settings.resume_within_seconds if own is None else own

    def _checkpoint(self, job: Job, view: WorkView) -> tuple[str, Payload]:
        payload = WorkCheckpoint(
            work_item_id=job.work_item_id,
            ownership_epoch=job.epoch,
            execution_lease_id=self._lease_id(job),
            checkpoint=self._point(job),
            progress=job.progress,
            resume_within_seconds=self._resume_within(job),
        )
        return "work.checkpoint", payload

    def _block(self, job: Job, view: WorkView) -> tuple[str, Payload]:
        assert isinstance(job.outcome, Blocked), "only a blocked run is blocked"
        payload = WorkBlock(
            work_item_id=job.work_item_id,
            ownership_epoch=job.epoch,
            execution_lease_id=self._lease_id(job),
            reason=job.outcome.reason,
            required_resolution=job.outcome.required_resolution,
            checkpoint=self._point(job),
            blocked_lease_seconds=self.engine.settings.blocked_lease_seconds,
        )
        return "work.block", payload

    # --- answers ------------------------------------------------------------------------------------------------------

    def done(self, job: Job, step: str, receipt: Payload) -> None:
        """A step was accepted."""
        if isinstance(receipt, ResourceUsageRecorded):
            job.meter.record(receipt.usage_delta)
        if job.steps and job.steps[0] == step:
            job.steps.popleft()
        if step in ("submit", "fail", "checkpoint", "block"):
            self.engine.finish(job, step)

    def again(self, job: Job, step: str, code: ErrorCode) -> None:
        """The step is still the next one: it is sent again when its wait is over."""
        if step == "renew" and job.hold is not None:
            job.hold.renew_at = min(job.hold.renew_at, job.waits_until)
        if step in ("submit", "fail") and code is ErrorCode.AUTH_INVALID_SIGNATURE and job.outcome is not None:
            # Perhaps it is the Evidence that was signed by a clock that was wrong.
            job.evidence = ()
            self.close(job, job.outcome)

    def rejected(self, job: Job, step: str, error: MissionWeaveError) -> None:
        """The authority will never take this step: the run is reported as failed, or given up."""
        why = f"{error.code.value}: {error.message}"
        if step in ("submit", "fail") and not job.made_anew and job.outcome is not None:
            # Perhaps its documents are to blame: signed by a clock that was set since, or with words that may not pass.
            job.made_anew, job.evidence, job.exit_note = True, (), ""
            if isinstance(job.outcome, Failed):
                job.outcome = Failed(
                    job.outcome.failure, f"its report was refused: {why}"[:4000], job.outcome.permanent
                )
            self.close(job, job.outcome)
        elif step in ("publish", "submit", "state"):
            self.close(job, Failed("RESULT_REFUSED", f"{step} was refused: {why}"[:4000], permanent=True))
        else:
            self.engine.drop(job, f"{step} was refused: {why}", keep=True)
