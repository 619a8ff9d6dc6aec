"""The Worker without I/O: Events, answers and exits go in; effects come out.

The authority's state is in the views, the Worker's own in the jobs. Whatever comes in changes one of them and then
``settle`` looks what follows, so the order of arrival does not matter and a restart is nothing special: after replay,
``settle`` finds the same work to do (R-5-03, R-11.1-03).
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from mwnode.client.fold import WorkView, decode_payload, fold
from mwnode.protocol.capabilities import covers
from mwnode.protocol.commands import Payload, WorkStart
from mwnode.protocol.documents import CapabilityRef, Event, Membership
from mwnode.protocol.errors import MissionWeaveError
from mwnode.protocol.events import (
    ContractRevised,
    MembershipChanged,
    MembershipEnded,
    MissionCreated,
    MissionPrioritized,
    OfferCreated,
)
from mwnode.worker.answers import Answers
from mwnode.worker.capability import Capabilities
from mwnode.worker.effects import Discard, Effect, Forget, Kill, Note, Send
from mwnode.worker.groups import GroupState
from mwnode.worker.jobs import Job, Kept, Phase, Stopped, remembered
from mwnode.worker.offers import Offers
from mwnode.worker.offline import Offline
from mwnode.worker.papers import Papers
from mwnode.worker.runs import Runs
from mwnode.worker.scheduler import PRIORITY_CLASSES, Entry, Scheduler
from mwnode.worker.settings import WorkerSettings
from mwnode.worker.steps import Steps
from mwnode.worker.timeline import Timeline
from mwnode.worker.whole import Ticket

_FINISHED = {"submit": "submitted", "fail": "failed", "checkpoint": "checkpointed", "block": "blocked"}
"""The log's word for each Command that ends a run."""
_TERMINAL = frozenset({"verified", "cancelled"})


