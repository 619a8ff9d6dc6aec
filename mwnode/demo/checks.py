"""What the demonstration claims, each claim looked at through the public surface of the node."""

from __future__ import annotations

import hashlib
import socket
import ssl
import tarfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mwnode.client.http import HttpClient
from mwnode.demo.log import GroupLog
from mwnode.demo.processes import Listening
from mwnode.demo.report import Check
from mwnode.narrative import work_item_of
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import MissionWeaveError
from mwnode.protocol.identifiers import uuid7_urn
from mwnode.system import OsEntropy, SystemClock
from mwnode.trust.keys import sign_mapping
from mwnode.trust.registry import Registry
from mwnode.trust.verification import Verified, verify

EXPECTED_WORK = {"count", "test", "archive", "smoke", "notes", "sign-off"}
AFTER = {
    "test": ("count",),
    "archive": ("count",),
    "notes": ("count",),
    "smoke": ("archive",),
    "sign-off": ("test", "smoke", "notes"),
}
"""The release's dependencies: each WorkItem and those that must be verified before it starts."""


def transport(listening: Listening) -> list[Check]:
    """The node speaks TLS 1.3 under its own CA, and nothing older."""
    spoken = _tls_version(listening, ssl.TLSVersion.TLSv1_3)
    older = _tls_version(listening, ssl.TLSVersion.TLSv1_2)
    return [
        Check("the node speaks TLS 1.3, trusted through its own CA", spoken == "TLSv1.3", spoken),
        Check("an older TLS is refused", not older.startswith("TLS"), older),
    ]


