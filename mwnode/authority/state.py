"""What the authority remembers: one frozen row per entity, and the tables that hold them.

Rows are the fold of the log. Each wraps the normative document and adds what the document has no place for. Rows are
stored as arrays: new members go to the end and have a default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, dataclass_transform

import msgspec
from msgspec import Struct

from mwnode.protocol.commands import Binding, Checkpoint, FailurePolicy, Usage
from mwnode.protocol.documents import (
    Actor,
    AgentCard,
    Approval,
    Artifact,
    Budget,
    ContextPackage,
    Conversation,
    DelegationGrant,
    Evidence,
    ExtensionProfile,
    Group,
    Lease,
    Membership,
    Message,
    Mission,
    ResourceGrant,
    WorkItem,
)
from mwnode.protocol.events import CooperationOverrideGrant, WorkProposal


# Says to type checkers what msgspec does by inheritance: every row is frozen.
@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Row(Struct, frozen=True, array_like=True):
    """Base of every stored row."""


R = TypeVar("R", bound=Row)

CHECKPOINTS_KEPT = 8
"""Checkpoints that a WorkItem's row and view show."""
RATE_TIMES_KEPT = 128
"""Exact times of a rate window that are kept: more than the default limits need, and a row stays small."""


class Table(Generic[R]):
    """One kind of row.

    ``key`` names a row by one string, unique in the Organization (R-2-14). ``group`` gives the Group in which rows of
    this table are listed, or is ``None`` where they never are. ``due`` gives the timestamp at which the authority's
    timer looks at the row. ``sources`` gives the content hashes under which a row that is listed by Group is found as
    made of them (R-13.1-19); they never change.
    """

    def __init__(
        self,
        name: str,
        code: int,
        row: type[R],
        key: Callable[[R], str],
        group: Callable[[R], str] | None = None,
        due: Callable[[R], str | None] | None = None,
        sources: Callable[[R], tuple[str, ...]] | None = None,
    ) -> None:
        self.name = name
        self.code = code
        self.row = row
        self.key = key
        self.group = group
        self.due = due
        self.sources = sources

    def __repr__(self) -> str:
        return f"Table({self.name})"


class GroupRow(Row):
    group: Group


class MissionRow(Row):
    mission: Mission
    coordinator_lease: Lease
    title: str | None = None
    permissions: tuple[ResourceGrant, ...] = ()
    submitted_revision: int | None = None
    submitted_artifacts: tuple[str, ...] = ()
    approval_id: str | None = None
    failure_policy: FailurePolicy | None = None
    former_coordinators: tuple[tuple[int, str], ...] = ()
    """Epoch and Agent of every Coordinator that was replaced."""
    reconciled_epoch: int = 1
    """Highest Coordinator Epoch that may assign work (R-7.2-11)."""
    root_owner: Actor | None = None
    """The human at the root of a child Mission's ancestry."""
    root_approval_ids: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    ended_reason: str | None = None
    state_since: str | None = None


class MembershipRow(Row):
    membership: Membership
    idle_since: str | None = None
    """When the Member's last obligation ended; ``None`` while it has one or never had any."""
    obligations: int = 0
    """WorkItems that the Member owns and that are not terminal."""


class ConversationRow(Row):
    conversation: Conversation
    open_questions: tuple[str, ...] = ()
    """Clarification rounds asked and not resolved, by the ID of the question."""


class MessageRow(Row):
    message: Message
    sequence: int = 0
    """Where the Message stands in its Group's log."""


class ProposalRow(Row):
    proposal: WorkProposal


class WorkItemRow(Row):
    item: WorkItem
    ownership_epoch: int = 0
    """Highest Ownership Epoch ever issued for the item; never falls."""
    ownership_lease: Lease | None = None
    execution_lease: Lease | None = None
    blocked_lease: Lease | None = None
    checkpoint: Checkpoint | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    """The newest ones, newest last; at most ``CHECKPOINTS_KEPT``. The log has them all."""
    block_reason: str | None = None
    required_resolution: str | None = None
    parent_work_item_id: str | None = None
    child_mission_id: str | None = None
    delegation_grant_id: str | None = None
    delegation_depth: int = 0
    proposal_id: str | None = None
    replaces: str | None = None
    replaced_by: str | None = None
    attempts: int = 0
    """Executions that failed."""
    failure_reason: str | None = None
    artifacts: tuple[tuple[str, str], ...] = ()
    """Artifact ID and content hash of everything published for the item, in order."""
    evidence_ids: tuple[str, ...] = ()
    """Evidence of the standing submission and its review."""
    approval_ids: tuple[str, ...] = ()
    """Execution Approvals, newest last."""
    started: bool = False
    """Whether any execution ever began: cleanup is due only then."""
    state_since: str | None = None
    last_sequence: int = 0
    offered_versions: tuple[tuple[str, int], ...] = ()
    """Pending offers that are older than the contract's newest revision, each with the version that it was made for."""


