"""A small bundle of our own, in the layout of the published one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mwnode.protocol import jcs
from mwnode.trust import ed25519
from tests.trust import makers
from tests.trust.makers import AUTHORITY, KINDS, NOW, SIGNERS, actor, protected_member, raw, registry, signed

ACCEPTED_AT = "2026-07-15T10:00:05+00:00"
SIGNER_RULES = {
    "agent-card": {"rule": "service-principal"},
    "artifact": {"rule": "agent-id", "idPointer": "/producer/agentId"},
    **{
        kind: {"rule": "principal-object", "pointer": f"/{member}"}
        for kind, member in {
            "approval": "approver",
            "command": "actor",
            "context-package": "generatedBy",
            "event": "acceptedBy",
            "evidence": "generatedBy",
            "extension-profile": "approvedBy",
            "group-snapshot": "createdBy",
        }.items()
    },
}


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


class BundleBuilder:
    """Writes files, lists them, and seals manifests with their digests."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, content: Any) -> str:
        data = content if isinstance(content, bytes) else json.dumps(content, indent=1).encode()
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(data)
        return path

    def listing(self, *directories: str) -> list[dict[str, Any]]:
        files = sorted(
            path for directory in directories for path in (self.root / directory).rglob("*") if path.is_file()
        )
        entries = [(path.relative_to(self.root).as_posix(), path.read_bytes()) for path in files]
        return [
            {"path": path, "byteLength": len(data), "sha256": digest_of(data)}
            for path, data in entries
            if not path.endswith("/manifest.json")
        ]

    def seal(self, path: str, manifest: dict[str, Any]) -> str:
        digest = digest_of(jcs.canonical({name: it for name, it in manifest.items() if name != "artifactDigest"}))
        self.write(path, {**manifest, "artifactDigest": digest})
        return digest

    def change(self, path: str, change: Callable[[dict[str, Any]], Any]) -> None:
        """Change a manifest and seal it again."""
        manifest = json.loads((self.root / path).read_bytes())
        change(manifest)
        self.seal(path, manifest)

    # --- the three sections ---

    def build(self) -> None:
        self.structural()
        self.cryptography()
        self.admission()

    def structural(self) -> None:
        cases = []
        for kind in KINDS:
            good = self.write(f"conformance/vectors/valid/{kind}.json", signed(kind))
            bad = self.write(f"conformance/vectors/invalid/{kind}.json", {**signed(kind), "unknown": 1})
            for path, valid in ((good, True), (bad, False)):
                cases.append(
                    {
                        "name": f"{kind} {valid}",
                        "schema": f"schemas/{kind}.schema.json",
                        "instance": path,
                        "valid": valid,
                    }
                )
        self.write("conformance/manifest.json", cases)

    def cryptography(self) -> None:
        evidence = self.write("cryptography/keys/registry.json", registry().export())
        weak = registry().export()
        weak["bindings"][0]["publicKey"] = ed25519.encode_base64url(ed25519.IDENTITY)
        weak_path = self.write("cryptography/keys/registry-weak.json", weak)
        accepted = [self._accepted(kind, evidence) for kind in KINDS]
        basis = {"caseId": "accept.all-nine", "profileId": "command"}

        def rejected(name: str, document: bytes, stage: str, code: str, keys: str = evidence) -> dict[str, Any]:
            return {
                "profileId": "command",
                "document": self.write(f"cryptography/vectors/invalid/{name}.json", document),
                "registry": keys,
                "fault": {"id": name, "basis": basis},
                "expect": {"stage": stage, "wireCode": code},
            }

        good = signed("command")
        text = raw(good)
        number = self.write("cryptography/vectors/canonicalization/input.json", b'{"b": 1.0, "a": [1E2, -0]}')
        wanted = self.write("cryptography/vectors/canonicalization/input.jcs", b'{"a":[100,0],"b":1}')
        cases = [
            {"id": "accept.all-nine", "kind": "profile-matrix", "evaluations": accepted},
            {
                "id": "accept.numbers",
                "kind": "canonicalization",
                "evaluations": [{"input": number, "expectedJcs": wanted, "sha256": digest_of(b'{"a":[100,0],"b":1}')}],
            },
            {
                "id": "reject.one-for-each-stage",
                "kind": "failure-matrix",
                "evaluations": [
                    rejected("trailing", text + b"1", "parse", "PROTOCOL_VIOLATION"),
                    rejected("unknown", raw({**good, "unknown": 1}), "schema", "SCHEMA_VALIDATION_FAILED"),
                    rejected(
                        "time",
                        raw(makers.resigned(good, createdAt="2026-07-15T10:00:00.0Z")),
                        "signature-envelope",
                        "AUTH_INVALID_SIGNATURE",
                    ),
                    rejected("weak-key", text, "key-resolution", "AUTH_INVALID_SIGNATURE", weak_path),
                    rejected(
                        "number",
                        text.replace(b'"payload":{', b'"payload":{"x":1e400,'),
                        "canonicalization",
                        "PROTOCOL_VIOLATION",
                    ),
                    rejected("tampered", text.replace(b"hello", b"hallo"), "signature", "AUTH_INVALID_SIGNATURE"),
                ],
            },
        ]
        manifest = {
            "$schema": "https://missionweaveprotocol.dev/cryptography/0.1/manifest.schema.json",
            "manifestVersion": 1,
            "protocolVersion": "0.1",
            "profileId": "missionweaveprotocol.signed-document-verification.v0.1",
            "semanticStages": [
                "parse",
                "schema",
                "signature-envelope",
                "key-resolution",
                "canonicalization",
                "signature",
                "complete",
            ],
            "fixtureSchemas": {
                "registry": "cryptography/registry-fixture.schema.json",
                "signingKey": "cryptography/signing-key-fixture.schema.json",
            },
            "profiles": [
                {
                    "profileId": kind,
                    "schema": f"schemas/{kind}.schema.json",
                    "protectedTimePointer": f"/{protected_member(kind)}",
                    "expectedSigner": SIGNER_RULES[kind],
                }
                for kind in KINDS
            ],
            "artifacts": self.listing("cryptography"),
            "cases": cases,
        }
        self.seal("cryptography/manifest.json", manifest)

    def _accepted(self, kind: Any, evidence: str) -> dict[str, Any]:
        document, key = signed(kind), SIGNERS[kind]
        signing = jcs.canonical(makers.unsigned(kind))
        seeds = {other.key_id: bytes([number]) * 32 for number, other in enumerate(makers.ALL_KEYS, start=1)}
        fixture = {
            "testOnly": True,
            "keyId": key.key_id,
            "algorithm": "Ed25519",
            "seed": ed25519.encode_base64url(seeds[key.key_id]),
            "publicKey": key.public_key,
        }
        return {
            "profileId": kind,
            "document": self.write(f"cryptography/vectors/valid/{kind}.json", document),
            "registry": evidence,
            "signingKey": self.write(f"cryptography/keys/signing-{kind}.json", fixture),
            "fault": None,
            "expect": {
                "stage": "complete",
                "wireCode": None,
                "verified": {
                    "keyId": key.key_id,
                    "principal": actor(key),
                    "protectedTime": NOW,
                    "signingBytes": self.write(f"cryptography/vectors/canonicalization/{kind}.jcs", signing),
                    "signingHash": digest_of(signing),
                    "signature": document["signature"]["value"],
                    "signedDocumentHash": digest_of(raw(document)),
                },
            },
        }

    def admission(self) -> None:
        manifest = json.loads((self.root / "cryptography/manifest.json").read_bytes())
        record = {
            "protocolVersion": "0.1",
            "admissionRecordId": "urn:example:admission:1",
            "organizationId": makers.ORGANIZATION,
            "documentKind": "command",
            "signingHash": digest_of(jcs.canonical(makers.unsigned("command"))),
            "keyId": SIGNERS["command"].key_id,
            "principal": actor(SIGNERS["command"]),
            "trustedAcceptedAt": ACCEPTED_AT,
            "acceptedBy": actor(AUTHORITY),
        }
        good = self.write("admission/records/good.json", record)
        other = self.write("admission/records/other-key.json", {**record, "keyId": "urn:example:key:other"})
        context = {
            "admissionRecordId": record["admissionRecordId"],
            "trustedAcceptedAt": ACCEPTED_AT,
            "acceptedBy": actor(AUTHORITY),
        }
        service = {"authenticatedService": actor(AUTHORITY)}
        absent = {"status": "authoritative-absence"}

        def evaluation(name: str, mode: str, lookup: Any, append: Any, expect: Any, time: str = ACCEPTED_AT) -> Any:
            first = mode == "first-admission"
            return {
                "id": name,
                "profileId": "command",
                "mode": mode,
                "document": "cryptography/vectors/valid/command.json",
                "registry": "cryptography/keys/registry.json",
                "trustedContext": {**context, "trustedAcceptedAt": time} if first else None,
                "lookup": lookup,
                "append": append,
                "expect": {"stage": "complete", "wireCode": None, "record": expect}
                if expect.endswith(".json")
                else {"stage": "admission", "wireCode": "AUTH_INVALID_SIGNATURE", "reason": expect},
            }

        found = {"status": "found", "record": good, **service}
        first, later = "first-admission", "historical-replay"
        evaluations = [
            evaluation("new", first, absent, {"status": "committed", "record": good, **service}, good),
            evaluation("raced", first, absent, {"status": "existing", "record": good, **service}, good),
            evaluation("known", first, found, None, good),
            evaluation("replayed", later, found, None, good),
            evaluation("missing", later, absent, None, "record-missing"),
            evaluation("other-key", later, {**found, "record": other}, None, "record-binding-mismatch"),
            evaluation("early", first, absent, None, "trusted-time-outside-key-interval", "2026-06-01T00:00:00Z"),
            evaluation("malformed", first, absent, None, "malformed-trusted-time", "soon"),
            evaluation("conflict", first, absent, {"status": "conflict"}, "record-conflict"),
            evaluation("no-answer", later, {"status": "unavailable"}, None, "log-unavailable"),
            evaluation("no-append", first, absent, {"status": "unavailable"}, "log-unavailable"),
        ]
        self.seal(
            "admission/manifest.json",
            {
                "$schema": "https://missionweaveprotocol.dev/admission/0.1/manifest.schema.json",
                "manifestVersion": 1,
                "protocolVersion": "0.1",
                "profileId": "missionweaveprotocol.first-admission-historical-trust.v0.1",
                "semanticStage": "admission",
                "wireCode": "AUTH_INVALID_SIGNATURE",
                "cryptography": {
                    "manifest": "cryptography/manifest.json",
                    "artifactDigest": manifest["artifactDigest"],
                },
                "fixtureSchemas": {
                    "record": "schemas/first-admission-record.schema.json",
                    "registry": "cryptography/registry-fixture.schema.json",
                },
                "artifacts": self.listing("admission"),
                "cases": [{"id": "all", "evaluations": evaluations}],
            },
        )
