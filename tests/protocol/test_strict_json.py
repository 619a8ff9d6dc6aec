"""Strict JSON: what is a stage-1 fault and what is not, and one answer by either way."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mwnode.protocol import frames, jcs, strict_json
from mwnode.protocol.documents import Budget, Command, Message
from mwnode.protocol.jcs import JcsFault
from mwnode.protocol.strict_json import JsonFault, SchemaFault, convert, decode, parse, write
from tests.trust import makers

INFINITY = float("inf")


class Free(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """A type with a free-form member, a count and a text."""

    any: Any = msgspec.UNSET
    count: int | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET


FAULTS = {
    "syntax": [
        b"",
        b" ",
        b"{",
        b"[1,]",
        b'{"a":1,}',
        b".5",
        b"+1",
        b"-",
        b"nul",
        b"NaN",
        b"Infinity",
    ],
    "trailing-data": [b"01", b"1.", b"1e", b"1 2", b"{}{}", b"[]x", b'"a""b"', b"00", b"-01"],
    "byte-order-mark": [b"\xef\xbb\xbf1", b"\xef\xbb\xbf"],
    "invalid-utf8": [b'"\xff"', b'"\xc0\x80"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'{"\xe9":1}', b'"\xe2\x82"'],
    "duplicate-member": [b'{"a":1,"a":1}', b'{"a":1,"\\u0061":2}', b'[{"x":{"b":[],"b":0}}]', b'{"":1,"":2}'],
    "too-deep": [b"[" * 65 + b"]" * 65, b'{"a":' * 65 + b"1" + b"}" * 65, b"[" * 100_000],
}


@pytest.mark.req("R-6.4-38", "R-17.4-02", "R-19-34")
@pytest.mark.parametrize("reason, raw", [(reason, raw) for reason, raws in FAULTS.items() for raw in raws])
def test_stage_1_faults(reason: str, raw: bytes) -> None:
    with pytest.raises(JsonFault) as caught:
        parse(raw)
    assert caught.value.reason == reason
    with pytest.raises(JsonFault) as caught_again:
        decode(b'{"any":' + raw + b"}" if reason != "byte-order-mark" else raw, Free)
    assert isinstance(caught_again.value, JsonFault)


@pytest.mark.req("R-6.4-38")
@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":1,"A":2}',
        b'{"a":{"a":1}}',
        b'[{"a":1},{"a":1}]',
        b"[" * 64 + b"]" * 64,
        b' \t\r\n{"a":"\xf0\x9d\x84\x9e"} ',
    ],
)
def test_what_only_looks_like_a_fault(raw: bytes) -> None:
    assert parse(raw) == json.loads(raw)


def test_control_characters_and_size() -> None:
    for raw in (b'"\x00"', b'"\n"', b'"\x1f"'):
        with pytest.raises(JsonFault):
            parse(raw)
    assert parse(b'"\x7f"') == "\x7f"
    assert parse(b'"' + b"x" * 98 + b'"', bytes_max=100) == "x" * 98
    with pytest.raises(JsonFault) as caught:
        parse(b'"' + b"x" * 99 + b'"', bytes_max=100)
    assert caught.value.reason == "too-large"
    with pytest.raises(JsonFault) as caught:
        decode(b'{"text":"' + b"x" * 99 + b'"}', Free, bytes_max=100)
    assert caught.value.reason == "too-large"


@pytest.mark.req("R-6.4-45", "R-6.4-42", "R-2-10")
def test_what_stage_5_refuses_survives_stage_1() -> None:
    value = parse(b'{"big":1e400,"small":-1e999,"long":1' + b"0" * 400 + b',"lone":"a\\ud800b","\\udfff":null}')
    assert value == {"big": INFINITY, "small": -INFINITY, "long": INFINITY, "lone": "a\ud800b", "\udfff": None}
    with pytest.raises(JcsFault):
        jcs.canonical(value)
    assert parse(b'"\\ud83d\\ude00"') == "😀"


@pytest.mark.req("R-2-09", "R-2-13")
def test_numbers_keep_their_values() -> None:
    for raw, value in (
        (b"1.0", 1),
        (b"1e2", 100),
        (b"-0", 0),
        (b"-0.0", 0),
        (b"0.1000000000000000055", 0.1),
        (b"9007199254740991", 9007199254740991),
        (b"-9007199254740991", -9007199254740991),
        (b"9007199254740993", 9007199254740992.0),
        (b"-9007199254740993", -9007199254740992.0),
        (b"1" + b"0" * 20, 1e20),
        (b"1" + b"0" * 308, 1e308),
        (b"5e-324", 5e-324),
        (b"1e-400", 0),
    ):
        assert parse(raw) == value
    assert type(parse(b"1.0")) is int
    for beyond in (b"9007199254740992.0", b"9007199254740992", b"-9007199254740992", b"1" + b"0" * 20):
        assert type(parse(beyond)) is float


@pytest.mark.req("R-2-13", "R-6.4-45")
def test_an_integral_float_is_an_integer_and_an_unsafe_one_is_refused() -> None:
    document = {**makers.signed("command"), "expectedRevision": 7}
    raw = json.dumps(document)

    def revision(text: str) -> Any:
        return decode(
            raw.replace('"expectedRevision": 7', f'"expectedRevision": {text}').encode(), Command
        ).expected_revision

    for text, value in (
        ("7.0", 7),
        ("70e-1", 7),
        ("0", 0),
        ("9007199254740991", 2**53 - 1),
        ("9007199254740991.0", 2**53 - 1),
    ):
        assert revision(text) == value
    for text in (
        "-1",
        "1.5",
        "9007199254740992",
        "9007199254740992.0",
        "1e400",
        "1" + "0" * 400,
        "true",
        '"7"',
        "null",
    ):
        with pytest.raises(SchemaFault) as caught:
            revision(text)
        assert caught.value.path == "/expectedRevision"


def test_a_schema_fault_says_where() -> None:
    document = makers.signed("command")
    for change, path in (
        ({"actor": {"type": "agent", "id": "x"}}, "/actor/id"),
        ({"foo": 1}, ""),
        ({"extensions": {"urn:x:1": {"version": "1", "critical": True, "data": 1}}}, "/extensions/*/version"),
    ):
        with pytest.raises(SchemaFault) as caught:
            decode(jcs.canonical({**document, **change}), Command)
        assert caught.value.path == path
        assert caught.value.reason
    assert strict_json.pointer("Expected `int` - at `$.a[2][...].b`") == ("/a/2/*/b", "Expected `int`")
    with pytest.raises(SchemaFault) as caught:
        decode(b'{"\\ud800":1}', Free)
    assert "not well-formed Unicode" in str(caught.value)


# --- one answer by either way -----------------------------------------------------------------------------------------

_NAMES = st.sampled_from(["any", "count", "text", "a", "", "é", "\ue000", "😀", "a:b", "\ud800", 'q"', "\\"])
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**60), 2**60),
    st.sampled_from([10**15, 10**16, 2**53, 2**64, 10**308, 10**400, 1.0, -0.0, 0.5, 1e16, 1e21, INFINITY]),
    st.floats(allow_nan=False),
    st.text(max_size=12),
    st.sampled_from(["\ud800", "a:b", "::", "\\", '"', "\u0000", "[", "}{"]),
)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES, inner, max_size=4), max_leaves=12
)


def spell(value: Any, draw: Any) -> str:
    """JSON text of a value with random spacing, escapes and repeated members."""
    space = draw(st.sampled_from(["", "", " ", "\n\t"]))
    if isinstance(value, dict):
        members = list(value.items())
        if members and draw(st.integers(0, 9)) == 0:
            members.append(draw(st.sampled_from(members)))
        inner = ("," + space).join(f"{spell(name, draw)}{space}:{space}{spell(item, draw)}" for name, item in members)
        return f"{{{space}{inner}}}"
    if isinstance(value, list):
        return f"[{space}{','.join(spell(item, draw) for item in value)}{space}]"
    if isinstance(value, str) and draw(st.booleans()):
        return "".join(
            f"\\u{ord(c):04x}" if ord(c) < 0x10000 and draw(st.integers(0, 3)) == 0 else json.dumps(c)[1:-1]
            for c in value
        ).join('""')
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=any(0xD800 <= ord(c) <= 0xDFFF for c in value))
    if isinstance(value, float):
        return json.dumps(value).replace("Infinity", "1e400")
    return json.dumps(value)


@st.composite
def texts(draw: Any) -> bytes:
    shape = draw(st.sampled_from(["free", "any"]))
    value = draw(_VALUES)
    wrapped = {"any": value, "count": draw(_SCALARS)} if shape == "free" else value
    raw = spell(wrapped, draw).encode()
    if draw(st.integers(0, 4)) == 0 and raw:
        position = draw(st.integers(0, len(raw) - 1))
        raw = raw[:position] + draw(st.binary(max_size=2)) + raw[position + 1 :]
    return raw


def answer(way: Any) -> Any:
    try:
        return way()
    except (JsonFault, SchemaFault) as fault:
        return type(fault), str(fault)


def shape(value: Any) -> Any:
    """A value with the types of its numbers, so that 1 and True and 1.0 differ."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else (type(value).__name__, repr(value))


