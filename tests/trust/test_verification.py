"""The six stages: for each kind who signs and when, for each defect the first stage that fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mwnode.protocol import instants, jcs, strict_json
from mwnode.protocol.documents import SIGNED_DOCUMENTS, DocumentKind
from mwnode.protocol.errors import ErrorCode, error_document
from mwnode.trust import ed25519, keys, verification
from mwnode.trust.registry import NoRegistry, Registry, ValidityRecord
from mwnode.trust.verification import STAGES, Failure, Verified, verify, verify_batch, verify_document
from tests.trust import makers
from tests.trust.makers import (
    AGENT,
    AUTHORITY,
    HUMAN,
    KINDS,
    NOW,
    ORGANIZATION_KEY,
    OTHER_AGENT,
    OTHER_HUMAN,
    SIGNERS,
    binding,
    raw,
    registry,
    resigned,
    signed,
)
from tests.trust.test_ed25519 import BAD_POINTS, GROUP_ORDER, challenge, secret_scalar

REGISTRY = registry()


def failed(outcome: Verified | Failure, stage: str, reason: str | None = None) -> Failure:
    assert isinstance(outcome, Failure), "it verified"
    assert outcome.stage == stage, outcome
    assert reason is None or outcome.reason == reason, outcome
    assert outcome.code is verification.STAGE_CODES[stage]
    return outcome


def passed(outcome: Verified | Failure) -> Verified:
    assert isinstance(outcome, Verified), outcome
    return outcome


# --- who signs, and which time is protected ---------------------------------------------------------------------------

_ROW_OF = {
    "agent-card": "R-6.4-01",
    "approval": "R-6.4-02",
    "artifact": "R-6.4-03",
    "command": "R-6.4-04",
    "context-package": "R-6.4-05",
    "event": "R-6.4-06",
    "evidence": "R-6.4-07",
    "extension-profile": "R-6.4-08",
    "group-snapshot": "R-6.4-09",
}
EACH_KIND = [pytest.param(kind, marks=pytest.mark.req(_ROW_OF[kind]), id=kind) for kind in KINDS]
IMPOSTORS: dict[DocumentKind, keys.SigningKey] = {
    "agent-card": AGENT,
    "approval": OTHER_HUMAN,
    "artifact": AUTHORITY,
    "command": AUTHORITY,
    "context-package": OTHER_AGENT,
    "event": AGENT,
    "evidence": OTHER_AGENT,
    "extension-profile": AGENT,
    "group-snapshot": AGENT,
}


@pytest.mark.req("R-6.4-10", "R-6.4-43", "R-6.4-66")
@pytest.mark.parametrize("kind", EACH_KIND)
def test_the_proper_signer_verifies(kind: DocumentKind) -> None:
    document = signed(kind)
    outcome = passed(verify(raw(document), kind, REGISTRY))
    assert outcome.kind == kind
    assert outcome.key_id == SIGNERS[kind].key_id
    assert outcome.principal == SIGNERS[kind].principal
    assert outcome.organization_id == makers.ORGANIZATION
    assert outcome.protected_time == instants.parse(NOW)
    assert outcome.canonical == jcs.canonical(makers.unsigned(kind))
    assert outcome.signing_hash == jcs.signing_hash(outcome.canonical)
    assert (outcome.valid_from, outcome.valid_until, outcome.revoked_at) == (
        instants.parse(makers.VALID_FROM),
        None,
        None,
    )


@pytest.mark.req("R-6.4-10")
@pytest.mark.parametrize("kind", EACH_KIND)
def test_an_impostor_fails_stage_4(kind: DocumentKind) -> None:
    failed(verify(raw(signed(kind, IMPOSTORS[kind])), kind, REGISTRY), "key-resolution", "wrong-principal")


@pytest.mark.req("R-6.4-10", "R-6.4-03")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "agent-card"])
def test_a_principal_of_the_same_id_and_another_type_fails_stage_4(kind: DocumentKind) -> None:
    proper = SIGNERS[kind].principal
    other_type = "human" if proper.type != "human" else "agent"
    twin = keys.generate(
        "urn:example:key:twin", type(proper)(type=other_type, id=proper.id), "urn:o:1", bytes([99]) * 32
    )
    evidence = registry(*makers.ALL_KEYS, twin)
    failed(verify(raw(signed(kind, twin)), kind, evidence), "key-resolution", "wrong-principal")


@pytest.mark.req("R-6.4-01")
def test_any_service_of_the_organization_signs_a_card() -> None:
    passed(verify(raw(signed("agent-card", AUTHORITY)), "agent-card", REGISTRY))


@pytest.mark.req("R-6.4-18")
def test_agents_humans_and_services_have_keys() -> None:
    for key in (AGENT, HUMAN, ORGANIZATION_KEY):
        found = REGISTRY.resolve(key.key_id)
        assert found is not None
        assert found.principal == key.principal


# --- the first stage that fails ---------------------------------------------------------------------------------------


def text(document: Any) -> str:
    return json.dumps(document)


def with_text(change: Callable[[str], str]) -> bytes:
    """A good Command's text, changed after signing."""
    return change(text(signed("command"))).encode()


