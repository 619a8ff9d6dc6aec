"""The end of a Group's log: its archival under a signed snapshot, and tombstones for what must not be kept.

A snapshot is recomputed here to the last byte before it is believed (R-15.2-40). A tombstone erases what a Message said
and nothing else: identifiers, sequence and chain stay, and so does everything that the fold needs (R-7.4-05, R-7.4-06).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import msgspec
from msgspec import UNSET, structs

from mwnode.authority.case import Case, refuse
from mwnode.authority.membership import retire
from mwnode.authority.request import EventFact
from mwnode.authority.state import GROUPS, MESSAGES, GroupRow, MessageRow
from mwnode.authority.table import admit_mission
from mwnode.authority.view import Overlay, View
from mwnode.authority.views import policy_log, state_body, state_hash
from mwnode.protocol.commands import CORE, EXT, EventTombstone, GroupArchive
from mwnode.protocol.documents import Actor, ContentBlock, DataBlock, GroupSnapshot, JsonObject, Message, TextBlock
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import EventTombstoned, GroupArchived, MessageCommitted, SnapshotCreated
from mwnode.protocol.identifiers import CLARIFICATION_SCHEMA
from mwnode.protocol.instants import parse
from mwnode.protocol.jcs import canonical, signing_hash

ERASED = "[erased]"
"""What stands where a Message's words stood."""


def _misfit(message: str, member: str, rule: str) -> NoReturn:
    refuse(ErrorCode.INVALID_COMMAND, message, rule, details={"path": f"/payload/{member}"})


# --- ext.missionweaveprotocol.core.group_archive ----------------------------------------------------------------------


def archive(case: Case) -> None:
    """Archive the Group of an ended Mission under its final snapshot (R-7.4-02, R-15.1-09, R-15.2-39)."""
    payload = case.payload(GroupArchive)
    mission = case.mission().mission
    admit_mission(mission.state, case.command.kind)
    case.expect_revision(mission.revision)
    snapshot = _snapshot(case, payload)
    body = _check_snapshot(case, snapshot)
    written = canonical(snapshot)
    snapshot_hash = signing_hash(written)
    case.stored_documents += [(snapshot_hash, written), (snapshot.state_hash, body)]
    case.emit(
        "group.snapshot.created",
        SnapshotCreated(
            revision=mission.revision,
            state=mission.state,
            snapshot_id=snapshot.snapshot_id,
            through_sequence=snapshot.through_sequence,
            state_hash=snapshot.state_hash,
            snapshot_hash=snapshot_hash,
        ),
    )
    fact = case.emit(
        "group.archived",
        GroupArchived(
            revision=mission.revision,
            state=mission.state,
            snapshot_id=snapshot.snapshot_id,
            archived_at=case.now_text,
        ),
    )
    case.receipt_kind = fact.kind
    case.note_policy(
        "group archived", {"snapshotId": snapshot.snapshot_id, "eventId": fact.event_id}, group_id=mission.group_id
    )


def _snapshot(case: Case, payload: GroupArchive) -> GroupSnapshot:
    """The snapshot in the Command, or the one uploaded before that its hash names (decision F5)."""
    if payload.snapshot is not None:
        return payload.snapshot
    assert case.request is not None
    for embedded in case.request.embedded:
        if isinstance(embedded.document, GroupSnapshot):
            return embedded.document
    _misfit(f"no uploaded snapshot has the hash {payload.snapshot_hash}; upload it first", "snapshotHash", "R-7.4-02")


def _check_snapshot(case: Case, snapshot: GroupSnapshot) -> bytes:
    """The snapshot tells exactly what is here; gives the state body. REVISION_CONFLICT when the Group has moved on."""
    group_id, head = case.group_id, case.view.head(case.group_id)
    if snapshot.group_id != group_id:
        _misfit("the snapshot is of another Group", "snapshot/groupId", "R-G-11")
    created_by = snapshot.created_by
    authority = case.context.services.authority
    if created_by.id != authority.id:
        refuse(ErrorCode.AUTH_FORBIDDEN, "snapshots are signed by the Group Authority", "R-15.2-40")
    if snapshot.through_sequence != head:
        refuse(
            ErrorCode.REVISION_CONFLICT,
            f"the snapshot ends at {snapshot.through_sequence}, the Group at {head}; make it anew",
            "R-G-11",
            expected_revision=snapshot.through_sequence,
            current_revision=head,
        )
    if snapshot.event_ids != tuple(case.view.event_ids(group_id, 0, head)):
        _misfit("eventIds must name every Event of the Group, in order", "snapshot/eventIds", "R-G-11")
    created_at, newest = parse(snapshot.created_at), case.view.last_occurred_at(group_id)
    if newest is not None and not parse(newest) <= created_at:
        _misfit("the snapshot was created before the Group's last Event", "snapshot/createdAt", "R-15.2-40")
    if created_at > parse(case.command.issued_at):
        _misfit("the snapshot was created after the Command", "snapshot/createdAt", "R-15.2-40")
    # Rows may have come since, without an Event: whoever signs badly in the Group's name must not hold up its archival.
    if list(snapshot.policy_log) != policy_log(case.view, group_id, created_at):
        _misfit("policyLog must be the Group's whole policy log at createdAt", "snapshot/policyLog", "R-15.2-40")
    body = state_body(case.view, group_id, created_at)
    if snapshot.state_hash != state_hash(body):
        _misfit(f"stateHash is {state_hash(body)} here", "snapshot/stateHash", "R-G-11")
    return body


