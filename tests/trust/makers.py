"""Principals, keys, a Registry, and one good document of each signed kind."""

from __future__ import annotations

import copy
from typing import Any

import msgspec

from mwnode.protocol import jcs
from mwnode.protocol.documents import SIGNED_DOCUMENTS, Actor, DocumentKind
from mwnode.trust import ed25519, keys
from mwnode.trust.keys import SigningKey
from mwnode.trust.registry import KeyBinding, Registry, ValidityRecord
from mwnode.trust.verification import PROTECTED_TIMES

ORGANIZATION = "urn:example:organization:acme"
NOW = "2026-07-15T10:00:00Z"
VALID_FROM = "2026-07-01T00:00:00Z"
HASH = "sha256:" + "a" * 64
KINDS: tuple[DocumentKind, ...] = tuple(SIGNED_DOCUMENTS)


def make_key(name: str, kind: str, number: int) -> SigningKey:
    principal = msgspec.convert({"type": kind, "id": f"urn:example:{kind}:{name}"}, Actor)
    return keys.generate(f"urn:example:key:{name}", principal, ORGANIZATION, bytes([number]) * 32)


AGENT = make_key("worker", "agent", 1)
OTHER_AGENT = make_key("reviewer", "agent", 2)
HUMAN = make_key("owner", "human", 3)
OTHER_HUMAN = make_key("deputy", "human", 4)
AUTHORITY = make_key("authority", "service", 5)
ORGANIZATION_KEY = make_key("registry", "service", 6)
ALL_KEYS = (AGENT, OTHER_AGENT, HUMAN, OTHER_HUMAN, AUTHORITY, ORGANIZATION_KEY)

SIGNERS: dict[DocumentKind, SigningKey] = {
    "agent-card": ORGANIZATION_KEY,
    "approval": HUMAN,
    "artifact": AGENT,
    "command": AGENT,
    "context-package": AGENT,
    "event": AUTHORITY,
    "evidence": AGENT,
    "extension-profile": HUMAN,
    "group-snapshot": AUTHORITY,
}


def binding(key: SigningKey, *history: ValidityRecord, valid_from: str = VALID_FROM) -> KeyBinding:
    return KeyBinding(
        key_id=key.key_id,
        principal=key.principal,
        algorithm="Ed25519",
        public_key=key.public_key,
        valid_from=valid_from,
        validity_history=history,
    )


def registry(*signing_keys: SigningKey) -> Registry:
    found = Registry(ORGANIZATION)
    for key in signing_keys or ALL_KEYS:
        found = found.bind(binding(key))
    return found


def actor(key: SigningKey) -> dict[str, str]:
    return {"type": key.principal.type, "id": key.principal.id}


