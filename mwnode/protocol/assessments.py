"""How a reviewer Agent is asked, and how it answers: a WorkItem whose contract names what is to be assessed, and whose
result is a file of signed Evidence (R-13.2-04).

The reviewer's WorkItem has everything that other work has: an offer, a lease, a budget, attempts. Its Evidence is about
the WorkItem under review, which is why it travels in the result and not with the submission.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from mwnode.protocol.documents import AcceptanceCriterion, Evidence, WorkContract
from mwnode.protocol.scalars import Id, LocalName, Sha256

ASSESSMENT_SCHEMA = "urn:mwnode:schema:assessment"
"""The schema of the result: a JSON array of Evidence documents."""
ASSESSMENT_MEDIA_TYPE = "application/json"
ASSESSMENT_ID = "assessment"
ASSESSMENT_PATH = "assessment.json"
ASSESSMENT_BYTES_MAX = 262_144
REVIEW_CAPABILITY = "mwnode.review@1.0.0"
"""The capability that a reviewer needs unless the plan names another one."""
BY_REVIEWER = "reviewer_assessment"
BY_HUMAN = "human_review"
BY_OTHERS = frozenset({BY_REVIEWER, BY_HUMAN})
"""Kinds of Evidence that nobody gives about its own work."""


class ReviewCriterion(Struct, frozen=True, rename="camel"):
    """One criterion to be assessed, in the words of the contract under review."""

    criterion_id: LocalName
    description: str


class ReviewRequest(Struct, frozen=True, rename="camel"):
    """What ``constraints.review`` says: which WorkItem, which of its criteria, which submitted Artifacts."""

    work_item_id: Id
    owner_agent_id: Id
    criteria: tuple[ReviewCriterion, ...]
    artifact_hashes: tuple[Sha256, ...]


def request_in(contract: WorkContract) -> ReviewRequest | None:
    """The request in a contract, or ``None`` where the work is no review."""
    constraints: Mapping[str, Any] = {} if contract.constraints is UNSET else contract.constraints
    if "review" not in constraints:
        return None
    try:
        return msgspec.convert(constraints["review"], ReviewRequest)
    except msgspec.ValidationError:
        return None


def request_of(
    work_item_id: str, owner_agent_id: str, criteria: Sequence[AcceptanceCriterion], artifact_hashes: tuple[str, ...]
) -> ReviewRequest:
    """The request for an assessment of these criteria."""
    wanted = tuple(ReviewCriterion(one.criterion_id, one.description) for one in criteria)
    return ReviewRequest(work_item_id, owner_agent_id, wanted, artifact_hashes)


def assessments_in(content: bytes, request: ReviewRequest, reviewer_id: str) -> tuple[Evidence, ...] | str:
    """The Evidence in a result, or what is wrong with it: a reviewer's own, of the right kind, about what was asked,
    every criterion of it. Signatures are the authority's to verify."""
    try:
        found = msgspec.json.decode(content, type=tuple[Evidence, ...])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"the assessment is no array of Evidence: {error}"
    criteria = {one.criterion_id for one in request.criteria}
    for one in found:
        if one.type != BY_REVIEWER or one.work_item_id != request.work_item_id:
            return f"Evidence {one.evidence_id} is no {BY_REVIEWER} of {request.work_item_id}"
        if one.generated_by.id != reviewer_id or reviewer_id == request.owner_agent_id:
            return f"Evidence {one.evidence_id} was not given by the reviewer"
        if not criteria.issuperset(one.criterion_ids):
            return f"Evidence {one.evidence_id} is about criteria that were not asked about"
    missing = sorted(criteria - {name for one in found for name in one.criterion_ids})
    return f"no assessment of {', '.join(missing)}" if missing else found