def draft_snapshot(
    view: View, group_id: str, snapshot_id: str, created_by: Actor, created_at: str
) -> tuple[JsonObject, bytes]:
    """A Group Snapshot at the present head, ready to be signed, and the state body that its ``stateHash`` names.

    ``created_at`` must not lie before the Group's newest Event. The Group has one Event at least.
    """
    head, body = view.head(group_id), state_body(view, group_id)
    snapshot: JsonObject = {
        "snapshotId": snapshot_id,
        "groupId": group_id,
        "throughSequence": head,
        "eventIds": view.event_ids(group_id, 0, head),
        "stateHash": state_hash(body),
        "policyLog": msgspec.to_builtins(policy_log(view, group_id)),
        "createdBy": msgspec.to_builtins(created_by),
        "createdAt": created_at,
    }
    return snapshot, body


# --- ext.mwnode.core.event_tombstone ----------------------------------------------------------------------------------


def tombstone(case: Case) -> None:
    """Erase what one Message said, for a stated reason of policy (R-7.4-05). Archived Groups allow it."""
    payload = case.payload(EventTombstone)
    mission = case.mission().mission
    admit_mission(mission.state, case.command.kind)
    event_ids = case.view.event_ids(case.group_id, 0, case.view.head(case.group_id))
    if payload.event_id not in event_ids:
        _misfit(f"Event {payload.event_id} is not known in this Group", "eventId", "R-19-19")
    sequence = event_ids.index(payload.event_id) + 1
    row = _message_at(case.view, case.group_id, sequence)
    if row is None:
        _misfit(
            "only the Events of Messages are erased; all others are the state itself. End, cancel or redact instead",
            "eventId",
            "R-7.4-06",
        )
    if scrub(row.message) == row.message:
        refuse(ErrorCode.INVALID_STATE_TRANSITION, "the Event is erased already", "R-7.4-05")
    case.expect_revision(mission.revision)
    fact = case.emit(
        f"{CORE}.event_tombstoned",
        EventTombstoned(
            revision=mission.revision,
            state=mission.state,
            event_id=payload.event_id,
            sequence=sequence,
            policy_reason=payload.policy_reason,
        ),
    )
    case.note_policy(
        "event erased",
        {"erasedEventId": payload.event_id, "reason": payload.policy_reason, "eventId": fact.event_id},
        group_id=mission.group_id,
    )


def _message_at(view: View, group_id: str, sequence: int) -> MessageRow | None:
    return next((row for row in view.in_group(MESSAGES, group_id) if row.sequence == sequence), None)


def scrub(message: Message) -> Message:
    """The Message without what it said. Clarifications stay: they hold an identifier and a truth value, and count."""
    kept: tuple[ContentBlock, ...] = tuple(
        block for block in message.content if isinstance(block, DataBlock) and block.schema == CLARIFICATION_SCHEMA
    )
    return structs.replace(
        message,
        content=(TextBlock(text=ERASED), *kept),
        mentions=UNSET,
        references=UNSET,
        reason=UNSET if message.reason is UNSET else ERASED,
        extensions=UNSET,
    )


def erased_payload(payload: JsonObject, tombstone_event_id: str, policy_reason: str) -> JsonObject:
    """The payload of an erased Event: the tombstone, and in it what is left of the Message (payloads: Extension
    Profile). Raises msgspec.ValidationError for anything but a Message Event's payload."""
    committed = msgspec.convert(payload, MessageCommitted)
    remains = structs.replace(committed, message=scrub(committed.message))
    return {
        "tombstone": {
            "eventId": tombstone_event_id,
            "policyReason": policy_reason,
            "remains": msgspec.to_builtins(remains),
        }
    }


def remains_of(payload: JsonObject) -> JsonObject:
    """What replay folds: an Event's payload, or what a tombstone has left of it."""
    found = payload.get("tombstone")
    if isinstance(found, dict) and isinstance(found.get("remains"), dict):
        remains: JsonObject = found["remains"]
        return remains
    return payload


# --- folding ----------------------------------------------------------------------------------------------------------


def _fold_snapshot(view: Overlay, fact: EventFact) -> None:
    """The snapshot is a fact about the log; the state does not change."""


def _fold_archived(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, GroupArchived)
    assert fact.group_id is not None
    row = view.get(GROUPS, fact.group_id)
    assert row is not None
    archived = structs.replace(
        row.group, state="archived", archived_at=payload.archived_at, archive_snapshot_id=payload.snapshot_id
    )
    view.put(GROUPS, GroupRow(archived))
    retire(view, fact.group_id, fact.occurred_at)


def _fold_tombstoned(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, EventTombstoned)
    assert fact.group_id is not None
    row = _message_at(view, fact.group_id, payload.sequence)
    assert row is not None
    view.put(MESSAGES, MessageRow(scrub(row.message), row.sequence))


DECIDERS: dict[str, Callable[[Case], None]] = {
    f"{EXT}.core.group_archive": archive,
    f"{CORE}.event_tombstone": tombstone,
}
EVOLVERS: dict[str, Callable[[Overlay, EventFact], None]] = {
    "group.snapshot.created": _fold_snapshot,
    "group.archived": _fold_archived,
    f"{CORE}.event_tombstoned": _fold_tombstoned,
}
