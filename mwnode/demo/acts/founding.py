"""An Organization, its node, and the people in it: what every other act needs."""

from __future__ import annotations

import socket
import ssl
from collections import Counter
from urllib.parse import urlsplit

from mwnode.client.http import HttpClient
from mwnode.demo.documents import sha256
from mwnode.demo.processes import PATIENCE_SECONDS, Listening, run
from mwnode.demo.stage import HUMAN, Stage
from mwnode.protocol.errors import MissionWeaveError

BUILDER = (
    "demo.requirements.read@1.0.0",
    "demo.source.write@1.0.0",
    "demo.python.test@1.0.0",
    "demo.archive.build@1.0.0",
    "demo.source.check@1.0.0",
)
SCRIBE = ("demo.release.write@1.0.0", "demo.release.sign@1.0.0")


def play(stage: Stage) -> None:
    """Make the Organization, start its node, register who works in it, and look at what stands there."""
    stage.report.step("make an Organization", home=str(stage.home))
    stage.organization_id = run("init", str(stage.home))["organizationId"]
    listening = stage.serve()
    run("human", "add", HUMAN, "--home", str(stage.home))
    stage.register("lead")
    named = [argument for capability in BUILDER for argument in ("--capability", capability)]
    run("agent", "add", "builder", "--slots", "2", *named, "--home", str(stage.home))
    stage.register("scribe", *SCRIBE, slots=2)
    _transport(stage, listening)
    _registry(stage)
    _components(stage)


def _transport(stage: Stage, listening: Listening) -> None:
    spoken = _tls_version(listening, ssl.TLSVersion.TLSv1_3)
    older = _tls_version(listening, ssl.TLSVersion.TLSv1_2)
    stage.check("the node speaks TLS 1.3, trusted through its own CA", spoken == "TLSv1.3", spoken)
    stage.check("an older TLS is refused", not older.startswith("TLS"), older)


def _tls_version(listening: Listening, newest: ssl.TLSVersion) -> str:
    """The version that a client which knows at most `newest` agrees on, or why there is none."""
    where = urlsplit(listening.url)
    context = ssl.create_default_context(cafile=listening.ca)
    context.maximum_version = newest
    try:
        with (
            socket.create_connection((where.hostname, where.port), timeout=PATIENCE_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=where.hostname) as secure,
        ):
            return str(secure.version())
    except ssl.SSLError as error:
        return error.reason or "refused"


def _registry(stage: Stage) -> None:
    evidence = stage.human.get("/v0.1/registry")
    count = Counter(binding["principal"]["type"] for binding in evidence["bindings"])
    keys = {binding["publicKey"] for binding in evidence["bindings"]}
    stage.check(
        "Agents, humans and services have keys in the Registry, and no key stands for two",
        count["agent"] >= 3 and count["human"] == 2 and len(keys) == len(evidence["bindings"]),
        f"{count['agent']} Agents, {count['human']} humans, {count['service']} services, {len(keys)} keys",
    )
    groups = {entry["groupId"] for entry in stage.human.get("/v0.1/missions")["missions"]}
    stage.check(
        "one Organization, one logical Group service, one node",
        evidence["organizationId"] == stage.organization_id and count["service"] == 2 and not groups,
        f"{evidence['organizationId']}; services: the authority and the Organization's own",
    )


def _components(stage: Stage) -> None:
    """Each of the six components that a deployment consists of answers for itself (R-5-01)."""
    human = stage.human
    stored = human.put_artifact(b"are you there?\n")
    with HttpClient(stage.listening.http, None, stage.listening.ca) as stranger:
        try:
            stranger.get("/v0.1/missions")
            asked = "nothing asked"
        except MissionWeaveError as error:
            asked = error.code.value
        ready = stranger.get("/readyz")
    answers = {
        "Agent Registry": bool(human.get("/v0.1/registry")["bindings"]),
        "Group Authority and Event store": ready["status"] == "ok" and _has_facts(stage),
        "Authorization Service": asked == "AUTH_REQUIRED" and bool(human.authenticate()),
        "Agents": len(human.get("/v0.1/agents")["agents"]) >= 3,
        "Artifact storage": b"".join(human.artifact_chunks(stored["contentHash"])) == b"are you there?\n"
        and stored["contentHash"] == sha256(b"are you there?\n"),
        "human interface": isinstance(stage.cli("waiting"), list),
    }
    stage.check(
        "all six components of a deployment answer",
        all(answers.values()),
        ", ".join(k for k, v in answers.items() if v),
    )


def _has_facts(stage: Stage) -> bool:
    """Whether the Event store holds the Organization's own facts; its services may read them."""
    with stage.client("organization") as service:
        return bool(service.get("/v0.1/organization/events")["events"])
