"""What each part of a Worker's engine may ask of the whole, and of its fellow parts: they need not know the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from mwnode.client.fold import WorkView
from mwnode.protocol.commands import Payload, WorkCheckpoint
from mwnode.protocol.documents import CapabilityRef, Progress, ScheduleEstimate
from mwnode.protocol.errors import ErrorCode, MissionWeaveError
from mwnode.protocol.ports import Clock
from mwnode.worker.effects import Effect
from mwnode.worker.groups import GroupState
from mwnode.worker.jobs import Blocked, Failed, Job, Outcome, Stopped
from mwnode.worker.papers import Papers
from mwnode.worker.scheduler import Scheduler
from mwnode.worker.settings import WorkerSettings


class Ticket(Struct, frozen=True):
    """What a Command was sent for, and when, in seconds of the monotonic clock."""

    work_item_id: str
    step: str
    sent_at: float


class KeepsOffers(Protocol):
    """Who answers offers."""

    def answered(self, work_item_id: str) -> None:
        """The answer was taken."""

    def refused(self, work_item_id: str, step: str, error: MissionWeaveError) -> None:
        """The answer was not taken."""

    def revisit(self, work_item_id: str, at: float) -> None:
        """Look at the WorkItem again at that monotonic time, in seconds."""

    def running_estimate(self, view: WorkView, elapsed: float) -> ScheduleEstimate:
        """When a WorkItem that has run for so many seconds will be done."""


class TakesSteps(Protocol):
    """Who sends what a job says under its lease."""

    def usage_line(self, job: Job, line: Mapping[str, Any]) -> None:
        """The executor told what it used."""

    def close(self, job: Job, outcome: Outcome) -> None:
        """The run has come to that: say so."""

    def advance(self, job: Job) -> None:
        """Send what is next."""

    def again(self, job: Job, step: str, code: ErrorCode) -> None:
        """That Command was not taken for a reason that passes."""

    def done(self, job: Job, step: str, receipt: Payload) -> None:
        """That Command was taken."""

    def rejected(self, job: Job, step: str, error: MissionWeaveError) -> None:
        """That Command will never be taken."""


class KeepsRuns(Protocol):
    """Who starts and ends executors."""

    def launch(self, job: Job, view: WorkView) -> None:
        """Start the executor."""

    def stop(self, job: Job, why: Stopped | Blocked | Failed) -> None:
        """Ask the executor to come to an end."""

    def of_run(self, run_id: str) -> Job | None:
        """Whose run that is."""


class WorksOffline(Protocol):
    """Who buffers what cannot be sent."""

    def progress(self, job: Job, progress: Progress) -> bool:
        """Buffer a progress report; whether that was possible."""

    def checkpoint(self, job: Job, payload: WorkCheckpoint) -> bool:
        """Buffer a checkpoint; whether that was possible."""

    def waits(self, job: Job, kind: str | None = None) -> bool:
        """Whether something of the job, of that kind, waits to be reconciled."""

    def answered(self, step: str) -> None:
        """What was buffered was taken."""

    def refused(self, step: str, error: MissionWeaveError, passing: frozenset[ErrorCode]) -> None:
        """What was buffered was not taken."""


class KeepsTokens(Protocol):
    """Who fetches and takes away Capability Tokens."""

    def request(self, job: Job) -> dict[str, Any] | None:
        """What is asked for now, if anything."""

    def watch(self, job: Job, now: float) -> None:
        """Renew what is to be renewed, and take away what is over."""


class Whole(Protocol):
    """One Agent's engine, as its parts see it."""

    online: bool
    offline_since: float | None
    draining: bool
    capabilities: tuple[CapabilityRef, ...]
    settings: WorkerSettings

    @property
    def agent_id(self) -> str:
        """Whose engine it is."""

    @property
    def papers(self) -> Papers:
        """Makes and signs documents."""

    @property
    def clock(self) -> Clock:
        """The time."""

    @property
    def scheduler(self) -> Scheduler:
        """What waits, and in which order."""

    @property
    def groups(self) -> Mapping[str, GroupState]:
        """Every Group, as its Events told."""

    @property
    def jobs(self) -> Mapping[str, Job]:
        """What this Worker owns, by WorkItem."""

    @property
    def packages(self) -> Mapping[str, str]:
        """The Context Package that an offer named, by WorkItem."""

    @property
    def offers(self) -> KeepsOffers:
        """Who answers offers."""

    @property
    def steps(self) -> TakesSteps:
        """Who sends what a job says under its lease."""

    @property
    def runs(self) -> KeepsRuns:
        """Who starts and ends executors."""

    @property
    def offline(self) -> WorksOffline:
        """Who buffers what cannot be sent."""

    @property
    def capability(self) -> KeepsTokens:
        """Who fetches and takes away Capability Tokens."""

    def emit(self, effect: Effect) -> None:
        """Ask the shell for something."""

    def note(self, event: str, **details: Any) -> None:
        """Have a line logged."""

    def ticket(self, work_item_id: str, step: str) -> int:
        """A ticket for one Command; its answer comes back with it."""

    def take_ticket(self, number: int) -> Ticket:
        """What a Command was sent for."""

    def send(self, kind: str, payload: Payload, view: WorkView, step: str, *, compare: bool = True) -> None:
        """Ask the shell for one Command about a WorkItem."""

    def view(self, job: Job) -> WorkView:
        """What the authority says of a job's WorkItem."""

    def apply(self, state: GroupState, payload: Payload) -> None:
        """Fold one Event into the Group's views, and do what follows from it."""

    def settle(self, view: WorkView) -> None:
        """Bring the job in line with what the authority says about its WorkItem."""

    def fits(self, view: WorkView) -> bool:
        """Whether the Agent Card of now has everything that was pinned when the item was accepted."""

    def run_seconds(self, view: WorkView) -> float:
        """How long a run may take."""

    def drop(self, job: Job, why: str, *, keep: bool = False) -> None:
        """Leave the work."""

    def finish(self, job: Job, step: str) -> None:
        """The job has come to its end by that step."""

    def free_slot(self, job: Job) -> None:
        """Nothing runs for the job any more."""


__all__ = ["Ticket", "Whole"]
