"""The Coordinator without I/O: a Mission's Events and answers go in; Commands and errands come out.

``advance`` compares the plan with the board and asks for whatever is missing. It is called after everything that comes
in, and it asks for nothing twice: what is under way is ``busy``, what failed for a passing reason waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import UNSET

from mwnode.client.fold import WorkView, decode_payload
from mwnode.coordinator.board import Board
from mwnode.coordinator.candidates import Candidate
from mwnode.coordinator.children import Children
from mwnode.coordinator.clarifying import Clarifying
from mwnode.coordinator.effects import Effect, LookUp, Note, Send, Upload
from mwnode.coordinator.graph import Graph, Instance
from mwnode.coordinator.growing import Growing
from mwnode.coordinator.overriding import Overriding, Passed
from mwnode.coordinator.papers import CoordinatorPapers
from mwnode.coordinator.placing import ASKED_AGAIN, Placing
from mwnode.coordinator.plan import Plan
from mwnode.coordinator.review import Checked
from mwnode.coordinator.reviewing import Reviewing
from mwnode.protocol.capabilities import covers
from mwnode.protocol.commands import (
    CORE,
    CoordinatorReconcile,
    MessagePost,
    MissionRenewCoordinator,
    MissionSubmitForApproval,
    Payload,
    ReconciledWorkItem,
    WorkAuthorize,
    WorkFail,
    WorkUnblock,
)
from mwnode.protocol.documents import Event, JsonObject, WorkContract
from mwnode.protocol.errors import ErrorCode, MissionWeaveError
from mwnode.protocol.events import MissionChildCreated
from mwnode.protocol.identifiers import mission_conversation_id
from mwnode.protocol.instants import parse

RETRY_SECONDS = 1.0
STUCK_SECONDS = 30.0
OWNERS_SECONDS = 10.0
"""How often Agent Cards are looked at while work waits with its owner."""
_REPLACED = frozenset({ErrorCode.AUTH_STALE_COORDINATOR, ErrorCode.MEMBERSHIP_REQUIRED, ErrorCode.GROUP_NOT_FOUND})
_TOLD = frozenset({ErrorCode.BUDGET_EXCEEDED, ErrorCode.INVALID_COMMAND, ErrorCode.AUTH_FORBIDDEN})
"""Refusals that the MissionOwner is told of: time does not lift them."""
_OPEN = frozenset({"open", "offered", "queued", "active", "blocked", "submitted", "failed"})


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
        self._replaced_at = 0
        """The newest Coordinator Epoch of ours that the authority told us is over."""
        self._epochs: dict[int, int] = {}
        """Under which Coordinator Epoch what is under way was asked, by ticket."""
        self.inputs: dict[str, dict[str, str]] = {}
        """Uploaded input files by local name: path and content hash."""
        self.people: Sequence[Candidate] = ()
        self.placing = Placing(self)
        self.reviewing = Reviewing(self)
        self.clarifying = Clarifying(self)
        self.growing = Growing(self)
        self.children = Children(self)
        self.overriding = Overriding(self.board, self.clock, papers.new_id)
        self.fellows: Callable[[], Iterable[MissionEngine]] = tuple
        """The engines of all Missions of this Coordinator; set by the shell."""
        self._effects: list[Effect] = []
        self._busy: dict[int, str] = {}
        self._waits: dict[str, float] = {}
        self._until: dict[str, tuple[Board, int]] = {}
        """Sequence that a board must have reached before more of a key is asked."""
        self._asked: dict[int, tuple[str, Passed | None]] = {}
        """Kind, and the Grant that it cites, of what is under way, by ticket."""
        self._ticket = 0
        self._said: set[str] = set()
        self._looked_at = -1e9

    def follow(self, plan: Plan) -> None:
        """The plan that the Mission was made from, once its first Event told which."""
        self.plan = self.graph.plan = plan

    # --- outgoing -----------------------------------------------------------------------------------------------------

    def effects(self) -> list[Effect]:
        """What the shell does now, in order."""
        effects, self._effects = self._effects, []
        return effects

    def emit(self, effect: Effect) -> None:
        """Ask the shell for something."""
        self._effects.append(effect)

    def note(self, event: str, **details: Any) -> None:
        self.emit(Note(event, details))

    def free(self, key: str) -> bool:
        """Whether nothing of this key is under way, or waits after a failure."""
        board, sequence = self._until.get(key, (self.board, 0))
        if key in self._busy.values() or sequence > board.sequence:
            return False
        return self._waits.get(key, 0.0) <= self.clock.monotonic()

    def wait(self, key: str, seconds: float) -> None:
        """Do nothing of this key for so many seconds."""
        self._waits[key] = self.clock.monotonic() + seconds

    def send(
        self,
        key: str,
        kind: str,
        payload: Payload,
        *,
        view: WorkView | None = None,
        revision: int | None = None,
        board: Board | None = None,
        extensions: Mapping[str, Any] | None = None,
    ) -> None:
        """Ask for one Command; nothing else of the same key is asked until it is answered.

        With the ``board`` of a child Mission it is sent there, as its MissionOwner.
        """
        self._ticket += 1
        self._busy[self._ticket] = key
        self._epochs[self._ticket] = self.board.coordinator_epoch
        if view is not None:
            revision = view.item.revision
        passed = self.overriding.passed(key, kind) if board is None else None
        self._asked[self._ticket] = (kind, passed)
        self._effects.append(
            Send(
                self._ticket,
                kind,
                payload,
                self.board.group_id if board is None else board.group_id,
                None if view is None else view.work_item_id,
                self.board.coordinator_epoch if board is None else None,
                revision,
                extensions,
                None if passed is None else passed.action_id,
                None if passed is None else passed.grant_id,
            )
        )

    # --- incoming -----------------------------------------------------------------------------------------------------

    def event(self, event: Event) -> None:
        """Take one Event of the Group, in order."""
        view = self.board.apply(event)
        if view is not None:
            self.reviewing.changed(view)
        payload = decode_payload(event) if event.kind == "mission.child.created" else None
        if isinstance(payload, MissionChildCreated) and view is not None:
            self.children.created(view.work_item_id, payload.child_mission_id, payload.child_group_id)
        if event.kind == "policy.cooperation_override.granted":
            self._waits.clear()  # what a limit stopped may go on
        if self.live:
            self.advance()

    def caught_up(self) -> None:
        """The whole log was replayed: begin to act."""
        self.live = True
        self.advance()

    def answered(self, ticket: int, receipt: Event) -> None:
        """A Command was accepted; its Event comes by the subscription, in its place."""
        key = self._busy.pop(ticket, "")
        self._epochs.pop(ticket, None)
        self.overriding.used(self._asked.pop(ticket, ("", None))[1])
        child = None if receipt.group_id is UNSET else self.children.by_group.get(receipt.group_id)
        if receipt.sequence is not UNSET:
            # What follows from it is decided when all that came before it is here too.
            self._until[key] = (self.board if child is None else child.board, receipt.sequence)
        self.advance()

    def refused(self, ticket: int, error: MissionWeaveError) -> None:
        """A Command was refused; nothing of it was applied."""
        key = self._busy.pop(ticket, "")
        epoch = self._epochs.pop(ticket, 0)
        kind, passed = self._asked.pop(ticket, ("", None))
        self.note("refused", step=key, code=error.code.value, message=error.message)
        wait = (error.rejection.retry_after_ms or 0) / 1000 or RETRY_SECONDS
        if error.code in _REPLACED:
            # It may be ours again by now, under a newer epoch.
            self._replaced_at = max(self._replaced_at, epoch)
            self.note("replaced", because=error.message)
            self.advance()
            return
        if error.code is ErrorCode.WORK_LEASE_EXPIRED:
            # The Coordinator lease lapsed while nobody else was assigned: it is granted anew (decision F24).
            self._waits.pop("renew", None)
            self._renew(always=True)
        elif key.startswith(("offer ", "member ")):
            wait = self.placing.refused(key, error) or wait
        elif error.code in _TOLD and passed is None:
            wait = STUCK_SECONDS
            self.say(f"refused {key}", f"{key} was refused ({error.code.value}): {error.message}")
        self.overriding.used(passed)
        question = self.overriding.question(key, kind, error)
        if self.overriding.stops(error):
            wait = STUCK_SECONDS
        if question is not None:
            self.note("limited", step=key, message=error.message)
            self.send(f"say override {key}", "message.post", question)
        self.wait(key, wait)

    def uploaded(self, local: str, files: Mapping[str, str]) -> None:
        """A work's input files are stored: path and content hash."""
        self.inputs[local] = dict(files)
        self._waits.pop(f"upload {local}", None)
        self.advance()

    def checked(self, work_item_id: str, results: Sequence[Checked]) -> None:
        """Submitted Artifacts were fetched and compared."""
        if not self.children.checked(work_item_id, results):
            self.reviewing.checked(work_item_id, results)
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
        board = self.board
        return board.coordinator_id == self.agent_id and board.coordinator_epoch > self._replaced_at

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
        if not self._reconciled() or not self.children.ready:
            return
        self.children.adopt()
        instances = self.graph.instances()
        for instance in instances.values():
            view = self.board.views.get(instance.work_item_id)
            if view is None:
                self._authorize(instance, instances)
            else:
                self.further(instance, instances, view)
        self.growing.advance()
        self.reviewing.tidy()
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
        local = instance.local
        after = () if instance.work is None else instance.work.after
        if any(instances[name].work_item_id not in self.board.views for name in after):
            return  # its dependencies must exist first; their Events bring us here again
        if not self.have_inputs(local):
            return
        contract = self.graph.contract(instance, instances, self.inputs[local], self.clock.now())
        # A failed WorkItem of an earlier round is replaced, or it would hold up the Mission for ever (decision A30).
        former = [one for one in self.graph.former(instance) if one in self.board.views]
        failed = next((one for one in former if self.board.views[one].state == "failed"), None)
        self.authorize(instance, contract, replaces=failed)

    def authorize(
        self,
        instance: Instance,
        contract: WorkContract,
        *,
        replaces: str | None = None,
        proposal_id: str | None = None,
        parent: str | None = None,
    ) -> None:
        """Ask for the WorkItem of an instance, if that is not under way."""
        key = f"authorize {instance.local}"
        if not self.free(key):
            return
        payload = WorkAuthorize(
            work_item_id=instance.work_item_id,
            contract=contract,
            replaces_work_item_id=replaces,
            proposal_id=proposal_id,
            parent_work_item_id=parent,
        )
        self.send(key, "work.authorize", payload)
        self.note("authorize", work=instance.local, workItemId=instance.work_item_id, round=instance.round)

    def have_inputs(self, local: str) -> bool:
        """Whether a work's input files are stored; asks for it otherwise. Only the plan's works have any."""
        work = self.plan.by_id.get(local)
        if work is not None and self.graph.handed(work) is None:
            return False
        if local in self.inputs or work is None:
            return True
        if self.free(f"upload {local}"):
            self.wait(f"upload {local}", 60.0)
            self.emit(Upload(self.board.group_id, local))
        return False

    def further(self, instance: Instance, instances: Mapping[str, Instance], view: WorkView) -> None:
        """Do what an authorized WorkItem needs next."""
        plan = self.plan.children.get(instance.local)
        match view.state:
            case "verified" | "cancelled":
                return
            case _ if plan is not None and instance.work is not None:
                self.children.look_at(instance, instances, view, plan)
            case "submitted":
                self.reviewing.look_at(instance, view)
            case "blocked":
                self._unblock(instance, view)
                self.placing.place(instance, instances, view)
            case "queued" if self._outgrown(view):
                self._take_back(view, "the Agent Card of its owner has no more what was pinned")
            case _:
                self.placing.place(instance, instances, view)

    def elsewhere(self) -> Mapping[str, int]:
        """What each Agent has, or is being offered, of this Coordinator's other Missions."""
        load: Counter[str] = Counter()
        now = self.clock.now()
        for other in self.fellows():
            if other is not self and not other.finished:
                load.update(other.placing.record(now).load)
        return load

    def look_up(self, seconds: float = 2.0) -> None:
        """Read Registry and Presence again, unless that was so few seconds ago."""
        now = self.clock.monotonic()
        if now - self._looked_at >= seconds:
            self._looked_at = now
            self.emit(LookUp())

    def _unblock(self, instance: Instance, view: WorkView) -> None:
        """A word of the owner after the block, or a raised budget, resolves it (R-11.4-06)."""
        blocked_at = self.board.blocked_at.get(view.work_item_id, 0)
        key = f"unblock {view.work_item_id}"
        if view.blocked_lease is None or view.blocked_lease.state != "active" or not self.free(key):
            return
        if self.board.retry(view.work_item_id).sequence > blocked_at:
            self._take_back(view, "its MissionOwner wants it tried again")
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
            why = (
                f"{instance.local} is blocked: {view.block_reason}. Needed: {view.required_resolution}. "
                f"`mwnode mission direct ID TEXT` answers; `mwnode mission retry ID {instance.local}` has it done "
                "anew, under another budget where --limit says so."
            )
            self.say(f"blocked {view.work_item_id} {blocked_at}", why)

    def _outgrown(self, view: WorkView) -> bool:
        """Whether a WorkItem that waits belongs to an Agent whose new Card has no more what was pinned: it is to be
        accepted anew before it runs on, and nobody waits for the old lease to end (R-6.1-08)."""
        owner = view.item.owner
        if owner is UNSET:
            return False
        self.look_up(OWNERS_SECONDS)
        card = next((one.card for one in self.people if one.card.agent_id == owner.agent_id), None)
        changed = card is not None and card.card_version > owner.agent_card_version
        return changed and card is not None and not covers(card.capabilities, owner.capability_pins)

    def _take_back(self, view: WorkView, reason: str) -> None:
        """Work that has to be accepted anew ends as failed, and is offered again from its checkpoint on."""
        key = f"take back {view.work_item_id}"
        if not self.free(key):
            return
        criteria = [one.criterion_id for one in view.item.contract.acceptance_criteria]
        details: JsonObject = {"failure": ASKED_AGAIN, "permanent": False}
        report = self.papers.evidence(view, "failure_report", criteria, "failed", reason, details)
        payload = WorkFail(work_item_id=view.work_item_id, reason=f"{ASKED_AGAIN}: {reason}", evidence=(report,))
        self.send(key, "work.fail", payload, view=view)

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
        if not self.growing.settled:
            return
        settled = {one for instance in instances.values() for one in self.graph.former(instance)} | self.board.replaced
        if any(view.state in _OPEN and view.work_item_id not in settled for view in self.board.views.values()):
            return
        hashes: dict[str, None] = {}
        for view in views:
            if view is not None and view.item.submission is not UNSET:
                hashes.update(dict.fromkeys(view.item.submission.artifact_hashes))
        hashes.update(dict.fromkeys(self.growing.results()))
        payload = MissionSubmitForApproval(artifact_hashes=tuple(hashes), mission_revision=self.board.revision)
        self.send("submit", "mission.submit_for_approval", payload, revision=self.board.revision)
        self.note("submit", artifacts=len(hashes))
