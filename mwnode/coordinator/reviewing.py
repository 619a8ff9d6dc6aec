"""Reviews under way: what a submission is checked by, which reviewer Agents are asked, and what becomes of it.

Everything follows from the log: a review is a WorkItem whose identifier is made from the submission that it is about,
so that a Coordinator that starts anew finds the ones that it asked for (R-13.2-02 to R-13.2-06).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET

from mwnode.client.fold import WorkView
from mwnode.coordinator.effects import Check
from mwnode.coordinator.graph import Instance, result_paths, work_item_id
from mwnode.coordinator.plan_format import capability
from mwnode.coordinator.review import Accept, Assess, Checked, Rework, review
from mwnode.coordinator.whole import Whole
from mwnode.protocol import terms
from mwnode.protocol.assessments import (
    ASSESSMENT_ID,
    ASSESSMENT_MEDIA_TYPE,
    ASSESSMENT_PATH,
    ASSESSMENT_SCHEMA,
    BY_REVIEWER,
    REVIEW_CAPABILITY,
    assessments_in,
    request_in,
    request_of,
)
from mwnode.protocol.commands import WorkAcceptResult, WorkCancel, WorkFail
from mwnode.protocol.documents import (
    AcceptanceCriterion,
    Budget,
    Deliverable,
    Evidence,
    JsonObject,
    RetryPolicy,
    WorkContract,
)

REVIEWS_MAX = 2
"""Reviewers asked about one submission: a second one where the first could not say."""
REVIEW_SECONDS = 600
"""Wall clock of a review where the work has no limit of its own; otherwise half of the work's, this at most."""
_UNFINISHED = ("open", "offered", "queued", "active", "blocked")


