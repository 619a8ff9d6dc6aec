"""Identifiers: which are absolute URIs, and the ones that we make."""

from __future__ import annotations

import re
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mwnode.protocol import identifiers
from mwnode.protocol.instants import parse
from mwnode.protocol.scalars import Base64Url, CapabilityId, ExtensionKind, Id, PositiveInteger, SafeInteger, Sha256
from mwnode.protocol.strict_json import SchemaFault, convert
from tests.protocol.oracle import is_uri

GOOD = [
    "urn:m%C3%BCller:1",
    "urn:uuid:11111111-2222-4333-8444-555555555555",
    "example:",
    "x:y",
    "https://example.org:8080/a/b?c=d&e=f#g",
    "https://user@[2001:db8::1]/",
    "http://[::ffff:192.0.2.1]:80",
    "http://[v1.x]/",
    "file:///etc/hosts",
    "mailto:a@b.example",
    "urn:" + "a" * 508,
]
BAD = [
    "",
    "urn:müller:1",
    "/relative",
    "relative",
    "//host/path",
    "1urn:x",
    ":x",
    "urn:a:1\n",
    "urn:a: 1",
    "urn:a:\u0000",
    " urn:a:1",
    "urn:a:%",
    "urn:a:%4",
    "urn:a:%zz",
    "urn:a:<b>",
    "urn:a:\\b",
    "urn:a:[b]",
    "http://[::1",
    "http://[1:2]/",
    "http://host:port/",
    "urn:a#b#c",
    "urn:" + "a" * 509,
]


def fits(value: object, kind: object) -> bool:
    try:
        convert(value, kind)
    except SchemaFault:
        return False
    return True


@pytest.mark.req("R-2-15", "R-2-16")
@pytest.mark.parametrize("text", GOOD)
def test_absolute_uris_are_identifiers(text: str) -> None:
    assert fits(text, Id)
    assert is_uri(text)


@pytest.mark.req("R-2-15", "R-2-16")
@pytest.mark.parametrize("text", BAD)
def test_anything_else_is_none(text: str) -> None:
    assert not fits(text, Id)


@settings(max_examples=600)
@given(text=st.text("abu:/?#[]@%41.0-é \n!$_", max_size=14).map(lambda it: "u:" + it) | st.text(max_size=8))
def test_our_grammar_is_that_of_rfc_3986(text: str) -> None:
    assert fits(text, Id) == is_uri(text)


@pytest.mark.req("R-2-18")
def test_identifiers_are_not_normalized() -> None:
    assert convert("urn:X:a", Id) == "urn:X:a"
    assert convert("HTTP://Example.org/%7Ea/../b", Id) == "HTTP://Example.org/%7Ea/../b"


@pytest.mark.req("R-2-12", "R-2-13", "R-2-11", "R-18-04")
@pytest.mark.parametrize(
    "kind, good, bad",
    [
        (
            Sha256,
            ["sha256:" + "0a" * 32],
            ["sha256:" + "0A" * 32, "sha256:" + "a" * 63, "sha256:" + "a" * 64 + "\n", "a" * 64],
        ),
        (SafeInteger, [0, 2**53 - 1], [-1, 2**53, 1.5, True, "1"]),
        (PositiveInteger, [1, 2**53 - 1], [0, -1, 2**53]),
        (Base64Url, ["AA", "a-_9"], ["A", "AA=", "A+", "AA\n", "", "A" * 4097]),
        (
            ExtensionKind,
            ["ext.acme.billing.send", "ext.a-1.b_2.c.d"],
            ["ext.acme.name", "ext.acme.Billing.x", "ext..a.b", "ext.a.b.c\n", "ext.a.b." + "c" * 160],
        ),
        (CapabilityId, ["code.review", "a-b"], ["code", "Code.review", "code.", ".code", "a..b", "a.b\n"]),
    ],
)
def test_other_scalars(kind: object, good: list[object], bad: list[object]) -> None:
    assert all(fits(value, kind) for value in good)
    assert not any(fits(value, kind) for value in bad)


@pytest.mark.req("R-2-17")
def test_ids_that_we_make_are_lower_case_uuid_urns_in_order_of_time() -> None:
    first = identifiers.uuid7_urn(parse("2026-07-15T10:00:00.123456Z"), bytes(range(250, 256)) + b"\xff" * 6)
    later = identifiers.uuid7_urn(parse("2026-07-15T10:00:00.124Z"), bytes(10))
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", first)
    assert first < later
    assert fits(first, Id)
    assert int(first[9:17] + first[18:22], 16) == parse("2026-07-15T10:00:00.123Z").whole_microseconds() // 1000
    with pytest.raises(ValueError, match="10 random bytes"):
        identifiers.uuid7_urn(parse("2026-07-15T10:00:00Z"), bytes(9))


@given(random=st.binary(min_size=10, max_size=10), other=st.binary(min_size=10, max_size=10))
def test_randomness_reaches_the_id(random: bytes, other: bytes) -> None:
    now = parse("2026-07-15T10:00:00Z")
    kept = int.from_bytes(random, "big") & (1 << 74) - 1 == int.from_bytes(other, "big") & (1 << 74) - 1
    assert (identifiers.uuid7_urn(now, random) == identifiers.uuid7_urn(now, other)) == kept


def test_conversation_ids_are_derived_and_never_too_long() -> None:
    assert identifiers.mission_conversation_id("urn:g:1") == "urn:g:1:mission"
    assert identifiers.work_item_conversation_id("urn:g:1", "urn:w:1") == "urn:g:1:work:urn:w:1"
    long = "urn:g:" + "1" * 500
    derived = identifiers.work_item_conversation_id(long, "urn:w:1")
    assert re.fullmatch(r"urn:mwnode:conversation:[0-9a-f]{64}", derived)
    assert derived == identifiers.work_item_conversation_id(long, "urn:w:1")
    assert derived != identifiers.work_item_conversation_id(long, "urn:w:2")
    assert len(identifiers.mission_conversation_id("urn:g:" + "1" * 498)) == 512
    assert identifiers.policy_cause_id("rate") == "urn:mwnode:policy:rate"
    assert identifiers.artifact_uri("sha256:ab") == "urn:mwnode:artifact:sha256:ab"


@pytest.mark.req("R-2-17")
def test_identifiers_made_together_are_uuids_of_version_7_and_differ() -> None:
    drawn: list[int] = []

    def random(count: int) -> bytes:
        drawn.append(count)
        return bytes((len(drawn) * 37 + place * 101) % 256 for place in range(count))

    now = parse("2026-07-15T10:00:00.123456Z")
    make = identifiers.uuid7_maker(now, random)
    made = [make() for _ in range(40)]
    assert len(set(made)) == 40
    assert len(drawn) == 3, "randomness is drawn for several at once"
    prefix = identifiers.uuid7_urn(now, bytes(10))[:22]
    for urn in made:
        value = uuid.UUID(urn)
        assert (value.version, value.variant) == (7, uuid.RFC_4122)
        assert value.urn == urn
        assert urn.startswith(prefix)
