"""The Signed Documents that a Worker makes: Artifact manifests and Evidence. Pure over its key, clock and entropy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args

import msgspec
from msgspec import UNSET

from mwnode.client.fold import WorkView
from mwnode.protocol import terms
from mwnode.protocol.assessments import ASSESSMENT_ID, BY_OTHERS, BY_REVIEWER, ReviewRequest
from mwnode.protocol.documents import (
    Artifact,
    Evidence,
    EvidenceSubject,
    EvidenceType,
    Extension,
    JsonObject,
    Producer,
    ToolVersion,
)
from mwnode.protocol.identifiers import ANY_SCHEMA, CORE_EXTENSION, artifact_uri, uuid7_urn
from mwnode.protocol.instants import Instant
from mwnode.protocol.ports import Clock, Entropy
from mwnode.trust.keys import SigningKey, sign_struct
from mwnode.worker.admission import needed_evidence
from mwnode.worker.effects import Output
from mwnode.worker.jobs import Failed, Job

EXIT_ZERO = "exit 0"
KINDS: Final[tuple[str, ...]] = get_args(EvidenceType)
RESULTS: Final = ("passed", "failed", "inconclusive")
MEDIA_TYPE_OF_STATE = "application/octet-stream"


class Papers:
    """Makes and signs documents as one Agent."""

    def __init__(self, key: SigningKey, clock: Clock, entropy: Entropy, version: str) -> None:
        self.key = key
        self.clock = clock
        self.entropy = entropy
        self.version = version

    def new_id(self) -> str:
        """A fresh identifier."""
        return uuid7_urn(self.clock.now(), self.entropy.random(10))

    def _now(self) -> Instant:
        return self.clock.now()

    def artifact(self, view: WorkView, output: Output, same: Iterable[Output] = ()) -> Artifact:
        """The signed manifest of one output; its sources are the contract's inputs (R-13.1-19).

        ``same`` are all outputs of these very bytes: under which paths they were written is told to whoever uses them.
        """
        owner = view.item.owner
        assert owner is not UNSET, "only an owner publishes"
        return sign_struct(
            Artifact,
            self.key,
            artifact_id=self.new_id(),
            content_hash=output.content_hash,
            uri=output.uri or artifact_uri(output.content_hash),
            size_bytes=output.size_bytes,
            media_type=output.media_type,
            schema_uri=output.schema or ANY_SCHEMA,
            producer=Producer(
                agent_id=owner.agent_id,
                agent_card_version=owner.agent_card_version,
                capabilities=owner.capability_pins,
            ),
            mission_id=view.item.mission_id,
            group_id=view.item.group_id,
            work_item_id=view.item.work_item_id,
            # What came out as it went in is the same Artifact, which is no source of itself.
            source_artifact_hashes=tuple(
                name for name in view.item.contract.input_artifacts if name != output.content_hash
            ),
            tool_versions=(ToolVersion(name="mwnode worker", version=self.version),),
            model_versions=(),
            classification="internal",
            created_at=self._now().text(),
            extensions={
                CORE_EXTENSION: Extension(
                    version="1.0.0",
                    critical=False,
                    data={
                        "deliverables": [
                            {"deliverableId": one.deliverable_id, "path": one.path} for one in (*same,) or (output,)
                        ]
                    },
                )
            },
        )

    def evidence(
        self,
        view: WorkView,
        kind: str,
        criterion_ids: Iterable[str],
        result: str,
        method: str,
        hashes: Iterable[str],
        details: JsonObject | None = None,
        *,
        about: str | None = None,
    ) -> Evidence:
        """One signed Evidence document about the WorkItem, or about the one of its Group that it reviews; it says what
        was checked, never what was thought."""
        subject = about or view.item.work_item_id
        return sign_struct(
            Evidence,
            self.key,
            evidence_id=self.new_id(),
            mission_id=view.item.mission_id,
            group_id=view.item.group_id,
            work_item_id=subject,
            type=kind,
            subject=EvidenceSubject(type="work_item", id=subject),
            criterion_ids=tuple(criterion_ids),
            method=method,
            result=result,
            artifact_hashes=tuple(dict.fromkeys(hashes)),
            generated_by=self.key.principal,
            created_at=self._now().text(),
            details=UNSET if details is None else details,
        )

    def submission(self, view: WorkView, job: Job, hashes: tuple[str, ...]) -> tuple[tuple[Evidence, ...], list[str]]:
        """Evidence for a submission, and what it fails to cover, in words (decisions D16, G3).

        The executor's own evidence lines come first. Where there is none, exit status 0 proves the criteria whose
        ``check`` says so, and the hashes made while uploading prove integrity.
        """
        contract = view.item.contract
        checks = terms.table(contract, "checks")
        made: list[Evidence] = []
        stated: dict[tuple[str, str], list[str]] = {}
        everything = [criterion.criterion_id for criterion in contract.acceptance_criteria]
        for line in job.reports:
            if line.get("type") in tuple(BY_OTHERS):
                continue  # about the work under review, where this is a review: nobody assesses its own (R-13.2-04)
            unfit = _unfit(line, everything)
            if unfit is not None:
                return (), [unfit]
            criterion, kind, result = (str(line[name]) for name in ("criterionId", "type", "result"))
            stated.setdefault((criterion, kind), []).append(result)
            made.append(self.evidence(view, kind, [criterion], result, _method(line), hashes))
        made.append(
            self.evidence(view, "artifact_integrity", everything, "passed", "SHA-256 of every uploaded output", hashes)
        )
        missing: list[str] = []
        for criterion, kind in needed_evidence(contract):
            results = stated.get((criterion, kind), [])
            if "passed" in results or kind == "artifact_integrity":
                continue
            if not results and kind == "deterministic_test" and checks.get(criterion) == EXIT_ZERO:
                details = {"exitStatus": 0, "attempt": job.attempt}
                made.append(self.evidence(view, kind, [criterion], "passed", "executor: exit 0", hashes, details))
            else:
                missing.append(f"{criterion}: {kind} {results[-1] if results else 'not given'}")
        return tuple(made), missing

    def assessment(self, view: WorkView, job: Job, request: ReviewRequest) -> tuple[str, bytes] | str:
        """The result of a review: its path under outputs/ and the signed Evidence that the executor's lines make; or
        what is missing from them, in words."""
        wanted = {one.criterion_id for one in request.criteria}
        found: list[Evidence] = []
        for line in job.reports:
            criterion, result = str(line.get("criterionId")), str(line.get("result"))
            if line.get("type") != BY_REVIEWER or criterion not in wanted:
                continue
            if result not in RESULTS:
                return f"{criterion}: the result {result!r:.100} is none of {', '.join(RESULTS)}"
            hashes, about = request.artifact_hashes, request.work_item_id
            found.append(self.evidence(view, BY_REVIEWER, [criterion], result, _method(line), hashes, about=about))
        missing = sorted(wanted - {name for one in found for name in one.criterion_ids})
        if missing:
            return f"the executor gave no {BY_REVIEWER} of {', '.join(missing)}"
        return terms.deliverable_path(view.item.contract, ASSESSMENT_ID) or ASSESSMENT_ID, msgspec.json.encode(found)

    def failure(self, view: WorkView, job: Job, failed: Failed) -> Evidence:
        """The failure report that `work.fail` needs; it tells how often it was tried and whether to try again."""
        criteria = [criterion.criterion_id for criterion in view.item.contract.acceptance_criteria]
        details: JsonObject = {"failure": failed.failure, "attempts": job.attempt, "permanent": failed.permanent}
        if job.exit_note:
            details["standardError"] = job.exit_note
        return self.evidence(view, "failure_report", criteria, "failed", failed.reason[:4000], (), details)


def _unfit(line: Mapping[str, Any], criteria: Iterable[str]) -> str | None:
    """Why an executor's line makes no Evidence about this work, in words; ``None`` where it does."""
    criterion = line.get("criterionId")
    about = criterion if isinstance(criterion, str) else "no criterion"
    for name, known in (("criterionId", (*criteria,)), ("type", KINDS), ("result", RESULTS)):
        value = line.get(name)
        if value not in known:
            return (
                f"{about:.100}: the executor's line has the {name} {value!r:.100}, which is none of {', '.join(known)}"
            )
    return None


def _method(line: Mapping[str, Any]) -> str:
    return str(line.get("method") or "reported by the executor")[:4000]
