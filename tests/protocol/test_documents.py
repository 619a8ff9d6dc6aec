"""Documents: closed, with the members that the protocol asks for."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mwnode.conformance.runner import fits_schema
from mwnode.protocol import jcs, schemas
from mwnode.protocol.documents import SIGNED_DOCUMENTS, AgentCard, ExtensionProfile
from mwnode.protocol.errors import ErrorCode, ErrorDocument
from mwnode.protocol.strict_json import SchemaFault, decode
from tests.protocol.oracle import is_timestamp
from tests.trust import makers

FREE_FORM = ("payload", "details", "constraints", "data")


def fits(document: dict[str, Any], kind: Any) -> bool:
    try:
        decode(jcs.canonical(document), kind)
    except SchemaFault:
        return False
    return True


def valid_vectors(bundle: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for case in json.loads((bundle / "conformance/manifest.json").read_bytes()):
        if case["valid"]:
            yield case["schema"], json.loads((bundle / case["instance"]).read_bytes())


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the timestamps of a document are, free-form members left out."""
    if isinstance(value, str) and is_timestamp(value):
        yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in children:
        if step not in FREE_FORM:
            yield from places(item, (*path, step))


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    changed = copy.deepcopy(value)
    parent = changed
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = by
    return changed


@pytest.mark.req("R-2-03", "R-2-19")
def test_every_timestamp_member_asserts_its_format(protocol_bundle: Path) -> None:
    tried = set()
    for schema, document in valid_vectors(protocol_bundle):
        for path in places(document):
            for text in ("2026-01-01 10:00", "2016-12-31T23:59:60Z", "2026-01-01T00:00:00-00:00", ""):
                assert not fits_schema(json.dumps(replaced(document, path, text)).encode(), schema), (
                    schema,
                    path,
                    text,
                )
            assert fits_schema(json.dumps(replaced(document, path, "2026-01-01T00:00:00Z")).encode(), schema)
            tried.add((schema, path))
    assert len(tried) > 40


@pytest.mark.req("R-21-02", "R-19-18")
def test_core_objects_take_no_undeclared_member(protocol_bundle: Path) -> None:
    seen = set()
    for schema, document in valid_vectors(protocol_bundle):
        assert fits_schema(json.dumps(document).encode(), schema)
        assert not fits_schema(json.dumps({**document, "x": 1}).encode(), schema), schema
        seen.add(schema)
    assert len(seen) == 21


@pytest.mark.req("R-21-02")
def test_additions_live_in_extensions() -> None:
    extension = {"urn:example:profile:1": {"version": "1.0.0", "critical": False, "data": {"x": 1}}}
    assert fits(makers.signed("command", extensions=extension), SIGNED_DOCUMENTS["command"])
    for broken in (
        {"profile": extension["urn:example:profile:1"]},
        {"urn:example:profile:1": {"version": "1.0.0", "critical": False}},
        {"urn:example:profile:1": {"version": "1", "critical": False, "data": 1}},
        {"urn:example:profile:1": {"version": "1.0.0", "critical": "no", "data": 1}},
        {"urn:example:profile:1": {"version": "1.0.0", "critical": False, "data": 1, "x": 1}},
    ):
        assert not fits(makers.signed("command", extensions=broken), SIGNED_DOCUMENTS["command"])


@pytest.mark.req("R-21-04")
@pytest.mark.parametrize("kind", ["command", "event"])
@pytest.mark.parametrize("version", ["0.1.0", "0.2", "1.0", "", 0.1])
def test_the_wire_version_is_exactly_0_1(kind: Any, version: Any) -> None:
    assert fits(makers.signed(kind), SIGNED_DOCUMENTS[kind])
    assert not fits(makers.signed(kind, protocolVersion=version), SIGNED_DOCUMENTS[kind])


def without(document: dict[str, Any], *path: Any) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    parent: Any = changed
    for step in path[:-1]:
        parent = parent[step]
    del parent[path[-1]]
    return changed


@pytest.mark.req("R-6.1-03")
@pytest.mark.parametrize(
    "member", ["agentId", "owner", "endpoints", "publicKeys", "protocolVersions", "capabilities", "maxConcurrency"]
)
def test_a_card_has_identity_capabilities_and_capacity(member: str) -> None:
    card = makers.signed("agent-card")
    assert fits(card, AgentCard)
    assert not fits(without(card, member), AgentCard)


