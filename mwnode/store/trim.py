"""Trimming archived Groups: their Events go, and the signed snapshot that tells of them stays (decision C8).

Only an archived Group is trimmed, and only up to where its snapshot reaches (R-7.4-01): the two Events of the archival,
and tombstones after it, stay. Commands, receipts, admissions, the policy log and the rows stay too, so that nothing is
accepted twice and every order can still be proven.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from mwnode.authority.state import GROUPS, MESSAGES, MISSIONS
from mwnode.authority.views import state_body
from mwnode.protocol.documents import GroupSnapshot
from mwnode.store.environment import LmdbReading, LmdbWriting
from mwnode.store.errors import StoreCorrupt, StoreError
from mwnode.store.layout import PLACE, RECORD, TRIM_HEAD, U32, U64, checked, text_key
from mwnode.store.log_records import decode_command_record, decode_log_record, encode_command_record
from mwnode.store.port import Trim
from mwnode.store.snapshots import archival_snapshot
from mwnode.trust.registry import Registry
from mwnode.trust.verification import Failure, verify

EVENTS_PER_STEP: Final = 2000
"""Events that one transaction removes: a live node answers Commands in between."""
_ERASED_COMMANDS: Final = "erased commands"


class NotTrimmed(StoreError):
    """The Group cannot be trimmed as it is; nothing was removed."""


class Trimmed(Struct, frozen=True):
    """What a Group was trimmed to. ``events`` counts those removed by this call."""

    group_id: str
    through_sequence: int
    snapshot_artifact_hash: str
    events: int


def trim_group(write: Callable[[Callable[[LmdbWriting], Any]], Any], group_id: str) -> Trimmed:
    """Remove the Events of an archived Group that its snapshot tells of, in steps; again changes nothing.

    ``write`` runs a change in one durable transaction and gives its result: ``LmdbStore.write``, or the writer of a
    live node. Raises NotTrimmed for a Group that is not archived or unknown, StoreCorrupt when the snapshot is gone.
    """
    removed = 0
    while True:
        trim, count = write(lambda txn: _step(txn, group_id))
        removed += count
        if count < EVENTS_PER_STEP:
            return Trimmed(group_id, trim.through, trim.snapshot_artifact_hash, removed)


def find_group(view: LmdbReading, named: str) -> str:
    """The Group of an identifier, of an unmistakable part of its own or its Mission's, or of its Mission's whole title.

    NotTrimmed otherwise.
    """
    if view.get(GROUPS, named) is not None:
        return named
    groups = [row.group for row in view.each(GROUPS)]
    found = [group.group_id for group in groups if named in group.group_id or named in group.mission_id]
    if not found:
        found = [row.mission.group_id for row in view.each(MISSIONS) if row.title == named]
    if len(found) != 1:
        means = f"means {len(found)} Groups" if found else "is the name of no Group here"
        raise NotTrimmed(f"{named!r} {means}: name one, see `mwnode mission list`")
    return found[0]


def _step(txn: LmdbWriting, group_id: str) -> tuple[Trim, int]:
    number, named, snapshot = check_trimmable(txn, group_id)
    places = txn.pages.scan("places", PLACE.pack(number, 0), PLACE.pack(number, snapshot.through_sequence + 1))
    last: Trim | None = txn.trimmed(group_id)
    doomed = list(islice(places, EVENTS_PER_STEP))
    erased: list[int] = []
    for key, position in doomed:
        value = txn.pages.get("log", position)
        if value is None:
            raise StoreCorrupt(f"{group_id}: an indexed Event is missing; run 'mwnode verify'", f"group {group_id}")
        record = decode_log_record(int(U64.unpack(position)[0]), value)
        if record.command_number is not None and _is_erased(txn, record.command_number):
            erased.append(record.command_number)
        txn.pages.delete("event_ids", text_key(record.stored().event_id))
        txn.pages.delete("log", position)
        txn.pages.delete("places", key)
        last = Trim(record.sequence, record.chain, record.occurred_at, named)
    if last is None:
        raise StoreCorrupt(f"{group_id} has no Events; run 'mwnode verify'", f"group {group_id}")
    if doomed:
        txn.pages.put("trims", U32.pack(number), encode_trim(last))
        note_erased(txn, erased)
    return last, len(doomed)


def check_trimmable(view: LmdbReading, group_id: str) -> tuple[int, str, GroupSnapshot]:
    """Number of a Group that may be trimmed, and its snapshot with its hash. NotTrimmed, StoreCorrupt otherwise."""
    group, number = view.get(GROUPS, group_id), view.group_number(group_id)
    if group is None or number is None:
        raise NotTrimmed(f"there is no Group {group_id}: see `mwnode mission list`")
    if group.group.state != "archived":
        raise NotTrimmed(f"{group_id} is {group.group.state}: archive it first with `mwnode mission archive`")
    return number, *_snapshot(view, group_id)


def _snapshot(view: LmdbReading, group_id: str) -> tuple[str, GroupSnapshot]:
    """The snapshot that a Group was archived under, with its state body at hand."""
    try:
        named, content = archival_snapshot(view, group_id)
    except KeyError:
        raise StoreCorrupt(f"the snapshot of {group_id} is gone; restore a backup", f"group {group_id}") from None
    snapshot = msgspec.json.decode(content, type=GroupSnapshot)
    if view.document(snapshot.state_hash) is None:
        raise StoreCorrupt(f"the state body of {group_id} is gone; restore a backup", f"group {group_id}")
    return named, snapshot


def encode_trim(trim: Trim) -> bytes:
    """The record of a trimmed beginning."""
    time = trim.last_occurred_at.encode()
    snapshot = bytes.fromhex(trim.snapshot_artifact_hash.removeprefix("sha256:"))
    return checked(TRIM_HEAD.pack(RECORD, trim.through, trim.chain, snapshot, len(time)) + time)


def trimmed_groups(view: LmdbReading) -> dict[str, Trim]:
    """Every Group that was trimmed, and what remains of its beginning."""
    found: dict[str, Trim] = {}
    for key, _ in view.pages.scan("trims", b""):
        group_id = view.group_name(int(U32.unpack(key)[0]))
        trim = view.trimmed(group_id)
        if trim is not None:
            found[group_id] = trim
    return found


# --- proof ------------------------------------------------------------------------------------------------------------

_SETTLED: Final = ("mission", "conversations", "workItems", "approvals", "artifacts")
"""Parts of a state body that nothing changes once the Group is archived."""


def faults_of(view: LmdbReading, group_id: str, trim: Trim, registry: Registry) -> Iterator[str]:
    """What is wrong with the snapshot that stands for a trimmed Group's Events; nothing when it proves them."""
    named = trim.snapshot_artifact_hash
    try:
        content = view.document(named)
        if content is None:
            yield "the snapshot that stands for the trimmed Events is gone"
            return
        verdict = verify(content, "group-snapshot", registry, bytes_max=len(content))
        if isinstance(verdict, Failure):
            yield f"the snapshot does not verify: {verdict.stage}, {verdict.reason}"
            return
        snapshot = verdict.document
        assert isinstance(snapshot, GroupSnapshot)
        reach = snapshot.through_sequence
        if snapshot.group_id != group_id or len(snapshot.event_ids) != reach or trim.through > reach:
            yield "the snapshot does not tell of the trimmed Events"
        group = view.get(GROUPS, group_id)
        if group is None or group.group.archive_snapshot_id != snapshot.snapshot_id:
            yield "the Group was archived under another snapshot"
        if not _is_named(view, group_id, named):
            yield "no Event of the archival names the snapshot"
        yield from _body_faults(view, group_id, snapshot)
    except StoreCorrupt as error:
        yield str(error)


