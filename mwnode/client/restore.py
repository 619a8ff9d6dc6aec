"""Going on from a snapshot when a Group's beginning is no longer online (R-16-07, R-16-61). Pure.

What the node sends is believed for its hash and its signature, never because it was asked for.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec
from msgspec import Struct

from mwnode.client.errors import Untrusted
from mwnode.protocol import jcs
from mwnode.protocol.documents import GroupSnapshot
from mwnode.trust.registry import Registry
from mwnode.trust.verification import Failure, verify

SNAPSHOT_BYTES_MAX: Final = 64 * 1024**2
SNAPSHOT_ATTEMPTS: Final = 5
"""How often a snapshot of a Group at work is asked for when another one takes its place meanwhile."""


class Restored(Struct, frozen=True):
    """Where a Group's reader goes on from. ``state`` is the state body, ``None`` for those who may not see all of
    it: they go on from the snapshot's sequence with what the Mission's view shows them."""

    snapshot: GroupSnapshot
    state: dict[str, Any] | None = None

    @property
    def through_sequence(self) -> int:
        """The last sequence that the snapshot tells of; the next Event to come has a higher one."""
        return self.snapshot.through_sequence


def check_snapshot(raw: bytes, group_id: str, snapshot_hash: str, registry: Registry) -> GroupSnapshot:
    """The snapshot in those bytes. Untrusted unless they have that hash, verify, and tell of that Group."""
    _check_hash(raw, snapshot_hash, "snapshot")
    verdict = verify(raw, "group-snapshot", registry, bytes_max=SNAPSHOT_BYTES_MAX)
    if isinstance(verdict, Failure):
        raise Untrusted(f"the snapshot of {group_id} does not verify: {verdict.stage}, {verdict.reason}")
    snapshot = verdict.document
    assert isinstance(snapshot, GroupSnapshot)
    if snapshot.group_id != group_id:
        raise Untrusted(f"the snapshot is of {snapshot.group_id}, not of {group_id}")
    if len(snapshot.event_ids) != snapshot.through_sequence:
        raise Untrusted(f"the snapshot of {group_id} does not name each of its {snapshot.through_sequence} Events")
    return snapshot


def check_made(made: list[Any], group_id: str, position: int, registry: Registry) -> GroupSnapshot:
    """The newest of the snapshots that a node made of a Group. Untrusted unless it verifies, tells of that Group, and
    ends no earlier than ``position``: what was heard of the Group already is not taken back."""
    if not made:
        raise Untrusted(f"the node gave no snapshot of {group_id}")
    try:
        raw = jcs.canonical(made[-1])
    except (TypeError, ValueError) as error:
        raise Untrusted(f"what the node gave as a snapshot of {group_id} is none: {error}") from error
    snapshot = check_snapshot(raw, group_id, f"sha256:{hashlib.sha256(raw).hexdigest()}", registry)
    if snapshot.through_sequence < position:
        raise Untrusted(
            f"the snapshot of {group_id} ends at {snapshot.through_sequence}, and {position} Events of it were heard"
        )
    return snapshot


def check_state(raw: bytes, snapshot: GroupSnapshot) -> dict[str, Any]:
    """The state body that a snapshot names. Untrusted for any other bytes."""
    _check_hash(raw, snapshot.state_hash, "state body")
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Untrusted(f"the state body of {snapshot.group_id} cannot be read: {error}") from error


def _check_hash(raw: bytes, expected: str, what: str) -> None:
    if f"sha256:{hashlib.sha256(raw).hexdigest()}" != expected:
        raise Untrusted(f"the node sent another {what} than {expected} names; nothing was changed")
