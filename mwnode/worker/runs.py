"""The runs of executors: launched, watched, asked to stop, and judged by how they ended. Part of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from mwnode.client.fold import WorkView
from mwnode.protocol.assessments import request_in
from mwnode.protocol.commands import Checkpoint
from mwnode.protocol.documents import Progress
from mwnode.protocol.instants import parse, parse_duration
from mwnode.worker.capability import RETRY_SECONDS
from mwnode.worker.effects import AskToStop, Assignment, Collect, Exit, Kill, Launch, Output, Remember, SaveState
from mwnode.worker.jobs import RETRY_STATUS, Blocked, Failed, Finished, Job, Phase, Stopped, kept, retry_delay
from mwnode.worker.keys import idempotency_key
from mwnode.worker.whole import Whole

LAST_LINES, LINE_CHARACTERS = 10, 300


class Runs:
    """What happens between the start and the end of an executor."""

    def __init__(self, engine: Whole) -> None:
        self.engine = engine
        self._by_run: dict[str, str] = {}
        self._count = 0

    def launch(self, job: Job, view: WorkView) -> None:
        now = self.engine.clock.monotonic()
        job.phase, job.alive, job.stopping, job.launched_at = Phase.RUNNING, True, None, now
        job.killed = False
        # The token comes with the launch; if that fails it is asked for again.
        job.grant, job.token_at = None, now + RETRY_SECONDS
        job.attempt += 1
        job.reports = []
        if job.run_id is None:
            # Never twice the same: the directory of an earlier run may still be on its way out.
            self._count += 1
            job.run_id = f"{job.work_item_id}:{job.epoch}:{self._count}"
            self._by_run[job.run_id] = job.work_item_id
        job.meter.begin()
        self._remember(job)
        group = self.engine.groups[job.group_id]
        limit = view.item.contract.budget.wall_clock_seconds_limit
        self.engine.emit(
            Launch(
                Assignment(
                    run_id=job.run_id,
                    group_id=job.group_id,
                    mission_id=job.mission_id,
                    work_item_id=job.work_item_id,
                    ownership_epoch=job.epoch,
                    contract=view.item.contract,
                    attempt=job.attempt,
                    idempotency_key=idempotency_key(job.epoch, job.mission_id, job.work_item_id),
                    context_package_id=self.engine.packages.get(job.work_item_id, group.package_id),
                    checkpoint=job.checkpoint,
                    wall_seconds_max=None if limit is UNSET else float(limit),
                ),
                self.engine.capability.request(job),
            )
        )

    def watch(self, job: Job, now: float) -> None:
        view = self.engine.view(job)
        if job.phase is Phase.RESTING and job.retry_at is not None and now >= job.retry_at:
            job.retry_at = None
            self.launch(job, view)
        if not job.alive:
            return
        self.engine.capability.watch(job, now)
        job.meter.read("wall_clock_seconds", now - job.launched_at)
        limit = job.meter.exhausted(view.item.contract.budget, view.used)
        if limit is not None and job.stopping is None:
            self.stop(job, Blocked(f"the budget is used up: {limit}", f"raise {limit} by a contract revision"))
        end = self._end_of_right(job, view, now)
        if now >= end and not job.killed:
            job.killed = True
            self.engine.emit(Kill(job.run_id or "", "the Execution Lease ends"))
            job.stopping = job.stopping or Stopped("the Execution Lease ended before it could be renewed")

    def _end_of_right(self, job: Job, view: WorkView, now: float) -> float:
        """When this Worker stops itself, by its own monotonic clock: before the authority would fence it."""
        if job.hold is None:
            lease_end = now + 1 if self.engine.online else now
        else:
            lease_end = job.hold.ends_at - self.engine.settings.lease_margin_seconds
        if self.engine.offline_since is None or view.item.contract.side_effect_risk not in ("none", "reversible"):
            return lease_end
        # R-11.5-05: reversible computation goes on within a bounded grace while nobody can be asked.
        return max(lease_end, self.engine.offline_since + self.engine.settings.offline_grace_seconds)

    def stop(self, job: Job, why: Stopped | Blocked | Failed) -> None:
        """Ask a run to come to a checkpoint; what it becomes is decided when it ends."""
        if job.stopping is None and job.alive and job.run_id is not None:
            job.stopping, job.phase = why, Phase.STOPPING
            self.engine.emit(AskToStop(job.run_id, self.engine.settings.stop_grace_seconds))

    def of_run(self, run_id: str) -> Job | None:
        work_item_id = self._by_run.get(run_id)
        return None if work_item_id is None else self.engine.jobs.get(work_item_id)

    def reported(self, run_id: str, line: Mapping[str, Any]) -> None:
        """One line of the executor's progress file; members that are unknown here are left alone."""
        job = self.of_run(run_id)
        if job is None:
            return
        if isinstance(line.get("usage"), Mapping):
            self.engine.steps.usage_line(job, line["usage"])
        if isinstance(line.get("evidence"), Mapping):
            job.reports.append(line["evidence"])
        if isinstance(line.get("progress"), Mapping):
            progress = self._progress(line["progress"])
            if self.engine.online or not self.engine.offline.progress(job, progress):
                job.progress = progress
        if isinstance(line.get("checkpoint"), Mapping):
            self._checkpoint_line(job, line["checkpoint"])
        if isinstance(line.get("blocked"), Mapping):
            blocked = line["blocked"]
            reason = str(blocked.get("reason") or "the executor is blocked")[:4000]
            resolution = str(blocked.get("requiredResolution") or "see the reason")[:4000]
            self.stop(job, Blocked(reason, resolution))

    def _progress(self, line: Mapping[str, Any]) -> Progress:
        defaults = {
            "currentPhase": "running",
            "completedMilestones": [],
            "nextCheckpoint": "end of the run",
            "blockers": [],
            "updatedCompletionEstimate": self.engine.clock.now().plus(int(self.engine.settings.run_seconds)).text(),
            "evidenceIds": [],
        }
        known = {name: value for name, value in line.items() if name in defaults}
        try:
            return msgspec.convert(defaults | known, Progress)
        except msgspec.ValidationError as error:
            self.engine.note("progress_ignored", because=str(error))
            return msgspec.convert(defaults, Progress)

    def _checkpoint_line(self, job: Job, line: Mapping[str, Any]) -> None:
        milestones = line.get("completedMilestones")
        job.checkpoint = Checkpoint(
            checkpoint_id=self.engine.papers.new_id(),
            phase=str(line.get("phase") or "checkpoint")[:500],
            completed_milestones=tuple(str(one)[:500] for one in milestones) if isinstance(milestones, list) else (),
            created_at=self.engine.clock.now().text(),
            next_step=str(line["nextStep"])[:4000] if line.get("nextStep") else UNSET,
        )
        self.engine.scheduler.checkpointed(job.work_item_id)
        if line.get("state") and job.run_id is not None:
            job.state_pending = True
            self.engine.emit(SaveState(job.run_id, str(line["state"])))

    def saved(self, run_id: str, output: Output) -> None:
        """A checkpoint's state was uploaded: it is published, so that another Worker can resume from it."""
        job = self.of_run(run_id)
        if job is not None and job.checkpoint is not None:
            job.checkpoint = msgspec.structs.replace(job.checkpoint, state_artifact_hash=output.content_hash)
            job.state, job.state_pending = output, False

    def sampled(self, run_id: str, compute_seconds: float) -> None:
        """Processor seconds that the running executor has used so far."""
        job = self.of_run(run_id)
        if job is not None and job.alive:
            job.meter.read("compute_seconds", compute_seconds)

    def exited(self, run_id: str, ended: Exit) -> None:
        """The executor ended, and everything that it started."""
        job = self.of_run(run_id)
        if job is None or not job.alive:
            return
        view = self.engine.view(job)
        job.alive, job.exit_note = False, ended.tail
        job.meter.read("wall_clock_seconds", ended.wall_seconds)
        job.meter.read("compute_seconds", ended.compute_seconds)
        failed = ended.status != 0 and job.stopping is None
        told = {"lastLines": _last_lines(ended.tail)} if failed else {}
        self.engine.note("executor_ended", workItemId=job.work_item_id, status=ended.status, error=ended.error, **told)
        if ended.error is not None:
            self.engine.steps.close(job, Failed("EXECUTOR_FAILED", ended.error, permanent=False))
        elif isinstance(job.stopping, Blocked | Failed):
            self.engine.steps.close(job, job.stopping)
        elif ended.status == 0:
            self._collect(job, view, run_id)
        elif job.stopping is not None:
            self.engine.steps.close(job, job.stopping)
        elif ended.status == RETRY_STATUS:
            self._retry(job, view)
        else:
            what = f"signal {-ended.status}" if ended.status < 0 else f"exit status {ended.status}"
            said = "".join(f": {one}" for one in _last_lines(ended.tail)[-1:])
            reason = f"the executor ended with {what}{said}"
            self.engine.steps.close(job, Failed("EXECUTOR_FAILED", reason, permanent=False))

    def _collect(self, job: Job, view: WorkView, run_id: str) -> None:
        """Have the outputs uploaded; those of a review with the assessment that the executor gave (R-13.2-04)."""
        made: tuple[tuple[str, bytes], ...] = ()
        request = request_in(view.item.contract)
        if request is not None:
            assessment = self.engine.papers.assessment(view, job, request)
            if isinstance(assessment, str):
                self.engine.steps.close(job, Failed("EVIDENCE_MISSING", assessment, permanent=False))
                return
            made = (assessment,)
        job.phase = Phase.COLLECTING
        self.engine.emit(Collect(run_id, view.item.contract, made))

    def _retry(self, job: Job, view: WorkView) -> None:
        """Run it again within the contract's attempts, delays and deadline (R-11.4-08), or report the failure."""
        contract = view.item.contract
        policy = contract.retry_policy
        job.tries += 1
        self._remember(job)
        delay = retry_delay(policy.backoff, float(parse_duration(policy.max_delay)), job.tries)
        if view.attempts + job.tries >= policy.max_attempts:
            why = f"the executor asked to be run again, and all {policy.max_attempts} attempts are used"
            self.engine.steps.close(job, Failed("RETRIES_EXHAUSTED", why, permanent=True))
        elif self.engine.clock.now().plus(int(delay)) >= parse(contract.deadline):
            self.engine.steps.close(
                job, Failed("DEADLINE", "the deadline leaves no time to run it again", permanent=True)
            )
        else:
            job.phase, job.retry_at = Phase.RESTING, self.engine.clock.monotonic() + delay
            self.engine.note("retry", workItemId=job.work_item_id, attempt=job.attempt, seconds=delay)

    def collected(self, run_id: str, outputs: tuple[Output, ...], error: str | None = None) -> None:
        """The outputs are uploaded, or cannot be used."""
        job = self.of_run(run_id)
        if job is None or job.phase is not Phase.COLLECTING:
            return
        if error is not None:
            self.engine.steps.close(job, Failed("EXECUTOR_FAILED", error, permanent=False))
        else:
            job.outcome = Finished(outputs)
            self._remember(job)
            self.engine.steps.close(job, job.outcome)

    def _remember(self, job: Job) -> None:
        """A restart of the Worker forgets no try, and makes no result twice."""
        self.engine.emit(Remember(kept(job)))

    def forget(self, run_id: str) -> None:
        """The run is no business of this Worker any more."""
        self._by_run.pop(run_id, None)


def _last_lines(tail: str) -> list[str]:
    """The last lines that an executor said, each of them cut: enough for a log, and bounded whatever it wrote."""
    lines = [line.rstrip()[:LINE_CHARACTERS] for line in tail.splitlines() if line.strip()]
    return lines[-LAST_LINES:]
