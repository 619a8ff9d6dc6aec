"""The scalar types of the normative schemas: what one JSON string or number may look like.

Each alias is one ``$def`` of ``common.schema.json``. Patterns are anchored with ``\\A`` and ``\\Z``, so that a final
line feed never passes (R-2-16). ``format`` is an assertion here, as R-2-19 asks: identifiers are checked against the
grammar of RFC 3986 and timestamps against a real Gregorian date.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

SAFE_INTEGER_MAX = 9_007_199_254_740_991
"""The largest integer that binary64 holds exactly (R-2-13)."""

_ESCAPE = "%[0-9A-Fa-f]{2}"
_PCHARS = r"[A-Za-z0-9._~!$&'()*+,;=:@-]"
_PATH_CHARS = r"[A-Za-z0-9._~!$&'()*+,;=:@/-]"
_QUERY_CHARS = r"[A-Za-z0-9._~!$&'()*+,;=:@/?-]"
_USERINFO_CHARS = r"[A-Za-z0-9._~!$&'()*+,;=:-]"
_REG_NAME_CHARS = r"[A-Za-z0-9._~!$&'()*+,;=-]"


def _run(characters: str) -> str:
    """Any number of these characters and percent escapes, unrolled so that matching is linear and quick."""
    return f"{characters}*(?:{_ESCAPE}{characters}*)*"


_DEC_OCTET = r"(?:[0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])"
_IPV4 = rf"(?:{_DEC_OCTET}(?:\.{_DEC_OCTET}){{3}})"
_H16 = r"[0-9A-Fa-f]{1,4}"
_LS32 = rf"(?:{_H16}:{_H16}|{_IPV4})"
_IPV6 = (
    rf"(?:(?:{_H16}:){{6}}{_LS32}"
    rf"|::(?:{_H16}:){{5}}{_LS32}"
    rf"|(?:{_H16})?::(?:{_H16}:){{4}}{_LS32}"
    rf"|(?:(?:{_H16}:){{0,1}}{_H16})?::(?:{_H16}:){{3}}{_LS32}"
    rf"|(?:(?:{_H16}:){{0,2}}{_H16})?::(?:{_H16}:){{2}}{_LS32}"
    rf"|(?:(?:{_H16}:){{0,3}}{_H16})?::{_H16}:{_LS32}"
    rf"|(?:(?:{_H16}:){{0,4}}{_H16})?::{_LS32}"
    rf"|(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}"
    rf"|(?:(?:{_H16}:){{0,6}}{_H16})?::)"
)
_IP_LITERAL = rf"\[(?:{_IPV6}|v[0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\]"
_AUTHORITY = rf"(?:{_run(_USERINFO_CHARS)}@)?(?:{_IP_LITERAL}|{_run(_REG_NAME_CHARS)})(?::[0-9]*)?"
_ROOTLESS = rf"(?:{_PCHARS}|{_ESCAPE}){_run(_PATH_CHARS)}"
_HIER_PART = rf"(?:{_ROOTLESS}|//{_AUTHORITY}(?:/{_run(_PATH_CHARS)})?|/(?:{_ROOTLESS})?|)"
_AFTER_SCHEME = rf"{_HIER_PART}(?:\?{_run(_QUERY_CHARS)})?(?:#{_run(_QUERY_CHARS)})?"
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*:"
PLAIN_URI = rf"{_SCHEME}{_PCHARS}{_PATH_CHARS}*"
"""A scheme and a rootless path without escapes: nearly every identifier, in few runs of characters."""
URI_PATTERN = rf"\A(?:{PLAIN_URI}\Z|{_SCHEME}{_AFTER_SCHEME}\Z)"
"""An absolute URI of RFC 3986, the whole string (R-2-15, R-2-16)."""

_LEAP_YEAR = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    r"(?:(?!0000)[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    rf"|{_LEAP_YEAR}-02-29)"
)
TIMESTAMP_PATTERN = (
    rf"\A{_DATE}[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?"
    r"(?:[Zz]|(?!-00:00)[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])\Z"
)
"""The timestamp profile: RFC 3339, years 0001 to 9999, no leap second, no unknown offset (R-2-03 to R-2-07)."""

Id = Annotated[str, Meta(pattern=URI_PATTERN, max_length=512)]
Uri = Annotated[str, Meta(pattern=URI_PATTERN)]
WssUri = Annotated[str, Meta(pattern=URI_PATTERN.replace(r"\A", r"\A(?=wss://)", 1))]
Timestamp = Annotated[str, Meta(pattern=TIMESTAMP_PATTERN)]
SafeInteger = Annotated[int, Meta(ge=0, le=SAFE_INTEGER_MAX)]
PositiveInteger = Annotated[int, Meta(ge=1, le=SAFE_INTEGER_MAX)]
Number = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0)]
"""A JSON number from 0; money, cost (units as the member's name says)."""
Fraction = Annotated[int, Meta(ge=0, le=1)] | Annotated[float, Meta(ge=0, le=1)]
ProtocolVersion = Literal["0.1"]
Semver = Annotated[
    str,
    Meta(
        pattern=r"\A(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?\Z",
        max_length=128,
    ),
]
Base64Url = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]+\Z", min_length=2, max_length=4096)]
Sha256 = Annotated[str, Meta(pattern=r"\Asha256:[0-9a-f]{64}\Z")]
IdOrSha256 = Annotated[str, Meta(pattern=rf"(?:{URI_PATTERN}|\Asha256:[0-9a-f]{{64}}\Z)", max_length=512)]
Duration = Annotated[
    str,
    Meta(
        pattern=r"\AP(?!\Z)(?:[0-9]+D)?(?:T(?=[0-9])(?:[0-9]+H)?(?:[0-9]+M)?(?:[0-9]+(?:\.[0-9]+)?S)?)?\Z",
        max_length=64,
    ),
]
EventKindName = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)+\Z", max_length=160)]
ExtensionKind = Annotated[
    str, Meta(pattern=r"\Aext\.[a-z0-9][a-z0-9_-]*(?:\.[a-z0-9][a-z0-9_-]*){2,}\Z", max_length=160)
]
CapabilityId = Annotated[str, Meta(pattern=r"\A[a-z0-9]+(?:[.-][a-z0-9]+)+\Z", max_length=200)]
Currency = Annotated[str, Meta(pattern=r"\A[A-Z]{3}\Z")]
LocalName = Annotated[str, Meta(pattern=r"\A[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}\Z")]
"""A criterion's or deliverable's name inside one contract."""
MediaType = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+\Z")]
Operation = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9._:-]*\Z", max_length=128)]
Scope = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9._:-]*\Z", max_length=160)]
FailureName = Annotated[str, Meta(pattern=r"\A[A-Z][A-Z0-9_]{1,127}\Z")]
ClosureReason = Annotated[
    str,
    Meta(
        pattern="[^\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]",
        min_length=1,
        max_length=512,
    ),
]
"""Not blank, by the white space of ECMA-262, the language of the schemas' patterns."""
Seconds = Annotated[int, Meta(ge=1, le=31_536_000)]
"""A requested length of time in seconds, at most one year; policy cuts it further."""
Text200 = Annotated[str, Meta(min_length=1, max_length=200)]
Text500 = Annotated[str, Meta(min_length=1, max_length=500)]
Text2000 = Annotated[str, Meta(min_length=1, max_length=2000)]
Text4000 = Annotated[str, Meta(min_length=1, max_length=4000)]
Text10000 = Annotated[str, Meta(min_length=1, max_length=10_000)]
Text50000 = Annotated[str, Meta(min_length=1, max_length=50_000)]
Text100000 = Annotated[str, Meta(min_length=1, max_length=100_000)]