class Reviewing:
    """The reviews of one Mission. Part of the engine, kept apart because it is an idea of its own."""

    def __init__(self, engine: Whole) -> None:
        self.engine = engine
        self._checked: dict[str, dict[str, Checked]] = {}

    def checked(self, work_item_id: str, results: Sequence[Checked]) -> None:
        """Submitted Artifacts were fetched and compared."""
        self._checked[work_item_id] = {one.content_hash: one for one in results}

    def changed(self, view: WorkView) -> None:
        """Whatever was fetched of an earlier submission says nothing about the next one."""
        if view.state not in ("submitted", "verified"):
            self._checked.pop(view.work_item_id, None)

    # --- one submission -----------------------------------------------------------------------------------------------

    def look_at(self, instance: Instance, view: WorkView) -> None:
        """Take the review of a submission one step further."""
        engine = self.engine
        submission = view.item.submission
        key = f"review {view.work_item_id}"
        if submission is UNSET or not engine.free(key):
            return
        checked = self._fetched(view)
        if checked is None:
            return
        unusable = self._unusable(view, checked)
        assessments = self._by_humans(view)
        verdict = unusable or review(view, checked, assessments)
        if isinstance(verdict, Assess) and any(kind == BY_REVIEWER for _, kind in verdict.wanted):
            given = self._assessments(instance, view, verdict)
            if given is None:
                return  # a reviewer is at it
            assessments = (*assessments, *given)
            verdict = review(view, checked, assessments)
        match verdict:
            case Accept(considered):
                self._accept(view, key, considered, assessments)
            case Rework():
                self._rework(view, key, verdict, assessments)
            case Assess(wanted):
                text = ", ".join(f"{criterion} ({kind})" for criterion, kind in wanted)
                engine.say(
                    f"assess {view.work_item_id} {submission.submitted_at}",
                    f"{instance.local} waits for assessment of {text}: "
                    f"`mwnode mission review ID {instance.local} --criterion NAME --passed` (or --failed) says it. "
                    f"Submitted at {submission.submitted_at}.",
                )

    def _by_humans(self, view: WorkView) -> tuple[Evidence, ...]:
        """What humans said of this very submission: signed Evidence about exactly its Artifacts (R-13.2-05)."""
        submission = view.item.submission
        assert submission is not UNSET, "only a submission is reviewed"
        given = self.engine.board.given.get(view.work_item_id, {}).values()
        return tuple(one for one in given if set(one.artifact_hashes) == set(submission.artifact_hashes))

    def _fetched(self, view: WorkView) -> Mapping[str, Checked] | None:
        """What fetching every submitted Artifact showed; ``None`` while that is under way."""
        checked = self._checked.get(view.work_item_id)
        key = f"check {view.work_item_id}"
        submission = view.item.submission
        if checked is None and submission is not UNSET and self.engine.free(key):
            self.engine.wait(key, 60.0)
            read = request_in(view.item.contract) is not None
            self.engine.emit(Check(self.engine.board.group_id, view.work_item_id, submission.artifact_hashes, read))
        return checked

    def _accept(self, view: WorkView, key: str, considered: tuple[str, ...], assessments: tuple[Evidence, ...]) -> None:
        criteria = [criterion.criterion_id for criterion in view.item.contract.acceptance_criteria]
        steps = ["integrity", "schema", "deterministic", *(["reviewers"] if assessments else []), "combination"]
        details: JsonObject = {"considered": list(considered), "steps": steps}
        method = "review: integrity of every Artifact, deliverables, coverage of every criterion by Evidence"
        evidence = self.engine.papers.evidence(view, "artifact_integrity", criteria, "passed", method, details)
        payload = WorkAcceptResult(work_item_id=view.work_item_id, evidence=(evidence, *assessments))
        self.engine.send(key, "work.accept_result", payload, view=view)
        self.engine.note("accept", workItemId=view.work_item_id, assessments=len(assessments))

    def _rework(self, view: WorkView, key: str, verdict: Rework, assessments: tuple[Evidence, ...]) -> None:
        details: JsonObject = {
            "considered": list(verdict.considered),
            "failure": "REWORK",
            "step": verdict.step,
            "permanent": False,
        }
        papers = self.engine.papers
        report = papers.evidence(view, "failure_report", verdict.criterion_ids, "failed", verdict.reason, details)
        # What the reviewers found stays on record beside the report, whichever way it went (R-13.2-06).
        fail = WorkFail(
            work_item_id=view.work_item_id,
            reason=f"REWORK: {verdict.reason}"[:4000],
            evidence=(report, *assessments),
        )
        self.engine.send(key, "work.fail", fail, view=view)
        self.engine.note("rework", workItemId=view.work_item_id, step=verdict.step, because=verdict.reason)

    # --- reviewers ----------------------------------------------------------------------------------------------------

    def _unusable(self, view: WorkView, checked: Mapping[str, Checked]) -> Rework | None:
        """A review whose result is no assessment is done again."""
        request = request_in(view.item.contract)
        if request is None or any(one.fault is not None for one in checked.values()):
            return None
        found = self._read(view, checked)
        if not isinstance(found, str):
            return None
        criteria = tuple(criterion.criterion_id for criterion in view.item.contract.acceptance_criteria)
        return Rework("schema", found, criteria, tuple(sorted(view.evidence)))

    def _read(self, view: WorkView, checked: Mapping[str, Checked]) -> tuple[Evidence, ...] | str:
        request = request_in(view.item.contract)
        submission, owner = view.item.submission, view.owner_id
        assert request is not None, "only the results of reviews are read"
        assert submission is not UNSET, "only results are read"
        for content_hash in submission.artifact_hashes:
            manifest, result = view.artifacts.get(content_hash), checked.get(content_hash)
            if manifest is None or manifest.schema_uri != ASSESSMENT_SCHEMA or result is None:
                continue
            if result.content is None:
                return "the assessment is too large to be read"
            return assessments_in(result.content, request, owner or "")
        return "the result holds no assessment"

    def _assessments(self, instance: Instance, view: WorkView, verdict: Assess) -> tuple[Evidence, ...] | None:
        """What reviewers say of a submission; ``None`` while somebody is being asked.

        A reviewer who cannot say, or a review that failed for good, is followed by another one.
        """
        found: tuple[Evidence, ...] = ()
        failed: str | None = None
        passed_over: list[str] = []
        for number in range(REVIEWS_MAX):
            asked = self._instance(instance, view, verdict, number)
            board_view = self.engine.board.views.get(asked.work_item_id)
            if board_view is None:
                self._ask(asked, failed)
                return None
            if board_view.state == "verified":
                checked = self._fetched(board_view)
                if checked is None:
                    return None
                given = self._read(board_view, checked)
                found = (*found, *(() if isinstance(given, str) else given))
                if any(one.result != "inconclusive" for one in found):
                    return found
                passed_over.append(board_view.owner_id or "")
            elif board_view.state == "failed" and self.engine.placing.is_final(board_view):
                failed = board_view.work_item_id
            elif board_view.state != "cancelled":
                self._go_on(asked, board_view, passed_over)
                return None
        return found

    def _go_on(self, asked: Instance, view: WorkView, passed_over: list[str]) -> None:
        if view.state == "submitted":
            self.look_at(asked, view)
        else:
            request = request_in(view.item.contract)
            excluded = [] if request is None else [request.owner_agent_id]
            self.engine.placing.place(asked, {}, view, excluded=[*excluded, *passed_over])

    def _ask(self, asked: Instance, failed: str | None) -> None:
        assert asked.given is not None, "a review brings its contract"
        self.engine.authorize(asked, asked.given, replaces=failed)

    def _instance(self, instance: Instance, view: WorkView, verdict: Assess, number: int) -> Instance:
        """The review of this very submission; the same in every run of every Coordinator."""
        board, submission = self.engine.board, view.item.submission
        assert board.mission is not None, "WorkItems are in Missions"
        assert submission is not UNSET, "only a submission is reviewed"
        name = f"review {view.work_item_id} {submission.submitted_at}"
        identifier = work_item_id(board.mission.mission_id, name, number)
        known = board.views.get(identifier)
        given = self._contract(instance, view, verdict, number) if known is None else known.item.contract
        return Instance(f"review-{instance.local}"[:120], identifier, given=given)

    def _contract(self, instance: Instance, view: WorkView, verdict: Assess, number: int) -> WorkContract:
        standing, submission = view.item.contract, view.item.submission
        assert submission is not UNSET, "only a submission is reviewed"
        names = {criterion for criterion, kind in verdict.wanted if kind == BY_REVIEWER}
        criteria = [one for one in standing.acceptance_criteria if one.criterion_id in names]
        request = request_of(view.work_item_id, view.owner_id or "", criteria, submission.artifact_hashes)
        wanted = (REVIEW_CAPABILITY,) if instance.work is None else instance.work.reviewer
        limit = standing.budget.wall_clock_seconds_limit
        seconds = REVIEW_SECONDS if limit is UNSET else max(1, min(REVIEW_SECONDS, limit // 2))
        inputs = [
            {"path": f"{instance.local}/{path}", "contentHash": content_hash}
            for content_hash in submission.artifact_hashes
            for path in result_paths(view, content_hash)
        ]
        return WorkContract(
            contract_version=1,
            goal=f"Assess {', '.join(sorted(names))} of: {standing.goal}"[:10_000],
            required_deliverables=(
                Deliverable(
                    deliverable_id=ASSESSMENT_ID,
                    description="Signed Evidence on every criterion that is named",
                    media_type=ASSESSMENT_MEDIA_TYPE,
                    schema=ASSESSMENT_SCHEMA,
                ),
            ),
            acceptance_criteria=(
                AcceptanceCriterion(
                    criterion_id="assessed",
                    description="every criterion that is named was assessed",
                    evidence_required=("deterministic_test",),
                ),
            ),
            input_artifacts=tuple(sorted(set(submission.artifact_hashes))),
            dependency_work_item_ids=(),
            allowed_resources=(),
            required_capabilities=tuple(capability(text) for text in wanted),
            deadline=standing.deadline,
            requested_urgency=standing.requested_urgency,
            business_impact=standing.business_impact,
            retry_policy=RetryPolicy(
                max_attempts=3, backoff="exponential", max_delay="PT1M", retryable_failures=("EXECUTOR_FAILED",)
            ),
            budget=Budget(wall_clock_seconds_limit=seconds),
            side_effect_risk="none",
            execution_approval="not_required",
            constraints={
                "localId": f"review-{instance.local}",
                "run": "review",
                "deliverables": {ASSESSMENT_ID: {"path": ASSESSMENT_PATH}},
                "checks": {"assessed": "exit 0"},
                "inputs": sorted(inputs, key=lambda one: one["path"]),
                "review": msgspec.to_builtins(request),
                "attempt": number + 1,
            },
        )

    def tidy(self) -> None:
        """Call off reviews of submissions that are not there any more."""
        for view in list(self.engine.board.views.values()):
            request = request_in(view.item.contract)
            about = None if request is None else self.engine.board.views.get(request.work_item_id)
            if request is None or (about is not None and about.state == "submitted"):
                continue
            key = f"cancel {view.work_item_id}"
            if view.state == "failed":
                # It would hold up the Mission, and can only be called off once it is offered again.
                local = terms.text(view.item.contract, "localId") or "review"
                self._go_on(Instance(local, view.work_item_id, given=view.item.contract), view, [])
            elif view.state in _UNFINISHED and self.engine.free(key):
                payload = WorkCancel(
                    work_item_id=view.work_item_id, reason="what it is about is not submitted any more"
                )
                self.engine.send(key, "work.cancel", payload, view=view)
