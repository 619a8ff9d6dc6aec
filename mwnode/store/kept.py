"""Proof of what stands beside the logs: names, listings, due times, chained logs, checks and counts.

Each function yields what is wrong in its part as kind, where, detail. Whatever an entry can be derived from is asked
first; what nothing else tells has a chain, a check or a count in ``proofs``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from mwnode.authority.state import ARTIFACTS, TABLES, Table
from mwnode.store import dues
from mwnode.store.environment import LmdbReading
from mwnode.store.errors import StoreCorrupt
from mwnode.store.group_log import AUDIT_END, AUDIT_START, decode_audit, decode_policy, unchained
from mwnode.store.layout import (
    CHAIN_END,
    COUNTED,
    FORMAT,
    HASH_BUCKET,
    PLACE,
    SINCE,
    U32,
    U64,
    derivation_key,
    meta_check,
    next_chain,
    policy_end,
    text_key,
    unchecked,
)
from mwnode.store.port import NO_CHAIN
from mwnode.store.projections import decode_row

Fault = tuple[str, str, str]
Tick = Callable[[], None]
"""Called with every entry that was looked at."""

_LISTED: Final[dict[int, Table[Any]]] = {table.code: table for table in TABLES if table.group is not None}
_CODES: Final = frozenset(table.code for table in TABLES)
_DERIVED_META: Final = frozenset({b"format", b"position"})


def structure(db: str, view: LmdbReading, tick: Tick) -> Iterator[Fault]:
    """A named database is there, and its pages hold as many entries as they say. StoreCorrupt when they lead
    nowhere."""
    if db not in view.pages.dbs:
        if format_of(view) < SINCE.get(db, 1):
            return
        yield "structure", f"database {db}", "it is not in the file: restore a backup"
        return
    found = 0
    for _ in view.pages.scan(db, b""):
        found += 1
        tick()
    if found != view.pages.count(db):
        detail = f"{found} entries can be reached of {view.pages.count(db)}: restore a backup"
        yield "structure", f"pages of {db}", detail


def format_of(view: LmdbReading) -> int:
    """Which format the file has; the present one when that cannot be told, so that nothing is left out."""
    value = view.meta("format")
    return int(value) if value is not None and value.isdigit() and len(value) < 10 else FORMAT


def names(view: LmdbReading, tick: Tick) -> Iterator[Fault]:
    """Group numbers count from 1, and each has one name that leads back to it."""
    expected = 0
    for key, value in view.pages.scan("group_names", b""):
        tick()
        expected += 1
        where = f"group number {key.hex()}"
        if key != U32.pack(expected):
            yield "index", where, f"number {expected} is missing"
            expected = int.from_bytes(key, "big")
        try:
            name = value.decode()
        except UnicodeDecodeError:
            yield "index", where, "the name is no text"
            continue
        if view.pages.get("groups", text_key(name)) != key:
            yield "index", where, f"{name} does not lead to its number"
    if view.pages.count("groups") != view.pages.count("group_names"):
        yield "index", "groups", "there are not as many names as numbers of Groups"


def hashes(view: LmdbReading, tick: Tick) -> Iterator[Fault]:
    """The index of Commands' hashes names as many Commands as there are, each in its bucket."""
    named = 0
    for key, value in view.pages.scan("command_hashes", b""):
        tick()
        named += len(value) // U64.size
        if len(value) % U64.size or len(key) < U32.size:
            yield "index", f"command_hashes {key.hex()}", "the entry is damaged"
            continue
        bucket = U32.unpack_from(key)[0]
        if any(number // HASH_BUCKET != bucket for (number,) in U64.iter_unpack(value)):
            yield "index", f"command_hashes {key.hex()}", "a Command is indexed in another bucket than its own"
    if named != view.pages.count("commands"):
        yield "index", "command_hashes", "the index of Commands has another size than there are Commands"


def listing(view: LmdbReading, tick: Tick) -> Iterator[Fault]:
    """Every row of a table that is listed by Group is listed under its own, and nothing else is."""
    wanted = 0
    for key, value in view.pages.scan("entities", b""):
        tick()
        if key[0] not in _CODES:
            yield "projection", f"entities {key.hex()}", "no table has rows there"
        table = _LISTED.get(key[0])
        if table is None or table.group is None:
            continue
        wanted += 1
        try:
            row = decode_row(table, value, key.hex())
            number = view.group_number(table.group(row))
        except StoreCorrupt:
            # Told of where the row is compared with the log.
            continue
        name = table.key(row)
        place = None if number is None else key[:1] + U32.pack(number) + text_key(name)
        if place is None or view.pages.get("listing", place) != name.encode():
            yield "listing", f"{table.name} {name}", "the row is not listed in its Group"
    if view.pages.count("listing") != wanted:
        yield "listing", "listing", f"{view.pages.count('listing')} rows are listed, {wanted} are there to be listed"


def derivations(view: LmdbReading, tick: Tick) -> Iterator[Fault]:
    """Every Artifact is found under each of its sources, and nothing else is (R-13.1-19)."""
    if "derivations" not in view.pages.dbs:
        # Told of by structure, unless the file is older than the index.
        return
    wanted = 0
    code = bytes((ARTIFACTS.code,)), bytes((ARTIFACTS.code + 1,))
    for key, value in view.pages.scan("entities", *code):
        tick()
        try:
            artifact = decode_row(ARTIFACTS, value, key.hex()).artifact
            number = view.group_number(artifact.group_id)
        except StoreCorrupt:
            # Told of where the row is compared with the log.
            continue
        for content_hash in set(artifact.source_artifact_hashes):
            wanted += 1
            name = artifact.artifact_id
            place = None if number is None else derivation_key(content_hash, U32.pack(number), name)
            if place is None or view.pages.get("derivations", place) != name.encode():
                yield "listing", f"artifact {name}", f"it is not found under its source {content_hash}"
    if view.pages.count("derivations") != wanted:
        found = view.pages.count("derivations")
        yield "listing", "derivations", f"{found} derivations are listed, manifests state {wanted}"


def due_times(view: LmdbReading, tick: Tick) -> Iterator[Fault]:
    """Every row that comes due has its entry, and every entry its row."""
    for where, detail in dues.entry_faults(view):
        tick()
        yield "due", where, detail
    try:
        for table, row in dues.rows_without_entry(view):
            detail = "nothing tells when it comes due: restart the node, which makes the index again"
            yield "due", f"{table.name} {table.key(row)}", detail
    except StoreCorrupt as error:
        yield "due", error.where, str(error)


def policy_logs(view: LmdbReading, tick: Tick) -> Iterator[Fault]:
    """Every policy log counts from 1 and is one chain up to the end that was kept."""
    at: dict[int, tuple[int, bytes]] = {}
    for key, value in view.pages.scan("policy_log", b""):
        tick()
        if len(key) != PLACE.size:
            yield "policy", f"policy log {key.hex()}", "the key is damaged"
            continue
        number, entry = PLACE.unpack(key)
        where = f"policy log of {_name(view, number)} entry {entry}"
        last, chain = at.get(number, (0, NO_CHAIN))
        if entry != last + 1:
            yield "policy", where, f"entry {last + 1} is missing"
        try:
            decode_policy(value, where)
            stored, content = unchained(value, where)
        except StoreCorrupt as error:
            yield "policy", where, str(error)
            at[number] = entry, next_chain(chain, value)
            continue
        if stored != next_chain(chain, content):
            yield "policy", where, "the chain value does not follow from the entries before"
        at[number] = entry, stored
    kept = dict(view.pages.scan("proofs", b"policy", b"policz"))
    for number, end in at.items():
        if kept.pop(policy_end(number), None) != CHAIN_END.pack(*end):
            yield "policy", f"policy log of {_name(view, number)}", "it does not end where it was kept to end"
    for key in kept:
        yield "policy", f"policy log {key.hex()}", "it is gone"


def _name(view: LmdbReading, number: int) -> str:
    try:
        return f"group {view.group_name(number)}" if number else "organization"
    except StoreCorrupt:
        return f"group number {number}"


def diagnostics(view: LmdbReading, tick: Tick) -> Iterator[Fault]:
    """Protected diagnostics are gap-free from the newest that was forgotten on, and one chain."""
    last, chain = view.chain_end(AUDIT_START)
    for key, value in view.pages.scan("audit", b""):
        tick()
        where = f"audit {key.hex()}"
        if key != U64.pack(last + 1):
            yield "audit", where, f"row {last + 1} is missing"
        last = int.from_bytes(key, "big")
        try:
            decode_audit(value, where)
            stored, content = unchained(value, where)
        except StoreCorrupt as error:
            yield "audit", where, str(error)
            chain = next_chain(chain, value)
            continue
        if stored != next_chain(chain, content):
            yield "audit", where, "the chain value does not follow from the rows before"
        chain = stored
    if view.chain_end(AUDIT_END) != (last, chain):
        yield "audit", "audit", "the diagnostics do not end where they were kept to end"


def cursors(view: LmdbReading, tick: Tick) -> Iterator[Fault]:
    """Every Cursor lies in a Group, at an Event that was there."""
    for key, value in view.pages.scan("cursors", b""):
        tick()
        where = f"cursor {key.hex()}"
        sequence = unchecked(value, key)
        if sequence is None or len(sequence) != U64.size:
            yield "cursor", where, "the Cursor is damaged: its Agent is sent Events again from the last good one"
            continue
        try:
            head = view.head(view.group_name(U32.unpack(key[-4:])[0]))
        except StoreCorrupt as error:
            yield "cursor", where, str(error)
            continue
        if U64.unpack(sequence)[0] > head:
            yield "cursor", where, "the Cursor lies behind the newest Event"


def uploads(view: LmdbReading, tick: Tick) -> Iterator[Fault]:
    """Chunks of unfinished uploads count from 0 in each."""
    places: dict[bytes, int] = {}
    for key, _ in view.pages.scan("uploads", b""):
        tick()
        expected = places.get(key[:8], 0)
        if key[8:] != U32.pack(expected):
            yield "artifact", f"upload {key.hex()}", f"chunk {expected} of the upload is missing"
        places[key[:8]] = expected + 1


def facts(view: LmdbReading, tick: Tick) -> Iterator[Fault]:
    """Values of ``meta`` are those that were written, and counted databases hold as many entries as were kept count
    of."""
    proofs = dict(view.pages.scan("proofs", b""))
    for key, value in view.pages.scan("meta", b""):
        tick()
        if key not in _DERIVED_META and proofs.pop(b"meta " + key, None) != meta_check(key, value):
            yield "meta", f"meta {key.decode(errors='replace')}", "the value is not the one that was written"
    known = format_of(view)
    # A file that has what came later is not older than that.
    older = [db for db, since in SINCE.items() if known < since and db in view.pages.dbs]
    if view.meta("format") != b"%d" % known or not 1 <= known <= FORMAT or older:
        yield "meta", "meta format", f"{view.meta('format')!r} is not the format that the file has"
    yield from _position(view)
    for db in sorted(COUNTED):
        count = proofs.pop(b"count " + db.encode(), None)
        found = view.pages.count(db)
        if count != U64.pack(found) and not (count is None and not found):
            yield "count", db, f"{found} entries are there, which is not the number that was kept"
    for key in proofs:
        if key.startswith(b"meta "):
            yield "meta", f"meta {key[5:].decode(errors='replace')}", "the value is gone"
        elif not key.startswith(b"policy") and key not in (AUDIT_END, AUDIT_START):
            yield "meta", f"proofs {key.hex()}", "nothing is proven by this"


def _position(view: LmdbReading) -> Iterator[Fault]:
    """The highest position ever used: of the newest Event, unless that was trimmed."""
    value = view.meta("position")
    newest = view.pages.last("log", b"")
    position = 0 if value is None or len(value) != U64.size else U64.unpack(value)[0]
    highest = 0 if newest is None else int.from_bytes(newest[0], "big")
    trimmed = sum(int.from_bytes(record[1:9], "big") for _, record in view.pages.scan("trims", b""))
    if not highest <= position <= highest + trimmed or (value is not None and len(value) != U64.size):
        yield "meta", "meta position", f"{position} does not fit the newest Event, which lies at {highest}"


PARTS: Final[tuple[tuple[str, Callable[[LmdbReading, Tick], Iterator[Fault]]], ...]] = (
    ("names of Groups", names),
    ("hashes of Commands", hashes),
    ("listings", listing),
    ("derivations", derivations),
    ("due times", due_times),
    ("policy logs", policy_logs),
    ("diagnostics", diagnostics),
    ("cursors", cursors),
    ("uploads", uploads),
    ("meta", facts),
)
"""What ``verify`` looks at besides logs, Commands, Artifacts and rows, with a name for its progress."""


def registered_at(view: LmdbReading) -> dict[tuple[str, str], set[str]]:
    """When the Organization's policy log says that keys and profiles were registered, by decision and name."""
    times: dict[tuple[str, str], set[str]] = {}
    after = 0
    while page := view.policy_log(None, after, 1000):
        after += len(page)
        for entry in page:
            name = entry.details.get("keyId", entry.details.get("profileUri"))
            if isinstance(name, str):
                times.setdefault((entry.decision, name), set()).add(entry.occurred_at)
    return times
