"""One UTF-8 JSON value, read strictly and without loss.

Stage 1 of verification refuses bad UTF-8, a byte order mark, trailing data, duplicate decoded member names, and what
passes the bounds of size and depth (R-6.4-38, R-17.4-02). Nothing else is a stage-1 fault: a number that binary64
cannot hold becomes an infinity and a lone surrogate stays in its string, so that stage 5 can name them (R-6.4-42,
R-6.4-45).

There are two ways to one answer. The exact way is the standard library's scanner with hooks. The fast way lets msgspec
decode straight into the type and believes it only when a few scans prove that nothing was hidden: see :func:`decode`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

import msgspec

from mwnode.protocol.limits import FRAME_BYTES, JSON_DEPTH
from mwnode.protocol.plain_words import plain
from mwnode.protocol.scalars import SAFE_INTEGER_MAX

T = TypeVar("T")

_INFINITY = float("inf")
_SAFE_DIGITS = 16
"""Digits of the largest safe integer; a shorter one is safe unread."""
_INTEGER_DIGITS_MAX = 309
"""Digits of the largest finite binary64 value; a longer integer is out of range unread."""
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKETS_ONLY = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_MARKED = bytes(0x30 if byte in b"0123456789" else 0x5B if byte in b"[{" else 0x20 for byte in range(256))
"""Every digit as 0, every opening bracket as [, all else as a space."""
_LONG_DIGITS = b"0" * 16
_PATH = re.compile(r" - at `\$(.*)`\Z", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[([^\]]*)\]")


class JsonFault(ValueError):
    """A stage-1 fault. ``reason`` is a stable word for logs; the wire code is PROTOCOL_VIOLATION."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class SchemaFault(ValueError):
    """A stage-2 fault: a JSON value that does not fit its type.

    ``path`` is a JSON Pointer to the member (``*`` stands for any key of a free-form object); ``reason`` says what is
    wrong with it. The wire code is SCHEMA_VALIDATION_FAILED.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path or 'the document'}: {reason}")
        self.path = path
        self.reason = reason


# --- numbers and names ------------------------------------------------------------------------------------------------


def _real(text: str) -> int | float:
    """A number with a fraction or exponent; ``1.0`` is the integer 1, as in JSON Schema and RFC 8785."""
    value = float(text)
    if value.is_integer() and -SAFE_INTEGER_MAX <= value <= SAFE_INTEGER_MAX:
        return int(value)
    return value


def _integer(text: str) -> int | float:
    """An integer beyond the safe ones is the binary64 value that it is signed as (R-2-09)."""
    if len(text) < _SAFE_DIGITS:
        return int(text)
    if len(text) <= _INTEGER_DIGITS_MAX + 1:
        value = int(text)
        if -SAFE_INTEGER_MAX <= value <= SAFE_INTEGER_MAX:
            return value
        with suppress(OverflowError):
            return float(value)
    return -_INFINITY if text[0] == "-" else _INFINITY


def _constant(text: str) -> NoReturn:
    raise JsonFault("syntax", f"{text} is not JSON")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise JsonFault("duplicate-member", "an object repeats a member name")
    return members


_EXACT = json.JSONDecoder(
    object_pairs_hook=_members, parse_float=_real, parse_int=_integer, parse_constant=_constant, strict=True
)


def depth_within(raw: bytes, depth_max: int) -> bool:
    """Whether well-formed JSON is nested no deeper than the bound, in at most ``depth_max`` scans."""
    if raw.count(b"[") + raw.count(b"{") <= depth_max:
        return True
    brackets = _STRING.sub(b"", raw).translate(_BRACKETS_ONLY, _NOT_BRACKETS)
    # Each pass takes the innermost level away, so what outlives depth_max passes is nested deeper than that.
    for _ in range(depth_max):
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return True
    return False


def parse(raw: bytes, *, depth_max: int = JSON_DEPTH, bytes_max: int = FRAME_BYTES) -> Any:
    """The exact parser: plain dict, list, str, int, float, bool and None. Raises :class:`JsonFault`.

    A float that equals a safe integer comes back as that integer, an integer beyond the safe ones as its binary64
    value, a number outside binary64 as an infinity, and a lone surrogate as itself.
    """
    if len(raw) > bytes_max:
        raise JsonFault("too-large", f"{len(raw)} bytes are more than the limit of {bytes_max}")
    if raw.startswith(b"\xef\xbb\xbf"):
        raise JsonFault("byte-order-mark", "JSON text starts without a byte order mark")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise JsonFault("invalid-utf8", f"byte {fault.start} is not UTF-8") from None
    try:
        value = _EXACT.decode(text)
    except json.JSONDecodeError as fault:
        reason = "trailing-data" if fault.msg == "Extra data" else "syntax"
        raise JsonFault(reason, f"{fault.msg} at character {fault.pos}") from None
    except RecursionError:
        raise JsonFault("too-deep", f"arrays and objects are nested deeper than {depth_max}") from None
    if not depth_within(raw, depth_max):
        raise JsonFault("too-deep", f"arrays and objects are nested deeper than {depth_max}")
    return value


# --- into types -------------------------------------------------------------------------------------------------------


def pointer(message: str) -> tuple[str, str]:
    """Split a msgspec error text into a JSON Pointer and what is wrong there, in plain words."""
    message = plain(message)
    match = _PATH.search(message)
    if match is None:
        return "", message
    steps = (
        "*" if index == "..." else name.replace("~", "~0").replace("/", "~1") if name else index
        for name, index in _STEP.findall(match[1])
    )
    return "".join(f"/{step}" for step in steps), message[: match.start()]


def convert(value: Any, kind: Any) -> Any:
    """A parsed JSON value as a typed one. Raises :class:`SchemaFault`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as fault:
        raise SchemaFault(*pointer(str(fault))) from None
    except UnicodeEncodeError:
        # Only a member name is ever encoded here, and no declared name holds a lone surrogate.
        raise SchemaFault("", "Object contains a member name that is not well-formed Unicode") from None


_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def decoder_of(kind: Any) -> msgspec.json.Decoder[Any]:
    """A msgspec decoder, made once for each type."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        decoder = _DECODERS[kind] = msgspec.json.Decoder(kind, float_hook=_real)
    return decoder


_encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode


def nothing_hidden(raw: bytes, encoded: bytes, depth_max: int) -> bool:
    """Whether a msgspec decoding of ``raw``, encoded again as ``encoded``, is proven to be the exact one.

    msgspec is strict about everything but these: it keeps the last of duplicate members in silence, it reads integers
    of any length, and its bound of nesting is not ours. When the encoder gives the very bytes back, nothing was
    dropped. Otherwise: a dropped member loses its colon; the encoder adds none; and with no ``\\u`` escape in the text,
    a colon inside a string is a plain colon before and after. So equal counts mean that nothing was dropped.
    """
    if raw != encoded and (raw.count(b":") != encoded.count(b":") or (b"\\" in raw and b"\\u" in raw)):
        return False
    marked = raw.translate(_MARKED)
    # Sixteen digits in a row may be more than a safe integer; without them every integer is one (R-2-13).
    return _LONG_DIGITS not in marked and (marked.count(b"[") <= depth_max or depth_within(raw, depth_max))


def decode(raw: bytes, kind: type[T], *, depth_max: int = JSON_DEPTH, bytes_max: int = FRAME_BYTES) -> T:
    """JSON text as a typed value. Raises :class:`JsonFault` (stage 1) before :class:`SchemaFault` (stage 2).

    The result is always that of ``convert(parse(raw), kind)``; ordinary input gets there about three times faster.
    ``kind`` must forbid unknown members and hold neither ``Raw`` nor bytes, dates or decimals.
    """
    if len(raw) <= bytes_max:
        try:
            value: T = decoder_of(kind).decode(raw)
            if nothing_hidden(raw, _encode(value), depth_max):
                return value
        except (msgspec.MsgspecError, ValueError, RecursionError):
            # The exact way below names the fault, or finds that there is none.
            pass
    converted: T = convert(parse(raw, depth_max=depth_max, bytes_max=bytes_max), kind)
    return converted


def trusted(raw: bytes, kind: type[T]) -> T:
    """Canonical bytes of our own as a typed value: that of :func:`decode`, without looking for what is never in them.

    Integers beyond the safe ones come back as binary64 values. msgspec alone would keep them, so that what was folded
    from the log would not be what was folded from the Command, and could not even be stored. Raises
    msgspec.MsgspecError.
    """
    value: T = decoder_of(kind).decode(raw)
    if _LONG_DIGITS not in raw.translate(_MARKED):
        return value
    try:
        exact: T = msgspec.convert(parse(raw, depth_max=len(raw), bytes_max=len(raw)), kind)
    except JsonFault as fault:
        raise msgspec.DecodeError(str(fault)) from fault
    return exact


# --- writing what was parsed ------------------------------------------------------------------------------------------


def write(value: Any) -> bytes:
    """JSON text of a parsed value, such that :func:`parse` gives the same value back.

    For relaying only: unlike RFC 8785 it also writes what stage 5 refuses (infinities as ``1e400``, surrogates).
    """
    return _write(value).encode("ascii")


def _write(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_write(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_write, value)) + "]"
    if isinstance(value, float) and value in (_INFINITY, -_INFINITY):
        return "1e400" if value > 0 else "-1e400"
    return json.dumps(value)
