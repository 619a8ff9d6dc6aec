"""JSON Schemas (Draft 2020-12) of our types, for people who validate elsewhere.

They are generated, so they say what the decoders do member by member. The conditional rules of the documents, which
live in ``__post_init__``, are not in them; the normative schemas of the protocol remain the yardstick.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mwnode.protocol import documents, frames
from mwnode.protocol.commands import PAYLOADS
from mwnode.protocol.errors import ErrorDocument
from mwnode.protocol.events import EVENT_PAYLOADS

DIALECT = "https://json-schema.org/draft/2020-12/schema"

DOCUMENT_TYPES: dict[str, type[Any]] = {
    **{str(kind): document for kind, document in documents.SIGNED_DOCUMENTS.items()},
    "conversation": documents.Conversation,
    "error": ErrorDocument,
    "first-admission-record": documents.FirstAdmissionRecord,
    "group": documents.Group,
    "lease": documents.Lease,
    "membership": documents.Membership,
    "message": documents.Message,
    "mission": documents.Mission,
    "presence-record": documents.PresenceRecord,
    "work-contract": documents.WorkContract,
    "work-item": documents.WorkItem,
}
"""Every object of the protocol that has a schema of its own, by the name of that schema. Frames are apart."""


def _ecmascript(value: Any) -> Any:
    """The same schema with its patterns spelled for ECMA-262, which has no ``\\A`` and ``\\Z``."""
    if isinstance(value, dict):
        return {
            name: _pattern(item) if name == "pattern" and isinstance(item, str) else _ecmascript(item)
            for name, item in value.items()
        }
    return [_ecmascript(item) for item in value] if isinstance(value, list) else value


def _pattern(pattern: str) -> str:
    return pattern.replace(r"\A", "^").replace(r"\Z", "$")


def _schema(title: str, kind: Any) -> dict[str, Any]:
    schema: dict[str, Any] = _ecmascript(msgspec.json.schema(kind))
    return {"$schema": DIALECT, "title": title, **schema}


def _frame_schema() -> dict[str, Any]:
    kinds = [*frames.HELLO_PHASES.values(), *frames.FRAME_TYPES.values()]
    roots, components = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    command = _ecmascript(msgspec.json.schema(documents.Command))["$defs"]
    event = _ecmascript(msgspec.json.schema(documents.Event))["$defs"]
    definitions = {**command, **event, **_ecmascript(components)}
    # A frame keeps its document as bytes; what those bytes must be is said here.
    definitions["CommandFrame"]["properties"]["command"] = {"$ref": "#/$defs/Command"}
    definitions["EventFrame"]["properties"]["event"] = {"$ref": "#/$defs/Event"}
    return {"$schema": DIALECT, "title": "WebSocket frame", "oneOf": list(roots), "$defs": definitions}


def generate() -> dict[str, dict[str, Any]]:
    """Every schema by the path of its file: documents, frames, and the payload of each Command and Event kind."""
    schemas = {f"{name}.schema.json": _schema(name, kind) for name, kind in DOCUMENT_TYPES.items()}
    schemas["websocket-frame.schema.json"] = _frame_schema()
    for directory, payloads in (("commands", PAYLOADS), ("events", EVENT_PAYLOADS)):
        for name, kind in payloads.items():
            schemas[f"{directory}/{name}.schema.json"] = _schema(name, kind)
    return schemas
