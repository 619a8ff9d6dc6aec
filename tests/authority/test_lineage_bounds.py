"""What lies within what: capabilities by version, permissions by resource and operation."""

from __future__ import annotations

from typing import Any

import pytest

from mwnode.authority.capabilities import covers, precedence, satisfies
from mwnode.authority.permissions import first_excess
from mwnode.protocol.documents import CapabilityRef, ResourceGrant


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


def grant(resource: str, *operations: str, **constraints: Any) -> ResourceGrant:
    if constraints:
        return ResourceGrant(resource=resource, operations=operations, constraints=constraints)
    return ResourceGrant(resource=resource, operations=operations)


@pytest.mark.req("R-14-08", "R-14-09")
@pytest.mark.parametrize(
    "asked, granted, excess",
    [
        ([], [], None),
        ([grant("urn:x:a", "read")], [grant("urn:x:a", "read", "write")], None),
        ([grant("urn:x:a", "read", "write")], [grant("urn:x:a", "read"), grant("urn:x:a", "write")], None),
        ([grant("urn:x:a", "read", "delete")], [grant("urn:x:a", "read", "write")], ("urn:x:a", "delete")),
        ([grant("urn:x:b", "read")], [grant("urn:x:a", "read")], ("urn:x:b", "read")),
        ([grant("urn:x:a", "read")], [], ("urn:x:a", "read")),
        ([grant("urn:x:a", "read")], [grant("urn:x:a", "read", branch="main")], ("urn:x:a", "read")),
        ([grant("urn:x:a", "read", branch="main")], [grant("urn:x:a", "read", branch="main")], None),
        ([grant("urn:x:a", "read", branch="main")], [grant("urn:x:a", "read")], None),
    ],
    ids=str,
)
def test_permissions_are_a_subset_by_resource_and_operation(asked: Any, granted: Any, excess: Any) -> None:
    assert first_excess(asked, granted) == excess