def with_payload(member: str) -> bytes:
    """A Command with one more payload member, spelled so that only its text can say it; not signed again."""
    return with_text(lambda it: it.replace('"payload": {', '"payload": {' + member + ", "))


PARSE = {
    "invalid UTF-8": raw(signed("command")).replace(b"hello", b"he\xffllo"),
    "overlong UTF-8": raw(signed("command")).replace(b"hello", b"he\xc0\xafllo"),
    "encoded surrogate": raw(signed("command")).replace(b"hello", b"he\xed\xa0\x80"),
    "byte order mark": b"\xef\xbb\xbf" + raw(signed("command")),
    "trailing data": raw(signed("command")) + b"{}",
    "two values": raw(signed("command")) * 2,
    "duplicate name": with_text(lambda it: it.replace('"kind"', '"kind": "work.start", "kind"', 1)),
    "duplicate hidden by an escape": with_payload('"a": 1, "\\u0061": 2'),
    "duplicate deep inside": with_payload('"x": [{"y": {"a": 1, "a": 1}}]'),
    "duplicate masked by an escaped colon": with_payload('"a": "\\u003a", "a": "\\u003a"'),
    "nothing": b"",
    "truncated": raw(signed("command"))[:-1],
    "NaN": with_payload('"x": NaN'),
    "leading zero": with_payload('"x": 01'),
    "control character": with_payload('"x": "\x01"'),
    "too deep": with_payload('"x": ' + "[" * 64 + "]" * 64),
    "too large": with_payload('"x": "' + "y" * (1 << 20) + '"'),
}


@pytest.mark.req("R-6.4-38", "R-17.4-02", "R-19-34")
@pytest.mark.parametrize("name", PARSE)
def test_stage_1(name: str) -> None:
    outcome = failed(verify(PARSE[name], "command", REGISTRY), "parse")
    assert outcome.code is ErrorCode.PROTOCOL_VIOLATION


@pytest.mark.req("R-6.4-38")
def test_what_stage_1_lets_pass() -> None:
    passed(verify(b" \r\n\t" + raw(signed("command")) + b" \n", "command", REGISTRY))
    nested: Any = "bottom"
    for _ in range(62):
        nested = [nested]
    passed(verify(raw(signed("command", payload={"x": nested})), "command", REGISTRY))


SCHEMA = {
    "no keyId": {"signature": {"algorithm": "Ed25519", "createdAt": NOW, "value": "A" * 86}},
    "no signature": {"signature": None},
    "unknown member": {"foo": 1},
    "algorithm": {"signature": {"algorithm": "ES256", "keyId": AGENT.key_id, "createdAt": NOW, "value": "A" * 86}},
    "leap second": {"issuedAt": "2016-12-31T23:59:60Z"},
    "year zero": {"issuedAt": "0000-01-01T00:00:00Z"},
    "no such day": {"issuedAt": "2025-02-29T00:00:00Z"},
    "unknown offset": {"issuedAt": "2026-07-15T10:00:00-00:00"},
    "version": {"protocolVersion": "0.1.0"},
    "padded signature": {"signature": {**signed("command")["signature"], "value": "A" * 86 + "=="}},
}


