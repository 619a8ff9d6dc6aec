"""The fast way gives the exact answer or none; and it does give one to what everybody sends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mwnode.protocol import instants, jcs, strict_json
from mwnode.protocol.documents import SIGNED_DOCUMENTS, Command, DocumentKind
from mwnode.protocol.limits import JSON_DEPTH
from mwnode.protocol.strict_json import JsonFault, SchemaFault
from mwnode.trust import ed25519
from mwnode.trust.plain_reading import read_plain
from tests.trust.makers import HASH, KINDS, NOW, raw, signed

ALL_MEMBERS = {
    "coordinatorEpoch": 2,
    "conversationId": "urn:example:group:1:mission",
    "workItemId": "urn:example:work:1",
    "expectedRevision": 9,
    "extensions": {"urn:example:extension:x": {"critical": False, "version": "1.0.0", "data": {"signature": {"a": 1}}}},
}
COMMAND = signed("command")
TEXTS = [
    "urn:example:one",
    "urn:example:one\n",
    "urn:example:one\nurn:example:two",
    "\n",
    "",
    "no-scheme",
    "urn:",
    "1rn:x",
    "urn:%41",
    "urn:%4",
    "https://host.example:80/path?query#fragment",
    "https://[::1]/",
    "urn:with space",
    'urn:quote"',
    "urn:umlaut-\u00fc",
    "urn:" + "x" * 508,
    "urn:" + "x" * 509,
    "urn:" + "x" * 200,
    NOW,
    "2026-07-15T10:00:00.1234567Z",
    "2026-07-15t10:00:00Z",
    "2026-07-15T10:00:00z",
    "2026-07-15T10:00:00+00:00",
    "2026-02-29T10:00:00.5Z",
    "2026-07-15T10:00:60.5Z",
    "2026-07-15T10:00:00.Z",
    "2026-07-15T10:00:00.\u0661Z",
    HASH,
    "message.post",
    "agent",
    "A" * 86,
    "A" * 85 + "B",
    "+" * 86,
    "=" * 86,
]


def exact(text: bytes, kind: DocumentKind) -> tuple[Any, bytes]:
    """What the exact way makes of a document: itself, and its signing bytes."""
    value = strict_json.parse(text)
    document = strict_json.convert(value, SIGNED_DOCUMENTS[kind])
    return document, jcs.canonical_exact({name: member for name, member in value.items() if name != "signature"})


def agree(text: bytes, kind: DocumentKind) -> bool:
    """Whether the fast way answered; fails when it answered otherwise than the exact one."""
    fast = read_plain(text, kind, JSON_DEPTH)
    if fast is None:
        return False
    document, signing = exact(text, kind)
    assert type(fast[0]) is type(document)
    assert fast[0] == document
    assert fast[1] == signing
    assert fast[2] == ed25519.decode_base64url(document.signature.value)
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_what_everybody_sends_is_read_the_fast_way(kind: DocumentKind) -> None:
    document = signed(kind)
    assert agree(raw(document), kind)
    assert agree(json.dumps(document).encode(), kind), "neither order nor spaces matter"


def test_every_member_of_a_command_is_carried_over() -> None:
    fields = set(Command.__struct_fields__)
    rare = {"cooperation_override_grant_id", "caused_by_event_id"}
    document = {**signed("command"), **ALL_MEMBERS}
    text = json.dumps(document).encode()
    assert agree(text, "command")
    command = exact(text, "command")[0]
    assert {name for name in fields if getattr(command, name) is not None and name not in rare} == fields - rare
    for name in ("cooperationOverrideGrantId", "causedByEventId"):
        assert not agree(json.dumps({**document, name: "urn:example:x"}).encode(), "command")


_PLACES = [
    ("actionId",),
    ("correlationId",),
    ("groupId",),
    ("conversationId",),
    ("workItemId",),
    ("cooperationOverrideGrantId",),
    ("causedByEventId",),
    ("issuedAt",),
    ("kind",),
    ("actor", "id"),
    ("actor", "type"),
    ("signature", "keyId"),
    ("signature", "createdAt"),
    ("signature", "value"),
    ("signature", "algorithm"),
]


@pytest.mark.req("R-2-15", "R-2-16")
@given(
    changes=st.dictionaries(st.sampled_from(_PLACES), st.sampled_from(TEXTS) | st.text(max_size=12), max_size=3),
    both_times=st.none() | st.sampled_from(TEXTS),
    all_members=st.booleans(),
    escaped=st.booleans(),
)
def test_no_scalar_passes_that_the_types_refuse(
    changes: dict[tuple[str, ...], str], both_times: str | None, all_members: bool, escaped: bool
) -> None:
    document: dict[str, Any] = {**COMMAND, **(ALL_MEMBERS if all_members else {})}
    document["actor"], document["signature"] = dict(document["actor"]), dict(document["signature"])
    if both_times is not None:
        document["issuedAt"] = document["signature"]["createdAt"] = both_times
    for place, text in changes.items():
        target = document
        for name in place[:-1]:
            target = target[name]
        target[place[-1]] = text
    encoded = json.dumps(document, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    try:
        exact(encoded, "command")
    except (JsonFault, SchemaFault):
        assert read_plain(encoded, "command", JSON_DEPTH) is None
    else:
        agree(encoded, "command")


@pytest.mark.parametrize("nested", ["payload", "extensions"])
@given(inner=st.sampled_from([{}, {"a": "}"}, {"z": {"signature": {}}}, {"signature": {"b": [1]}, "z": 1}]))
def test_nested_signatures_stay(nested: str, inner: dict[str, Any]) -> None:
    content: dict[str, Any] = {"a": 1, "signature": inner, "text": ',"signature":{}', "z": 0}
    if nested == "extensions":
        content = {"urn:example:extension:x": {"critical": False, "version": "1.0.0", "data": content}}
    for more in ({}, {"workItemId": "urn:example:work:1"}):
        assert agree(json.dumps({**signed("command"), **more, nested: content}).encode(), "command")


@given(text=st.text("ABQgwz09-_+/=\u0100 \n", min_size=84, max_size=88) | st.sampled_from(TEXTS))
def test_a_signature_text_is_read_as_base64url_is(text: str) -> None:
    try:
        expected = ed25519.decode_base64url(text)
    except ValueError:
        assert ed25519.decode_signature(text) is None
    else:
        assert ed25519.decode_signature(text) == (expected if len(expected) == 64 else None)


@pytest.mark.parametrize("text", [text for text in TEXTS if text.startswith("2026")])
def test_fractions_of_one_second_are_read_as_whole_timestamps_are(text: str) -> None:
    def answer(way: Any) -> Any:
        try:
            return way(text)
        except ValueError:
            return None

    assert answer(instants.parse) == answer(instants._parse)
