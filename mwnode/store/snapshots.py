"""Group Snapshots: drafted, signed and kept for readers, taken in from uploads, found again after archival (R-G-11).

A snapshot and the state body that its ``stateHash`` names are small documents, stored by the hash of their bytes. Of a
Group that is not archived only the newest one is kept; the one under which a Group was archived stays for good.

A node needs no snapshot to start again: its rows are the fold of the log and are committed with the Events that they
follow from. Snapshots of Groups at work spare readers the replay (reading 31), and are made when one asks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, TypeVar

import msgspec

from mwnode.authority.archival import draft_snapshot
from mwnode.authority.request import Embedded, Request
from mwnode.authority.state import GROUPS, MISSIONS
from mwnode.authority.table import MISSION_TERMINAL
from mwnode.authority.views import policy_log, state_body, state_hash
from mwnode.protocol import jcs, strict_json
from mwnode.protocol.commands import GroupArchive
from mwnode.protocol.documents import Event, GroupSnapshot
from mwnode.protocol.errors import ErrorCode, Rejection
from mwnode.protocol.identifiers import uuid7_urn
from mwnode.protocol.instants import parse
from mwnode.protocol.ports import Clock, Entropy
from mwnode.store.artifacts import Artifacts
from mwnode.store.errors import StoreCorrupt, StoreError, StoreUnavailable
from mwnode.store.outcome import INTERNAL
from mwnode.store.port import ReadTransaction, WriteTransaction
from mwnode.trust.keys import SigningKey, sign_mapping
from mwnode.trust.registry import Registry
from mwnode.trust.verification import Failure, verify

T = TypeVar("T")
_log = logging.getLogger("mwnode.store")

SNAPSHOT_BYTES_MAX: Final = 64 * 1024**2
"""Largest uploaded snapshot that an archival takes in: about a million Events."""
ATTEMPTS: Final = 5
"""How often a snapshot is drafted anew when its Group moves on meanwhile."""
LIVE_BEHIND: Final = 256
LIVE_SHARE: Final = 8
"""A kept snapshot of a Group at work is good enough while no more Events follow than these, or than such a part of
those that it tells of: whoever asks for it replays them."""
_CREATED: Final = "group.snapshot.created"


class Reads(Protocol):
    """A store as far as it is read here."""

    def read(self) -> AbstractContextManager[ReadTransaction]: ...


class Calls(Protocol):
    """A writer as far as it is used here."""

    def call(self, change: Callable[[WriteTransaction], T]) -> Future[T]: ...


class _Created(msgspec.Struct, rename="camel"):
    snapshot_hash: str


class Snapshots:
    """The snapshots of one store. May be used from any thread but the writer's."""

    def __init__(self, store: Reads, writer: Calls, authority_key: SigningKey, clock: Clock, entropy: Entropy) -> None:
        self._store = store
        self._writer = writer
        self._authority_key = authority_key
        self._clock = clock
        self._entropy = entropy

    def of(self, group_id: str, *, live: bool = False) -> list[bytes]:
        """The Group's snapshots, oldest first, as canonical bytes.

        The Group of an ended Mission always has one: at the head and ready to be archived, signed now if need be, or
        the one that it was archived under (decision F28). A Group at work has none, unless with ``live``: at the head,
        or one that was kept and is not much older. Raises StoreUnavailable when the Group never stands still, and the
        errors of the store.
        """
        for _ in range(ATTEMPTS):
            with self._store.read() as view:
                group = view.get(GROUPS, group_id)
                if group is None:
                    return []
                if group.group.state == "archived":
                    return [archival_snapshot(view, group_id)[1]]
                mission = view.get(MISSIONS, group.group.mission_id)
                if mission is None:
                    return []
                ended = mission.mission.state in MISSION_TERMINAL
                if not ended and not live:
                    return []
                kept = _kept(view, group_id)
                if kept is not None and (_is_current(view, kept) if ended else _is_recent(view, kept)):
                    return [jcs.canonical(kept)]
                snapshot, body = self._signed(view, group_id)
            if self._writer.call(lambda txn, made=snapshot, state=body: _keep(txn, made, state)).result():  # type: ignore[misc]  # mypy does not type the defaults
                return [jcs.canonical(snapshot)]
        raise StoreUnavailable(f"{group_id} moves on faster than a snapshot of it can be made; try again")

    def _signed(self, view: ReadTransaction, group_id: str) -> tuple[dict[str, Any], bytes]:
        now = self._clock.now()
        # The clock may have been set back; a snapshot is never dated before what it tells of.
        told = [entry.occurred_at for entry in policy_log(view, group_id)]
        if (newest := view.last_occurred_at(group_id)) is not None:
            told.append(newest)
        created_at = max([now.text(), *told], key=parse)
        snapshot_id = uuid7_urn(now, self._entropy.random(10))
        drafted, body = draft_snapshot(view, group_id, snapshot_id, self._authority_key.principal, created_at)
        return sign_mapping(drafted, self._authority_key, created_at), body


