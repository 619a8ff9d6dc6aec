"""Points in time, exactly.

The protocol's timestamp profile is RFC 3339 with any number of fractional digits and any numeric offset, years 0001 to
9999, no leap second and no unknown offset (R-2-03 to R-2-07). A timestamp's text is never rewritten: it is kept beside
the :class:`Instant` it names (R-2-08).
"""

from __future__ import annotations

import re
from datetime import date
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from mwnode.protocol.scalars import TIMESTAMP_PATTERN

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_TIMESTAMP = re.compile(TIMESTAMP_PATTERN)
_DURATION = re.compile(
    r"P(?!\Z)(?:(?P<days>[0-9]+)D)?"
    r"(?:T(?=[0-9])(?:(?P<hours>[0-9]+)H)?(?:(?P<minutes>[0-9]+)M)?(?:(?P<seconds>[0-9]+(?:\.[0-9]+)?)S)?)?\Z"
)
_TEXT_MAX = 4096


@lru_cache(maxsize=64)
def _day_text(ordinal: int) -> str:
    return date.fromordinal(ordinal).isoformat()


class Instant(NamedTuple):
    """A point in time. Tuples compare as instants do, to the last digit (R-2-06).

    ``seconds`` counts from 1970-01-01T00:00:00Z without leap seconds and may be negative; ``fraction`` holds the
    decimal digits after the point, without trailing zeros, and always moves forward in time.
    """

    seconds: int
    fraction: str = ""

    def text(self) -> str:
        """The UTC spelling with an upper-case ``Z``. Raises ValueError outside the years 0001 to 9999."""
        days, rest = divmod(self.seconds, 86_400)
        ordinal = days + _EPOCH_DAY
        if not 1 <= ordinal <= 3_652_059:
            raise ValueError("the instant lies outside the years 0001 to 9999 in UTC")
        hours, rest = divmod(rest, 3600)
        minutes, seconds = divmod(rest, 60)
        point = f".{self.fraction}" if self.fraction else ""
        return f"{_day_text(ordinal)}T{hours:02}:{minutes:02}:{seconds:02}{point}Z"

    def plus(self, seconds: int) -> Instant:
        """The instant ``seconds`` later (earlier when negative)."""
        return Instant(self.seconds + seconds, self.fraction)

    def whole_microseconds(self) -> int:
        """Microseconds since 1970-01-01T00:00:00Z, digits beyond the sixth cut off."""
        return self.seconds * 1_000_000 + int(self.fraction[:6].ljust(6, "0"))


EARLIEST = Instant(-62_135_596_800)
"""0001-01-01T00:00:00Z."""
LATEST = Instant(253_402_300_799, "9" * 9)
"""The last nanosecond of the year 9999 in UTC."""


def from_microseconds(microseconds: int) -> Instant:
    """The instant that many microseconds after 1970-01-01T00:00:00Z."""
    seconds, rest = divmod(microseconds, 1_000_000)
    return Instant(seconds, f"{rest:06}".rstrip("0") if rest else "")


def _parse(text: str) -> Instant:
    if _TIMESTAMP.match(text) is None:
        raise ValueError("not a timestamp: RFC 3339 with a known offset, years 0001 to 9999 and seconds 00 to 59")
    day = date(int(text[0:4]), int(text[5:7]), int(text[8:10])).toordinal() - _EPOCH_DAY
    seconds = day * 86_400 + int(text[11:13]) * 3600 + int(text[14:16]) * 60 + int(text[17:19])
    if text[-1] in "Zz":
        digits = text[20:-1]
    else:
        digits = text[20:-6]
        offset = int(text[-5:-3]) * 3600 + int(text[-2:]) * 60
        seconds += offset if text[-6] == "-" else -offset
    return Instant(seconds, digits.rstrip("0"))


@lru_cache(maxsize=1024)
def _whole_second(text: str) -> int:
    """Seconds of a timestamp's text up to its seconds, read as UTC."""
    return _parse(text + "Z").seconds


def _parse_utc(text: str) -> Instant:
    # Many timestamps of a second follow one another, each with a fraction of its own.
    digits = text[20:-1]
    if text[-1:] == "Z" and text[19:20] == "." and digits.isascii() and digits.isdigit():
        return Instant(_whole_second(text[:19]), digits.rstrip("0"))
    return _parse(text)


_parse_cached = lru_cache(maxsize=8192)(_parse_utc)


def parse(text: str) -> Instant:
    """The instant a timestamp names. Raises ValueError outside the profile (R-2-03 to R-2-07)."""
    # Absurdly long fractions are legal; they are just not worth remembering.
    return _parse_cached(text) if len(text) <= _TEXT_MAX // 32 else _parse(text)


def parse_duration(text: str) -> int | Fraction:
    """The length of a ``duration`` of the schemas in seconds: days, hours, minutes, seconds. ``P1D`` is 86,400."""
    match = _DURATION.match(text) if len(text) <= 64 else None
    if match is None:
        raise ValueError("not a duration: days and a time of hours, minutes and seconds, such as P1DT2H30M")
    seconds = Fraction(match["seconds"] or 0)
    seconds += int(match["days"] or 0) * 86_400 + int(match["hours"] or 0) * 3600 + int(match["minutes"] or 0) * 60
    return int(seconds) if seconds.denominator == 1 else seconds
