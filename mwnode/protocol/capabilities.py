"""Whether one capability satisfies another: same ID, same major version, not older (decision D9)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from mwnode.protocol.documents import CapabilityRef, CardCapability

_Precedence = tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]


@lru_cache(maxsize=1024)
def precedence(version: str) -> _Precedence:
    """A semantic version as something that sorts by precedence: build metadata is ignored, a pre-release comes before
    its release, numeric identifiers before others."""
    core, _, rest = version.partition("+")[0].partition("-")
    major, minor, patch = (int(part) for part in core.split("."))
    identifiers = tuple(
        (not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in rest.split(".") if rest
    )
    return major, minor, patch, not rest, identifiers


def satisfies(held: CapabilityRef | CardCapability, required: CapabilityRef | CardCapability) -> bool:
    """Whether ``held`` is good for ``required``. Versions 0.x promise nothing across minor versions."""
    if held.id != required.id:
        return False
    have, need = precedence(held.version), precedence(required.version)
    same_line = have[0] == need[0] and (have[0] > 0 or have[1] == need[1])
    return same_line and have >= need


def covers(held: Iterable[CapabilityRef | CardCapability], required: Iterable[CapabilityRef]) -> bool:
    """Whether every required capability is satisfied by one that is held."""
    held = tuple(held)
    return all(any(satisfies(one, need) for one in held) for need in required)


def matches(
    held: Iterable[CapabilityRef | CardCapability], required: Sequence[CapabilityRef]
) -> tuple[CapabilityRef, ...] | None:
    """What is held for each required capability, in their order; ``None`` when one of them is not satisfied."""
    held = tuple(held)
    found = [next((one for one in held if satisfies(one, need)), None) for need in required]
    return None if None in found else tuple(CapabilityRef(id=one.id, version=one.version) for one in found if one)
