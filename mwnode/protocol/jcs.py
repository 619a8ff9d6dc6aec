"""RFC 8785, the JSON Canonicalization Scheme: the bytes that are hashed and signed (R-17.4-01).

msgspec's sorted encoding already is RFC 8785 where every number is a safe integer and no member name reaches beyond
the Basic Multilingual Plane; :func:`plain` tells when. Everything else takes the exact path: UTF-16 order of names,
ECMAScript numbers, integers beyond 2**53 rounded to binary64 (R-2-09), and a :class:`JcsFault` for what the data model
does not hold (R-2-10).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any

import msgspec
from msgspec import Struct

_encode: Callable[[Any], bytes] = msgspec.json.Encoder(order="sorted").encode
_pack: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
_ASTRAL = re.compile(rb"[\xf0-\xff]")
_EXACT_INTEGER_MAX = 2**53
_REPR = re.compile(r"(\d+)(?:\.(\d+))?(?:e([+-]\d+))?\Z")


class JcsFault(ValueError):
    """A stage-5 fault: a value outside the JCS data model. The wire code is PROTOCOL_VIOLATION."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


# --- the exact path ---------------------------------------------------------------------------------------------------


def number(value: int | float) -> str:
    """A number as ECMAScript prints the nearest binary64 value. Raises :class:`JcsFault` if there is none."""
    if isinstance(value, int):
        if -_EXACT_INTEGER_MAX <= value <= _EXACT_INTEGER_MAX:
            return str(int(value))
        try:
            value = float(value)
        except OverflowError:
            raise JcsFault("number-out-of-range", "a number lies outside binary64") from None
    if value == 0:
        return "0"
    if value - value != 0:
        raise JcsFault("number-out-of-range", "a number lies outside binary64")
    sign = "-" if value < 0 else ""
    match = _REPR.match(repr(abs(value)))
    assert match is not None, "Python prints a finite float as digits, a point and an exponent"
    whole, fraction, exponent = match[1], match[2] or "", int(match[3] or 0)
    digits = (whole + fraction).lstrip("0")
    # The value is 0.DIGITS times ten to the power of `point`.
    point = len(whole) + exponent - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    count = len(digits)
    if count <= point <= 21:
        return f"{sign}{digits}{'0' * (point - count)}"
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    mantissa = digits if count == 1 else f"{digits[0]}.{digits[1:]}"
    return f"{sign}{mantissa}e{'+' if point > 0 else '-'}{abs(point - 1)}"


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be")


def _write(value: Any, out: list[str]) -> None:
    if isinstance(value, str):
        out.append(encode_basestring(value))
    elif value is True:
        out.append("true")
    elif value is False:
        out.append("false")
    elif value is None:
        out.append("null")
    elif isinstance(value, (int, float)):
        out.append(number(value))
    elif isinstance(value, dict):
        separator = "{"
        for name in sorted(value, key=_utf16):
            out.append(f"{separator}{encode_basestring(name)}:")
            _write(value[name], out)
            separator = ","
        out.append("}" if value else "{}")
    elif isinstance(value, (list, tuple)):
        separator = "["
        for item in value:
            out.append(separator)
            _write(item, out)
            separator = ","
        out.append("]" if value else "[]")
    else:
        raise TypeError(f"{type(value).__name__} is not a JSON value")


def canonical_exact(value: Any) -> bytes:
    """The canonical bytes of any JSON value or Struct, the long way. Raises :class:`JcsFault`."""
    out: list[str] = []
    try:
        _write(msgspec.to_builtins(value, str_keys=True) if isinstance(value, Struct) else value, out)
        return "".join(out).encode("utf-8")
    except UnicodeEncodeError:
        raise JcsFault("lone-surrogate", "a string holds a lone surrogate") from None


# --- the fast path ----------------------------------------------------------------------------------------------------


def plain(value: Any, encoded: bytes) -> bool:
    """Whether ``encoded``, the sorted encoding of ``value``, is its canonical form.

    In MessagePack 0xCB announces a float, 0xCF and 0xD3 an integer beyond 32 bits. Those bytes also occur inside
    numbers and text, which costs time but never truth; where none occurs, there is no such number.
    """
    try:
        packed = _pack(value)
    except (ValueError, OverflowError):
        return False
    if b"\xcb" in packed or b"\xcf" in packed or b"\xd3" in packed:
        return False
    return encoded.isascii() or names_sort_alike(encoded)


def names_sort_alike(text: bytes) -> bool:
    """Whether code points and UTF-16 units sort the names of a JSON text alike: so they do within the BMP."""
    return _ASTRAL.search(text) is None


def canonical(value: Any) -> bytes:
    """The canonical bytes of a JSON value, or of a Struct of them. Raises :class:`JcsFault`."""
    try:
        encoded = _encode(value)
        if plain(value, encoded):
            return encoded
    except (ValueError, OverflowError):
        # A lone surrogate, or an integer too large for msgspec: the exact path says which.
        pass
    return canonical_exact(value)


_SIGNATURE_MEMBER = b',"signature":{'


def cut_signature(encoded: bytes) -> bytes | None:
    """A signed document's canonical bytes without its top-level ``signature``; None when that takes a closer look.

    Inside a string the quotes of the name would be escaped, so these bytes are a member. Nested ones stay (R-6.4-11),
    so this one must be the top-level one: it is when the text behind it closes one object only, or when there is no
    other (no signed document begins with it). No member of the envelope can hold a brace.
    """
    start = encoded.rfind(_SIGNATURE_MEMBER)
    if start < 0:
        return None
    end = encoded.index(b"}", start) + 1
    if encoded.count(b"}", end) != 1 and encoded.find(_SIGNATURE_MEMBER) != start:
        return None
    return encoded[:start] + encoded[end:]


def signing_bytes(document: Struct | dict[str, Any]) -> bytes:
    """What is signed: the canonical document without exactly its top-level ``signature`` (R-6.4-42, R-6.4-84)."""
    if isinstance(document, dict):
        return canonical({name: value for name, value in document.items() if name != "signature"})
    try:
        if isinstance(getattr(document, "signature", None), Struct):
            encoded = _encode(document)
            if plain(document, encoded) and (cut := cut_signature(encoded)) is not None:
                return cut
    except (ValueError, OverflowError):
        # As in `canonical`: the exact path says what is wrong.
        pass
    members = msgspec.to_builtins(document, str_keys=True)
    members.pop("signature", None)
    return canonical(members)


def signing_hash(signing: bytes) -> str:
    """The signing hash of signing bytes: ``sha256:`` and lower-case hexadecimal (R-6.4-47, R-2-12)."""
    return f"sha256:{hashlib.sha256(signing).hexdigest()}"
