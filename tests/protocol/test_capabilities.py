"""Which capability is good for which, by version."""

from __future__ import annotations

import pytest

from mwnode.protocol.capabilities import covers, matches, precedence, satisfies
from mwnode.protocol.documents import CapabilityRef


def capability(version: str, name: str = "example.build") -> CapabilityRef:
    return CapabilityRef(id=name, version=version)


@pytest.mark.parametrize(
    "held, required, good",
    [
        ("1.2.3", "1.2.3", True),
        ("1.2.4", "1.2.3", True),
        ("1.10.0", "1.9.0", True),
        ("1.2.2", "1.2.3", False),
        ("2.0.0", "1.2.3", False),
        ("1.2.3", "2.0.0", False),
        ("0.3.1", "0.3.0", True),
        ("0.4.0", "0.3.0", False),
        ("1.0.0-rc.1", "1.0.0", False),
        ("1.0.0", "1.0.0-rc.1", True),
        ("1.0.0+build.7", "1.0.0", True),
    ],
)
def test_a_capability_satisfies_from_its_version_on_within_its_line(held: str, required: str, good: bool) -> None:
    assert satisfies(capability(held), capability(required)) is good
    assert not satisfies(capability(held, "example.other"), capability(required))


def test_versions_sort_as_semantic_versions_do() -> None:
    order = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0"]
    backwards = list(reversed(order))
    assert sorted(backwards, key=precedence) == order


def test_all_that_is_required_must_be_held() -> None:
    held = [capability("1.2.0"), capability("1.0.0", "example.test")]
    assert covers(held, [capability("1.1.0"), capability("1.0.0", "example.test")])
    assert not covers(held, [capability("1.1.0"), capability("1.0.0", "example.sign")])
    assert covers([], [])


def test_matches_name_what_is_held_in_the_order_of_what_is_required() -> None:
    held = [capability("1.2.0"), capability("1.0.1", "example.test")]
    required = [capability("1.0.0", "example.test"), capability("1.1.0")]
    assert matches(held, required) == (held[1], held[0])
    assert matches(held, [capability("1.3.0")]) is None
    assert matches([], []) == ()
