"""Drafting Agent Cards, for whoever registers Agents."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from mwnode.protocol.documents import Actor
from mwnode.protocol.identifiers import ANY_SCHEMA

EMPTY_OBJECT_HASH = "sha256:" + hashlib.sha256(b"{}").hexdigest()


class Capability(Struct, frozen=True):
    """One capability that the Organization vouches for; what every Agent has unless told otherwise (decision E5)."""

    id: str = "mwnode.generic"
    version: str = "1.0.0"


def draft_card(
    *,
    agent_id: str,
    organization_id: str,
    display_name: str,
    owner: Actor,
    capabilities: Sequence[Capability],
    public_keys: Sequence[Mapping[str, Any]],
    slots: int,
    endpoint: str,
    evidence_id: str,
    version: int = 1,
) -> dict[str, Any]:
    """An Agent Card by wire names, without ``issuedAt`` and signature (decision E6).

    ``evidence_id`` stands for the verification of each capability: the Action ID of the registering Command.
    """
    return {
        "agentId": agent_id,
        "organizationId": organization_id,
        "cardVersion": version,
        "displayName": display_name,
        "owner": msgspec.to_builtins(owner),
        "status": "active",
        "protocolVersions": ["0.1"],
        "endpoints": [{"transport": "wss", "uri": endpoint}],
        "publicKeys": [dict(key) for key in public_keys],
        "capabilities": [
            {
                "id": capability.id,
                "version": capability.version,
                "inputSchema": ANY_SCHEMA,
                "inputSchemaHash": EMPTY_OBJECT_HASH,
                "outputSchema": ANY_SCHEMA,
                "outputSchemaHash": EMPTY_OBJECT_HASH,
                "constraints": {},
                "verifiedEvidence": [evidence_id],
            }
            for capability in capabilities
        ],
        "maxConcurrency": slots,
    }
