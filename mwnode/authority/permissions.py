"""Whether what is asked lies within what was granted: per resource and operation (R-14-08, R-14-09, decision D20)."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET

from mwnode.protocol.documents import ResourceGrant


def _allows(granted: ResourceGrant, resource: str, operation: str, asked: ResourceGrant) -> bool:
    if granted.resource != resource or operation not in granted.operations:
        return False
    # Nobody can tell which of two constraint objects is narrower, so one that was granted is passed on as it is.
    return granted.constraints is UNSET or granted.constraints == asked.constraints


def first_excess(asked: Iterable[ResourceGrant], granted: Iterable[ResourceGrant]) -> tuple[str, str] | None:
    """The first resource and operation that is asked and not granted, or ``None``."""
    granted = tuple(granted)
    for grant in asked:
        for operation in grant.operations:
            if not any(_allows(held, grant.resource, operation, grant) for held in granted):
                return grant.resource, operation
    return None
