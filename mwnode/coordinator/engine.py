"""The Coordinator without I/O: a Mission's Events and answers go in; Commands and errands come out.

``advance`` compares the plan with the board and asks for whatever is missing. It is called after everything that comes
in, and it asks for nothing twice: what is under way is ``busy``, what failed for a passing reason waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct

from mwnode.client.fold import WorkView
from mwnode.coordinator.board import Board
from mwnode.coordinator.candidates import Candidate
from mwnode.coordinator.graph import Graph, Instance
from mwnode.coordinator.papers import CoordinatorPapers
from mwnode.coordinator.placing import Placing
from mwnode.coordinator.plan import Plan
from mwnode.coordinator.review import Accept, Assess, Checked, Rework, review
from mwnode.protocol.commands import (
    CORE,
    CoordinatorReconcile,
    MessagePost,
    MissionRenewCoordinator,
    MissionSubmitForApproval,
    Payload,
    ReconciledWorkItem,
    WorkAcceptResult,
    WorkAuthorize,
    WorkFail,
    WorkUnblock,
)
from mwnode.protocol.documents import Event, JsonObject
from mwnode.protocol.errors import ErrorCode, MissionWeaveError
from mwnode.protocol.identifiers import mission_conversation_id
from mwnode.protocol.instants import parse

RETRY_SECONDS = 1.0
STUCK_SECONDS = 30.0
_REPLACED = frozenset({ErrorCode.AUTH_STALE_COORDINATOR, ErrorCode.MEMBERSHIP_REQUIRED, ErrorCode.GROUP_NOT_FOUND})
_OPEN = frozenset({"open", "offered", "queued", "active", "blocked", "submitted", "failed"})


class Send(Struct, frozen=True):
    """Send one Command as the Coordinator; answer under the same ticket."""

    ticket: int
    kind: str
    payload: Payload
    group_id: str
    work_item_id: str | None
    coordinator_epoch: int
    expected_revision: int | None


class Upload(Struct, frozen=True):
    """Upload a work's input files; answer with ``uploaded``."""

    group_id: str
    local: str


class Check(Struct, frozen=True):
    """Fetch these Artifacts and compare them with their hashes; answer with ``checked``."""

    group_id: str
    work_item_id: str
    content_hashes: tuple[str, ...]


class LookUp(Struct, frozen=True):
    """Read Registry and Presence; answer with ``candidates``."""


class Note(Struct, frozen=True):
    """A line for the log."""

    event: str
    details: Mapping[str, Any]


Effect = Send | Upload | Check | LookUp | Note


