"""What a Coordinator knows of one Mission: the fold of its Group's Events, from the first on. Pure.

Nothing else is remembered: a Coordinator that starts again after a crash replays the Group and goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct, field

from mwnode.client.fold import WorkView, decode_payload, fold
from mwnode.protocol import terms
from mwnode.protocol.commands import Payload
from mwnode.protocol.documents import (
    Actor,
    Budget,
    DataBlock,
    Event,
    Evidence,
    Extensions,
    Lease,
    Membership,
    Message,
    Mission,
)
from mwnode.protocol.events import (
    ArtifactForwarded,
    BudgetAmended,
    CooperationOverrideGrant,
    CoordinatorAssigned,
    CoordinatorReconciled,
    CoordinatorRenewed,
    Fact,
    MembershipChanged,
    MembershipEnded,
    MessageCommitted,
    MissionApproved,
    MissionCancelled,
    MissionChangesRequested,
    MissionChildCreated,
    MissionCreated,
    MissionSubmitted,
    MissionTerminated,
    OverrideGranted,
    ResultAccepted,
    RootApprovalGranted,
    WorkAuthorized,
    WorkBlocked,
    WorkFailed,
    WorkProposal,
    WorkProposed,
    WorkSubmitted,
)
from mwnode.protocol.identifiers import (
    CLARIFICATION_SCHEMA,
    EVIDENCE_SCHEMA,
    INPUTS_SCHEMA,
    OVERRIDE_SCHEMA,
    RETRY_SCHEMA,
)

T = TypeVar("T", bound=Struct)
_MISSION_FACTS = (
    MissionSubmitted,
    MissionApproved,
    MissionChangesRequested,
    MissionCancelled,
    MissionTerminated,
    BudgetAmended,
)


class Change(Struct, frozen=True):
    """One request for changes: the owner's words, and how many came before it."""

    round: int
    feedback: str
    event_id: str


class Question(Struct):
    """One clarification that somebody asked for in a Conversation, and whether it was declared resolved there."""

    question_id: str
    conversation_id: str
    author: Actor
    text: str
    sequence: int
    contract_version: int
    """Version of the contract that stood when it was asked; 0 outside of WorkItem Conversations."""
    resolved: bool = False


class Retry(Struct, frozen=True):
    """The owner's wish that a WorkItem be tried again: when it was said, and under what budget, if that changes."""

    sequence: int = 0
    budget: Budget | None = None