@pytest.mark.req("R-6.1-04")
def test_a_capability_states_its_contract_and_evidence() -> None:
    card = makers.signed("agent-card")
    for member in card["capabilities"][0]:
        assert not fits(without(card, "capabilities", 0, member), AgentCard), member
    assert not fits(replaced(card, ("capabilities", 0, "verifiedEvidence"), []), AgentCard)
    assert not fits({**card, "capabilities": []}, AgentCard)


@pytest.mark.req("R-6.1-05")
def test_a_card_has_no_place_for_credentials() -> None:
    for member in ("credentials", "token", "permissions", "apiKey"):
        assert not fits({**makers.signed("agent-card"), member: "secret"}, AgentCard)


@pytest.mark.req("R-6.1-09")
def test_an_artifact_manifest_pins_card_and_capabilities() -> None:
    manifest = makers.signed("artifact")
    for member in ("agentCardVersion", "capabilities"):
        assert not fits(without(manifest, "producer", member), SIGNED_DOCUMENTS["artifact"])
    assert not fits(replaced(manifest, ("producer", "capabilities"), []), SIGNED_DOCUMENTS["artifact"])


@pytest.mark.req("R-18-02", "R-18-04", "R-18-06")
def test_an_extension_profile_declares_itself_and_overrides_nothing() -> None:
    profile = makers.signed("extension-profile")
    assert fits(profile, ExtensionProfile)
    for member in ("profileUri", "version", "schemaUri", "schemaHash", "requiredCapabilities", "critical", "signature"):
        assert not fits(without(profile, member), ExtensionProfile), member
    assert not fits({**profile, "overridesCoreInvariants": True}, ExtensionProfile)
    for kind in ("ext.acme.name", "acme.billing.send.x", "ext.acme.billing.Send"):
        assert not fits({**profile, "commandKinds": [kind]}, ExtensionProfile)
        assert not fits({**profile, "eventKinds": [kind]}, ExtensionProfile)


@pytest.mark.req("R-6.4-39")
def test_the_signature_envelope_belongs_to_the_schema() -> None:
    for kind in makers.KINDS:
        document = makers.signed(kind)
        assert not fits(without(document, "signature"), SIGNED_DOCUMENTS[kind])
        for member in document["signature"]:
            assert not fits(without(document, "signature", member), SIGNED_DOCUMENTS[kind])
        assert not fits(makers.resigned(document, algorithm="ES256"), SIGNED_DOCUMENTS[kind])


@pytest.mark.req("R-19-01")
def test_the_error_object() -> None:
    error = {"code": "BACKPRESSURE", "message": "wait", "retryable": True, "occurredAt": makers.NOW, "retryAfterMs": 5}
    assert fits(error, ErrorDocument)
    for member in ("code", "message", "retryable", "occurredAt"):
        assert not fits(without(error, member), ErrorDocument)
    for change in ({"code": "STALE_COORDINATOR"}, {"message": ""}, {"message": "x" * 2001}, {"x": 1}):
        assert not fits({**error, **change}, ErrorDocument)
    for code in ErrorCode:
        assert fits({**error, "code": code.value}, ErrorDocument)


def test_documents_encode_back_to_what_they_were() -> None:
    for kind in makers.KINDS:
        raw = makers.raw(makers.signed(kind))
        assert jcs.canonical(decode(raw, SIGNED_DOCUMENTS[kind])) == raw


def test_our_own_schemas_are_json_schemas_and_fit_our_documents() -> None:
    generated = schemas.generate()
    for schema in generated.values():
        Draft202012Validator.check_schema(schema)
    for kind in makers.KINDS:
        validator = Draft202012Validator(generated[f"{kind}.schema.json"])
        validator.validate(makers.signed(kind))
        assert not validator.is_valid({**makers.signed(kind), "x": 1})
    frame = {
        "protocolVersion": "0.1",
        "frameId": "urn:f:1",
        "frameType": "COMMAND",
        "command": makers.signed("command"),
    }
    validator = Draft202012Validator(generated["websocket-frame.schema.json"])
    validator.validate(frame)
    assert not validator.is_valid({**frame, "command": {}})
    assert not any("\\A" in jcs.canonical(schema).decode() for schema in generated.values())