def _kept_name(group_id: str) -> str:
    return f"snapshot {group_id}"


def _kept(view: ReadTransaction, group_id: str) -> GroupSnapshot | None:
    """The snapshot that was kept last for a Group that is not archived."""
    named = view.meta(_kept_name(group_id))
    if named is None:
        return None
    try:
        content = view.document(named.decode())
        return None if content is None else msgspec.json.decode(content, type=GroupSnapshot)
    except (StoreCorrupt, ValueError) as error:
        _log.error("the snapshot kept of %s is damaged, and made anew: %s", group_id, error)
        return None


def _is_recent(view: ReadTransaction, snapshot: GroupSnapshot) -> bool:
    """Whether a kept snapshot is whole, tells of this very log, and is not too old for a Group at work."""
    group_id, through, head = snapshot.group_id, snapshot.through_sequence, view.head(snapshot.group_id)
    if not 0 < through <= head or head - through > max(LIVE_BEHIND, through // LIVE_SHARE):
        return False
    if len(snapshot.event_ids) != through or snapshot.event_ids[-1:] != tuple(
        view.event_ids(group_id, through - 1, through)
    ):
        return False
    try:
        return view.document(snapshot.state_hash) is not None
    except StoreCorrupt as error:
        _log.error("the state body kept of %s is damaged, and made anew: %s", group_id, error)
        return False


def _is_current(view: ReadTransaction, snapshot: GroupSnapshot) -> bool:
    group_id = snapshot.group_id
    return (
        snapshot.through_sequence == view.head(group_id)
        and snapshot.state_hash == state_hash(state_body(view, group_id))
        and list(snapshot.policy_log) == policy_log(view, group_id)
    )


def _keep(txn: WriteTransaction, snapshot: dict[str, Any], body: bytes) -> bool:
    """Store a snapshot in place of the one kept before; False when the Group has moved on."""
    group_id: str = snapshot["groupId"]
    group = txn.get(GROUPS, group_id)
    if txn.head(group_id) != snapshot["throughSequence"] or group is None or group.group.state == "archived":
        return False
    before = _kept(txn, group_id)
    name = _kept_name(group_id)
    txn.drop_document((txn.meta(name) or b"").decode())
    if before is not None:
        txn.drop_document(before.state_hash)
    # What lies there under the same hash may be damaged.
    txn.drop_document(snapshot["stateHash"])
    txn.put_document(body)
    txn.put_meta(name, txn.put_document(jcs.canonical(snapshot)).encode())
    return True


# --- archival ---------------------------------------------------------------------------------------------------------


def archival_snapshot(view: ReadTransaction, group_id: str) -> tuple[str, bytes]:
    """Hash and bytes of the snapshot that a Group was archived under. KeyError when it is not archived.

    What follows it in the log is little: Memberships that end, and tombstones. So it is found from the end.
    """
    for sequence in range(view.head(group_id), 0, -1):
        stored = view.event(group_id, sequence)
        if stored is None:
            break
        event = strict_json.trusted(stored.event, Event)
        if event.kind == _CREATED:
            named = msgspec.convert(event.payload, _Created).snapshot_hash
            content = view.document(named)
            if content is None:
                break
            return named, content
    raise KeyError(group_id)


def with_uploaded(request: Request, artifacts: Artifacts, registry: Registry) -> Request:
    """The request with the snapshot that it names by hash, verified as if it stood in the payload (decision F5).

    A hash that nothing was uploaded under is left to the decision. Bytes that are no Group Snapshot refuse the
    Command like a payload that does not fit; a snapshot that does not verify like any other embedded document.
    """
    payload = request.payload
    if not isinstance(payload, GroupArchive) or payload.snapshot_hash is None:
        return request
    try:
        info = artifacts.info(payload.snapshot_hash)
        if info is None:
            return request
        if info.size > SNAPSHOT_BYTES_MAX:
            return _misfit(request, f"the uploaded snapshot has more than {SNAPSHOT_BYTES_MAX} bytes")
        raw = b"".join(artifacts.read(payload.snapshot_hash))
    except StoreError:
        return Request(request.verified, INTERNAL)
    verdict = verify(raw, "group-snapshot", registry, bytes_max=SNAPSHOT_BYTES_MAX)
    if not isinstance(verdict, Failure):
        document = verdict.document
    elif verdict.stage in {"parse", "schema"}:
        return _misfit(request, f"what was uploaded is no Group Snapshot: {verdict.detail or verdict.reason}")
    else:
        document = strict_json.decode(raw, GroupSnapshot, bytes_max=SNAPSHOT_BYTES_MAX)
    return Request(request.verified, payload, (Embedded("/payload/snapshotHash", document, verdict),))


def _misfit(request: Request, message: str) -> Request:
    path = "/payload/snapshotHash"
    return Request(request.verified, Rejection(ErrorCode.INVALID_COMMAND, message, "R-15.2-40", details={"path": path}))