@pytest.mark.req("R-6.4-39", "R-6.4-44", "R-19-18", "R-2-04", "R-2-05", "R-21-04")
@pytest.mark.parametrize("name", SCHEMA)
def test_stage_2(name: str) -> None:
    document = {**signed("command"), **SCHEMA[name]}
    if document["signature"] is None:
        del document["signature"]
    outcome = failed(verify(raw(document), "command", REGISTRY), "schema")
    assert outcome.code is ErrorCode.SCHEMA_VALIDATION_FAILED
    assert outcome.detail


@pytest.mark.req("R-2-04")
def test_the_first_and_last_days_of_the_profile_are_read() -> None:
    for day in ("0001-01-01", "2024-02-29", "9999-12-31"):
        document = signed("command", issuedAt=f"{day}T00:00:00Z")
        outcome = verify(raw(document), "command", REGISTRY)
        assert isinstance(outcome, Verified) or outcome.stage == "key-resolution", outcome


def envelope_case(**envelope: Any) -> dict[str, Any]:
    return resigned(signed("command"), **envelope)


def with_encoding(change: Callable[[bytes], bytes]) -> dict[str, Any]:
    document = signed("command")
    return resigned(document, value=ed25519.encode_base64url(change(makers.raw_signature(document))))


ENVELOPE = {
    "createdAt differs": envelope_case(createdAt="2026-07-15T10:00:01Z"),
    "createdAt differs in a zero": envelope_case(createdAt="2026-07-15T10:00:00.0Z"),
    "offset in both": signed("command", issuedAt="2026-07-15T10:00:00+00:00"),
    "lower-case z in both": signed("command", issuedAt="2026-07-15T10:00:00z"),
    "63 bytes": with_encoding(lambda value: value[:63]),
    "65 bytes": with_encoding(lambda value: value + b"\0"),
    "length 1 mod 4": envelope_case(value="A" * 85),
    "spare bits": envelope_case(value=signed("command")["signature"]["value"][:-1] + "B"),
    "S = L": with_encoding(lambda value: value[:32] + GROUP_ORDER.to_bytes(32, "little")),
    "S + L": with_encoding(
        lambda value: value[:32] + (int.from_bytes(value[32:], "little") + GROUP_ORDER).to_bytes(32, "little")
    ),
    **{
        f"R: {name}": with_encoding(lambda value, point=point: point + value[32:]) for name, point in BAD_POINTS.items()
    },
}


@pytest.mark.req("R-6.4-12", "R-6.4-13", "R-6.4-15", "R-6.4-16", "R-6.4-40", "R-2-11", "R-19-11")
@pytest.mark.parametrize("name", ENVELOPE)
def test_stage_3(name: str) -> None:
    outcome = failed(verify(raw(ENVELOPE[name]), "command", REGISTRY), "signature-envelope")
    assert outcome.code is ErrorCode.AUTH_INVALID_SIGNATURE


@pytest.mark.req("R-2-07", "R-6.4-12")
def test_a_lower_case_t_is_a_utc_spelling_too() -> None:
    passed(verify(raw(signed("command", issuedAt="2026-07-15t10:00:00.120Z")), "command", REGISTRY))


def ended(**history: str) -> Registry:
    return registry(*[key for key in makers.ALL_KEYS if key is not AGENT]).bind(
        binding(AGENT, ValidityRecord(sequence=1, recorded_at=NOW, **history))
    )


RESOLUTION: dict[str, tuple[Registry | NoRegistry, str]] = {
    "unknown key": (registry(HUMAN), "unknown-key"),
    "unavailable": (NoRegistry("registry-unavailable"), "registry-unavailable"),
    "incomplete": (NoRegistry("registry-complete-not-established"), "registry-complete-not-established"),
    "not valid yet": (
        Registry(makers.ORGANIZATION).bind(binding(AGENT, valid_from="2026-07-15T10:00:00.1Z")),
        "outside-key-interval",
    ),
    "at validUntil": (ended(valid_until=NOW), "outside-key-interval"),
    "at revokedAt": (ended(revoked_at="2026-07-15T12:00:00+02:00"), "outside-key-interval"),
    "long expired": (ended(valid_until="2026-07-02T00:00:00Z"), "outside-key-interval"),
}


@pytest.mark.req("R-6.4-34", "R-6.4-41", "R-6.4-31", "R-6.4-30", "R-19-11")
@pytest.mark.parametrize("name", RESOLUTION)
def test_stage_4(name: str) -> None:
    evidence, reason = RESOLUTION[name]
    failed(verify(raw(signed("command")), "command", evidence), "key-resolution", reason)