def _is_named(view: LmdbReading, group_id: str, named: str) -> bool:
    try:
        return archival_snapshot(view, group_id)[0] == named
    except (KeyError, msgspec.MsgspecError):
        return False


def _body_faults(view: LmdbReading, group_id: str, snapshot: GroupSnapshot) -> Iterator[str]:
    body = view.document(snapshot.state_hash)
    if body is None:
        yield "the state body of the snapshot is gone"
        return
    told, here = msgspec.json.decode(body), msgspec.json.decode(state_body(view, group_id))
    for part in _SETTLED:
        if told.get(part) != here[part]:
            yield f"{part} are not what the snapshot tells"
    if here["policyLog"][: len(told["policyLog"])] != told["policyLog"]:
        logged = {entry["entryId"]: entry for entry in here["policyLog"]}
        if any(logged.get(entry["entryId"]) != entry for entry in told["policyLog"]):
            yield "the policy log is not what the snapshot tells"


# --- erasing what was trimmed -----------------------------------------------------------------------------------------


def erase_trimmed(txn: LmdbWriting, group_id: str, sequence: int) -> None:
    """Erase the words of a Message whose Event was trimmed: the Command that said them still stands (R-7.4-05).

    Looks through the Commands, a second for a million of them: rare enough to go without an index.
    """
    row = next((row for row in txn.in_group(MESSAGES, group_id) if row.sequence == sequence), None)
    if row is None:
        raise StoreCorrupt(f"{group_id} has no Message at {sequence}", f"group {group_id} sequence {sequence}")
    needle = b'"messageId":' + msgspec.json.encode(row.message.message_id)
    for key, value in txn.pages.scan("commands", b""):
        if needle in value:
            number = int(U64.unpack(key)[0])
            signing_hash, accepted_at, _ = decode_command_record(number, value)
            txn.pages.replace("commands", key, encode_command_record(signing_hash, b"", accepted_at))
            note_erased(txn, [number])
            txn.remember_erasures()
            return
    raise StoreCorrupt(f"the Command of Message {row.message.message_id} is gone", f"group {group_id}")


