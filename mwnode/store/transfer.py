"""From one store into another: Groups with everything that they stand on. Export and import are both this.

What is copied are the signed bytes: Events, Commands, admissions, documents, Artifacts. Numbers, chain values and
indexes are made anew by the receiving store, and its rows by replaying its log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Struct

from mwnode.authority.intake import EMBEDDED
from mwnode.authority.organization import DECIDERS
from mwnode.authority.state import AGENTS, CONTENTS, GROUPS, KEYS, PRINCIPALS, PROFILES, ContentRow, KeyRow
from mwnode.protocol import jcs, strict_json
from mwnode.protocol.commands import PAYLOADS
from mwnode.protocol.documents import Command, GroupSnapshot
from mwnode.store.artifacts import encode_manifest, manifest_of
from mwnode.store.environment import LmdbReading, LmdbStore, LmdbWriting
from mwnode.store.errors import StoreCorrupt, StoreError
from mwnode.store.fold import FOLDED, Scope
from mwnode.store.layout import PLACE, RECEIPT_HEAD, RECORD, U32, U64, hash_bytes
from mwnode.store.log_records import LogRecord, decode_command_record
from mwnode.store.port import ORGANIZATION, NewEvent
from mwnode.store.trim import encode_trim, erased_commands, note_erased

Progress = Callable[[str, int, int], None]

STEP: Final = 500
"""Records in one transaction of the receiving store."""
_HASH: Final = re.compile(rb"sha256:[0-9a-f]{64}")
_CARD: Final = ".agent_card_registered"
_SESSION: Final = ".session_opened"


class Conflict(StoreError):
    """The receiving store holds something else in that place; nothing was changed."""


class Selection(Struct):
    """What goes along, found in one pass over the source."""

    groups: tuple[str, ...]
    commands: dict[int, bool]
    """Numbers of the Commands, in order; whether each has Events that go along."""
    hashes: set[str]
    """Documents and Artifacts that anything names."""
    admissions: set[bytes]
    """Signing hashes of the documents inside the Commands."""
    events: int = 0


def select(source: LmdbReading, groups: Iterable[str], skips: Callable[[LogRecord], bool]) -> Selection:
    """Everything that Groups stand on; ``skips`` leaves out Organization-scoped Events."""
    chosen = Selection(tuple(groups), {}, set(), set())
    for record in _records(source, chosen.groups, skips):
        chosen.events += 1
        if record.command_number is not None:
            chosen.commands[record.command_number] = True
        chosen.hashes.update(match.decode() for match in _HASH.findall(record.event))
    for key, value in source.pages.scan("commands", b""):
        number = int(U64.unpack(key)[0])
        raw = decode_command_record(number, value)[2]
        registry = _is_registry(raw)
        if number not in chosen.commands and not registry:
            continue
        chosen.commands.setdefault(number, False)
        chosen.hashes.update(match.decode() for match in _HASH.findall(raw))
        chosen.admissions.update(_embedded(raw))
    chosen.commands = dict(sorted(chosen.commands.items()))
    for group_id in chosen.groups:
        trim = source.trimmed(group_id)
        if trim is not None:
            chosen.hashes.add(trim.snapshot_artifact_hash)
    _follow_documents(source, chosen)
    return chosen


def _follow_documents(source: LmdbReading, chosen: Selection) -> None:
    """Documents name documents: a snapshot its state body, and that the Artifacts."""
    waiting = list(chosen.hashes)
    while waiting:
        content = source.document(waiting.pop())
        if content is None:
            continue
        named = {match.decode() for match in _HASH.findall(content)} - chosen.hashes
        chosen.hashes |= named
        waiting += named
        try:
            snapshot = msgspec.json.decode(content, type=GroupSnapshot)
        except (msgspec.MsgspecError, RecursionError):
            continue
        chosen.admissions.add(_signing_hash(snapshot))


def _records(source: LmdbReading, groups: Iterable[str], skips: Callable[[LogRecord], bool]) -> Iterator[LogRecord]:
    numbers = {source.group_number(group_id) for group_id in (ORGANIZATION, *groups)}
    organization = source.group_number(ORGANIZATION)
    position = 0
    while page := source.records(position, STEP):
        for record in page:
            if record.group_number in numbers and not (record.group_number == organization and skips(record)):
                yield record
        position = page[-1].position


def _is_registry(raw: bytes) -> bool:
    if not raw or (b"registry" not in raw and b"ext.mwnode.core" not in raw):
        return False
    kind = strict_json.trusted(raw, Command).kind
    return kind in DECIDERS and not kind.endswith(".session_open")


def _embedded(raw: bytes) -> Iterator[bytes]:
    if not raw:
        return
    command = strict_json.trusted(raw, Command)
    payload = msgspec.convert(command.payload, PAYLOADS[command.kind])
    for member, _ in EMBEDDED.get(command.kind, ()):
        value: Any = getattr(payload, member)
        for document in value if isinstance(value, tuple) else () if value is None else (value,):
            yield _signing_hash(document)


def _signing_hash(document: Any) -> bytes:
    return bytes.fromhex(jcs.signing_hash(jcs.signing_bytes(document))[7:])


def known_better(target: LmdbReading) -> Callable[[LogRecord], bool]:
    """Which Organization-scoped Events a store does without: those it has, and those about Agents of which it knows the
    same or newer already."""
    agents = {row.card.agent_id: row for row in target.each(AGENTS)}
    present: set[str] = set()
    sequence = 0
    while page := target.organization_events(sequence, STEP):
        present.update(stored.event_id for stored in page)
        sequence = page[-1].sequence

    def skips(record: LogRecord) -> bool:
        if record.stored().event_id in present:
            return True
        event = msgspec.json.decode(record.event)
        known = agents.get(event["payload"].get("agentId"))
        if known is None:
            return False
        if event["kind"].endswith(_CARD):
            return bool(known.card.card_version >= event["payload"]["cardVersion"])
        return event["kind"].endswith(_SESSION) and bool(known.session_epoch >= event["payload"]["sessionEpoch"])

    return skips


# --- copying ----------------------------------------------------------------------------------------------------------


def copy(
    source: LmdbReading, target: LmdbStore, chosen: Selection, skips: Callable[[LogRecord], bool], progress: Progress
) -> None:
    """Copy a selection. Rows are not made: ``fold.rebuild`` follows. Conflict, StoreCorrupt leave ``target`` half full,
    so it is a file that nobody uses yet."""
    target.write(lambda txn: _refuse_known_groups(txn, chosen.groups))
    target.write(lambda txn: _registry(source, txn))
    numbers = _commands(source, target, chosen)
    target.write(lambda txn: _trims(source, txn, chosen.groups, numbers))
    _log(source, target, chosen, skips, numbers, progress)
    _receipts(source, target, numbers)
    target.write(lambda txn: _admissions(source, txn, chosen))
    for group_id in chosen.groups:
        target.write(lambda txn, named=group_id: _policy_log(source, txn, named))  # type: ignore[misc]  # mypy does not type the default
    _contents(source, target, chosen, progress)


def _refuse_known_groups(txn: LmdbWriting, groups: Iterable[str]) -> None:
    for group_id in groups:
        if txn.head(group_id) or txn.get(GROUPS, group_id) is not None:
            raise Conflict(f"{group_id} is here already: nothing is overwritten; import it into another HOME")


def _registry(source: LmdbReading, txn: LmdbWriting) -> None:
    for row in source.each(KEYS):
        known = txn.get(KEYS, row.binding.key_id)
        txn.put(KEYS, row if known is None else _longer(known, row))
    for principal in source.each(PRINCIPALS):
        if txn.get(PRINCIPALS, PRINCIPALS.key(principal)) is None:
            txn.put(PRINCIPALS, principal)
    for profile in source.each(PROFILES):
        known_profile = txn.get(PROFILES, PROFILES.key(profile))
        if known_profile is not None and known_profile != profile:
            raise Conflict(f"Extension Profile {PROFILES.key(profile)} is another one here")
        txn.put(PROFILES, profile)


def _longer(known: KeyRow, other: KeyRow) -> KeyRow:
    """Of two histories of one key the longer; both only ever grow."""
    short, long = sorted((known, other), key=lambda row: len(row.binding.validity_history))
    history = long.binding.validity_history[: len(short.binding.validity_history)]
    if msgspec.structs.replace(long.binding, validity_history=history) != short.binding:
        raise Conflict(f"key {known.binding.key_id} is bound otherwise here: the two Registries contradict each other")
    return long


def _commands(source: LmdbReading, target: LmdbStore, chosen: Selection) -> dict[int, int]:
    """Number in the source -> number in the target. What the target accepted itself is not kept twice."""
    numbers: dict[int, int] = {}
    waiting = iter(chosen.commands)
    while step := list(islice(waiting, STEP)):

        def put(txn: LmdbWriting, step: list[int] = step) -> None:
            for number in step:
                value = source.pages.get("commands", U64.pack(number))
                if value is None:
                    raise StoreCorrupt(f"Command {number} is missing; run 'mwnode verify'", f"command {number}")
                signing_hash, accepted_at, raw = decode_command_record(number, value)
                known = txn.command_number(signing_hash)
                numbers[number] = known or txn.put_command(signing_hash, raw, accepted_at)

        target.write(put)
    return numbers


def _trims(source: LmdbReading, txn: LmdbWriting, groups: Iterable[str], numbers: dict[int, int]) -> None:
    scope = Scope(source)
    for group_id in groups:
        trim = source.trimmed(group_id)
        number = txn.number_for(group_id)
        if trim is not None:
            txn.pages.put("trims", U32.pack(number), encode_trim(trim))
    note_erased(txn, [numbers[number] for number in erased_commands(source) if number in numbers])
    if scope.untold:
        # The log no longer tells these rows: they come as they are, and their snapshot proves them.
        carried = set(groups)
        for table in FOLDED:
            for row in source.each(table):
                if scope.group_of(table, row) in scope.untold & carried:
                    txn.put(table, row)
        for content in source.each(CONTENTS):
            if not carried.isdisjoint(scope.untold.intersection(content.group_ids)):
                txn.put(CONTENTS, _arrived(content, carried, txn.get(CONTENTS, content.content_hash)))


def _arrived(content: ContentRow, carried: set[str], known: ContentRow | None) -> ContentRow:
    """What is known of bytes in the Groups that are carried, beside what the target knows; ``fold.rebuild`` adds which
    manifests stand for them."""
    known = known or ContentRow(content.content_hash)
    arrivals = (*known.arrivals, *(arrival for arrival in content.arrivals if arrival[0] in carried))
    groups = (*known.group_ids, *(group_id for group_id in content.group_ids if group_id in carried))
    return msgspec.structs.replace(
        known,
        group_ids=tuple(dict.fromkeys(groups)),
        arrivals=tuple(dict.fromkeys(arrivals)),
        knowledge=known.knowledge or content.knowledge,
    )


def _log(
    source: LmdbReading,
    target: LmdbStore,
    chosen: Selection,
    skips: Callable[[LogRecord], bool],
    numbers: dict[int, int],
    progress: Progress,
) -> None:
    records = _records(source, chosen.groups, skips)
    done = 0
    while step := list(islice(records, STEP)):

        def append(txn: LmdbWriting, step: list[LogRecord] = step) -> None:
            for record in step:
                group_id = source.group_name(record.group_number)
                made = txn.append_event(
                    NewEvent(
                        group_id,
                        record.stored().event_id,
                        record.occurred_at,
                        record.accepted_at,
                        record.event,
                        record.signing_hash,
                        None if record.command_number is None else numbers[record.command_number],
                    )
                )
                if group_id != ORGANIZATION and (made.sequence, made.chain) != (record.sequence, record.chain):
                    raise StoreCorrupt(f"{group_id}: Event {record.sequence} does not follow", f"group {group_id}")

        target.write(append)
        done += len(step)
        progress("copied", done, chosen.events)


def _receipts(source: LmdbReading, target: LmdbStore, numbers: dict[int, int]) -> None:
    waiting = source.pages.scan("receipts", b"")
    while step := list(islice(waiting, STEP)):

        def put(txn: LmdbWriting, step: list[tuple[bytes, bytes]] = step) -> None:
            for key, value in step:
                _, signing_hash, number, count = RECEIPT_HEAD.unpack_from(value)
                if number not in numbers:
                    continue
                known = txn.pages.get("receipts", key)
                if known is not None:
                    if RECEIPT_HEAD.unpack_from(known)[1] != signing_hash:
                        raise Conflict(f"an Action ID of Command {number} stands for another Command here")
                    continue
                end = RECEIPT_HEAD.size + count * PLACE.size
                places = [
                    moved
                    for place in PLACE.iter_unpack(value[RECEIPT_HEAD.size : end])
                    if (moved := _moved(source, txn, place)) is not None
                ]
                head = RECEIPT_HEAD.pack(RECORD, signing_hash, numbers[number], len(places))
                txn.pages.put("receipts", key, b"".join((head, *places, value[end:])))

        target.write(put)


def _moved(source: LmdbReading, txn: LmdbWriting, place: tuple[int, int]) -> bytes | None:
    """A place in the target's log; ``None`` for an Event that was left out."""
    group_id, sequence = source.group_name(place[0]), place[1]
    number = txn.group_number(group_id)
    if group_id != ORGANIZATION:
        return None if number is None else PLACE.pack(number, sequence)
    stored = source.event(ORGANIZATION, sequence)
    found = None if stored is None else txn.event_place(stored.event_id)
    return None if found is None or number is None else PLACE.pack(number, found[1])


