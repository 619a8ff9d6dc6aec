"""What a Worker remembers of each WorkItem that it owns: where the run stands, its lease, its meter."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import UNSET, Struct, field

from mwnode.protocol.commands import Checkpoint, Usage
from mwnode.protocol.documents import Budget, Evidence, Lease, Progress
from mwnode.protocol.instants import parse
from mwnode.worker.effects import Output

RETRY_STATUS = 75
"""Exit status by which an executor asks to be run again (EX_TEMPFAIL)."""
FIRST_DELAY_SECONDS = 1.0


class Phase(StrEnum):
    """Where a job stands here; the authority's state is in the view."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    RESTING = "resting"
    COLLECTING = "collecting"
    CLOSING = "closing"


class Finished(Struct, frozen=True):
    """The executor did it: publish and submit."""

    outputs: tuple[Output, ...]


class Failed(Struct, frozen=True):
    """It cannot be done here: report the failure."""

    failure: str
    reason: str
    permanent: bool


class Stopped(Struct, frozen=True):
    """The run paused at a checkpoint: release the lease, keep the ownership."""

    reason: str
    resume_within: int | None = None
    """Seconds for which the ownership is kept; the Worker's settings say it otherwise."""


class Blocked(Struct, frozen=True):
    """It waits for somebody else."""

    reason: str
    required_resolution: str


Outcome = Finished | Failed | Stopped | Blocked


class Hold(Struct):
    """An Execution Lease by this Worker's own monotonic clock, in seconds.

    Counted from when the request was *sent*: the authority granted later, so it ends later, and the Worker stops itself
    before it would be fenced.
    """

    lease_id: str
    renew_at: float
    ends_at: float
    renewal_count: int
    session_epoch: int
    """Session under which it was granted; a later session ends it (R-11.3-17)."""

    @classmethod
    def of(cls, lease: Lease, sent_at: float) -> Hold:
        since = lease.starts_at if lease.last_renewed_at is UNSET else lease.last_renewed_at
        length = (parse(lease.expires_at).whole_microseconds() - parse(since).whole_microseconds()) / 1_000_000
        return cls(lease.lease_id, sent_at + length / 3, sent_at + length, lease.renewal_count, lease.session_epoch)


class Grant(Struct, frozen=True):
    """A Capability Token of a run by this Worker's own monotonic clock, in seconds; the token itself is in the slot."""

    lease_id: str
    renew_at: float
    ends_at: float


DIMENSIONS: dict[str, str] = {
    "financial_microunits": "financial_limit",
    "model_tokens": "model_token_limit",
    "tool_calls": "tool_call_limit",
    "compute_seconds": "compute_seconds_limit",
    "wall_clock_seconds": "wall_clock_seconds_limit",
    "external_actions": "external_side_effect_limit",
}
MICRO = 1_000_000


class Kept(Struct, frozen=True):
    """What is remembered of a run over a restart of the Worker: tries are not forgotten, results not made twice."""

    work_item_id: str
    epoch: int
    attempt: int
    tries: int
    outputs: tuple[Output, ...] | None = None
    """Uploaded results, once the executor ended well."""
    reports: tuple[dict[str, Any], ...] = ()
    spent: dict[str, float] = {}
    recorded: dict[str, int] = {}