@pytest.mark.req("R-6.4-34", "R-6.4-35")
def test_the_interval_is_half_open() -> None:
    for evidence in (
        Registry(makers.ORGANIZATION).bind(binding(AGENT, valid_from=NOW)),
        ended(valid_until="2026-07-15T10:00:00.000000000000000000000000000001Z"),
        ended(revoked_at="2026-07-15t12:00:01+02:00"),
    ):
        passed(verify(raw(signed("command")), "command", evidence))


CANONICALIZATION = {
    "number out of range": '"x": 1e400',
    "negative number out of range": '"x": [-1e400]',
    "a very long integer": '"x": 1' + "0" * 400,
    "lone surrogate": '"x": "\\ud800"',
    "lone low surrogate in a name": '"\\udc00": 1',
    "surrogates in the wrong order": '"x": "\\udc00\\ud800"',
}


@pytest.mark.req("R-6.4-42", "R-6.4-45", "R-2-10", "R-19-34")
@pytest.mark.parametrize("name", CANONICALIZATION)
def test_stage_5(name: str) -> None:
    outcome = failed(verify(with_payload(CANONICALIZATION[name]), "command", REGISTRY), "canonicalization")
    assert outcome.code is ErrorCode.PROTOCOL_VIOLATION


SIGNATURE = {
    "payload": lambda document: {**document, "payload": {**document["payload"], "x": 1}},
    "nested signature": lambda document: {**document, "payload": {**document["payload"], "signature": "changed"}},
    "another S": lambda document: resigned(
        document, value=ed25519.encode_base64url(makers.raw_signature(document)[:32] + bytes(32))
    ),
    "S = L - 1": lambda document: resigned(
        document,
        value=ed25519.encode_base64url(makers.raw_signature(document)[:32] + (GROUP_ORDER - 1).to_bytes(32, "little")),
    ),
    "R = identity without its S": lambda document: resigned(
        document, value=ed25519.encode_base64url(ed25519.IDENTITY + makers.raw_signature(document)[32:])
    ),
}


@pytest.mark.req("R-6.4-43", "R-6.4-11", "R-19-11")
@pytest.mark.parametrize("name", SIGNATURE)
def test_stage_6(name: str) -> None:
    document = signed("command", payload={"signature": "as signed"})
    passed(verify(raw(document), "command", REGISTRY))
    failed(verify(raw(SIGNATURE[name](document)), "command", REGISTRY), "signature")


@pytest.mark.req("R-6.4-15")
def test_a_positive_identity_r_verifies_in_full() -> None:
    document = signed("command")
    signing = jcs.signing_bytes(document)
    public = ed25519.decode_base64url(AGENT.public_key)
    scalar = challenge(ed25519.IDENTITY, public, signing) * secret_scalar(bytes([1]) * 32) % GROUP_ORDER
    value = ed25519.encode_base64url(ed25519.IDENTITY + scalar.to_bytes(32, "little"))
    passed(verify(raw(resigned(document, value=value)), "command", REGISTRY))


@pytest.mark.req("R-6.4-84", "R-6.4-11")
def test_bytes_that_keep_part_of_the_envelope_are_not_the_signing_bytes() -> None:
    document = signed("command")
    kept = {**document, "signature": {name: it for name, it in document["signature"].items() if name != "value"}}
    value = ed25519.encode_base64url(AGENT.sign(jcs.canonical(kept)))
    failed(verify(raw(resigned(document, value=value)), "command", REGISTRY), "signature")


# --- order of the stages ----------------------------------------------------------------------------------------------


@pytest.mark.req("R-6.4-36", "R-6.4-45", "R-17.4-02")
def test_the_first_failing_stage_wins() -> None:
    def defective(*stages: str) -> bytes:
        document = signed("command")
        if "signature" in stages:
            document["payload"]["x"] = 1
        if "signature-envelope" in stages:
            document = resigned(document, createdAt="2026-07-15T10:00:01Z")
        if "schema" in stages:
            document["foo"] = 1
        it = text(document)
        if "canonicalization" in stages:
            it = it.replace('"payload": {', '"payload": {"y": 1e400, "z": "\\ud800", ')
        if "parse" in stages:
            it = it.replace('"payload": {', '"payload": {"d": 1, "d": 1, ')
        return it.encode()

    every = [stage for stage in STAGES if stage != "key-resolution"]
    for position, stage in enumerate(every):
        failed(verify(defective(*every[position:]), "command", REGISTRY), stage)
        evidence = NoRegistry("registry-unavailable")
        first = stage if STAGES.index(stage) < STAGES.index("key-resolution") else "key-resolution"
        failed(verify(defective(*every[position:]), "command", evidence), first)


