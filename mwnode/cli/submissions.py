"""What is put before a human: exactly what their signature will stand under, and what speaks for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mwnode.cli.failure import Failure
from mwnode.cli.missions import events_of, file_names
from mwnode.cli.output import facts, table
from mwnode.cli.possible import possible_now
from mwnode.cli.reach import Reach
from mwnode.narrative import mission_title, short, work_item_name, work_item_of

USED_BY_LIMIT = {
    "financialLimit": "financialMicrounits",
    "modelTokenLimit": "modelTokens",
    "toolCallLimit": "toolCalls",
    "computeSecondsLimit": "computeSeconds",
    "wallClockSecondsLimit": "wallClockSeconds",
    "externalSideEffectLimit": "externalActions",
}
"""Each limit of a budget, and the usage that counts against it."""
MICROUNITS = 1_000_000
ADMITTED = ("work.submitted", "work.result.accepted", "work.failed")
"""Events that bring Evidence, apart from Messages that carry some."""


class Told(NamedTuple):
    """What a Group's log tells of its Artifacts, Evidence and usage."""

    artifacts: dict[str, list[dict[str, Any]]]
    """The manifests of each content hash, oldest first."""
    evidence: list[dict[str, Any]]
    """Signed Evidence, oldest first."""
    used: dict[str, dict[str, Any]]
    """The usage of each WorkItem so far."""
    submitted: dict[str, Any] | None
    """The newest submission of the Mission itself."""


class Submission(NamedTuple):
    """What a Coordinator submitted, and what is known of it."""

    mission_revision: int
    artifact_hashes: list[str]
    told: Told


def read_log(node: Reach, group_id: str) -> Told:
    """Read a Group's log for what its results rest on."""
    told = Told({}, [], {}, None)
    submitted = None
    for event in events_of(node, group_id):
        kind, payload = event["kind"], event["payload"]
        if kind == "mission.submitted_for_approval":
            submitted = payload
        elif kind == "artifact.published":
            manifest = payload["artifact"]
            told.artifacts.setdefault(manifest["contentHash"], []).append(manifest)
        elif kind in ADMITTED:
            told.evidence.extend(payload.get("evidence", ()))
        elif kind.endswith(".resource_usage_recorded"):
            told.used[str(work_item_of(event))] = payload["cumulativeUsage"]
    return told._replace(submitted=submitted)


def submission_of(node: Reach, view: dict[str, Any]) -> Submission:
    """The revision and Artifact set that the Coordinator submitted for approval; Failure when none waits."""
    mission = view["mission"]
    if mission["state"] != "awaiting_approval":
        raise Failure(
            f"{mission['missionId']} is {mission['state']}, so nothing of it waits for approval; {possible_now(view)}; "
            "see `mwnode waiting`"
        )
    told = read_log(node, mission["groupId"])
    if told.submitted is None:
        raise Failure(f"the submission of {mission['missionId']} lies beyond what you may read")
    return Submission(told.submitted["missionRevision"], told.submitted["artifactHashes"], told)


def mission_shown(view: dict[str, Any], submitted: Submission) -> list[str]:
    """A submitted Mission as its approver sees it: all that is signed, and what it rests on."""
    mission, budget = view["mission"], view["budget"]
    criteria = [
        [one["criterionId"], one["description"], one["evidenceRequired"]] for one in mission["definitionOfDone"]
    ]
    return [
        *facts(
            {
                "Mission": f"{mission_title(mission)} ({mission['missionId']})",
                "Objective": mission["objective"],
                "Revision": submitted.mission_revision,
                "Budget used": budget_used(budget["limit"], budget["used"]),
                "Artifacts": len(submitted.artifact_hashes),
            }
        ),
        *_indented(_artifacts(view, submitted.artifact_hashes, submitted.told)),
        "Done means:",
        *_indented(table(["criterion", "description", "evidence"], criteria)),
        "Evidence:",
        *_indented(_evidence(view, submitted.told.evidence, [one["workItemId"] for one in view["workItems"]])),
    ]


