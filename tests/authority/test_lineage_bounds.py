"""What lies within what: permissions by resource and operation."""

from __future__ import annotations

from typing import Any

import pytest

from mwnode.authority.permissions import first_excess
from mwnode.protocol.documents import ResourceGrant


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