_CAPABILITY = {"id": "code.review", "version": "1.0.0"}
_IN_GROUP = {"missionId": "urn:example:mission:1", "groupId": "urn:example:group:1"}
_UNSIGNED: dict[DocumentKind, dict[str, Any]] = {
    "agent-card": {
        "agentId": AGENT.principal.id,
        "organizationId": ORGANIZATION,
        "cardVersion": 1,
        "displayName": "Worker",
        "owner": actor(HUMAN),
        "status": "active",
        "protocolVersions": ["0.1"],
        "endpoints": [{"transport": "wss", "uri": "wss://node.example/ws"}],
        "publicKeys": [
            {"keyId": AGENT.key_id, "algorithm": "Ed25519", "publicKey": AGENT.public_key, "validFrom": VALID_FROM}
        ],
        "capabilities": [
            {
                **_CAPABILITY,
                "inputSchema": "urn:example:schema:in",
                "inputSchemaHash": HASH,
                "outputSchema": "urn:example:schema:out",
                "outputSchemaHash": HASH,
                "constraints": {},
                "verifiedEvidence": ["urn:example:evidence:1"],
            }
        ],
        "maxConcurrency": 1,
        "issuedAt": NOW,
    },
    "approval": {
        **_IN_GROUP,
        "approvalId": "urn:example:approval:1",
        "kind": "mission_final",
        "decision": "approved",
        "missionRevision": 4,
        "artifactHashes": [HASH],
        "acceptancePolicyVersion": "1.0.0",
        "approver": actor(HUMAN),
        "comments": "",
        "conditions": [],
        "occurredAt": NOW,
    },
    "artifact": {
        **_IN_GROUP,
        "artifactId": "urn:example:artifact:1",
        "contentHash": HASH,
        "uri": "urn:example:content:1",
        "sizeBytes": 10,
        "mediaType": "text/plain",
        "schemaUri": "urn:example:schema:any",
        "producer": {"agentId": AGENT.principal.id, "agentCardVersion": 1, "capabilities": [_CAPABILITY]},
        "workItemId": "urn:example:work:1",
        "sourceArtifactHashes": [],
        "toolVersions": [],
        "modelVersions": [],
        "classification": "internal",
        "createdAt": NOW,
    },
    "command": {
        "protocolVersion": "0.1",
        "actionId": "urn:uuid:11111111-2222-4333-8444-555555555555",
        "actor": actor(AGENT),
        "sessionEpoch": 7,
        "membershipEpoch": 3,
        "groupId": "urn:example:group:1",
        "kind": "message.post",
        "correlationId": "urn:uuid:aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee",
        "issuedAt": NOW,
        "payload": {"conversationId": "urn:example:group:1:mission", "content": [{"type": "text", "text": "hello"}]},
    },
    "context-package": {
        **_IN_GROUP,
        "contextPackageId": "urn:example:context:1",
        "version": 1,
        "sourceEventRange": {"fromSequence": 1, "toSequence": 2, "eventIds": ["urn:example:event:1"]},
        "artifactHashes": [],
        "summary": "what happened",
        "decisions": [{"description": "build it", "sourceEventIds": ["urn:example:event:1"]}],
        "constraints": [],
        "unresolvedQuestions": [],
        "generatedBy": actor(AGENT),
        "generatedAt": NOW,
    },
    "event": {
        "protocolVersion": "0.1",
        "eventId": "urn:example:event:1",
        "groupId": "urn:example:group:1",
        "sequence": 1,
        "aggregateRevision": 1,
        "kind": "message.posted",
        "actor": actor(AGENT),
        "cause": {"type": "command", "id": "urn:example:action:1"},
        "correlationId": "urn:example:correlation:1",
        "occurredAt": NOW,
        "payload": {"message": {"text": "hello"}},
        "acceptedBy": actor(AUTHORITY),
    },
    "evidence": {
        **_IN_GROUP,
        "evidenceId": "urn:example:evidence:1",
        "workItemId": "urn:example:work:1",
        "type": "deterministic_test",
        "subject": {"type": "work_item", "id": "urn:example:work:1"},
        "criterionIds": ["tests"],
        "method": "pytest",
        "result": "passed",
        "artifactHashes": [HASH],
        "generatedBy": actor(AGENT),
        "createdAt": NOW,
    },
    "extension-profile": {
        "profileUri": "urn:example:profile:billing",
        "name": "Billing",
        "version": "1.0.0",
        "schemaUri": "urn:example:schema:billing",
        "schemaHash": HASH,
        "requiredCapabilities": [],
        "critical": False,
        "commandKinds": ["ext.acme.billing.send_invoice"],
        "eventKinds": ["ext.acme.billing.invoice_sent"],
        "overridesCoreInvariants": False,
        "approvedBy": actor(HUMAN),
        "approvedAt": NOW,
    },
    "group-snapshot": {
        "groupId": "urn:example:group:1",
        "snapshotId": "urn:example:snapshot:1",
        "throughSequence": 2,
        "eventIds": ["urn:example:event:1", "urn:example:event:2"],
        "stateHash": HASH,
        "policyLog": [
            {
                "entryId": "urn:example:policy:1",
                "decision": "policy adopted",
                "actor": actor(HUMAN),
                "occurredAt": NOW,
                "details": {},
            }
        ],
        "createdBy": actor(AUTHORITY),
        "createdAt": NOW,
    },
}


def camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def protected_member(kind: DocumentKind) -> str:
    return camel(PROTECTED_TIMES[kind])


def unsigned(kind: DocumentKind, **changes: Any) -> dict[str, Any]:
    """A good document without signature; ``changes`` replace top-level members."""
    return {**copy.deepcopy(_UNSIGNED[kind]), **changes}


def signed(kind: DocumentKind, key: SigningKey | None = None, **changes: Any) -> dict[str, Any]:
    """A signed document, by its proper signer unless told otherwise."""
    mapping = unsigned(kind, **changes)
    return keys.sign_mapping(mapping, key or SIGNERS[kind], mapping[protected_member(kind)])


def raw(document: dict[str, Any]) -> bytes:
    return jcs.canonical(document)


def resigned(document: dict[str, Any], **envelope: Any) -> dict[str, Any]:
    """The document with members of its signature envelope replaced, and nothing signed again."""
    return {**document, "signature": {**document["signature"], **envelope}}


def raw_signature(document: dict[str, Any]) -> bytes:
    return ed25519.decode_base64url(document["signature"]["value"])
