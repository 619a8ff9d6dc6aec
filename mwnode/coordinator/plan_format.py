"""What stands in a plan file, typed: the `[mission]` table and the `[[work]]` tables.

Keys are those of the normative schemas where the schemas have them; anything unknown is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from mwnode.protocol.assessments import REVIEW_CAPABILITY
from mwnode.protocol.commands import Priority
from mwnode.protocol.documents import (
    AcceptanceCriterion,
    ApprovalPolicy,
    Budget,
    CapabilityRef,
    Document,
    EvidenceRequirement,
    PinnedProfile,
    ResourceGrant,
)
from mwnode.protocol.identifiers import ANY_SCHEMA
from mwnode.protocol.instants import Instant, parse, parse_duration
from mwnode.protocol.scalars import (
    Currency,
    Duration,
    FailureName,
    LocalName,
    MediaType,
    Number,
    SafeInteger,
    Seconds,
    Text500,
    Text4000,
    Text10000,
    Uri,
)

FROM_PARENT = "parent:"
"""What an input of a child Mission's work begins with that comes from the works before its parent WorkItem."""
GENERIC_CAPABILITY = "mwnode.generic@1.0.0"
EXIT_ZERO = "exit 0"
"""The `check` of a criterion that the executor's exit status 0 proves."""
RISKS_WITH_HUMAN_APPROVAL = frozenset({"high_risk", "destructive"})
DEFAULT_SECONDS = 3600
_NUMBER, _LABEL = r"(?:0|[1-9][0-9]*)", r"(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_CAPABILITY = re.compile(
    r"\A([a-z0-9]+(?:[.-][a-z0-9]+)+)"
    rf"@({_NUMBER}(?:\.{_NUMBER}){{2}}(?:-{_LABEL}(?:\.{_LABEL})*)?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?)\Z"
)
CAPABILITY_RULE = "ID is two or more words of a-z and 0-9 joined by '.' or '-', VERSION has three numbers"
_HASH = re.compile(r"\Asha256:[0-9a-f]{64}\Z")
LIMITS = (
    "financial_limit",
    "model_token_limit",
    "tool_call_limit",
    "compute_seconds_limit",
    "wall_clock_seconds_limit",
    "external_side_effect_limit",
)

Attempts = Annotated[int, Meta(ge=1, le=1000)]


class PlanBudget(Document):
    """Limits as in `common#/budget`; a currency alone is the Mission's."""

    currency: Currency | UnsetType = UNSET
    financial_limit: Number | UnsetType = UNSET
    model_token_limit: SafeInteger | UnsetType = UNSET
    tool_call_limit: SafeInteger | UnsetType = UNSET
    compute_seconds_limit: SafeInteger | UnsetType = UNSET
    wall_clock_seconds_limit: SafeInteger | UnsetType = UNSET
    external_side_effect_limit: SafeInteger | UnsetType = UNSET


class PlanMission(Document):
    objective: Text10000
    definition_of_done: tuple[AcceptanceCriterion, ...]
    deadline: str
    budget: PlanBudget
    title: Text500 | None = None
    coordinator: str | None = None
    """Name in HOME, or URI, of the Agent that coordinates."""
    permissions: tuple[ResourceGrant, ...] = ()
    approval_policy: ApprovalPolicy | None = None
    pinned_profiles: tuple[PinnedProfile, ...] | None = None
    coordinator_lease_seconds: Seconds = 300
    priority: Priority | None = None
    """The Organization's priority class, as its human owner signs it; a child Mission has its parent's."""


class PlanDeliverable(Document):
    id: LocalName
    path: str | None = None
    """File under the executor's `outputs/`; the id unless given."""
    media_type: MediaType = "application/octet-stream"
    description: Text4000 | None = None
    schema: Uri = ANY_SCHEMA

    @property
    def file(self) -> str:
        return self.path or self.id


class PlanCriterion(Document):
    id: LocalName
    description: Text4000
    evidence: tuple[EvidenceRequirement, ...] = ("deterministic_test",)
    check: str | None = None


class PlanRetry(Document):
    max_attempts: Attempts = 3
    backoff: Literal["none", "fixed", "exponential"] = "exponential"
    max_delay: Duration = "PT1M"
    retryable_failures: tuple[FailureName, ...] = ("EXECUTOR_FAILED",)


class PlanWork(Document):
    """One `[[work]]` table."""

    id: LocalName
    goal: Text10000
    deliverables: tuple[PlanDeliverable, ...]
    criteria: tuple[PlanCriterion, ...]
    after: tuple[str, ...] = ()
    capability: tuple[str, ...] = (GENERIC_CAPABILITY,)
    inputs: tuple[str, ...] = ()
    run: str | None = None
    budget: PlanBudget | None = None
    urgency: Literal["routine", "normal", "high", "critical"] = "normal"
    risk: Literal["none", "reversible", "external", "high_risk", "destructive"] = "reversible"
    approval: Literal["not_required", "policy_required", "human_required"] | None = None
    retry: PlanRetry = PlanRetry()
    deadline: str | None = None
    business_impact: Text4000 | None = None
    resources: tuple[ResourceGrant, ...] | None = None
    reviewer: tuple[str, ...] = (REVIEW_CAPABILITY,)
    """What a reviewer Agent must be capable of, where a criterion asks for `reviewer_assessment`."""
    cleanup: str | None = None
    """Local name of the work whose contract undoes this one after a failure or cancellation."""
    mission: str | None = None
    """A plan beside this one: the work becomes a child Mission that is made from it."""


class PlanFile(Document):
    mission: PlanMission
    work: tuple[PlanWork, ...]


def capability(text: str) -> CapabilityRef:
    """The reference that `ID@VERSION` spells. Raises ValueError."""
    match = _CAPABILITY.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not ID@VERSION, such as acme.python.test@1.0.0: {CAPABILITY_RULE}")
    return CapabilityRef(id=match[1], version=match[2])


def is_content_hash(text: str) -> bool:
    """Whether an input is the hash of an Artifact rather than a path."""
    return _HASH.match(text) is not None


def needs_human(work: PlanWork) -> bool:
    return work.risk in RISKS_WITH_HUMAN_APPROVAL


def deadline_text(value: str, now: Instant) -> str:
    if value.startswith("P"):
        return now.plus(int(parse_duration(value))).text()
    parse(value)
    return value


def budget_of(budget: PlanBudget, currency: str | UnsetType | None) -> Budget:
    members = {name: getattr(budget, name) for name in LIMITS}
    if budget.financial_limit is not UNSET:
        members["currency"] = budget.currency if budget.currency is not UNSET else currency or UNSET
    return Budget(**members)


def total(work: Iterable[PlanWork], limit: str) -> int:
    amounts = (getattr(item.budget, limit) for item in work if item.budget is not None)
    return sum(amount for amount in amounts if amount is not UNSET)
