"""From a verified Command to a ``Request``: its payload typed, its embedded Signed Documents verified.

Runs before the writer, off its thread. What does not fit its kind becomes a ``Rejection`` inside the request, because a
receipt and freshness come first (decision D2).
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from mwnode.authority.request import Embedded, Request
from mwnode.protocol.commands import (
    CORE,
    EXT,
    PAYLOADS,
    Payload,
    WorkAuthorize,
    WorkOffer,
    WorkPropose,
)
from mwnode.protocol.documents import Command, DocumentKind, SignedDocument
from mwnode.protocol.errors import ErrorCode, Rejection
from mwnode.protocol.plain_words import plain
from mwnode.trust.registry import Registry
from mwnode.trust.verification import Verified, verify_document

EMBEDDED: dict[str, tuple[tuple[str, DocumentKind], ...]] = {
    "mission.create_follow_up": (("revocation", "approval"),),
    "mission.assign_coordinator": (("context_package", "context-package"),),
    "mission.approve": (("approval", "approval"),),
    "mission.request_changes": (("approval", "approval"),),
    "mission.terminate": (("evidence", "evidence"),),
    "membership.change": (("context_package", "context-package"),),
    "work.offer": (("context_package", "context-package"),),
    "work.submit": (("evidence", "evidence"),),
    "work.accept_result": (("evidence", "evidence"),),
    "work.fail": (("evidence", "evidence"),),
    "artifact.publish": (("artifact", "artifact"),),
    "approval.grant_execution": (("approval", "approval"),),
    f"{EXT}.registry.agent_card_register": (("card", "agent-card"),),
    f"{EXT}.core.group_archive": (("snapshot", "group-snapshot"),),
    f"{CORE}.coordinator_reconcile": (("context_package", "context-package"),),
    f"{CORE}.context_package_publish": (("context_package", "context-package"),),
    f"{CORE}.profile_register": (("profile", "extension-profile"),),
    f"{CORE}.root_approval_grant": (("approval", "approval"),),
}
"""Payload members that hold Signed Documents, by Command kind."""

_CONTRACT_KINDS: tuple[type[Payload], ...] = (WorkAuthorize, WorkOffer, WorkPropose)
_PATH = re.compile(r" - at `\$(?P<path>[^`]*)`\Z")
_STEP = re.compile(r"\.(?P<name>[^.\[\]]+)|\[(?P<index>[0-9]+|\.\.\.)\]")
_MEMBER = re.compile(
    r"(?:missing required|unknown) field `(?P<name>[^`]+)`|^(?P<array>[a-z][A-Za-z]+) (?:must have at least|repeats)"
)
_MISSING = re.compile(
    r"missing required field|at least one entry|of length >= 1\b|limits at least one dimension", re.IGNORECASE
)


def prepare(verified: Verified, registry: Registry) -> Request:
    """Type the payload and verify what it embeds. Never raises for what a peer sent."""
    command = verified.document
    assert isinstance(command, Command)
    payload_type = PAYLOADS.get(command.kind)
    if payload_type is None:
        return Request(
            verified,
            Rejection(
                ErrorCode.UNKNOWN_CRITICAL_EXTENSION,
                f"this node knows no Command kind {command.kind}",
                "R-18-04",
                details={"kind": command.kind},
            ),
        )
    try:
        payload = typed_payload(command)
    except msgspec.ValidationError as fault:
        return Request(verified, _misfit(command, payload_type, plain(str(fault))))
    return Request(verified, payload, _verify_embedded(command.kind, payload, registry))


def typed_payload(command: Command) -> Payload:
    """The payload of a Command of a known kind, as deciding and folding read it.

    Raises msgspec.ValidationError when it does not fit its kind.
    """
    return msgspec.convert(_without_nulls(command.payload), PAYLOADS[command.kind])


def _verify_embedded(kind: str, payload: Payload, registry: Registry) -> tuple[Embedded, ...]:
    found: list[Embedded] = []
    for member, document_kind in EMBEDDED.get(kind, ()):
        value: Any = getattr(payload, member)
        if value is None:
            continue
        documents: tuple[SignedDocument, ...] = value if isinstance(value, tuple) else (value,)
        for index, document in enumerate(documents):
            path = f"/payload/{member}" + (f"/{index}" if isinstance(value, tuple) else "")
            found.append(Embedded(path, document, verify_document(document, document_kind, registry)))
    return tuple(found)


def _without_nulls(payload: dict[str, Any]) -> dict[str, Any]:
    """Drop explicit ``null`` from the payload and from its Checkpoint: absent and null read alike (reading 0)."""
    checkpoint = payload.get("checkpoint")
    if isinstance(checkpoint, dict) and None in checkpoint.values():
        payload = {**payload, "checkpoint": {k: v for k, v in checkpoint.items() if v is not None}}
    if None in payload.values():
        return {name: value for name, value in payload.items() if value is not None}
    return payload


def _misfit(command: Command, payload_type: type[Payload], fault: str) -> Rejection:
    match = _PATH.search(fault)
    steps = _STEP.finditer(match["path"]) if match else ()
    path = "/payload" + "".join(f"/{step['name'] or step['index']}" for step in steps)
    text = fault[: match.start()] if match else fault
    member = _MEMBER.search(text)
    if member:
        # msgspec points at the object; the path is the member's (decision D44).
        path = f"{path}/{member['name'] or member['array']}"
    code = ErrorCode.INVALID_COMMAND
    if issubclass(payload_type, _CONTRACT_KINDS) and _contract_is_incomplete(command.payload, path, text):
        code = ErrorCode.WORK_CONTRACT_INCOMPLETE
    return Rejection(code, f"the payload does not fit {command.kind}: {text} at {path}", details={"path": path})


def _contract_is_incomplete(payload: dict[str, Any], path: str, text: str) -> bool:
    """Something required is missing or empty, or there is no contract but prose (decision D3, R-10.1-01)."""
    contract = payload.get("contract")
    if not path.startswith("/payload/contract"):
        return False
    return not isinstance(contract, dict) or _MISSING.search(text) is not None