@pytest.mark.req("R-6.4-36")
def test_a_bad_r_is_named_before_an_unknown_key() -> None:
    failed(verify(raw(ENVELOPE["R: off the curve"]), "command", registry(HUMAN)), "signature-envelope")


@pytest.mark.req("R-6.4-36")
def test_the_registry_is_not_asked_after_an_earlier_failure() -> None:
    class Untouchable(Registry):
        def resolve(self, key_id: str) -> Any:
            raise AssertionError("the Registry was consulted")

    evidence = Untouchable(makers.ORGANIZATION)
    document = resigned(signed("command"), createdAt="2026-07-15T10:00:01Z")
    document["payload"]["x"] = 1
    failed(verify(raw(document), "command", evidence), "signature-envelope")
    with pytest.raises(AssertionError, match="consulted"):
        verify(raw(signed("command")), "command", evidence)


# --- the wire tells nothing -------------------------------------------------------------------------------------------


@pytest.mark.req("R-6.4-81", "R-6.4-31", "R-19-11")
def test_every_refused_signature_looks_the_same_on_the_wire() -> None:
    from_stages = [
        verify(raw(ENVELOPE["S = L"]), "command", REGISTRY),
        verify(raw(signed("command")), "command", registry(HUMAN)),
        verify(raw(signed("command")), "command", NoRegistry("registry-unavailable")),
        verify(raw(signed("command")), "command", ended(revoked_at=NOW)),
        verify(raw(SIGNATURE["payload"](signed("command"))), "command", REGISTRY),
    ]
    reasons = {outcome.reason for outcome in from_stages if isinstance(outcome, Failure)}
    assert len(reasons) == len(from_stages), "the audit tells them apart"
    documents = [error_document(outcome.rejection(), NOW) for outcome in from_stages if isinstance(outcome, Failure)]
    assert all(document == documents[0] for document in documents)
    assert documents[0].code is ErrorCode.AUTH_INVALID_SIGNATURE
    assert not documents[0].retryable


# --- what is signed, whatever it looked like --------------------------------------------------------------------------


@pytest.mark.req("R-17.4-01", "R-2-08", "R-6.4-47")
def test_order_and_spacing_do_not_matter_and_the_text_of_times_stays() -> None:
    document = signed("command", issuedAt="2026-07-15T10:00:00.120Z", payload={"b": "é𝄞", "a": [1, {"d": 2, "c": 3}]})
    canonical = passed(verify(raw(document), "command", REGISTRY))
    reordered = dict(reversed(document.items()))
    for spelled in (
        json.dumps(reordered, indent=3).encode(),
        json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(),
        json.dumps(document).replace("10:00", "10\\u003a00").encode(),
    ):
        outcome = passed(verify(spelled, "command", REGISTRY))
        assert outcome == canonical
        assert outcome.document.issued_at == "2026-07-15T10:00:00.120Z"  # type: ignore[union-attr]
    changed = passed(verify(raw(signed("command", issuedAt="2026-07-15T10:00:00.12Z")), "command", REGISTRY))
    assert changed.protected_time == canonical.protected_time
    assert changed.signing_hash != canonical.signing_hash


@pytest.mark.req("R-6.4-47")
def test_the_signing_hash_covers_everything_but_the_signature() -> None:
    before = passed(verify(raw(signed("command")), "command", REGISTRY))
    second = keys.generate("urn:example:key:second", AGENT.principal, makers.ORGANIZATION, bytes([77]) * 32)
    after = passed(verify(raw(signed("command", second)), "command", registry(AGENT, second)))
    assert after.signing_hash == before.signing_hash
    assert after.key_id != before.key_id
    for member in ("actionId", "correlationId"):
        other = passed(verify(raw(signed("command", **{member: "urn:example:other:1"})), "command", REGISTRY))
        assert other.signing_hash != before.signing_hash