class MissionEngine:
    """One Mission of one Coordinator."""

    def __init__(self, agent_id: str, group_id: str, plan: Plan, papers: CoordinatorPapers) -> None:
        self.agent_id = agent_id
        self.plan = plan
        self.papers = papers
        self.clock = papers.clock
        self.board = Board(group_id)
        self.graph = Graph(plan, self.board)
        self.live = False
        self.replaced = False
        self.inputs: dict[str, dict[str, str]] = {}
        """Uploaded input files by local name: path and content hash."""
        self.people: Sequence[Candidate] = ()
        self.placing = Placing(self)
        self._effects: list[Effect] = []
        self._busy: dict[int, str] = {}
        self._waits: dict[str, float] = {}
        self._until: dict[str, int] = {}
        """Sequence that the board must have reached before more of a key is asked."""
        self._ticket = 0
        self._checked: dict[str, dict[str, Checked]] = {}
        self._said: set[str] = set()
        self._looked_at = -1e9

    # --- outgoing -----------------------------------------------------------------------------------------------------

    def effects(self) -> list[Effect]:
        """What the shell does now, in order."""
        effects, self._effects = self._effects, []
        return effects

    def note(self, event: str, **details: Any) -> None:
        self._effects.append(Note(event, details))

    def free(self, key: str) -> bool:
        """Whether nothing of this key is under way, or waits after a failure."""
        if key in self._busy.values() or self._until.get(key, 0) > self.board.sequence:
            return False
        return self._waits.get(key, 0.0) <= self.clock.monotonic()

    def wait(self, key: str, seconds: float) -> None:
        """Do nothing of this key for so many seconds."""
        self._waits[key] = self.clock.monotonic() + seconds

    def send(
        self, key: str, kind: str, payload: Payload, *, view: WorkView | None = None, revision: int | None = None
    ) -> None:
        """Ask for one Command; nothing else of the same key is asked until it is answered."""
        self._ticket += 1
        self._busy[self._ticket] = key
        if view is not None:
            revision = view.item.revision
        self._effects.append(
            Send(
                self._ticket,
                kind,
                payload,
                self.board.group_id,
                None if view is None else view.work_item_id,
                self.board.coordinator_epoch,
                revision,
            )
        )

    # --- incoming -----------------------------------------------------------------------------------------------------

    def event(self, event: Event) -> None:
        """Take one Event of the Group, in order."""
        view = self.board.apply(event)
        if view is not None and view.state != "submitted":
            self._checked.pop(view.work_item_id, None)
        if self.live:
            self.advance()

    def caught_up(self) -> None:
        """The whole log was replayed: begin to act."""
        self.live = True
        self.advance()

    def answered(self, ticket: int, receipt: Event) -> None:
        """A Command was accepted; its Event comes by the subscription, in its place."""
        key = self._busy.pop(ticket, "")
        if receipt.sequence is not UNSET:
            # What follows from it is decided when all that came before it is here too.
            self._until[key] = receipt.sequence
        self.advance()

    def refused(self, ticket: int, error: MissionWeaveError) -> None:
        """A Command was refused; nothing of it was applied."""
        key = self._busy.pop(ticket, "")
        self.note("refused", step=key, code=error.code.value, message=error.message)
        wait = (error.rejection.retry_after_ms or 0) / 1000 or RETRY_SECONDS
        if error.code in _REPLACED:
            self.replaced = True
            self.note("replaced", because=error.message)
            return
        if error.code is ErrorCode.WORK_LEASE_EXPIRED:
            # The Coordinator lease lapsed while nobody else was assigned: it is granted anew (decision F24).
            self._waits.pop("renew", None)
            self._renew(always=True)
        elif key.startswith(("offer ", "member ")):
            wait = self.placing.refused(key, error) or wait
        elif error.code in (ErrorCode.BUDGET_EXCEEDED, ErrorCode.INVALID_COMMAND, ErrorCode.AUTH_FORBIDDEN):
            wait = STUCK_SECONDS
            self.say(f"refused {key}", f"{key} was refused ({error.code.value}): {error.message}")
        self.wait(key, wait)

    def uploaded(self, local: str, files: Mapping[str, str]) -> None:
        """A work's input files are stored: path and content hash."""
        self.inputs[local] = dict(files)
        self._waits.pop(f"upload {local}", None)
        self.advance()

    def checked(self, work_item_id: str, results: Sequence[Checked]) -> None:
        """Submitted Artifacts were fetched and compared."""
        self._checked[work_item_id] = {one.content_hash: one for one in results}
        self._waits.pop(f"check {work_item_id}", None)
        self.advance()

    def candidates(self, people: Sequence[Candidate]) -> None:
        """Who is registered, and who is present."""
        self.people = people
        self.advance()

    # --- what to do next ----------------------------------------------------------------------------------------------

    @property
    def ours(self) -> bool:
        """Whether this Agent coordinates the Mission now."""
        return self.board.coordinator_id == self.agent_id and not self.replaced

    @property
    def finished(self) -> bool:
        """Whether the Mission has come to an end."""
        return self.board.mission is not None and self.board.state in ("approved", "failed", "cancelled")

    def advance(self) -> None:
        """Ask for everything that the plan wants next."""
        if not self.live or not self.ours or self.finished or self.board.mission is None:
            return
        self._renew()
        if self.board.state != "active":
            return
        if not self._reconciled():
            return
        instances = self.graph.instances()
        for instance in instances.values():
            view = self.board.views.get(instance.work_item_id)
            if view is None:
                self._authorize(instance, instances)
            else:
                self._further(instance, instances, view)
        self._submit(instances)

    def _renew(self, always: bool = False) -> None:
        """Renew the Coordinator lease once a third of it is over."""
        lease = self.board.coordinator_lease
        if lease is None or not self.free("renew"):
            return
        since = lease.starts_at if lease.last_renewed_at is UNSET else lease.last_renewed_at
        begun, ends = parse(since).whole_microseconds(), parse(lease.expires_at).whole_microseconds()
        length = (ends - begun) // 1_000_000
        if always or self.clock.now().whole_microseconds() - begun >= (ends - begun) / 3:
            payload = MissionRenewCoordinator(lease_seconds=max(length, 300))
            self.send("renew", "mission.renew_coordinator", payload, revision=self.board.revision)

    def _reconciled(self) -> bool:
        """A replacement looks at everything before it assigns anything (R-7.2-11)."""
        board = self.board
        if board.coordinator_epoch == 1 or board.reconciled_epoch >= board.coordinator_epoch:
            return True
        if self.free("reconcile"):
            items = tuple(
                ReconciledWorkItem(work_item_id=view.work_item_id, revision=view.item.revision)
                for view in board.views.values()
                if view.state in _OPEN
            )
            payload = CoordinatorReconcile(context_package=self.papers.hand_over(board), work_items=items)
            self.send("reconcile", f"{CORE}.coordinator_reconcile", payload)
        return False

    def _authorize(self, instance: Instance, instances: Mapping[str, Instance]) -> None:
        local = instance.work.id
        if any(instances[name].work_item_id not in self.board.views for name in instance.work.after):
            return  # its dependencies must exist first; their Events bring us here again
        if not self.have_inputs(local) or not self.free(f"authorize {local}"):
            return
        contract = self.graph.contract(instance, instances, self.inputs[local], self.clock.now())
        # A failed WorkItem of an earlier round is replaced, or it would hold up the Mission for ever (decision A30).
        former = [one for one in self.graph.former(instance) if one in self.board.views]
        failed = next((one for one in former if self.board.views[one].state == "failed"), None)
        payload = WorkAuthorize(work_item_id=instance.work_item_id, contract=contract, replaces_work_item_id=failed)
        self.send(f"authorize {local}", "work.authorize", payload)
        self.note("authorize", work=local, workItemId=instance.work_item_id, round=instance.round)

    def have_inputs(self, local: str) -> bool:
        if local in self.inputs:
            return True
        if self.free(f"upload {local}"):
            self.wait(f"upload {local}", 60.0)
            self._effects.append(Upload(self.board.group_id, local))
        return False

    def _further(self, instance: Instance, instances: Mapping[str, Instance], view: WorkView) -> None:
        match view.state:
            case "verified" | "cancelled":
                return
            case "submitted":
                self._review(view)
            case "blocked":
                self._unblock(instance, view)
                self.placing.place(instance, instances, view)
            case _:
                self.placing.place(instance, instances, view)

    def look_up(self) -> None:
        """Read Registry and Presence again, every few seconds while somebody is wanted."""
        now = self.clock.monotonic()
        if now - self._looked_at >= 2.0:
            self._looked_at = now
            self._effects.append(LookUp())

    def _review(self, view: WorkView) -> None:
        submission = view.item.submission
        if submission is UNSET or not self.free(f"review {view.work_item_id}"):
            return
        checked = self._checked.get(view.work_item_id)
        if checked is None:
            if self.free(f"check {view.work_item_id}"):
                self.wait(f"check {view.work_item_id}", 60.0)
                self._effects.append(Check(self.board.group_id, view.work_item_id, submission.artifact_hashes))
            return
        verdict = review(view, checked)
        criteria = [criterion.criterion_id for criterion in view.item.contract.acceptance_criteria]
        match verdict:
            case Accept(considered):
                details: JsonObject = {"considered": list(considered), "steps": ["integrity", "schema", "evidence"]}
                method = "review: integrity of every Artifact, deliverables, coverage of every criterion by Evidence"
                evidence = self.papers.evidence(view, "artifact_integrity", criteria, "passed", method, details)
                payload = WorkAcceptResult(work_item_id=view.work_item_id, evidence=(evidence,))
                self.send(f"review {view.work_item_id}", "work.accept_result", payload, view=view)
                self.note("accept", workItemId=view.work_item_id)
            case Rework(step, reason, criterion_ids, considered):
                details = {"considered": list(considered), "failure": "REWORK", "step": step, "permanent": False}
                report = self.papers.evidence(view, "failure_report", criterion_ids, "failed", reason, details)
                fail = WorkFail(work_item_id=view.work_item_id, reason=f"REWORK: {reason}"[:4000], evidence=(report,))
                self.send(f"review {view.work_item_id}", "work.fail", fail, view=view)
                self.note("rework", workItemId=view.work_item_id, step=step, because=reason)
            case Assess(wanted):
                text = ", ".join(f"{criterion} ({kind})" for criterion, kind in wanted)
                self.say(f"assess {view.work_item_id}", f"{view.item.contract.goal}: waits for assessment of {text}")

    def _unblock(self, instance: Instance, view: WorkView) -> None:
        """A word of the owner after the block, or a raised budget, resolves it (R-11.4-06)."""
        blocked_at = self.board.blocked_at.get(view.work_item_id, 0)
        key = f"unblock {view.work_item_id}"
        if view.blocked_lease is None or view.blocked_lease.state != "active" or not self.free(key):
            return
        resolution = None
        if self.board.amended_at > blocked_at and "budget" in (view.block_reason or ""):
            resolution = "the budget was raised"
        places = (view.item.conversation_id, mission_conversation_id(self.board.group_id))
        for message in self.board.messages:
            later = self.board.message_sequences.get(message.message_id, 0) > blocked_at
            if later and message.author == self.board.owner and message.conversation_id in places:
                texts = [getattr(block, "text", "") for block in message.content]
                resolution = " ".join(text for text in texts if text) or "the MissionOwner answered"
        if resolution is not None:
            self.send(
                key,
                "work.unblock",
                WorkUnblock(work_item_id=view.work_item_id, resolution=resolution[:4000]),
                view=view,
            )
        else:
            why = f"{instance.work.id} is blocked: {view.block_reason}. Needed: {view.required_resolution}"
            self.say(f"blocked {view.work_item_id} {blocked_at}", why)

    def say(self, key: str, text: str) -> None:
        """Tell the MissionOwner once, in the main Conversation; a Message never changes state by itself."""
        if key in self._said or self.board.owner is None:
            return
        self._said.add(key)
        self.note("told", text=text)
        # A restarted Coordinator finds its own words in the log and does not repeat them.
        if any(text in getattr(block, "text", "") for message in self.board.messages for block in message.content):
            return
        payload = MessagePost(
            message_id=self.papers.new_id(),
            conversation_id=mission_conversation_id(self.board.group_id),
            content=text[:10_000],
            mentions=(self.board.owner,),
            announcement=True,
        )
        self.send(f"say {key}", "message.post", payload)

    def _submit(self, instances: Mapping[str, Instance]) -> None:
        """Every work is verified, and nothing else is open: submit exactly what was accepted (R-7.3-03)."""
        views = [self.board.views.get(instance.work_item_id) for instance in instances.values()]
        if any(view is None or view.state != "verified" for view in views) or not self.free("submit"):
            return
        former = {one for instance in instances.values() for one in self.graph.former(instance)}
        if any(view.state in _OPEN and view.work_item_id not in former for view in self.board.views.values()):
            return
        hashes: dict[str, None] = {}
        for view in views:
            if view is not None and view.item.submission is not UNSET:
                hashes.update(dict.fromkeys(view.item.submission.artifact_hashes))
        payload = MissionSubmitForApproval(artifact_hashes=tuple(hashes), mission_revision=self.board.revision)
        self.send("submit", "mission.submit_for_approval", payload, revision=self.board.revision)
        self.note("submit", artifacts=len(hashes))
