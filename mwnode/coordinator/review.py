"""The review of a submission, in the protocol's order: integrity, schemas, deterministic Evidence, assessments. Pure.

Each step stops the review when it finds a fault; what was considered is recorded (R-13.2-02 to R-13.2-06).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET, Struct

from mwnode.client.fold import WorkView
from mwnode.protocol.assessments import BY_OTHERS
from mwnode.protocol.documents import Evidence

DETERMINISTIC_KINDS = frozenset({"deterministic_test", "business_rule", "schema_validation", "policy_check"})


class Checked(Struct, frozen=True):
    """What fetching one submitted Artifact showed; ``fault`` when its bytes are not what its manifest says."""

    content_hash: str
    size_bytes: int
    fault: str | None = None
    content: bytes | None = None
    """The bytes, where they were asked for and are few."""


class Accept(Struct, frozen=True):
    """Every criterion is met."""

    considered: tuple[str, ...]


class Rework(Struct, frozen=True):
    """It cannot be accepted; the step that found out, and what is wrong."""

    step: str
    reason: str
    criterion_ids: tuple[str, ...]
    considered: tuple[str, ...]


class Assess(Struct, frozen=True):
    """Criteria wait for somebody else's assessment: which, and of which kind."""

    wanted: tuple[tuple[str, str], ...]


Verdict = Accept | Rework | Assess


def review(view: WorkView, checked: Mapping[str, Checked], assessments: tuple[Evidence, ...] = ()) -> Verdict:
    """Judge a submission. ``checked`` holds each submitted Artifact by hash; ``assessments`` is Evidence of others."""
    contract = view.item.contract
    submission = view.item.submission
    assert submission is not UNSET, "only a submission is reviewed"
    evidence = {**view.evidence, **{one.evidence_id: one for one in assessments}}
    considered = tuple(sorted(evidence))
    # Looked at like everything else, but what its owner says of it assesses nothing.
    evidence = {name: one for name, one in evidence.items() if one.type not in BY_OTHERS or not _by_owner(view, one)}
    everything = tuple(criterion.criterion_id for criterion in contract.acceptance_criteria)
    for content_hash in submission.artifact_hashes:
        result = checked.get(content_hash)
        manifest = view.artifacts.get(content_hash)
        if result is None or manifest is None:
            return Rework("integrity", f"{content_hash} was never published", everything, considered)
        if result.fault is not None:
            return Rework("integrity", f"{content_hash}: {result.fault}", everything, considered)
        if result.size_bytes != manifest.size_bytes:
            reason = f"{content_hash} has {result.size_bytes} bytes, its manifest says {manifest.size_bytes}"
            return Rework("integrity", reason, everything, considered)
    missing = _missing_deliverable(view)
    if missing is not None:
        return Rework("schema", missing, everything, considered)
    failed = {
        criterion
        for one in evidence.values()
        for criterion in one.criterion_ids
        if one.result == "failed" and one.type != "failure_report"
    }
    passed = {
        (criterion, one.type) for one in evidence.values() for criterion in one.criterion_ids if one.result == "passed"
    }
    uncovered = [
        (criterion.criterion_id, kind)
        for criterion in contract.acceptance_criteria
        for kind in criterion.evidence_required
        if (criterion.criterion_id, kind) not in passed
    ]
    for step, kinds in (("deterministic", DETERMINISTIC_KINDS), ("integrity", frozenset({"artifact_integrity"}))):
        lacking = tuple(dict.fromkeys(criterion for criterion, kind in uncovered if kind in kinds))
        if lacking:
            return Rework(step, f"no passed Evidence for {', '.join(lacking)}", lacking, considered)
    if failed:
        conflicting = tuple(sorted(failed))
        reason = f"Evidence says that {', '.join(conflicting)} failed"
        return Rework("combination", reason, conflicting, considered)
    wanted = tuple((criterion, kind) for criterion, kind in uncovered if kind in BY_OTHERS)
    return Assess(wanted) if wanted else Accept(considered)


def _by_owner(view: WorkView, evidence: Evidence) -> bool:
    return evidence.generated_by.id == view.owner_id


def _missing_deliverable(view: WorkView) -> str | None:
    """Every required deliverable has a submitted Artifact of its media type and schema."""
    submission = view.item.submission
    assert submission is not UNSET, "only a submission is reviewed"
    manifests = [view.artifacts[one] for one in submission.artifact_hashes]
    for deliverable in view.item.contract.required_deliverables:
        fits = any(
            manifest.media_type == deliverable.media_type and manifest.schema_uri == deliverable.schema
            for manifest in manifests
        )
        if not fits:
            wanted = f"{deliverable.media_type}, {deliverable.schema}"
            return f"no submitted Artifact is the deliverable {deliverable.deliverable_id} ({wanted})"
    return None