def _admissions(source: LmdbReading, txn: LmdbWriting, chosen: Selection) -> None:
    for signing_hash in sorted(chosen.admissions):
        record = source.admission(signing_hash)
        if record is not None:
            txn.put_admission(record)


def _policy_log(source: LmdbReading, txn: LmdbWriting, group_id: str) -> None:
    after = 0
    while page := source.policy_log(group_id, after, STEP):
        for entry in page:
            txn.put_policy(group_id, entry)
        after += len(page)


def _contents(source: LmdbReading, target: LmdbStore, chosen: Selection, progress: Progress) -> None:
    """Documents and Artifacts by their hash."""
    named = sorted(chosen.hashes)
    for done, content_hash in enumerate(named, 1):
        content = source.document(content_hash)
        if content is not None:
            target.write(lambda txn, kept=content: txn.put_document(kept))  # type: ignore[misc]  # mypy does not type the default
        target.write(lambda txn, wanted=content_hash: _artifact(source, txn, wanted))  # type: ignore[misc]  # as above
        progress("contents", done, len(named))


def _artifact(source: LmdbReading, txn: LmdbWriting, content_hash: str) -> None:
    manifest, digest = manifest_of(source, content_hash), hash_bytes(content_hash)
    if manifest is None or digest is None or manifest_of(txn, content_hash) is not None:
        return
    for key, _ in manifest.chunks:
        count = txn.pages.get("chunk_references", key)
        if count is None:
            chunk = source.pages.get("chunks", key)
            if chunk is None:
                raise StoreCorrupt(f"a chunk of {content_hash} is missing", f"artifact {content_hash}")
            txn.pages.put("chunks", key, chunk)
        txn.pages.put("chunk_references", key, U64.pack(1 if count is None else U64.unpack(count)[0] + 1))
    size, at = manifest.size, manifest.stored_at.whole_microseconds()
    txn.pages.put("artifacts", digest, encode_manifest(size, at, list(manifest.chunks)))