def erased_commands(view: LmdbReading) -> frozenset[int]:
    """Numbers of Commands whose words were erased and whose erased Events are no longer in the log to say so."""
    value = view.meta(_ERASED_COMMANDS)
    return frozenset() if value is None else frozenset(msgspec.json.decode(value, type=list[int]))


def note_erased(txn: LmdbWriting, numbers: list[int]) -> None:
    """Remember Commands for ``erased_commands``."""
    if numbers:
        known = erased_commands(txn)
        txn.put_meta(_ERASED_COMMANDS, msgspec.json.encode(sorted(known.union(numbers))))


def _is_erased(view: LmdbReading, number: int) -> bool:
    value = view.pages.get("commands", U64.pack(number))
    return value is not None and not decode_command_record(number, value)[2]


# --- families ---------------------------------------------------------------------------------------------------------


def related_groups(view: LmdbReading, group_ids: set[str]) -> set[str]:
    """Those Groups and every Group that is bound to one of them as parent, child or follow-up, at any distance.

    What happens in one of a family changes rows of another, so that the fold of a trimmed Group's log is missed in all.
    """
    kin: dict[str, set[str]] = {}
    group_of: dict[str, str] = {}
    for row in view.each(MISSIONS):
        mission = row.mission
        group_of[mission.mission_id] = mission.group_id
        parent = None if mission.parent is UNSET else mission.parent.mission_id
        for other in (parent, mission.follow_up_to_mission_id, *row.children):
            if other is not None and other is not UNSET:
                kin.setdefault(mission.mission_id, set()).add(other)
                kin.setdefault(other, set()).add(mission.mission_id)
    reached = {mission_id for mission_id, group_id in group_of.items() if group_id in group_ids}
    waiting = list(reached)
    while waiting:
        for other in kin.get(waiting.pop(), set()) - reached:
            reached.add(other)
            waiting.append(other)
    return group_ids | {group_of[mission_id] for mission_id in reached if mission_id in group_of}