@settings(max_examples=700, deadline=None)
@given(raw=texts())
@example(raw=b'{"any":{"a":"\\u003a","a":"\\u003a"}}')
@example(raw=b'{"any":{"a":1,"a":":"}}')
@example(raw=b'{"any":{"\\u0061":1,"a":2}}')
@example(raw=b'{"count":1,"count":2}')
@example(raw=b'{"any":' + b"[" * 63 + b"]" * 63 + b"}")
@example(raw=b'{"any":' + b"[" * 64 + b"]" * 64 + b"}")
@example(raw=b'{"any":"' + b"[" * 100 + b'"}')
def test_the_fast_way_and_the_exact_way_agree(raw: bytes) -> None:
    fast = answer(lambda: decode(raw, Free))
    exact = answer(lambda: convert(parse(raw), Free))
    assert fast == exact
    if isinstance(fast, Free) and fast.any is not msgspec.UNSET:
        assert shape(fast.any) == shape(exact.any)


@settings(max_examples=200, deadline=None)
@given(raw=texts())
def test_what_is_written_reads_back(raw: bytes) -> None:
    value = answer(lambda: parse(raw))
    if not (isinstance(value, tuple) and value[0] is JsonFault):
        assert shape(parse(write(value))) == shape(value)


def test_the_fast_way_is_taken_for_ordinary_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def exact(*args: Any, **options: Any) -> Any:
        raise AssertionError("the exact way was taken")

    monkeypatch.setattr(strict_json, "parse", exact)
    for kind in makers.KINDS:
        decode(
            makers.raw(makers.signed(kind)),
            type(decode(makers.raw(makers.signed(kind)), makers.SIGNED_DOCUMENTS[kind])),
        )


