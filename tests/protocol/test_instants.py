"""Instants: exact to the last digit, text untouched."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mwnode.protocol import instants
from mwnode.protocol.instants import EARLIEST, LATEST, Instant, from_microseconds, parse, parse_duration
from tests.protocol.oracle import is_timestamp

_DIGITS = st.text("0123456789", max_size=40)


def exact(text: str) -> Fraction:
    """Seconds since 1970 by datetime and rational numbers: slow, and independent of the code under test."""
    match = re.fullmatch(r"(.{10})[Tt](.{8})(?:\.([0-9]+))?(?:[Zz]|([+-])(..):(..))", text)
    assert match is not None
    whole = datetime.fromisoformat(f"{match[1]}T{match[2]}+00:00") - datetime(1970, 1, 1, tzinfo=UTC)
    seconds = Fraction(whole.days * 86_400 + whole.seconds)
    if match[3]:
        seconds += Fraction(int(match[3]), 10 ** len(match[3]))
    if match[4]:
        offset = int(match[5]) * 3600 + int(match[6]) * 60
        seconds += offset if match[4] == "-" else -offset
    return seconds


@st.composite
def timestamps(draw: st.DrawFn) -> str:
    moment = draw(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59)))
    text = moment.strftime("%m-%d") + draw(st.sampled_from("Tt")) + moment.strftime("%H:%M:%S")
    digits = draw(_DIGITS)
    offset = draw(st.sampled_from(["Z", "z", "+00:00", "+23:59", "-23:59", "+05:30", "-08:00"]))
    return f"{moment.year:04}-{text}{'.' + digits if digits else ''}{offset}"


@pytest.mark.req("R-2-06", "R-2-07")
@settings(max_examples=400)
@given(first=timestamps(), second=timestamps())
def test_instants_compare_as_exact_numbers_do(first: str, second: str) -> None:
    a, b = parse(first), parse(second)
    assert (a < b) == (exact(first) < exact(second))
    assert (a == b) == (exact(first) == exact(second))
    assert a.seconds + Fraction(int(a.fraction or 0), 10 ** len(a.fraction)) == exact(first)


@pytest.mark.req("R-2-06")
def test_every_digit_counts_and_trailing_zeros_do_not() -> None:
    digits = "1" * 29
    assert parse(f"2026-01-01T00:00:00.{digits}1Z") < parse(f"2026-01-01T00:00:00.{digits}2Z")
    assert parse("2026-01-01T00:00:00.5Z") == parse("2026-01-01T00:00:00.500Z")
    assert parse("2026-01-01T00:00:00Z") == parse("2026-01-01T00:00:00.0Z")
    assert parse("2026-01-01T00:00:00.49Z") < parse("2026-01-01T00:00:00.5Z")
    assert parse("2026-01-01T00:00:00.05Z") < parse("2026-01-01T00:00:00.5Z")
    long = "2026-01-01T00:00:00." + "9" * 100_000 + "Z"
    assert parse(long) < parse("2026-01-01T00:00:01Z")


@pytest.mark.req("R-2-04", "R-2-05", "R-2-07")
@pytest.mark.parametrize(
    "text",
    [
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999Z",
        "2024-02-29T00:00:00Z",
        "2000-02-29T00:00:00Z",
        "2026-07-15t08:00:00z",
        "2026-07-15T08:00:00+23:59",
        "2026-07-15T08:00:00-23:59",
        "2026-07-15T08:00:00+00:00",
    ],
)
def test_what_the_profile_takes(text: str) -> None:
    assert parse(text).seconds == exact(text).__floor__()
    assert is_timestamp(text)


@pytest.mark.req("R-2-03", "R-2-04", "R-2-05")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-01-01 10:00",
        "2026-01-01T10:00Z",
        "2026-01-01T10:00:00",
        "2026-01-01T10:00:00.Z",
        "2026-01-01T10:00:00-00:00",
        "2026-01-01T10:00:00+24:00",
        "2026-01-01T10:00:00+10:60",
        "2026-01-01T10:00:00+0100",
        "2026-01-01T24:00:00Z",
        "2026-01-01T10:60:00Z",
        "2016-12-31T23:59:60Z",
        "2025-02-29T00:00:00Z",
        "1900-02-29T00:00:00Z",
        "2026-04-31T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-00-01T00:00:00Z",
        "2026-01-00T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "02026-01-01T00:00:00Z",
        "2026-01-01T10:00:00Z\n",
        " 2026-01-01T10:00:00Z",
        "\uff12026-01-01T10:00:00Z",
        "2026-01-01T10:00:00.5 Z",
    ],
)
def test_what_the_profile_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="not a timestamp"):
        parse(text)
    assert not is_timestamp(text)


@settings(max_examples=300)
@given(text=st.text("0123456789-:.TtZz+ ", max_size=30) | timestamps().map(lambda it: it[:-1]) | timestamps())
def test_the_pattern_and_an_independent_reading_agree(text: str) -> None:
    try:
        parse(text)
    except ValueError:
        assert not is_timestamp(text)
    else:
        assert is_timestamp(text)


@given(text=timestamps())
def test_the_utc_text_names_the_same_instant(text: str) -> None:
    instant = parse(text)
    if EARLIEST <= instant <= LATEST:
        assert parse(instant.text()) == instant
        assert instant.text().endswith("Z")
    else:
        with pytest.raises(ValueError, match="outside the years"):
            instant.text()


@given(microseconds=st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999), seconds=st.integers(-(10**9), 10**9))
def test_microseconds_and_sums(microseconds: int, seconds: int) -> None:
    instant = from_microseconds(microseconds)
    assert instant.whole_microseconds() == microseconds
    assert parse(instant.text()) == instant
    assert instant.plus(seconds).whole_microseconds() == microseconds + seconds * 1_000_000
    moment = datetime(1970, 1, 1) + timedelta(microseconds=microseconds)
    assert instant.text()[:19] == moment.isoformat()[:19]


def test_digits_beyond_the_sixth_are_cut_not_rounded() -> None:
    assert parse("1970-01-01T00:00:00.9999999Z").whole_microseconds() == 999_999
    assert Instant(-1, "5").whole_microseconds() == -500_000


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("PT1M", 60),
        ("P1D", 86_400),
        ("P1DT2H3M4S", 93_784),
        ("PT0S", 0),
        ("PT1.5S", Fraction(3, 2)),
        ("PT0.000000000000000000001S", Fraction(1, 10**21)),
        ("P2DT1M", 172_860),
    ],
)
def test_durations(text: str, seconds: int | Fraction) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1DT", "1D", "P1W", "P-1D", "PT1S\n", "P1Y", "PT1M1H", "P1.5D", "P" + "1" * 70 + "D"]
)
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


def test_parsing_again_gives_the_same_object() -> None:
    assert parse("2026-01-01T00:00:00Z") is parse("2026-01-01T00:00:00Z")
    assert instants.parse is parse
