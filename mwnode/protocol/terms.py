"""What mwnode says in the free ``constraints`` of a Work Contract and in its own extension data.

Read from whoever wrote them: what has another shape there is as good as absent (decision F18).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType

from mwnode.protocol.documents import Extension, WorkContract
from mwnode.protocol.identifiers import CORE_EXTENSION


def of(contract: WorkContract) -> Mapping[str, Any]:
    """All of the constraints."""
    return {} if contract.constraints is UNSET else contract.constraints


def text(contract: WorkContract, name: str) -> str | None:
    """A constraint that is a text: ``localId``, ``run``."""
    value = of(contract).get(name)
    return value if isinstance(value, str) else None


def table(contract: WorkContract, name: str) -> Mapping[str, Any]:
    """A constraint that is an object: ``deliverables``, ``checks``."""
    value = of(contract).get(name)
    return value if isinstance(value, Mapping) else {}


def entries(contract: WorkContract, name: str) -> list[Mapping[str, Any]]:
    """A constraint that is an array of objects: ``inputs``, ``clarifications``."""
    value = of(contract).get(name)
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list | tuple) else []


def path_in(entry: object) -> str | None:
    """The path that an entry of ``inputs`` or ``deliverables`` gives."""
    path = entry.get("path") if isinstance(entry, Mapping) else None
    return path if isinstance(path, str) and path else None


def paths_in(value: object) -> list[str]:
    """The paths of all entries of such an array."""
    found = [path_in(entry) for entry in value] if isinstance(value, list | tuple) else []
    return [path for path in found if path is not None]


def deliverable_path(contract: WorkContract, deliverable_id: str) -> str | None:
    """Under which file a deliverable is expected, where the contract says so."""
    return path_in(table(contract, "deliverables").get(deliverable_id))


def core_data(extensions: Mapping[str, Extension] | UnsetType) -> Mapping[str, Any]:
    """mwnode's own extension data of a document."""
    found = None if extensions is UNSET else extensions.get(CORE_EXTENSION)
    return found.data if found is not None and isinstance(found.data, Mapping) else {}