def _tls_version(listening: Listening, newest: ssl.TLSVersion) -> str:
    """The version that a client which knows at most `newest` agrees on, or why there is none."""
    where = urlsplit(listening.url)
    context = ssl.create_default_context(cafile=listening.ca)
    context.maximum_version = newest
    try:
        with (
            socket.create_connection((where.hostname, where.port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname=where.hostname) as secure,
        ):
            return str(secure.version())
    except ssl.SSLError as error:
        return error.reason or "refused"


def registry(client: HttpClient, organization_id: str) -> list[Check]:
    """Everybody is registered, each with a key of their own."""
    evidence = client.get("/v0.1/registry")
    count = Counter(binding["principal"]["type"] for binding in evidence["bindings"])
    keys = {binding["publicKey"] for binding in evidence["bindings"]}
    return [
        Check(
            "three Agents and two humans have keys in the Registry of the Organization",
            count["agent"] == 3 and count["human"] == 2 and evidence["organizationId"] == organization_id,
            f"{dict(count)}",
        ),
        Check("no key stands for two", len(keys) == len(evidence["bindings"]), f"{len(keys)} keys"),
    ]


def waits_for(waiting: list[dict[str, Any]], human: Actor, mission_id: str) -> list[Check]:
    """The node says who must act next."""
    entries = [entry for entry in waiting if entry["on"]["id"] == mission_id]
    named = any(entry["who"] == {"type": human.type, "id": human.id} for entry in entries)
    return [Check("`mwnode waiting` names the human whose Approval is awaited", named, f"{len(entries)} entries")]


def refuses_another_set(client: HttpClient, mission_id: str, log: GroupLog) -> list[Check]:
    """An Approval of anything but what was submitted is refused and changes nothing."""
    view = client.mission(mission_id)
    mission = view["mission"]
    submitted = log.of_kind("mission.submitted_for_approval")[-1]["payload"]
    epoch = next(each["membershipEpoch"] for each in view["memberships"] if each["member"]["id"] == client.principal.id)
    now, entropy = SystemClock().now(), OsEntropy()
    approval = {
        "approvalId": uuid7_urn(now, entropy.random(10)),
        "kind": "mission_final",
        "decision": "approved",
        "missionId": mission_id,
        "groupId": log.group_id,
        "missionRevision": submitted["missionRevision"],
        "artifactHashes": submitted["artifactHashes"][:-1],
        "acceptancePolicyVersion": mission["approvalPolicy"].get("policyVersion", "1.0.0"),
        "approver": {"type": client.principal.type, "id": client.principal.id},
        "comments": "",
        "conditions": [],
        "occurredAt": now.text(),
    }
    key = client.key
    assert key is not None, "the demonstration's client has a key"
    payload = {"approval": sign_mapping(approval, key, approval["occurredAt"])}
    try:
        client.send("mission.approve", payload, group_id=log.group_id, membership_epoch=epoch)
        answer = "accepted"
    except MissionWeaveError as error:
        answer = error.code.value
    after = client.mission(mission_id)
    return [
        Check("an Approval of another Artifact set is refused", answer == "REVISION_CONFLICT", answer),
        Check(
            "a refused Command changes nothing",
            after["headSequence"] == view["headSequence"] and after["mission"] == mission,
            f"head {after['headSequence']}",
        ),
    ]


def release(log: GroupLog, approved: dict[str, Any]) -> list[Check]:
    """The first Mission was done in the order of its graph, by both Workers, and approved as submitted."""
    states = log.states()
    verified = {name for name, state in states.items() if state == "verified"}
    early = [
        (name, earlier)
        for name, before in AFTER.items()
        for earlier in before
        if not 0 < log.sequence_of("work.result.accepted", earlier) < log.sequence_of("work.started", name)
    ]
    owners = {owner for _, owner in log.board.values()}
    published = {log.names[work_item_of(event) or ""] for event in log.of_kind("artifact.published")}
    submitted = log.of_kind("mission.submitted_for_approval")[-1]["payload"]
    approval = log.of_kind("mission.approved")[-1]["payload"]["approval"]
    exact = all(approval[member] == submitted[member] for member in ("missionRevision", "artifactHashes"))
    proven = [
        evidence
        for event in log.of_kind("work.submitted")
        for evidence in event["payload"]["evidence"]
        if evidence["result"] == "passed"
    ]
    reviewed = [evidence for event in log.of_kind("work.result.accepted") for evidence in event["payload"]["evidence"]]
    return [
        Check("all six WorkItems are verified", verified == EXPECTED_WORK, " ".join(sorted(verified))),
        Check("no WorkItem started before what it depends on was verified", not early, f"{early or 'in order'}"),
        Check("both Workers did what they are capable of", owners == {"builder", "scribe"}, " ".join(sorted(owners))),
        Check("every WorkItem published an Artifact", published == EXPECTED_WORK, f"{len(published)} WorkItems"),
        Check("every submission carries passed Evidence", len(proven) >= len(EXPECTED_WORK), f"{len(proven)} pieces"),
        Check("the Coordinator reviewed every result", len(reviewed) >= len(EXPECTED_WORK), f"{len(reviewed)} reviews"),
        Check(
            "the Approval names the submitted revision and Artifact set, exactly",
            exact and approved["artifactHashes"] == submitted["artifactHashes"],
            f"revision {approval['missionRevision']}, {len(approval['artifactHashes'])} Artifacts",
        ),
        _gap_free("the log of the first Mission has no gap", log),
    ]


def signatures(client: HttpClient, log: GroupLog) -> list[Check]:
    """Every Event verifies against the Registry, here, by who reads it."""
    known = Registry.from_evidence(client.get("/v0.1/registry"))
    good = sum(isinstance(verify(raw, "event", known), Verified) for raw in log.encoded())
    return [Check("every Event's signature verifies for its reader", good == len(log.events), f"{good} Events")]


def artifacts(client: HttpClient, log: GroupLog, folder: Path) -> list[Check]:
    """The released files are what their hashes say, and what was signed off."""
    folder.mkdir(parents=True, exist_ok=True)
    fetched: dict[str, Path] = {}
    wrong: list[str] = []
    for event in log.of_kind("artifact.published"):
        manifest = event["payload"]["artifact"]
        name = log.names[manifest["workItemId"]]
        path = folder / name
        client.get_artifact(manifest["contentHash"], path)
        fetched[name] = path
        if f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" != manifest["contentHash"]:
            wrong.append(name)
    lines = fetched["sign-off"].read_text(encoding="utf-8").splitlines()
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    signed_off = {
        "tally.tar": hashlib.sha256(fetched["archive"].read_bytes()).hexdigest(),
        "notes.md": hashlib.sha256(fetched["notes"].read_bytes()).hexdigest(),
    }
    with tarfile.open(fetched["archive"]) as tar:
        members = len(tar.getnames())
    return [
        Check("every Artifact's bytes are what its hash says", not wrong, f"{len(fetched)} Artifacts"),
        Check("the signed-off checksums are those of archive and notes", sums == signed_off, f"{len(sums)} files"),
        Check("the archive unpacks", members > 0, f"{members} files"),
    ]


def explained(facts: list[dict[str, Any]]) -> list[Check]:
    """The node can tell how the Mission came to be where it is."""
    return [Check("`mwnode why` tells the chain of facts behind the Mission", len(facts) > 1, f"{len(facts)} facts")]


def survived(before: Sequence[bytes], log: GroupLog, ledger: Sequence[str]) -> list[Check]:
    """Nothing acknowledged was lost by the SIGKILL, and nothing was done twice."""
    kept = list(before) == log.encoded()[: len(before)]
    results = Counter(log.names[work_item_of(event) or ""] for event in log.of_kind("work.result.accepted"))
    # One Command may lead to several Events, but never to the same one about the same thing twice.
    effects = Counter(
        (event["cause"]["id"], event["kind"], work_item_of(event))
        for event in log.events
        if event["cause"]["type"] == "command"
    )
    commands = {command for command, _, _ in effects}
    runs = Counter(ledger)
    return [
        Check("every Event seen before the SIGKILL is there unchanged", kept, f"{len(before)} Events"),
        Check(
            "the interrupted Mission completed, each WorkItem accepted exactly once",
            len(results) == 4 and set(results.values()) == {1} and log.mission_state == "approved",
            f"{dict(results)}",
        ),
        Check("no Command took effect twice", max(effects.values()) == 1, f"{len(commands)} Commands"),
        Check(
            "no executor ran twice for one idempotency key",
            len(runs) == 4 and set(runs.values()) == {1},
            f"{sum(runs.values())} runs, {len(runs)} keys",
        ),
        _gap_free("the log of the second Mission has no gap", log),
    ]


def verified(result: dict[str, Any]) -> list[Check]:
    """The file proves itself."""
    findings = [f"{finding['where']}: {finding['detail']}" for finding in result["findings"]]
    return [
        Check(
            "`mwnode verify` finds nothing wrong with the file",
            result["ok"] and not findings,
            "; ".join(findings)
            or f"{result['groups']} Groups, {result['events']} Events, {result['artifacts']} Artifacts",
        )
    ]


def _gap_free(name: str, log: GroupLog) -> Check:
    sequences = [event["sequence"] for event in log.events]
    return Check(name, sequences == list(range(1, len(sequences) + 1)), f"1 to {len(sequences)}")
