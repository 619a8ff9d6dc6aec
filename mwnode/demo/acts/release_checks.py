"""What is looked at in the two Missions' results: the Artifacts themselves, and what humans signed under them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from mwnode.demo.documents import sha256
from mwnode.demo.log import GroupLog
from mwnode.demo.stage import Stage
from mwnode.protocol import jcs
from mwnode.trust.registry import Registry
from mwnode.trust.verification import Verified, verify

TOLD = frozenset(f"MWNODE_{name}" for name in ("WORK_ITEM", "PROGRESS", "CAPABILITY", "IDEMPOTENCY_KEY", "RUN", "STEP"))
"""What a Worker tells its executors in their environment."""


def fetch(stage: Stage, log: GroupLog, name: str, path: str) -> bytes:
    """The newest Artifact that a WorkItem published under a path."""
    for event in reversed(log.about(name, "artifact.published")):
        manifest = event["payload"]["artifact"]
        data = manifest.get("extensions", {}).get("urn:mwnode:extension:core", {}).get("data", {})
        if path in {one["path"] for one in data.get("deliverables", ())}:
            return b"".join(stage.human.artifact_chunks(manifest["contentHash"]))
    raise LookupError(f"{name} published no {path}")


def archive_of(stage: Stage, log: GroupLog) -> list[str]:
    """The names in the newest archive of a Mission."""
    with tarfile.open(fileobj=io.BytesIO(fetch(stage, log, "integrate", "tally.tar"))) as tar:
        return sorted(tar.getnames())


def corrected(stage: Stage, log: GroupLog, first: list[str]) -> None:
    """The change request led to corrective work, and to nothing else."""
    rounds = {name: len([one for one in log.names.values() if one == name]) for name in set(log.names.values())}
    again = sorted(name for name, count in rounds.items() if count == 2)
    stage.check(
        "a change request has exactly the named work, and what depends on it, done again",
        again == ["approval", "integrate"] and set(rounds.values()) == {1, 2},
        f"again: {' '.join(again)}; once: {sum(count == 1 for count in rounds.values())}",
    )
    second = archive_of(stage, log)
    stage.check(
        "the corrective work corrects what was asked for",
        "tally/LICENSE" in second and "tally/LICENSE" not in first,
        f"{len(first)} files before, {len(second)} after",
    )
    submitted = log.of_kind("mission.submitted_for_approval")
    stage.check(
        "the corrected Mission is submitted anew, as another revision and Artifact set",
        len(submitted) == 2
        and submitted[0]["payload"]["artifactHashes"] != submitted[1]["payload"]["artifactHashes"]
        and submitted[0]["payload"]["missionRevision"] < submitted[1]["payload"]["missionRevision"],
        " then ".join(f"revision {event['payload']['missionRevision']}" for event in submitted),
    )


def approvals(stage: Stage, *logs: GroupLog) -> None:
    """Every Approval says exactly what it is for, and is signed by the human."""
    for log in logs:
        submitted, approved = log.latest("mission.submitted_for_approval"), log.latest("mission.approved")["approval"]
        stage.check(
            f"{log.title}: the Approval names the submitted revision and Artifact set, exactly",
            all(approved[member] == submitted[member] for member in ("missionRevision", "artifactHashes")),
            f"revision {approved['missionRevision']}, {len(approved['artifactHashes'])} Artifacts",
        )
    known = Registry.from_evidence(stage.human.get("/v0.1/registry"))
    signed = [event["payload"]["approval"] for log in logs for event in log.events if "approval" in event["payload"]]
    good = [one for one in signed if isinstance(verify(jcs.canonical(one), "approval", known), Verified)]
    kinds = sorted({f"{one['kind']} {one['decision']}" for one in signed})
    stage.check(
        "every Approval is a document of its own, signed by the human, and verifies",
        len(good) == len(signed) >= 6 and {one["approver"]["id"] for one in signed} == {stage.human.principal.id},
        f"{len(good)}: {', '.join(kinds)}",
    )
    evidence = [
        one
        for log in logs
        for event in log.events
        if event["kind"] in ("work.submitted", "work.result.accepted")
        for one in event["payload"].get("evidence", ())
    ]
    proven = [one for one in evidence if isinstance(verify(jcs.canonical(one), "evidence", known), Verified)]
    authors = {one["generatedBy"]["id"] for one in evidence}
    results = [event for log in logs for event in log.of_kind("work.result.accepted")]
    stage.check(
        "every result was reviewed by its Coordinator, on signed Evidence that verifies",
        len(proven) == len(evidence) > 0 and all(event["payload"]["evidence"] for event in results),
        f"{len(proven)} pieces by {len(authors)} authors, {len(results)} results",
    )


def slots(stage: Stage, feature: GroupLog, repair: GroupLog) -> None:
    """Each run has a place of its own, with its own inputs, and no key in sight."""
    seen: dict[str, dict[str, Any]] = {
        f"{log.title} {name}": json.loads(fetch(stage, log, name, path))["slot"]
        for log, name, path in (
            (feature, "test", "tests.json"),
            (feature, "lint", "lint.json"),
            (repair, "test", "tests.json"),
        )
    }
    apart = all(len({slot[name] for slot in seen.values()}) == 3 for name in ("directory", "temporary", "key"))
    stage.check(
        "every slot has a directory, temporary files and an idempotency key of its own",
        apart,
        " ".join(Path(slot["directory"]).name for slot in seen.values()),
    )
    names = set().union(*(slot["environment"] for slot in seen.values()))
    keys = [path for slot in seen.values() for path in slot["keyFiles"]]
    own = {
        "MWNODE_WORK_ITEM",
        "MWNODE_PROGRESS",
        "MWNODE_CAPABILITY",
        "MWNODE_IDEMPOTENCY_KEY",
        "MWNODE_RUN",
        "MWNODE_STEP",
    }
    foreign = {name for name in names if name.startswith("MWNODE_")} - own
    stage.check(
        "a slot holds no key and is told of none", not keys and not foreign, f"sees {' '.join(sorted(names & own))}"
    )
    mixed = [path for path in seen["repair test"]["inputs"] if path.startswith(("design", "example"))]
    stage.check(
        "a slot holds the inputs of its own Mission and of no other",
        not mixed and any(path.startswith("design") for path in seen["feature test"]["inputs"]),
        f"{len(seen['feature test']['inputs'])} and {len(seen['repair test']['inputs'])} files",
    )


def released(stage: Stage, feature: GroupLog, repair: GroupLog) -> None:
    """What was released does what was ordered, tried here, and its checksums are the signed-off ones."""
    with tempfile.TemporaryDirectory(prefix="mwnode-demo-") as directory:
        for log in (feature, repair):
            with tarfile.open(fileobj=io.BytesIO(fetch(stage, log, "integrate", "tally.tar"))) as tar:
                tar.extractall(Path(directory) / log.title, filter="data")
        words = _tally(Path(directory) / "feature" / "tally", "--longest", "2")
        wrong = _tally(Path(directory) / "repair" / "tally", "--top", "-1")
    stage.check(
        "the released feature does what was ordered",
        words.returncode == 0 and words.stdout.split()[-2:] == ["countermanding", "counting"],
        " ".join(words.stdout.split()[-2:]),
    )
    stage.check(
        "the released repair does what was ordered",
        wrong.returncode == 2 and "Traceback" not in wrong.stderr,
        wrong.stderr.strip().splitlines()[-1],
    )
    wrong_sums = []
    for log in (feature, repair):
        digest = fetch(stage, log, "approval", "SHA256SUMS").decode().split()[0]
        if f"sha256:{digest}" != sha256(fetch(stage, log, "integrate", "tally.tar")):
            wrong_sums.append(log.title)
    stage.check("the signed-off checksums are those of the released archives", not wrong_sums, "2 archives")


def _tally(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the released command."""
    return subprocess.run(
        [sys.executable, "-B", "-m", "tally", *arguments],
        cwd=root,
        input="a tally of counting and of countermanding",
        capture_output=True,
        text=True,
        check=False,
    )
