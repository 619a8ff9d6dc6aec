"""RFC 8785 against its own vectors, against rfc8785 where that is exact, and the fast path against the exact one."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from mwnode.protocol import jcs, strict_json
from mwnode.protocol.documents import SIGNED_DOCUMENTS, Command
from mwnode.protocol.jcs import JcsFault
from tests.trust import makers

# Appendix B of RFC 8785: the bits of a binary64 value and its text.
APPENDIX_B = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


@pytest.mark.req("R-2-01", "R-2-09")
@pytest.mark.parametrize("bits", APPENDIX_B)
def test_numbers_of_appendix_b(bits: str) -> None:
    assert jcs.number(struct.unpack(">d", bytes.fromhex(bits))[0]) == APPENDIX_B[bits]


@pytest.mark.req("R-2-09")
def test_integers_beyond_2_to_the_53_are_rounded() -> None:
    for integer, text in (
        (2**53 - 1, "9007199254740991"),
        (2**53, "9007199254740992"),
        (2**53 + 1, "9007199254740992"),
        (2**53 + 3, "9007199254740996"),
        (-(2**53) - 1, "-9007199254740992"),
        (10**21, "1e+21"),
        (10**21 - 1, "1e+21"),
        (123456789012345678901, "123456789012345680000"),
    ):
        assert jcs.canonical(integer) == text.encode()
    assert jcs.canonical(0.1000000000000000055) == b"0.1"


@pytest.mark.req("R-2-10", "R-6.4-42")
@pytest.mark.parametrize(
    "value",
    [math.inf, -math.inf, math.nan, 10**400, "\ud800", "a\udfff", {"\ud800": 1}, {"a": [{"b": "\udc00"}]}, [math.inf]],
)
def test_what_the_data_model_does_not_hold(value: Any) -> None:
    with pytest.raises(JcsFault):
        jcs.canonical(value)
    with pytest.raises(JcsFault):
        jcs.canonical({"x": value})
    with pytest.raises(JcsFault):
        jcs.signing_bytes({"payload": {"x": value}, "signature": {}})


@pytest.mark.req("R-2-01", "R-17.4-01")
def test_the_published_canonicalization_vector(protocol_bundle: Path) -> None:
    directory = protocol_bundle / "cryptography/vectors/canonicalization"
    value = strict_json.parse((directory / "rfc8785-section-3.2.2-input.json").read_bytes())
    assert jcs.canonical(value) == (directory / "rfc8785-section-3.2.2.jcs").read_bytes()


def test_names_sort_by_utf_16_units() -> None:
    value = {
        name: number for number, name in enumerate(["\u20ac", "\r", "\ufb33", "1", "😀", "\u0080", "ö", "", "\ue000"])
    }
    wanted = ["", "\r", "1", "\u0080", "ö", "\u20ac", "😀", "\ue000", "\ufb33"]
    assert list(json.loads(jcs.canonical(value))) == wanted


def test_control_characters_are_spelled_as_json_does() -> None:
    text = "".join(map(chr, range(0x21))) + '"\\/\x7f\x80\u2028'
    wanted = (
        b'"\\u0000\\u0001\\u0002\\u0003\\u0004\\u0005\\u0006\\u0007\\b\\t\\n\\u000b\\f\\r\\u000e\\u000f'
        b"\\u0010\\u0011\\u0012\\u0013\\u0014\\u0015\\u0016\\u0017\\u0018\\u0019\\u001a\\u001b\\u001c\\u001d\\u001e\\u001f"
        b' \\"\\\\/\x7f\xc2\x80\xe2\x80\xa8"'
    )
    assert jcs.canonical(text) == jcs.canonical_exact(text) == wanted


# --- against other implementations ------------------------------------------------------------------------------------

_ALPHABET = 'abcxyz019 _-/\\"\n\t\u0000\u001f\u007f\u0080é√\u2028\ue000\uffff𝄞😀'


def random_value(rng: random.Random, depth: int) -> Any:
    """A JSON value within what rfc8785 takes: no integer beyond 2**53 - 1."""
    choice = rng.randrange(10 if depth else 7)
    if choice == 0:
        return rng.choice((None, True, False))
    if choice in (1, 2):
        return rng.choice((0, 1, -1, rng.randint(-(2**53) + 1, 2**53 - 1), rng.randint(-1000, 1000)))
    if choice == 3:
        value = struct.unpack(">d", rng.randbytes(8))[0]
        return value if math.isfinite(value) else 0.5
    if choice == 4:
        return rng.choice((rng.uniform(-1e6, 1e6), float(rng.randint(0, 10)), 10.0 ** rng.randint(-30, 30)))
    if choice in (5, 6):
        return "".join(rng.choices(_ALPHABET, k=rng.randrange(12)))
    if choice == 7:
        return [random_value(rng, depth - 1) for _ in range(rng.randrange(5))]
    return {
        "".join(rng.choices(_ALPHABET, k=rng.randrange(4))): random_value(rng, depth - 1)
        for _ in range(rng.randrange(6))
    }


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.req("R-17.4-01", "R-2-09")
def test_random_documents_are_those_of_rfc8785(scale: Callable[[int, int], int]) -> None:
    seed = 8785
    rng = random.Random(seed)
    for number in range(scale(3_000, 100_000)):
        value = random_value(rng, 4)
        wanted = rfc8785.dumps(value)
        assert jcs.canonical(value) == wanted, f"seed {seed}, document {number}"
        assert jcs.canonical_exact(value) == wanted, f"seed {seed}, document {number}"


@settings(max_examples=500, deadline=None)
@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_read_back_and_are_shortest(value: float) -> None:
    text = jcs.number(value)
    assert float(text) == value
    digits = len(Decimal(text).as_tuple().digits)
    assert digits <= 21
    assert text == rfc8785.dumps(value).decode()


# --- the fast path ----------------------------------------------------------------------------------------------------

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(
        [1.0, -0.0, "\ud800", 203, 207, 211, 0xCB, 2**31, 2**32, 2**53, math.inf, "\u02c0", "\u03c0", "\u04c0"]
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=5),
    max_leaves=15,
)


def answer(way: Callable[[], bytes]) -> Any:
    try:
        return way()
    except JcsFault as fault:
        return fault.reason


@pytest.mark.req("R-17.4-01", "R-2-10")
@settings(max_examples=1000, deadline=None)
@given(value=_VALUES)
def test_the_fast_path_is_the_exact_one(value: Any) -> None:
    assert answer(lambda: jcs.canonical(value)) == answer(lambda: jcs.canonical_exact(value))


@settings(max_examples=300, deadline=None)
@given(value=_VALUES, name=st.text(max_size=4))
def test_structs_are_canonical_like_their_members(value: Any, name: str) -> None:
    members = makers.signed("command") | {"payload": {"x": value, name: 1}}
    command = strict_json.convert(members, Command)
    assert answer(lambda: jcs.canonical(command)) == answer(lambda: jcs.canonical_exact(members))
    assert answer(lambda: jcs.signing_bytes(command)) == answer(lambda: jcs.signing_bytes(members))


@pytest.mark.parametrize("kind", makers.KINDS)
def test_the_fast_path_is_taken_for_ordinary_documents(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def exact(value: Any) -> bytes:
        raise AssertionError("the exact path was taken")

    monkeypatch.setattr(jcs, "canonical_exact", exact)
    document = strict_json.decode(makers.raw(makers.signed(kind)), SIGNED_DOCUMENTS[kind])
    assert jcs.canonical(document) == makers.raw(makers.signed(kind))
    assert jcs.signing_bytes(document) == jcs.canonical(makers.unsigned(kind))


@pytest.mark.req("R-6.4-11", "R-6.4-84")
def test_only_the_top_level_signature_is_dropped() -> None:
    envelope = makers.signed("command")["signature"]
    for payload in (
        {"signature": "x"},
        {"signature": envelope},
        {"a": 1, "signature": envelope, "z": [{"signature": envelope}]},
    ):
        members = {**makers.signed("command"), "payload": payload}
        kept = {name: value for name, value in members.items() if name != "signature"}
        assert jcs.signing_bytes(members) == jcs.canonical_exact(kept)
        assert jcs.signing_bytes(strict_json.convert(members, Command)) == jcs.canonical_exact(kept)
    assert jcs.signing_bytes({"a": 1}) == b'{"a":1}'


@pytest.mark.req("R-6.4-47", "R-2-12")
def test_the_signing_hash() -> None:
    assert jcs.signing_hash(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_what_is_no_json_is_a_programming_error() -> None:
    with pytest.raises(TypeError):
        jcs.canonical_exact({"x": object()})
