"""Evidence: what counts for which acceptance criterion, and who may give it (section 13.2, decisions D16, D17)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn

from msgspec import UNSET

from mwnode.authority.case import Case, refuse
from mwnode.authority.state import CONTENTS, EVIDENCE, EvidenceRow, WorkItemRow
from mwnode.authority.view import Overlay
from mwnode.protocol.assessments import BY_OTHERS
from mwnode.protocol.documents import Actor, Evidence, WorkContract
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.instants import parse

REVIEW_ONLY = BY_OTHERS
"""Kinds of Evidence that nobody can give about its own work."""


def check_documents(case: Case, row: WorkItemRow, evidence: tuple[Evidence, ...], rule: str) -> None:
    """Evidence about this WorkItem and its criteria, new, and not from the future: INVALID_COMMAND (D8, D56)."""
    item, criteria = row.item, {criterion.criterion_id for criterion in row.item.contract.acceptance_criteria}
    seen: set[str] = set()
    for index, entry in enumerate(evidence):
        path = f"evidence/{index}"
        if (entry.mission_id, entry.group_id, entry.work_item_id) != (
            item.mission_id,
            item.group_id,
            item.work_item_id,
        ):
            _misfit("the Evidence is about another WorkItem", f"{path}/workItemId", rule)
        unknown = [criterion_id for criterion_id in entry.criterion_ids if criterion_id not in criteria]
        if unknown:
            _misfit(f"the contract has no criterion {unknown[0]}", f"{path}/criterionIds", "R-13.2-08")
        _check_subject(entry, row, path)
        if parse(entry.created_at) > case.now.plus(case.policy.clock_skew):
            _misfit("createdAt lies in the future", f"{path}/createdAt", "R-13.2-12")
        known = case.view.get(EVIDENCE, entry.evidence_id)
        if entry.evidence_id in seen or (known is not None and known.evidence != entry):
            _misfit(f"Evidence {entry.evidence_id} exists already", f"{path}/evidenceId", "R-2-14")
        seen.add(entry.evidence_id)


def _check_subject(entry: Evidence, row: WorkItemRow, path: str) -> None:
    subject = entry.subject
    expected = {
        "work_item": {row.item.work_item_id},
        "mission": {row.item.mission_id},
        "artifact": {name for artifact in row.artifacts for name in artifact},
    }[subject.type]
    if subject.id not in expected:
        _misfit(f"the subject is no {subject.type} of this WorkItem", f"{path}/subject/id", "R-13.2-07")


def check_signers(
    entries: Iterable[Evidence],
    may_give: Callable[[Actor], bool],
    what: str,
    code: ErrorCode = ErrorCode.AUTH_FORBIDDEN,
) -> None:
    """Who generated Evidence has signed it, which was verified; here: it may. AUTH_FORBIDDEN (decision D1), unless the
    kind has another code."""
    for entry in entries:
        if not may_give(entry.generated_by):
            refuse(
                code,
                f"{what} cannot come from {entry.generated_by.type} {entry.generated_by.id}",
                "R-19-14",
                details={"evidenceId": entry.evidence_id},
            )


def check_artifacts(entries: tuple[Evidence, ...], hashes: Iterable[str]) -> None:
    """The Artifacts that submitted Evidence rests on are submitted too (decision D16): INVALID_COMMAND."""
    submitted = set(hashes)
    for index, entry in enumerate(entries):
        for content_hash in entry.artifact_hashes:
            if content_hash not in submitted:
                _misfit(f"{content_hash} is not submitted", f"evidence/{index}/artifactHashes", "R-13.2-13")


def check_known_artifacts(case: Case, entries: tuple[Evidence, ...]) -> None:
    """The Artifacts that other Evidence refers to exist: INVALID_COMMAND."""
    for index, entry in enumerate(entries):
        for content_hash in entry.artifact_hashes:
            if case.view.get(CONTENTS, content_hash) is None and case.view.has_content(content_hash) is None:
                _misfit(f"no Artifact has the hash {content_hash}", f"evidence/{index}/artifactHashes", "R-13.2-13")


def uncovered(contract: WorkContract, entries: Iterable[Evidence], *, by_worker: bool) -> tuple[str, str] | None:
    """The first criterion and kind of Evidence that it asks for without any that passed (R-13.2-01).

    ``by_worker`` leaves out the kinds that only a reviewer or a human can give.
    """
    passed = {
        (criterion_id, entry.type)
        for entry in entries
        if entry.result == "passed"
        for criterion_id in entry.criterion_ids
    }
    for criterion in contract.acceptance_criteria:
        for kind in criterion.evidence_required:
            if by_worker and kind in REVIEW_ONLY:
                continue
            if (criterion.criterion_id, kind) not in passed:
                return criterion.criterion_id, kind
    return None


def check_coverage(contract: WorkContract, entries: Iterable[Evidence], *, by_worker: bool) -> None:
    """Every criterion has passed Evidence of every kind that it asks for (R-13.2-01): INVALID_COMMAND."""
    missing = uncovered(contract, entries, by_worker=by_worker)
    if missing is not None:
        criterion_id, kind = missing
        refuse(
            ErrorCode.INVALID_COMMAND,
            f"criterion {criterion_id} lacks passed Evidence of kind {kind}",
            "R-13.2-01",
            details={"path": "/payload/evidence", "criterionId": criterion_id, "evidenceRequired": kind},
        )


def check_failure_report(entries: tuple[Evidence, ...]) -> None:
    """A failure is reported, not only claimed (R-10.2-28, decision F39): INVALID_COMMAND."""
    if not any(entry.type == "failure_report" for entry in entries):
        _misfit("a failure needs Evidence of type failure_report", "evidence", "R-10.2-28")


def may_review(case: Case, row: WorkItemRow, actor: Actor) -> bool:
    """Whether an actor's Evidence counts in the review of that item: the Coordinator's, that of Members with
    ``work.review`` and of human Members (decision F1).

    Nobody but the Coordinator, whose case is told apart, reviews its own work while policy wants two pairs of eyes.
    """
    if is_coordinator(case, actor):
        return True
    member = case.membership(actor)
    if member is None or member.membership.state != "active":
        return False
    owner = row.item.owner
    if owner is not UNSET and actor.id == owner.agent_id and case.policy.reviewer_must_differ:
        return False
    return actor.type == "human" or "work.review" in member.membership.scopes


def is_coordinator(case: Case, actor: Actor) -> bool:
    """Whether the actor is the Mission's current Coordinator."""
    return actor.type == "agent" and actor.id == case.mission().mission.coordinator.agent_id


def keep(view: Overlay, entries: Iterable[Evidence], sequence: int) -> None:
    """Remember Evidence by ID; what is known already stays as it came first."""
    for entry in entries:
        if view.get(EVIDENCE, entry.evidence_id) is None:
            view.put(EVIDENCE, EvidenceRow(entry, sequence))


def _misfit(message: str, path: str, rule: str) -> NoReturn:
    refuse(ErrorCode.INVALID_COMMAND, message, rule, details={"path": f"/payload/{path}"})
