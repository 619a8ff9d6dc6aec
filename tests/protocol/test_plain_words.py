"""No pattern reaches a person."""

from __future__ import annotations

from typing import Any, get_args, get_origin

import msgspec
import pytest

from mwnode.protocol import scalars
from mwnode.protocol.plain_words import plain
from mwnode.protocol.strict_json import SchemaFault, convert

PATTERNED = {
    name: alias
    for name, alias in vars(scalars).items()
    if get_args(alias) and any(getattr(meta, "pattern", None) for meta in get_args(alias)[1:])
}


@pytest.mark.parametrize("name", PATTERNED)
def test_every_scalar_has_words_of_its_own(name: str) -> None:
    kind: Any = PATTERNED[name]
    assert get_origin(kind) is not None or kind
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert("\t" if name == "ClosureReason" else "?! no\n", kind)
    told = plain(str(raised.value))
    assert told.startswith("Expected ")
    assert "regex" not in told
    assert "another form" not in told


def test_a_fault_keeps_its_place_and_loses_its_pattern() -> None:
    with pytest.raises(SchemaFault) as raised:
        convert({"x": ["no"]}, dict[str, list[scalars.Sha256]])
    assert raised.value.path == "/*/0"
    assert raised.value.reason == "Expected sha256: and 64 lowercase hexadecimal digits"


@pytest.mark.parametrize("pattern", ["a(b|c)", "it's", "both ' and \"", "\\Aback\\Z"])
def test_other_patterns_are_not_shown_either(pattern: str) -> None:
    quoted = f"Expected `str` matching regex {pattern!r} - at `$.x`"
    assert plain(quoted) == "Expected another form of text - at `$.x`"
    assert plain("Expected `int`") == "Expected `int`"
