"""Identifiers made by us: all of them absolute URIs (R-2-15), all of them compared byte for byte (R-2-18)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from mwnode.protocol.instants import Instant

ID_LENGTH_MAX = 512
"""Characters of the longest identifier (R-2-15)."""
CORE_EXTENSION = "urn:mwnode:extension:core"
"""Where members that the schemas have no place for travel in durable documents; never critical."""
OFFLINE_EXTENSION = "urn:missionweaveprotocol:extension:bounded-offline-execution"
"""Marks Commands whose work was done while the Worker was disconnected."""
ANY_SCHEMA = "urn:mwnode:schema:any"
"""The schema of a deliverable or capability that promises nothing about its content."""
CLARIFICATION_SCHEMA = "urn:mwnode:schema:clarification"
"""The ``data_ref`` schema of clarification rounds."""
RETRY_SCHEMA = "urn:mwnode:schema:retry"
"""The ``data_ref`` schema of a MissionOwner's wish that a WorkItem be tried again: which, and under what budget."""
OVERRIDE_SCHEMA = "urn:mwnode:schema:override"
"""The ``data_ref`` schema by which a Coordinator asks for a Cooperation Override Grant: for what, past what."""
INPUTS_SCHEMA = "urn:mwnode:schema:inputs"
"""The ``data_ref`` schema by which a Parent Coordinator names the files that it forwarded to a child Mission."""
EVIDENCE_SCHEMA = "urn:mwnode:schema:evidence"
"""The ``data_ref`` schema by which a human hands signed Evidence to the Coordinator."""


def _within_limit(conversation_id: str) -> str:
    # Clients derive the same identifier by the same rule, so that it needs no lookup.
    if len(conversation_id) <= ID_LENGTH_MAX:
        return conversation_id
    return f"urn:mwnode:conversation:{hashlib.sha256(conversation_id.encode()).hexdigest()}"


def mission_conversation_id(group_id: str) -> str:
    """The main Conversation of a Group."""
    return _within_limit(f"{group_id}:mission")


def work_item_conversation_id(group_id: str, work_item_id: str) -> str:
    """The Conversation of a WorkItem."""
    return _within_limit(f"{group_id}:work:{work_item_id}")


def policy_cause_id(name: str) -> str:
    """The ``cause.id`` of an Event that a policy caused."""
    return f"urn:mwnode:policy:{name}"


def artifact_uri(content_hash: str) -> str:
    """The URI of bytes kept by a node, from their ``sha256:`` hash."""
    return f"urn:mwnode:artifact:{content_hash}"


def uuid7_urn(now: Instant, random: bytes) -> str:
    """A lower-case ``urn:uuid:`` of version 7 (RFC 9562): milliseconds of ``now``, then 74 bits of ``random``.

    ``random`` must hold at least 10 bytes; further bytes are ignored (R-2-17).
    """
    if len(random) < 10:
        raise ValueError("a UUID of version 7 needs 10 random bytes")
    milliseconds = (now.whole_microseconds() // 1000) & ((1 << 48) - 1)
    bits = int.from_bytes(random[:10], "big")
    value = milliseconds << 80 | 7 << 76 | (bits >> 62 & 0xFFF) << 64 | 0b10 << 62 | (bits & ((1 << 62) - 1))
    digits = f"{value:032x}"
    return f"urn:uuid:{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


_MADE_AT_ONCE = 16
_VARIANT = "89ab"


def uuid7_maker(now: Instant, random: Callable[[int], bytes]) -> Callable[[], str]:
    """Makes as many fresh identifiers of one moment as are asked for, each as :func:`uuid7_urn` would.

    Randomness is drawn for several at once: drawing costs more than the rest.
    """
    milliseconds = (now.whole_microseconds() // 1000) & ((1 << 48) - 1)
    digits = f"{milliseconds:012x}"
    prefix = f"urn:uuid:{digits[:8]}-{digits[8:]}-7"
    drawn: list[str] = []

    def make() -> str:
        if not drawn:
            found = random(10 * _MADE_AT_ONCE).hex()
            drawn.extend([found[start : start + 20] for start in range(0, len(found), 20)])
        text = drawn.pop()
        # Of the first of these digits only two bits are free: the others name the variant.
        variant = _VARIANT[int(text[3], 16) & 3]
        return f"{prefix}{text[:3]}-{variant}{text[4:7]}-{text[7:19]}"

    return make
