"""Results: submitted with Evidence, accepted after a review, failed with a report."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET

from mwnode.authority import evidence as rules
from mwnode.authority import leases, lineage
from mwnode.authority.case import Case, refuse
from mwnode.authority.item_fold import find, fold, fold_ended
from mwnode.authority.items import (
    admit,
    emit,
    end_item,
    hold,
    hold_execution,
    hold_running,
    next_mission_revision,
    or_unset,
    work_item,
)
from mwnode.authority.request import EventFact
from mwnode.authority.state import EVIDENCE, WorkItemRow
from mwnode.authority.view import Overlay
from mwnode.protocol.commands import WorkAcceptResult, WorkFail, WorkSubmit
from mwnode.protocol.documents import Actor, Cause, Evidence, Submission
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import ResultAccepted, WorkFailed, WorkSubmitted

# --- work.submit ------------------------------------------------------------------------------------------------------


def submit(case: Case) -> None:
    """Hand in Artifacts with Evidence for every acceptance criterion; execution ends (R-10.2-23, R-13.2-01)."""
    payload = case.payload(WorkSubmit)
    held = hold_running(case, payload)
    row = held.row
    hashes = _submitted(row, payload)
    rules.check_documents(case, row, payload.evidence, "R-13.2-01")
    rules.check_artifacts(payload.evidence, hashes)
    actor = case.command.actor
    # All that is wrong with submitted Evidence is INVALID_COMMAND (decision D16).
    rules.check_signers(
        payload.evidence, lambda signer: signer == actor, "Evidence of a submission", ErrorCode.INVALID_COMMAND
    )
    rules.check_coverage(row.item.contract, payload.evidence, by_worker=True)
    emit(
        case,
        row,
        "work.submitted",
        WorkSubmitted(
            revision=row.item.revision + 1,
            state="submitted",
            work_item_id=row.item.work_item_id,
            submission=Submission(
                artifact_hashes=hashes,
                evidence_ids=tuple(entry.evidence_id for entry in payload.evidence),
                submitted_at=case.now_text,
            ),
            evidence=payload.evidence,
            execution_lease=leases.closed(case, held.execution_lease, "released", "submission"),
        ),
    )


def _submitted(row: WorkItemRow, payload: WorkSubmit) -> tuple[str, ...]:
    """The content hashes submitted, all of them published for this WorkItem: INVALID_COMMAND (R-10.2-24)."""
    by_id = dict(row.artifacts)
    if payload.artifact_ids is not None:
        unknown = [artifact_id for artifact_id in payload.artifact_ids if artifact_id not in by_id]
        hashes = tuple(dict.fromkeys(by_id.get(artifact_id, "") for artifact_id in payload.artifact_ids))
    else:
        hashes = payload.artifact_hashes or ()
        unknown = [content_hash for content_hash in hashes if content_hash not in by_id.values()]
    if unknown:
        refuse(
            ErrorCode.INVALID_COMMAND,
            f"{unknown[0]} is not published for this WorkItem; send artifact.publish first",
            "R-10.2-24",
            details={"path": "/payload/artifactHashes" if payload.artifact_ids is None else "/payload/artifactIds"},
        )
    return hashes


def _fold_submitted(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, WorkSubmitted)
    assert fact.sequence is not None
    rules.keep(view, payload.evidence, fact.sequence)
    fold(
        view,
        fact,
        find(view, payload.work_item_id),
        item={"submission": payload.submission},
        evidence_ids=payload.submission.evidence_ids,
    )


# --- work.accept_result -----------------------------------------------------------------------------------------------


def accept(case: Case) -> None:
    """The Coordinator accepts after a review that covers every criterion (R-10.2-25, R-10.2-26, decision D17)."""
    payload = case.payload(WorkAcceptResult)
    row = work_item(case, payload.work_item_id)
    admit(case, row)
    case.expect_revision(row.item.revision)
    rules.check_documents(case, row, payload.evidence, "R-10.2-25")
    rules.check_known_artifacts(case, payload.evidence)
    review = tuple(entry for entry in payload.evidence if case.view.get(EVIDENCE, entry.evidence_id) is None)
    _check_review(case, row, review)
    # What only others can say counts for nothing where the owner said it (decision D16).
    submitted = [
        found.evidence
        for name in row.evidence_ids
        if (found := case.view.get(EVIDENCE, name)) is not None and found.evidence.type not in rules.REVIEW_ONLY
    ]
    rules.check_coverage(row.item.contract, (*submitted, *review), by_worker=False)
    ownership = leases.closed_if_open(case, row.ownership_lease, "released", "result accepted")
    emit(
        case,
        row,
        "work.result.accepted",
        ResultAccepted(
            revision=row.item.revision + 1,
            state="verified",
            mission_revision=next_mission_revision(case, row),
            work_item_id=row.item.work_item_id,
            evidence=payload.evidence,
            ownership_lease=or_unset(ownership),
        ),
    )


def _check_review(case: Case, row: WorkItemRow, review: tuple[Evidence, ...]) -> None:
    """A review is somebody else's Evidence: the worker's own restated is none, and a Coordinator never reviews its
    own output alone (R-7.2-14, decision D17): AUTH_FORBIDDEN."""
    rules.check_signers(review, lambda signer: rules.may_review(case, row, signer), "Evidence of a review")
    owner = row.item.owner
    own_output = owner is not UNSET and rules.is_coordinator(case, Actor(type="agent", id=owner.agent_id))
    if not review or (own_output and all(rules.is_coordinator(case, entry.generated_by) for entry in review)):
        refuse(
            ErrorCode.AUTH_FORBIDDEN,
            "the review needs Evidence from somebody who did not do the work",
            "R-7.2-14",
            details={"path": "/payload/evidence"},
        )
    # Conflicting Evidence of others may be weighed (R-13.2-05); a Coordinator that found the work wanting may not.
    if any(entry.generated_by == case.command.actor and entry.result == "failed" for entry in review):
        refuse(
            ErrorCode.INVALID_COMMAND,
            "the Coordinator's own review failed; work.fail sends the work back",
            "R-10.2-25",
            details={"path": "/payload/evidence"},
        )


def _fold_accepted(view: Overlay, fact: EventFact) -> None:
    """Verified, by review or by the approval of the child Mission that it was promoted to (R-10.2-33)."""
    payload = fact.payload
    assert isinstance(payload, ResultAccepted)
    assert fact.sequence is not None
    row = find(view, payload.work_item_id)
    review = () if payload.evidence is UNSET else payload.evidence
    rules.keep(view, review, fact.sequence)
    item: dict[str, object] = {}
    if payload.submission is not UNSET:
        item["submission"] = payload.submission
    if payload.owner is not UNSET:
        item["owner"] = payload.owner
    known = row.evidence_ids if payload.submission is UNSET else payload.submission.evidence_ids
    added = tuple(entry.evidence_id for entry in review if entry.evidence_id not in known)
    fold(view, fact, row, item=item, evidence_ids=(*known, *added), block_reason=None, required_resolution=None)
    fold_ended(view, row)
    if payload.child_mission_id is not UNSET and payload.submission is not UNSET:
        lineage.share_contents(view, payload.submission.artifact_hashes, row.item.group_id, fact.sequence)


# --- work.fail --------------------------------------------------------------------------------------------------------


def fail(case: Case) -> None:
    """Give up an attempt, with a report: the owner while ``active`` under its lease, the Coordinator otherwise
    (R-10.2-27, R-10.2-28, reading 18)."""
    payload = case.payload(WorkFail)
    row = work_item(case, payload.work_item_id)
    actor = case.command.actor
    if payload.ownership_epoch is not None and payload.execution_lease_id is not None:
        hold(case, row, payload.ownership_epoch, only_in="active")
        hold_execution(case, row, payload.execution_lease_id)
        case.expect_revision(row.item.revision)
        rules.check_signers(payload.evidence, lambda signer: signer == actor, "Evidence of a failure")
    else:
        admit(case, row)
        if "C" not in case.roles:
            refuse(
                ErrorCode.INVALID_COMMAND,
                "an owner cites ownershipEpoch and executionLeaseId",
                "R-11.3-08",
                details={"path": "/payload/executionLeaseId"},
            )
        case.expect_revision(row.item.revision)
        rules.check_signers(payload.evidence, lambda signer: _may_report(case, row, signer), "Evidence of a failure")
    rules.check_failure_report(payload.evidence)
    rules.check_documents(case, row, payload.evidence, "R-10.2-28")
    rules.check_known_artifacts(case, payload.evidence)
    fact = end_item(case, row, "failed", payload.reason, None, payload.evidence)
    if row.child_mission_id is not None:
        lineage.on_item_ended(case, row, Cause(type="event", id=fact.event_id))


def _may_report(case: Case, row: WorkItemRow, signer: Actor) -> bool:
    owner = row.item.owner
    by_owner = owner is not UNSET and signer == Actor(type="agent", id=owner.agent_id)
    return by_owner or rules.may_review(case, row, signer)


def _fold_failed(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, WorkFailed)
    assert fact.sequence is not None
    row = find(view, payload.work_item_id)
    rules.keep(view, payload.evidence, fact.sequence)
    fold(
        view,
        fact,
        row,
        attempts=payload.attempt,
        failure_reason=payload.reason,
        block_reason=None,
        required_resolution=None,
    )
    fold_ended(view, row)


DECIDERS: dict[str, Callable[[Case], None]] = {
    "work.submit": submit,
    "work.accept_result": accept,
    "work.fail": fail,
}
EVOLVERS: dict[str, Callable[[Overlay, EventFact], None]] = {
    "work.submitted": _fold_submitted,
    "work.result.accepted": _fold_accepted,
    "work.failed": _fold_failed,
}