class Meter(Struct):
    """One slot's usage in the six dimensions (R-11.1-17): what was spent, and what of it is on record."""

    spent: dict[str, float] = {}
    recorded: dict[str, int] = {}
    before: dict[str, float] = {}
    """What earlier runs of this job had spent when the present one began."""
    refused: bool = False
    """The authority had no room for what was to be recorded."""

    def begin(self) -> None:
        """A run begins; its counters start at zero again."""
        self.before = dict(self.spent)

    def read(self, name: str, amount: float) -> None:
        """A reading of a counter of the present run, which only grows."""
        self.spent[name] = max(self.spent.get(name, 0.0), self.before.get(name, 0.0) + amount)

    def add(self, name: str, amount: float) -> None:
        self.spent[name] = self.spent.get(name, 0.0) + amount

    def unrecorded(self, final: bool) -> Usage | None:
        """What to record now; parts of a unit count as one in the final record only. ``None`` when that is nothing."""
        delta = {
            name: (math.ceil(total) if final else math.floor(total)) - self.recorded.get(name, 0)
            for name, total in self.spent.items()
        }
        if not any(amount > 0 for amount in delta.values()):
            return None
        return Usage(**{name: max(0, delta.get(name, 0)) for name in DIMENSIONS})

    def record(self, usage: Usage) -> None:
        """The authority has this much more on record."""
        for name in DIMENSIONS:
            self.recorded[name] = self.recorded.get(name, 0) + getattr(usage, name)

    def unrecord(self, usage: Usage) -> None:
        """What was thought to be on record is not: it is recorded with what comes next."""
        for name in DIMENSIONS:
            self.recorded[name] = self.recorded.get(name, 0) - getattr(usage, name)

    def exhausted(self, budget: Budget, before: Usage | None) -> str | None:
        """The limit that is passed, counting what earlier runs used; ``None`` while there is room (R-12-24).

        A limit of 0 forbids that kind of spending and is passed by any of it.
        """
        for name, limit_name in DIMENSIONS.items():
            limit = getattr(budget, limit_name)
            if limit is UNSET:
                continue
            ceiling = limit * MICRO if name == "financial_microunits" else limit
            earlier = 0 if before is None else getattr(before, name) - self.recorded.get(name, 0)
            if max(0, earlier) + self.spent.get(name, 0.0) > ceiling:
                return limit_name
        return None


class Job(Struct):
    """One WorkItem owned by this Worker, under one Ownership Epoch."""

    group_id: str
    mission_id: str
    work_item_id: str
    epoch: int
    phase: Phase = Phase.QUEUED
    run_id: str | None = None
    alive: bool = False
    """Whether the executor runs."""
    killed: bool = False
    """Whether it was ended by us, because the right to run it ended."""
    hold: Hold | None = None
    grant: Grant | None = None
    token_at: float = 0.0
    """When a Capability Token is asked for again at the earliest."""
    attempt: int = 0
    """Runs of the executor so far, here."""
    tries: int = 0
    """Runs that ended without a result."""
    retry_at: float | None = None
    started_at: float = 0.0
    """When the slot was taken."""
    launched_at: float = 0.0
    """When the present run began."""
    meter: Meter = field(default_factory=Meter)
    checkpoint: Checkpoint | None = None
    state: Output | None = None
    """The uploaded state file of ``checkpoint``."""
    state_pending: bool = False
    """Whether that file still has to be uploaded."""
    progress: Progress | None = None
    """Progress that was reported and not yet sent."""
    progress_sent_at: float = 0.0
    usage_sent_at: float = 0.0
    reports: list[Mapping[str, Any]] = []
    """Evidence lines of the executor."""
    stopping: Stopped | Blocked | Failed | None = None
    """Why the running executor was asked to stop."""
    outcome: Outcome | None = None
    exit_note: str = ""
    made_anew: bool = False
    """Whether the documents of its outcome were signed a second time, after a refusal."""
    evidence: tuple[Evidence, ...] = ()
    """Signed once; a second submission under a new lease carries the same documents."""
    steps: deque[str] = field(default_factory=deque)
    in_flight: str | None = None
    waits_until: float = 0.0


def kept(job: Job) -> Kept:
    """What to remember of a job as it stands."""
    outputs = job.outcome.outputs if isinstance(job.outcome, Finished) else None
    reports = tuple(dict(line) for line in job.reports)
    return Kept(
        job.work_item_id, job.epoch, job.attempt, job.tries, outputs, reports, job.meter.spent, job.meter.recorded
    )


def remembered(job: Job, kept: Kept) -> None:
    """Take up a job where an earlier run of the Worker left it."""
    job.attempt, job.tries = kept.attempt, kept.tries
    job.reports = list(kept.reports)
    job.meter = Meter(spent=dict(kept.spent), recorded=dict(kept.recorded))
    if kept.outputs is not None:
        job.outcome, job.phase = Finished(kept.outputs), Phase.CLOSING


def retry_delay(backoff: str, max_delay: float, attempt: int) -> float:
    """Seconds before run ``attempt`` + 1, never above ``max_delay`` (R-11.4-08)."""
    if backoff == "none":
        return 0.0
    if backoff == "fixed":
        return max_delay
    return float(min(max_delay, FIRST_DELAY_SECONDS * 2 ** (attempt - 1)))