@pytest.mark.req("R-2-09", "R-6.4-42")
@pytest.mark.parametrize("number", ["9007199254740993", "0.1000000000000000055", "1.0", "1e2", "-0", "1E-7", "1e21"])
def test_numbers_sign_as_their_binary64_values(number: str) -> None:
    value = float(number)
    document = makers.unsigned("command", payload={"x": value})
    mapping = keys.sign_mapping(document, AGENT, NOW)
    spelled = raw(mapping).replace(b'"x":' + jcs.canonical(value), b'"x":' + number.encode())
    assert passed(verify(spelled, "command", REGISTRY)).canonical == jcs.canonical(document)


@pytest.mark.req("R-21-03")
def test_unknown_extension_data_is_kept_unchanged() -> None:
    data = {"any": [1.5, None, {"signature": "x", "𝄞": "😀", "\ue000": 1}], "n": 1e21}
    document = signed(
        "event", extensions={"urn:example:unknown:1": {"version": "2.0.0", "critical": False, "data": data}}
    )
    first = passed(verify(raw(document), "event", REGISTRY))
    relayed = jcs.canonical(first.document)
    assert relayed == raw(document)
    assert passed(verify(relayed, "event", REGISTRY)) == first


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_that_was_read_already_gets_the_same_verdict(kind: DocumentKind) -> None:
    for document in (signed(kind), signed(kind, IMPOSTORS[kind])):
        value = strict_json.decode(raw(document), SIGNED_DOCUMENTS[kind])
        assert verify_document(value, kind, REGISTRY) == verify(raw(document), kind, REGISTRY)


def test_a_batch_keeps_its_order() -> None:
    items = [(raw(signed(kind)), kind) for kind in KINDS] + [(b"{", KINDS[0])]
    outcomes = verify_batch(items, REGISTRY)
    assert [outcome.kind for outcome in outcomes[:-1] if isinstance(outcome, Verified)] == list(KINDS)
    failed(outcomes[-1], "parse")


@pytest.mark.req("R-6.4-46")
def test_each_negative_text_becomes_good_by_undoing_its_one_defect() -> None:
    passed(verify(with_text(lambda it: it), "command", REGISTRY))
    passed(verify(raw(signed("command")), "command", REGISTRY))


@settings(max_examples=150, deadline=None)
@given(kind=st.sampled_from(KINDS), position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_no_changed_byte_verifies_as_something_else(kind: DocumentKind, position: int, byte: int) -> None:
    good = raw(signed(kind))
    changed = bytearray(good)
    changed[position % len(good)] = byte
    outcome = verify(bytes(changed), kind, REGISTRY)
    if isinstance(outcome, Verified):
        assert outcome.canonical == jcs.signing_bytes(signed(kind)), "only another spelling of the same may verify"


# --- made on purpose --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_we_sign_verifies(kind: DocumentKind) -> None:
    mapping = makers.unsigned(kind)
    draft = strict_json.convert({**mapping, "signature": makers.signed(kind)["signature"]}, SIGNED_DOCUMENTS[kind])
    by_struct = keys.sign_draft(draft, SIGNERS[kind], NOW)
    assert jcs.canonical(by_struct) == raw(signed(kind))
    unsigned = strict_json.convert(
        {**mapping, "signature": json.loads(jcs.canonical(keys.UNSIGNED))}, SIGNED_DOCUMENTS[kind]
    )
    by_bytes = keys.sign_bytes(unsigned, SIGNERS[kind], NOW)
    assert by_bytes.encoded == raw(signed(kind))
    outcome = passed(verify(by_bytes.encoded, kind, REGISTRY))
    assert (outcome.canonical, outcome.signing_hash) == (by_bytes.canonical, by_bytes.signing_hash)


def test_a_nested_copy_of_the_placeholder_stays_what_it_is() -> None:
    placeholder = json.loads(jcs.canonical(keys.UNSIGNED))
    mapping = makers.unsigned("command", payload={"a": 1, "signature": placeholder})
    draft = strict_json.convert({**mapping, "signature": placeholder}, SIGNED_DOCUMENTS["command"])
    outcome = passed(verify(keys.sign_bytes(draft, AGENT, NOW).encoded, "command", REGISTRY))
    assert outcome.document.payload["signature"] == placeholder  # type: ignore[union-attr]