class WorkerEngine:
    """One Agent's work in all its Groups. Call ``tick`` a few times a second and carry out ``effects`` in order."""

    def __init__(
        self, papers: Papers, capabilities: tuple[CapabilityRef, ...], settings: WorkerSettings | None = None
    ) -> None:
        self.papers = papers
        self.clock = papers.clock
        self._timeline = Timeline(papers.clock)
        self.agent_id = papers.key.principal.id
        self.settings = settings or WorkerSettings()
        self.capabilities = capabilities
        self.scheduler = Scheduler(self.settings.scheduling)
        self.groups: dict[str, GroupState] = {}
        self.jobs: dict[str, Job] = {}
        self.online = False
        self.offline_since: float | None = None
        self.draining = False
        self.offers = Offers(self)
        self.steps = Steps(self)
        self.runs = Runs(self)
        self.answers = Answers(self)
        self.offline = Offline(self)
        self.capability = Capabilities(self)
        self.kept: dict[tuple[str, int], Kept] = {}
        """What an earlier run of this Worker remembered; set by the shell before anything else."""
        self._tickets: dict[int, Ticket] = {}
        self._ticket = 0
        self._effects: list[Effect] = []
        self.packages: dict[str, str] = {}

    # --- outgoing -----------------------------------------------------------------------------------------------------

    def effects(self) -> list[Effect]:
        """What the shell does now, in order."""
        effects, self._effects = self._effects, []
        return effects

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def note(self, event: str, **details: Any) -> None:
        self.emit(Note(event, details))

    def ticket(self, work_item_id: str, step: str) -> int:
        """A ticket for one Command; its answer comes back with it."""
        self._ticket += 1
        self._tickets[self._ticket] = Ticket(work_item_id, step, self.clock.monotonic())
        return self._ticket

    def send(self, kind: str, payload: Payload, view: WorkView, step: str, *, compare: bool = True) -> None:
        """Ask the shell for one Command about a WorkItem."""
        revision = view.item.revision if compare else None
        ticket = self.ticket(view.work_item_id, step)
        self.emit(Send(ticket, kind, payload, view.item.group_id, view.work_item_id, revision))

    # --- connection and Groups ----------------------------------------------------------------------------------------

    def connected(self, session_epoch: int) -> None:
        """There is a session of that epoch.

        Opening it ended the leases of the one before (R-11.3-17): nothing is sent under them any more, and what runs is
        bound to new ones as the Events of the Groups tell (R-11.5-08, decision G4). A lease that this very session was
        granted stays: its receipt may be here before the news of the session is.
        """
        self.online, self.offline_since = True, None
        for job in self.jobs.values():
            if job.hold is None or job.hold.session_epoch < session_epoch:
                job.hold = None
                job.steps.clear()
        for state in self.groups.values():
            if state.live:
                for view in list(state.views.values()):
                    self.settle(view)

    def disconnected(self) -> None:
        """The link is gone: nothing new is started until it is back (R-11.5-06)."""
        if self.online or self.offline_since is None:
            self.offline_since = self.clock.monotonic()
            self.offline.disconnected()
        self.online = False

    def join(self, group_id: str, mission_id: str | None, scopes: tuple[str, ...]) -> bool:
        """The Agent is a Member of this Group; whether that is new and the Group must be subscribed."""
        state = self.groups.get(group_id)
        if state is not None:
            state.member, state.scopes = True, frozenset(scopes) or state.scopes
            return False
        self.groups[group_id] = GroupState(group_id, mission_id, frozenset(scopes))
        return True

    def prioritize(self, group_id: str, priority: str) -> None:
        """The Mission's priority class is this now: what waits is ordered anew at once (R-11.1-08, R-11.3-23)."""
        state = self.groups.get(group_id)
        if state is None or state.priority == priority or priority not in PRIORITY_CLASSES:
            return
        state.priority = priority
        self.note("prioritized", groupId=group_id, priority=priority)
        for work_item_id in self.scheduler.queue(group_id):
            known = self.scheduler.entry(work_item_id)
            assert known is not None, "what is queued is known"
            self.scheduler.add(msgspec.structs.replace(known, priority_class=PRIORITY_CLASSES[priority]))

    def leave(self, group_id: str) -> None:
        """The Group cannot be read: forget it until the Agent is put into it again."""
        state = self.groups.pop(group_id, None)
        for job in [job for job in self.jobs.values() if job.group_id == group_id]:
            assert state is not None, "jobs belong to known Groups"
            self.drop(job, "the Group cannot be read any more", keep=True)

    def restore(self, group: GroupState) -> None:
        """Take up a Group as an earlier run of this Worker kept it; Events above its cursor come next."""
        self.groups[group.group_id] = group

    def caught_up(self, group_id: str) -> None:
        """Everything that exists in the Group has been delivered: decide on it."""
        state = self.groups[group_id]
        state.live = True
        for view in list(state.views.values()):
            self.settle(view)

    def membership_in(self, event: Event) -> Membership | None:
        """The Agent's own Membership, if the Event states one."""
        payload = decode_payload(event)
        stated: tuple[Membership, ...] = ()
        if isinstance(payload, MembershipChanged | MembershipEnded):
            stated = (payload.membership,)
        elif isinstance(payload, MissionCreated):
            stated = payload.memberships
        return next((one for one in stated if one.member.type == "agent" and one.member.id == self.agent_id), None)

    def event(self, event: Event) -> None:
        """Take one Event, in its Group's order."""
        if event.group_id is UNSET or event.group_id not in self.groups:
            return
        payload = decode_payload(event)
        if payload is None:
            return
        state = self.groups[event.group_id]
        membership = self.membership_in(event)
        if membership is not None:
            state.member = membership.state != "ended"
            state.scopes = frozenset(membership.scopes)
            state.membership_epoch = membership.membership_epoch
            if membership.context_package_id is not UNSET:
                state.package_id = membership.context_package_id
        if isinstance(payload, MissionPrioritized):
            self.prioritize(event.group_id, payload.priority)
        self.apply(state, payload)

    def apply(self, state: GroupState, payload: Payload) -> None:
        """Fold one Event into the Group's views, and do what follows from it."""
        view = fold(state.views, payload)
        if view is None:
            return
        state.dirty.add(view.work_item_id)
        if isinstance(payload, OfferCreated):
            state.mission_id = view.item.mission_id
            if payload.context_package_id is not UNSET:
                self.packages[view.work_item_id] = payload.context_package_id
        if isinstance(payload, OfferCreated | ContractRevised):
            self.offers.revised(view)
        if state.live:
            self.settle(view)
            # A verified or cancelled item may be what others of the Group wait for.
            if view.state in _TERMINAL:
                for other in list(state.views.values()):
                    if view.work_item_id in other.item.contract.dependency_work_item_ids:
                        self.settle(other)

    def fits(self, view: WorkView) -> bool:
        """Whether the Agent Card of now has everything that was pinned when the item was accepted."""
        owner = view.item.owner
        return owner is UNSET or covers(self.capabilities, owner.capability_pins)

    def upgraded(self, capabilities: tuple[CapabilityRef, ...], slots: int | None = None) -> None:
        """The Agent has a new Card. What it no longer fits comes to a checkpoint and is let go, to be offered and
        accepted anew before it runs on (R-6.1-08); everything else continues in place (R-6.1-07)."""
        self.capabilities = capabilities
        if slots is not None:
            scheduling = msgspec.structs.replace(self.settings.scheduling, slots=slots)
            self.settings = msgspec.structs.replace(self.settings, scheduling=scheduling)
            self.scheduler.settings = scheduling
        for job in list(self.jobs.values()):
            why = Stopped("the Agent Card no longer has what was pinned", resume_within=1)
            if self.fits(self.view(job)):
                continue
            if job.alive:
                self.runs.stop(job, why)
            elif job.phase is Phase.RESTING:
                job.retry_at = None
                self.steps.close(job, why)
            elif job.phase is Phase.QUEUED:
                self.scheduler.remove(job.work_item_id)

    # --- what follows from a view -------------------------------------------------------------------------------------

    def view(self, job: Job) -> WorkView:
        return self.groups[job.group_id].views[job.work_item_id]

    def _mine(self, view: WorkView) -> bool:
        owner = view.item.owner
        return owner is not UNSET and owner.agent_id == self.agent_id and view.state not in ("open", "offered")

    def settle(self, view: WorkView) -> None:
        """Bring the job in line with what the authority says about its WorkItem."""
        job = self.jobs.get(view.work_item_id)
        owner = view.item.owner
        if job is not None and (not self._mine(view) or owner is UNSET or owner.ownership_epoch != job.epoch):
            self.drop(job, f"the WorkItem is {view.state} and not ours any more", keep=True)
            job = None
        if view.state in ("open", "offered", "failed"):
            self.offers.look_at(view)
            return
        if not self._mine(view) or owner is UNSET:
            return
        if view.state in ("submitted", "verified", "cancelled"):
            if job is not None:
                self.drop(job, f"the WorkItem is {view.state}", keep=view.state == "cancelled")
            return
        if job is None:
            job = Job(view.item.group_id, view.item.mission_id, view.work_item_id, owner.ownership_epoch)
            job.checkpoint = view.checkpoint
            earlier = self.kept.pop((view.work_item_id, owner.ownership_epoch), None)
            if earlier is not None:
                remembered(job, earlier)
            self.jobs[view.work_item_id] = job
        lease = view.execution_lease
        if view.state == "queued":
            self._queued(job, view)
        elif view.state == "active" and lease is not None and lease.state != "active" and job.hold is not None:
            # The authority ended the lease, and the item stays active until somebody is offered it (decision A18).
            if job.hold.lease_id == lease.lease_id:
                self.drop(job, "the Execution Lease ended", keep=True)
        elif view.state == "blocked" and job.phase is not Phase.QUEUED:
            self.drop(job, "the WorkItem is blocked")
        elif view.state == "blocked":
            self.scheduler.remove(job.work_item_id)

    def _queued(self, job: Job, view: WorkView) -> None:
        if job.phase is Phase.STARTING or job.in_flight is not None:
            return
        if job.phase is not Phase.QUEUED:
            # Our run goes on, or has ended, while the lease it had is gone: bind it to a new one (decision G4).
            job.hold = None
            job.steps.clear()
            if not self.offline.waits(job, "message.post"):  # what was buffered is reconciled first (R-11.5-08)
                self._start(job, view)
        elif self._ready(view):
            self._enqueue(job, view)
        else:
            self.scheduler.remove(job.work_item_id)

    def _ready(self, view: WorkView) -> bool:
        """Whether dependencies and approvals allow a start, as far as this Worker can see (R-10.4-03)."""
        if not self.fits(view):
            return False
        contract = view.item.contract
        views = self.groups[view.item.group_id].views
        for work_item_id in contract.dependency_work_item_ids:
            known = views.get(work_item_id)
            if known is not None and known.state != "verified":
                return False
        job = self.jobs[view.work_item_id]
        return contract.execution_approval != "human_required" or job.epoch in view.approved_epochs

    def _enqueue(self, job: Job, view: WorkView) -> None:
        if self.scheduler.standing(job.work_item_id) is not None:
            return
        contract, owner = view.item.contract, view.item.owner
        assert owner is not UNSET, "only owned items are queued"
        self.scheduler.add(
            Entry(
                work_item_id=job.work_item_id,
                group_id=job.group_id,
                ready_at=self._timeline.at(owner.accepted_at),
                urgency=contract.requested_urgency,
                deadline_at=self._timeline.at(contract.deadline),
                risk=contract.side_effect_risk,
                seconds=self.run_seconds(view),
                priority_class=PRIORITY_CLASSES[self.groups[job.group_id].priority],
            )
        )

    def run_seconds(self, view: WorkView) -> float:
        """Expected seconds of a run: what is usual, or the wall clock limit if that is shorter."""
        limit = view.item.contract.budget.wall_clock_seconds_limit
        return self.settings.run_seconds if limit is UNSET else float(min(limit, self.settings.run_seconds))

    def drop(self, job: Job, why: str, *, keep: bool = False) -> None:
        """This job is over here; a result that was not accepted is kept aside for audit."""
        if job.alive and job.run_id is not None:
            self.emit(Kill(job.run_id, why))
        self._forget(job, keep=keep)
        self.note("work_left", workItemId=job.work_item_id, because=why)

    def _forget(self, job: Job, *, keep: bool) -> None:
        self.free_slot(job)
        self.scheduler.remove(job.work_item_id)
        del self.jobs[job.work_item_id]
        self.emit(Forget(job.work_item_id, job.epoch))
        if job.run_id is not None:
            self.runs.forget(job.run_id)
            self.emit(Discard(job.run_id, keep))

    def finish(self, job: Job, step: str) -> None:
        """The run's last Command was accepted: the slot is free, and the view decides what becomes of the item."""
        self.note(_FINISHED[step], workItemId=job.work_item_id, attempt=job.attempt)
        self._forget(job, keep=self.settings.keep_failed and step == "fail")

    def free_slot(self, job: Job) -> None:
        """The job gives its slot back, if it has one."""
        if self.scheduler.standing(job.work_item_id) in ("running", "preempting"):
            self.scheduler.release(job.work_item_id, self.clock.monotonic() - job.started_at)

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Start what may start, renew what must be renewed, stop what ran out of time."""
        now = self.clock.monotonic()
        for job in list(self.jobs.values()):
            self.runs.watch(job, now)
        if self.online:
            self.offline.tick(now)
            self.offers.tick(now)
        if self.online and not self.draining:
            self._fill_slots(now)
        for job in list(self.jobs.values()):
            self.steps.advance(job)

    def _fill_slots(self, now: float) -> None:
        while (pick := self.scheduler.pick(now)) is not None:
            job = self.jobs[pick.work_item_id]
            job.started_at = now
            self.note("picked", workItemId=pick.work_item_id, rule=pick.rule, dueIn=round(pick.due_in))
            self._start(job, self.view(job))
        wish = self.scheduler.preemption(now)
        if wish is not None:
            self.runs.stop(self.jobs[wish[0]], Stopped("made room for overdue work of another Mission"))

    def _start(self, job: Job, view: WorkView) -> None:
        if not self.online:
            return
        if job.phase is Phase.QUEUED:
            job.phase = Phase.STARTING
        job.in_flight = "start"
        payload = WorkStart(ownership_epoch=job.epoch, execution_lease_seconds=self.settings.execution_lease_seconds)
        self.send("work.start", payload, view, "start")

    def shut_down(self) -> None:
        """Take nothing more, bring what runs to a checkpoint. ``idle`` tells when it is done."""
        self.draining = True
        for job in list(self.jobs.values()):
            if job.alive:
                self.runs.stop(job, Stopped("the Worker is shutting down"))
            elif job.phase is Phase.RESTING:
                job.retry_at = None
                self.steps.close(job, Stopped("the Worker is shutting down"))

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits for an answer."""
        return all(job.phase is Phase.QUEUED and job.in_flight is None for job in self.jobs.values())

    # --- answers ------------------------------------------------------------------------------------------------------

    def take_ticket(self, number: int) -> Ticket:
        """What a Command was sent for."""
        return self._tickets.pop(number)

    def answered(self, ticket: int, receipt: Event) -> None:
        """A Command was accepted; its receipt is applied ahead of its place in the log."""
        self.answers.accepted(ticket, receipt)

    def refused(self, ticket: int, error: MissionWeaveError) -> None:
        """A Command was refused; nothing of it was applied."""
        self.answers.refused(ticket, error)
