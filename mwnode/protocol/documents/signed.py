"""The nine kinds of Signed Document."""

from __future__ import annotations

from typing import Literal

from mwnode.protocol.documents.envelopes import Command, Event
from mwnode.protocol.documents.records import Approval, Artifact, ContextPackage, Evidence, GroupSnapshot
from mwnode.protocol.documents.registry import AgentCard, ExtensionProfile

DocumentKind = Literal[
    "agent-card",
    "approval",
    "artifact",
    "command",
    "context-package",
    "event",
    "evidence",
    "extension-profile",
    "group-snapshot",
]
SignedDocument = (
    AgentCard | Approval | Artifact | Command | ContextPackage | Event | Evidence | ExtensionProfile | GroupSnapshot
)
SIGNED_DOCUMENTS: dict[DocumentKind, type[SignedDocument]] = {
    "agent-card": AgentCard,
    "approval": Approval,
    "artifact": Artifact,
    "command": Command,
    "context-package": ContextPackage,
    "event": Event,
    "evidence": Evidence,
    "extension-profile": ExtensionProfile,
    "group-snapshot": GroupSnapshot,
}
"""The nine kinds of Signed Document and their types."""
