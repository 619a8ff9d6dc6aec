"""What every protocol object is: a closed, frozen struct, with the array rules of JSON Schema that types lack."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, dataclass_transform

import msgspec
from msgspec import UNSET, Struct, UnsetType

PrincipalType = Literal["agent", "human", "service"]
Classification = Literal["public", "internal", "confidential", "restricted"]
JsonObject = dict[str, Any]


# Says to type checkers what msgspec does by inheritance: every subclass is frozen and takes members by name only.
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Document(
    Struct,
    frozen=True,
    rename="camel",
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
    eq=True,
    gc=False,  # a frozen document is never part of a cycle; not tracking it saves a tenth of the hot path
):
    """Base of every protocol object: closed, immutable, camel case on the wire."""


def require_unique(name: str, values: Iterable[Any]) -> None:
    """Refuse a repeated entry (JSON Schema ``uniqueItems``)."""
    seen: set[bytes | str] = set()
    for value in values:
        key = value if type(value) is str else msgspec.json.encode(value, order="sorted")
        if key in seen:
            raise ValueError(f"{name} repeats an entry")
        seen.add(key)


def require_some(name: str, values: tuple[Any, ...] | UnsetType) -> None:
    """Refuse an empty array (JSON Schema ``minItems`` 1)."""
    if values is not UNSET and not values:
        raise ValueError(f"{name} must have at least one entry")