def test_typed_numbers_may_have_fractions() -> None:
    for text, value in (("0.5", 0.5), ("1.0", 1), ("1e400", INFINITY)):
        assert decode(f'{{"currency":"EUR","financialLimit":{text}}}'.encode(), Budget).financial_limit == value
    with pytest.raises(SchemaFault):
        decode(b'{"currency":"EUR","financialLimit":-0.5}', Budget)


def test_tagged_blocks_decode_either_way() -> None:
    message = {
        "messageId": "urn:x:1",
        "missionId": "urn:x:2",
        "groupId": "urn:x:3",
        "conversationId": "urn:x:4",
        "author": {"type": "agent", "id": "urn:x:5"},
        "kind": "message",
        "authority": False,
        "content": [{"type": "text", "text": "hé"}, {"type": "data_ref", "schema": "urn:x:6", "data": {"a": 1.5}}],
        "committedAt": makers.NOW,
    }
    assert decode(json.dumps(message).encode(), Message) == decode(jcs.canonical(message), Message)
    for block in ({"type": "image"}, {"text": "x"}, {"type": "text"}, {"type": "text", "text": "x", "data": 1}):
        with pytest.raises(SchemaFault):
            decode(jcs.canonical({**message, "content": [block]}), Message)


# --- cost -------------------------------------------------------------------------------------------------------------

MIB = 1024 * 1024
HEAVY: dict[str, Callable[[int], bytes]] = {
    "opening brackets": lambda size: b"[" * size,
    "opening braces": lambda size: b'{"a":' * (size // 5),
    "digits": lambda size: b"9" * size,
    "digits after a point": lambda size: b"0." + b"1" * (size - 2),
    "digits of an exponent": lambda size: b"1e" + b"9" * (size - 2),
    "escapes": lambda size: b'"' + b"\\u0041" * (size // 6 - 1) + b'"',
    "surrogates": lambda size: b'"' + b"\\ud800" * (size // 6 - 1) + b'"',
    "backslashes": lambda size: b'"' + b"\\\\" * (size // 2 - 1) + b'"',
    "digits in a member": lambda size: b'{"any":' + b"9" * (size - 10) + b"}",
    "an identifier that almost fits": lambda size: b'{"text":"urn:' + b"%41" * (size // 3 - 10) + b'"}',
    "spaces": lambda size: b" " * size,
    "empty arrays": lambda size: b"[" + b"[]," * (size // 3 - 2) + b"0]",
    "brackets in strings": lambda size: b"[" + b'"[",' * (size // 4 - 2) + b"0]",
}
"""Nothing good, of about so many bytes."""


def processor_seconds(raw: bytes) -> float:
    """What three readings cost, in seconds of this thread's processor time: other load does not count."""
    begun = time.thread_time()
    answer(lambda: decode(raw, Free))
    answer(lambda: decode(raw, Command))
    with contextlib.suppress(JsonFault, SchemaFault):
        frames.decode_client_frame(raw)
    return time.thread_time() - begun


@pytest.mark.parametrize("name", HEAVY)
def test_a_mebibyte_of_nothing_good_costs_no_more_than_its_bytes(name: str) -> None:
    """Four times the bytes may cost about four times as much; a quadratic step would cost sixteen times.

    What others do to this machine's caches and clock can only add to what is measured: one good round tells enough.
    """
    quarter = min(processor_seconds(HEAVY[name](MIB // 4)) for _ in range(3))
    assert any(processor_seconds(HEAVY[name](MIB)) <= 9 * quarter + 0.05 for _ in range(12))