class ArtifactRow(Row):
    artifact: Artifact
    sequence: int


class ContentRow(Row):
    """Which manifests stand for one content hash, and where the bytes may be read."""

    content_hash: str
    artifact_ids: tuple[str, ...] = ()
    group_ids: tuple[str, ...] = ()
    knowledge: str | None = None
    """Classification under which the bytes were published to the whole Organization."""
    arrivals: tuple[tuple[str, int], ...] = ()
    """Groups, each with the sequence of the Event that made the bytes readable there without a manifest of its own."""


class EvidenceRow(Row):
    evidence: Evidence
    sequence: int


class ApprovalRow(Row):
    approval: Approval
    ownership_epoch: int | None = None
    operations: tuple[str, ...] = ()
    resources: tuple[ResourceGrant, ...] = ()
    budget: Budget | None = None
    expires_at: str | None = None


class GrantRow(Row):
    grant: DelegationGrant
    work_item_ids: tuple[str, ...] = ()
    """WorkItems created or offered under the Grant."""
    dead: bool = False
    """Set once the target ended: stays set when the target is offered again (reading 24)."""


class OverrideRow(Row):
    grant: CooperationOverrideGrant


class LeaseRow(Row):
    """Every lease ever granted, by ID."""

    lease: Lease


class AgentRow(Row):
    card: AgentCard
    session_epoch: int = 0
    queued: int = 0
    active: int = 0
    active_ids: tuple[str, ...] = ()
    """The active WorkItems that the Agent owns, in all Groups, sorted."""


class PrincipalRow(Row):
    """A human or service that the Organization registered."""

    principal: Actor
    display_name: str | None = None


class KeyRow(Row):
    binding: Binding
    revision: int
    """Number of the newest statement about the key, from 1."""


class ProfileRow(Row):
    profile: ExtensionProfile


class ContextRow(Row):
    package: ContextPackage
    package_hash: str
    recipients: tuple[Actor, ...] = ()
    published_at: int | None = None
    """Sequence of the Event that showed the package to the whole Group."""
    citable_from: int | None = None
    """Where what its holders may fetch of the source range begins: whoever handed it out sees no more."""


class AccountRow(Row):
    """The Budget Ledger's account of one Mission or WorkItem. Six dimensions in the order of ``Usage``."""

    account_id: str
    parent_id: str | None
    currency: str | None
    limits: tuple[int | None, ...]
    reserved: tuple[int, ...] = (0, 0, 0, 0, 0, 0)
    """Limits handed to open children, per dimension."""
    used: tuple[int, ...] = (0, 0, 0, 0, 0, 0)
    closed: bool = False


class RateRow(Row):
    """When one actor last did something whose rate is limited."""

    key: str
    times: tuple[int, ...] = ()
    """The newest ones, in microseconds since 1970, newest last; at most ``RATE_TIMES_KEPT``."""
    older: tuple[tuple[int, int], ...] = ()
    """How many there were before those, by whole second since 1970; only limits beyond what is kept look here."""


class DuplicateRow(Row):
    """How often one contract was authorized under one parent (R-20-03)."""

    key: str
    count: int = 0


class PerformanceRow(Row):
    """What one Agent's work under one capability came to in one Group (R-6.1-10)."""

    agent_id: str
    capability_id: str
    capability_version: str
    group_id: str
    completed: int = 0
    failed: int = 0
    sent_back: int = 0
    reassigned: int = 0
    late: int = 0
    budgets_spent: int = 0
    leases_expired: int = 0