def work_shown(view: dict[str, Any], item: dict[str, Any], told: Told, judged: list[str]) -> list[str]:
    """A submitted WorkItem as its human reviewer sees it; ``judged`` are the criteria that Evidence is signed for."""
    contract, item_id = item["contract"], item["workItemId"]
    hashes = item["submission"]["artifactHashes"]
    criteria = [
        ["signed now" if one["criterionId"] in judged else None, one["criterionId"], one["description"]]
        for one in contract["acceptanceCriteria"]
    ]
    deliverables = [
        [one["deliverableId"], one.get("mediaType"), one.get("description")] for one in contract["requiredDeliverables"]
    ]
    return [
        *facts(
            {
                "Mission": f"{mission_title(view['mission'])} ({view['mission']['missionId']})",
                "Work": f"{work_item_name(item)} ({item_id})",
                "Goal": contract["goal"],
                "Revision": f"{item['revision']} (contract version {contract['contractVersion']})",
                "Owner": f"{item['owner']['agentId']} (epoch {item['owner']['ownershipEpoch']})",
                "Submitted": item["submission"]["submittedAt"],
                "Budget used": budget_used(contract["budget"], told.used.get(item_id, {})),
                "Artifacts": len(hashes),
            }
        ),
        *_indented(_artifacts(view, hashes, told)),
        "Deliverables of the contract:",
        *_indented(table(["id", "mediaType", "description"], deliverables)),
        "Criteria:",
        *_indented(table(["", "criterion", "description"], criteria)),
        "Evidence:",
        *_indented(_evidence(view, told.evidence, [item_id])),
    ]


def budget_used(limits: Mapping[str, Any], used: Mapping[str, Any]) -> str:
    """How much of each limit is used."""
    told = []
    for name, limit in limits.items():
        if name in USED_BY_LIMIT:
            spent = used.get(USED_BY_LIMIT[name], 0)
            unit = f" {limits['currency']}" if name == "financialLimit" and "currency" in limits else ""
            amount = spent / MICROUNITS if name == "financialLimit" else spent
            told.append(f"{amount:g} of {limit:g}{unit} {name.removesuffix('Limit')}")
    return ", ".join(told)


def _artifacts(view: dict[str, Any], hashes: list[str], told: Told) -> list[str]:
    names = {item["workItemId"]: work_item_name(item) for item in view["workItems"]}
    rows = [_described(content_hash, told.artifacts.get(content_hash, []), names) for content_hash in hashes]
    return table(["work", "file", "mediaType", "bytes", "contentHash"], rows)


def _described(content_hash: str, manifests: list[dict[str, Any]], names: dict[str, str]) -> list[Any]:
    """One Artifact: who made it, under which names, of which type and size; only its hash without a manifest."""
    if not manifests:
        return [None, None, None, None, content_hash]
    works = dict.fromkeys(names.get(one["workItemId"], short(one["workItemId"])) for one in manifests)
    files = dict.fromkeys(path for one in manifests for path in file_names(one))
    newest = manifests[-1]
    return [list(works), list(files), newest["mediaType"], newest["sizeBytes"], content_hash]


def _evidence(view: dict[str, Any], evidence: list[dict[str, Any]], item_ids: list[str]) -> list[str]:
    """The newest word on each criterion from each kind of Evidence."""
    names = {item["workItemId"]: work_item_name(item) for item in view["workItems"]}
    newest: dict[tuple[str, str, str], dict[str, Any]] = {}
    for one in evidence:
        for criterion in one["criterionIds"]:
            newest[(one["workItemId"], criterion, one["type"])] = one
    rows = [
        [names.get(item_id), criterion, kind, one["result"], short(one["generatedBy"]["id"]), one["method"]]
        for (item_id, criterion, kind), one in newest.items()
        if item_id in item_ids
    ]
    return table(["work", "criterion", "kind", "result", "by", "method"], rows)


def _indented(lines: list[str]) -> Iterator[str]:
    return (f"  {text}" for text in lines)
