"""What the wire demands is pinned to its version: another required member takes another version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mwnode.protocol.frames import PROTOCOL_VERSION
from mwnode.protocol.schemas import DOCUMENT_TYPES, generate

PINNED = Path(__file__).resolve().parents[2] / "fixtures" / "required-members.json"
"""Version of the wire: document or frame: object in it: its required members."""


def required(schema: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Every object of a schema that demands something."""
    for name, definition in sorted(schema.get("$defs", {}).items()):
        if definition.get("required"):
            yield name, sorted(definition["required"])


def demanded(schemas: dict[str, dict[str, Any]]) -> dict[str, dict[str, list[str]]]:
    names = [*(f"{name}.schema.json" for name in DOCUMENT_TYPES), "websocket-frame.schema.json"]
    return {name.removesuffix(".schema.json"): dict(required(schemas[name])) for name in sorted(names)}


@pytest.mark.req("R-21-05")
def test_no_document_demands_more_or_less_than_its_wire_version_says() -> None:
    """A change here takes a raised PROTOCOL_VERSION, negotiated in the handshake, and an entry of its own."""
    pinned = json.loads(PINNED.read_text(encoding="utf-8"))
    assert demanded(generate()) == pinned[PROTOCOL_VERSION]


def test_a_new_required_member_would_be_found() -> None:
    schemas = generate()
    command = schemas["command.schema.json"]["$defs"]["Command"]
    command["required"] = [*command["required"], "mood"]
    pinned = json.loads(PINNED.read_text(encoding="utf-8"))
    assert demanded(schemas) != pinned[PROTOCOL_VERSION]