def principal_key(principal: Actor) -> str:
    """One string for a Principal; types are part of the identity."""
    return f"{principal.type} {principal.id}"


def membership_key(group_id: str, principal: Actor) -> str:
    """Key of a Principal's Membership in a Group."""
    return f"{group_id} {principal.type} {principal.id}"


def _lease_due(row: LeaseRow) -> str | None:
    return row.lease.expires_at if row.lease.state == "active" else None


GROUPS = Table("groups", 1, GroupRow, lambda row: row.group.group_id)
MISSIONS = Table("missions", 2, MissionRow, lambda row: row.mission.mission_id)
MEMBERSHIPS = Table(
    "memberships",
    3,
    MembershipRow,
    lambda row: membership_key(row.membership.group_id, row.membership.member),
    lambda row: row.membership.group_id,
    lambda row: row.idle_since,
)
CONVERSATIONS = Table(
    "conversations",
    4,
    ConversationRow,
    lambda row: row.conversation.conversation_id,
    lambda row: row.conversation.group_id,
)
MESSAGES = Table("messages", 5, MessageRow, lambda row: row.message.message_id, lambda row: row.message.group_id)
PROPOSALS = Table("proposals", 6, ProposalRow, lambda row: row.proposal.proposal_id, lambda row: row.proposal.group_id)
WORK_ITEMS = Table("work_items", 7, WorkItemRow, lambda row: row.item.work_item_id, lambda row: row.item.group_id)
ARTIFACTS = Table(
    "artifacts",
    8,
    ArtifactRow,
    lambda row: row.artifact.artifact_id,
    lambda row: row.artifact.group_id,
    sources=lambda row: row.artifact.source_artifact_hashes,
)
CONTENTS = Table("contents", 9, ContentRow, lambda row: row.content_hash)
EVIDENCE = Table("evidence", 10, EvidenceRow, lambda row: row.evidence.evidence_id)
APPROVALS = Table("approvals", 11, ApprovalRow, lambda row: row.approval.approval_id, lambda row: row.approval.group_id)
GRANTS = Table("grants", 12, GrantRow, lambda row: row.grant.grant_id, lambda row: row.grant.group_id)
OVERRIDES = Table("overrides", 13, OverrideRow, lambda row: row.grant.grant_id)
LEASES = Table("leases", 14, LeaseRow, lambda row: row.lease.lease_id, None, _lease_due)
AGENTS = Table("agents", 15, AgentRow, lambda row: row.card.agent_id)
PRINCIPALS = Table("principals", 16, PrincipalRow, lambda row: principal_key(row.principal))
KEYS = Table("keys", 17, KeyRow, lambda row: row.binding.key_id)
PROFILES = Table("profiles", 18, ProfileRow, lambda row: f"{row.profile.profile_uri} {row.profile.version}")
CONTEXTS = Table(
    "contexts", 19, ContextRow, lambda row: row.package.context_package_id, lambda row: row.package.group_id
)
ACCOUNTS = Table("accounts", 20, AccountRow, lambda row: row.account_id)
RATES = Table("rates", 21, RateRow, lambda row: row.key)
DUPLICATES = Table("duplicates", 22, DuplicateRow, lambda row: row.key)
PERFORMANCE = Table(
    "performance",
    23,
    PerformanceRow,
    lambda row: f"{row.agent_id} {row.capability_id} {row.capability_version} {row.group_id}",
    lambda row: row.group_id,
)

TABLES: tuple[Table[Row], ...] = (
    GROUPS,
    MISSIONS,
    MEMBERSHIPS,
    CONVERSATIONS,
    MESSAGES,
    PROPOSALS,
    WORK_ITEMS,
    ARTIFACTS,
    CONTENTS,
    EVIDENCE,
    APPROVALS,
    GRANTS,
    OVERRIDES,
    LEASES,
    AGENTS,
    PRINCIPALS,
    KEYS,
    PROFILES,
    CONTEXTS,
    ACCOUNTS,
    RATES,
    DUPLICATES,
    PERFORMANCE,
)  # type: ignore[assignment]  # Table is invariant in its row; nothing writes through this tuple

NO_USAGE = Usage(
    financial_microunits=0,
    model_tokens=0,
    tool_calls=0,
    compute_seconds=0,
    wall_clock_seconds=0,
    external_actions=0,
)