class Board(Struct):
    """One Mission. Sequences are the Group's."""

    group_id: str
    mission: Mission | None = None
    plan_hash: str | None = None
    revision: int = 0
    state: str = "active"
    coordinator_id: str | None = None
    coordinator_epoch: int = 0
    coordinator_lease: Lease | None = None
    reconciled_epoch: int = 1
    views: dict[str, WorkView] = field(default_factory=dict)
    memberships: dict[str, Membership] = field(default_factory=dict)
    """Memberships of Agents, by Agent ID."""
    proposals: dict[str, WorkProposal] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    """Messages since the last request for changes; the newest thousand."""
    message_sequences: dict[str, int] = field(default_factory=dict)
    questions: dict[tuple[str, str], Question] = field(default_factory=dict)
    """Clarifications by Conversation and question ID, oldest first."""
    replaced: set[str] = field(default_factory=set)
    """WorkItems in whose place a substitute was authorized."""
    taken_proposals: set[str] = field(default_factory=set)
    """Proposals that were authorized, by whomever."""
    budget: Budget | None = None
    """The Mission's budget as it was last amended."""
    facts: dict[str, str] = field(default_factory=dict)
    """Event IDs worth citing: ``created``, ``authorized <id>``, ``accepted <id>``."""
    blocked_at: dict[str, int] = field(default_factory=dict)
    """Sequence at which each WorkItem was blocked."""
    amended_at: int = 0
    sequence: int = 0
    event_ids: list[str] = field(default_factory=list)
    """IDs of all Events, in order: a Context Package names every Event of its range."""
    submitted: tuple[str, ...] = ()
    submitted_revision: int = 0
    root_approved: bool = False
    """Whether the human at the root approved what is submitted (R-14-15)."""
    promoted: dict[str, int] = field(default_factory=dict)
    """Sequence at which each WorkItem was last made a child Mission."""
    overrides: dict[str, CooperationOverrideGrant] = field(default_factory=dict)
    """Grants by the Action ID that they are for."""
    asked_overrides: set[str] = field(default_factory=set)
    """Action IDs that such a Grant was asked for."""
    retries: dict[str, Retry] = field(default_factory=dict)
    """What the owner last asked for each WorkItem that is to be tried again."""
    given: dict[str, dict[str, Evidence]] = field(default_factory=dict)
    """Evidence that humans gave in Messages about what is submitted, by WorkItem and ID."""
    handed: dict[str, str] = field(default_factory=dict)
    """Path and content hash of every file that the Mission's owner handed in."""
    forwarded: set[tuple[str, str]] = field(default_factory=set)
    """Content hash and Group of everything that was forwarded from or to this Group."""
    failed_at: dict[str, int] = field(default_factory=dict)
    """Sequence at which each WorkItem last failed."""

    def apply(self, event: Event) -> WorkView | None:
        """Take one Event in its place; the WorkItem it is about."""
        if event.sequence is UNSET or event.sequence <= self.sequence:
            return None
        payload = decode_payload(event)
        self.sequence = event.sequence
        self.event_ids.append(event.event_id)
        if payload is None:
            return None
        self._mission(event, payload)
        self._people(event, payload)
        view = fold(self.views, payload)
        if isinstance(payload, WorkAuthorized):
            self.facts[f"authorized {payload.work_item.work_item_id}"] = event.event_id
            if payload.proposal_id is not UNSET:
                self.taken_proposals.add(payload.proposal_id)
            if payload.replaces_work_item_id is not UNSET:
                self.replaced.add(payload.replaces_work_item_id)
        elif isinstance(payload, ResultAccepted):
            self.facts[f"accepted {payload.work_item_id}"] = event.event_id
        elif isinstance(payload, WorkBlocked):
            self.blocked_at[payload.work_item_id] = self.sequence
        elif isinstance(payload, ArtifactForwarded):
            self.forwarded.add((payload.artifact_hash, payload.to_group_id))
        elif isinstance(payload, WorkSubmitted):
            # Whatever a human said of an earlier submission is no word about this one, though its bytes be the same.
            self.given.pop(payload.work_item_id, None)
        elif isinstance(payload, WorkFailed):
            self.failed_at[payload.work_item_id] = self.sequence
        elif isinstance(payload, MissionChildCreated):
            self.promoted[payload.parent_work_item_id] = self.sequence
        elif isinstance(payload, OverrideGranted):
            grant = payload.cooperation_override_grant
            self.overrides[grant.target_action_id] = grant
        elif isinstance(payload, WorkProposed):
            self.proposals[payload.proposal.proposal_id] = payload.proposal
        moved = getattr(payload, "mission_revision", UNSET)
        if isinstance(moved, int):
            self.revision = max(self.revision, moved)
        return view

    def _mission(self, event: Event, payload: Payload) -> None:
        match payload:
            case MissionCreated():
                self.mission, self.budget = payload.mission, payload.mission.budget
                self.plan_hash = plan_hash_of(event, payload.mission)
                self.coordinator_id = payload.mission.coordinator.agent_id
                self.coordinator_epoch = payload.mission.coordinator.coordinator_epoch
                self.coordinator_lease = payload.coordinator_lease
                self.revision, self.state = payload.revision, payload.state
                self.facts["created"] = event.event_id
            case CoordinatorAssigned():
                self.coordinator_id = payload.coordinator_agent_id
                self.coordinator_epoch = payload.coordinator_epoch
                self.coordinator_lease = payload.coordinator_lease
                self.revision = max(self.revision, payload.revision)
            case CoordinatorRenewed():
                self.coordinator_lease = payload.coordinator_lease
            case CoordinatorReconciled():
                self.reconciled_epoch = max(self.reconciled_epoch, payload.coordinator_epoch)
            case MissionChangesRequested():
                feedback = payload.approval.comments if payload.feedback is UNSET else payload.feedback
                self.changes.append(Change(len(self.changes) + 1, feedback, event.event_id))
            case MissionSubmitted():
                self.submitted, self.submitted_revision = payload.artifact_hashes, payload.mission_revision
                self.root_approved = False
            case RootApprovalGranted():
                self.root_approved = True
            case BudgetAmended():
                self.amended_at, self.budget = self.sequence, payload.budget
        if isinstance(payload, _MISSION_FACTS):
            assert isinstance(payload, Fact), "Mission facts state revision and state"
            self.revision, self.state = max(self.revision, payload.revision), payload.state

    def _people(self, event: Event, payload: Payload) -> None:
        stated: tuple[Membership, ...] = ()
        if isinstance(payload, MembershipChanged | MembershipEnded):
            stated = (payload.membership,)
        elif isinstance(payload, MissionCreated | CoordinatorAssigned):
            stated = payload.memberships
        else:
            single = getattr(payload, "membership", UNSET)
            stated = (single,) if isinstance(single, Membership) else ()
        for membership in stated:
            if membership.member.type == "agent" and membership.group_id == self.group_id:
                self.memberships[membership.member.id] = membership
            if membership.role == "mission_owner" and membership.state == "active":
                self._owned_by(membership)
        if isinstance(payload, MessageCommitted) and payload.message.kind == "message":
            self.messages = [*self.messages[-999:], payload.message]
            self.message_sequences[payload.message.message_id] = self.sequence
            self._clarifications(payload.message)
            for block in payload.message.content:
                if isinstance(block, DataBlock) and isinstance(block.data, Mapping):
                    self._told(payload.message, block.schema, block.data)

    def _owned_by(self, membership: Membership) -> None:
        """A child Mission's owner is the Parent Coordinator, whoever that is now (R-14-19)."""
        mine = self.mission is not None and membership.group_id == self.group_id
        if mine and self.mission is not None and self.mission.mission_owner != membership.member:
            self.mission = msgspec.structs.replace(self.mission, mission_owner=membership.member)

    def _told(self, message: Message, schema: str, data: Mapping[str, Any]) -> None:
        """What a human says in a form that is acted upon; a Message asks, and the Coordinator decides."""
        if schema == RETRY_SCHEMA and message.author == self.owner:
            work_item_id = data.get("workItemId")
            if isinstance(work_item_id, str):
                self.retries[work_item_id] = Retry(self.sequence, _as(Budget, data.get("budget")))
        elif schema == OVERRIDE_SCHEMA and message.author.id == self.coordinator_id:
            self.asked_overrides.add(str(data.get("targetActionId")))
        elif schema == INPUTS_SCHEMA and message.author == self.owner:
            files = data.get("files")
            known = files if isinstance(files, Mapping) else {}
            self.handed = {path: content_hash for path, content_hash in known.items() if isinstance(content_hash, str)}
        elif schema == EVIDENCE_SCHEMA and message.author.type == "human":
            evidence = _as(Evidence, data)
            if evidence is not None and evidence.generated_by == message.author:
                self.given.setdefault(evidence.work_item_id, {})[evidence.evidence_id] = evidence

    def overrides_of(self, kind: str) -> int:
        """How many Grants there were for Commands of that kind."""
        return sum(grant.target_command_kind == kind for grant in self.overrides.values())

    def retry(self, work_item_id: str) -> Retry:
        """What the owner last asked about another try of a WorkItem; sequence 0 when that never was."""
        return self.retries.get(work_item_id, Retry())

    def _clarifications(self, message: Message) -> None:
        """Blocks of a Message that ask for a clarification or resolve one (decision F18)."""
        for block in message.content:
            if not isinstance(block, DataBlock) or block.schema != CLARIFICATION_SCHEMA:
                continue
            data = block.data if isinstance(block.data, Mapping) else {}
            question_id, resolved = data.get("question"), data.get("resolved")
            if not isinstance(question_id, str):
                continue
            key = (message.conversation_id, question_id)
            if resolved is True and key in self.questions:
                self.questions[key].resolved = True
            elif resolved is False and key not in self.questions:
                texts = [getattr(one, "text", "") for one in message.content]
                views = [one for one in self.views.values() if one.item.conversation_id == message.conversation_id]
                self.questions[key] = Question(
                    question_id,
                    message.conversation_id,
                    message.author,
                    " ".join(text for text in texts if text),
                    self.sequence,
                    views[0].item.contract.contract_version if views else 0,
                )

    @property
    def owner(self) -> Actor | None:
        return None if self.mission is None else self.mission.mission_owner


def _as(kind: type[T], data: object) -> T | None:
    """What somebody put into a Message, typed; ``None`` for what is no such thing."""
    try:
        return None if data is None else msgspec.convert(data, kind)
    except msgspec.ValidationError:
        return None


def plan_hash_of(event: Event, mission: Mission) -> str | None:
    """The plan that a Mission was made from: in the Event's or in the Mission's extension data (decision G1)."""
    for extensions in (event.extensions, mission.extensions):
        found = _plan_hash(extensions)
        if found is not None:
            return found
    return None


def _plan_hash(extensions: Extensions | msgspec.UnsetType) -> str | None:
    value = terms.core_data(extensions).get("planHash")
    return value if isinstance(value, str) else None
