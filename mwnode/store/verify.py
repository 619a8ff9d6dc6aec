"""Prove the file: every signature, hash, chain value, number, index, receipt, chunk and row, from the bytes alone.

Nothing is repaired here and nothing is believed because it was written by us: a flipped bit in a value comes back from
the file without a word, so each thing is compared with something that was derived another way.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from mwnode.authority.state import KEYS
from mwnode.authority.views import policy_log
from mwnode.protocol import jcs
from mwnode.protocol.documents import Command, Event, FirstAdmissionRecord
from mwnode.protocol.instants import parse
from mwnode.protocol.plain_words import plain
from mwnode.store.artifacts import checked_chunk, manifests
from mwnode.store.environment import LmdbReading, LmdbStore
from mwnode.store.errors import StoreCorrupt, StoreError
from mwnode.store.fold import compare_rows
from mwnode.store.group_log import ORGANIZATION_NUMBER
from mwnode.store.layout import PLACE, U64, next_chain, receipt_key, text_key
from mwnode.store.log_records import LogRecord, decode_command_record, decode_log_record
from mwnode.store.port import NO_CHAIN, ORGANIZATION, Trim
from mwnode.store.trim import erased_commands, faults_of
from mwnode.trust.registry import Registry, RegistryFault
from mwnode.trust.verification import Failure, Verified
from mwnode.trust.verification import verify as verify_document

Progress = Callable[[str, int, int], None]
"""Told what is being checked, how much of it is done, and how much there is."""

FINDINGS_MAX: Final = 1000
"""Findings kept; a file damaged beyond that is not made clearer by more of them."""
_REPORT_EVERY: Final = 256


class Finding(Struct, frozen=True):
    """One thing that is not as it must be."""

    kind: str
    where: str
    detail: str


class Report(Struct, frozen=True):
    """What was checked and what was found."""

    ok: bool
    groups: int
    events: int
    artifacts: int
    findings: tuple[Finding, ...]
    warnings: tuple[Finding, ...] = ()
    """What is right as it is and still needs doing."""


def tombstone_in(event: bytes) -> str | None:
    """ID of the Event that tells of the erasure, when these are the bytes of an erased Event."""
    if b'"tombstone"' not in event:
        return None
    try:
        payload = msgspec.json.decode(event)["payload"]
        found = payload["tombstone"]["eventId"] if set(payload) == {"tombstone"} else None
    except (msgspec.MsgspecError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None


class _Chain(Struct):
    """How far a log has been followed."""

    sequence: int
    chain: bytes
    occurred_at: str | None = None


class _Check:
    """One verification of one consistent view."""

    def __init__(self, view: LmdbReading, progress: Progress | None) -> None:
        self.view = view
        self.progress = progress or (lambda what, done, total: None)
        self.findings: list[Finding] = []
        self.events = 0
        self.artifacts = 0
        self.unread_trims: set[str] = set()
        self.erased: set[int] = set()
        """Commands whose Events were erased: of them only the hash is kept."""
        self.registry = self._registry()

    def find(self, kind: str, where: str, detail: str) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(kind, where, plain(detail)))

    def _registry(self) -> Registry | None:
        bindings = []
        try:
            for row in self.view.all(KEYS):
                bindings.append({"validityHistory": [], **msgspec.to_builtins(row.binding)})
            return Registry.from_evidence({"organizationId": self.view.organization_id, "bindings": bindings})
        except (RegistryFault, StoreCorrupt) as fault:
            self.find("registry", "the Registry's rows", str(fault))
            return None

    def run(self, *, artifacts: bool, rows: bool) -> Report:
        groups = self.view.groups()
        if self.registry is not None:
            self._logs([ORGANIZATION, *groups])
            self._erased_in_trimmed()
            self._commands()
        self._documents()
        self._policy_logs()
        if artifacts:
            self._artifacts()
        if rows:
            self._rows()
        findings = tuple(self.findings)
        return Report(not findings, len(groups), self.events, self.artifacts, findings, tuple(self._warnings()))

    def _warnings(self) -> Iterator[Finding]:
        if self.view.erasures_linger():
            detail = "free pages may still hold the bytes of erased Events: run 'mwnode compact' while no node serves"
            yield Finding("erasure", "free pages", detail)

    # --- logs ---

    def _logs(self, groups: list[str]) -> None:
        total = self.view.pages.count("places")
        indexed = 0
        for group_id in groups:
            number = self.view.group_number(group_id)
            if number is None:
                self.find("index", f"group {group_id}", "the Group has a name and no number")
                continue
            trim = self._trim(group_id)
            if trim is not None:
                self._trimmed(group_id, trim)
            at = _Chain(0, NO_CHAIN) if trim is None else _Chain(trim.through, trim.chain, trim.last_occurred_at)
            for key, position in self.view.pages.scan("places", PLACE.pack(number, 0), PLACE.pack(number + 1, 0)):
                indexed += 1
                self._event(group_id, number, PLACE.unpack(key)[1], position, at)
                self.events += 1
                if self.events % _REPORT_EVERY == 0:
                    self.progress("events", self.events, total)
        records = self.view.pages.count("log")
        if records != indexed or indexed != total:
            self.find("index", "log", f"{records} Events are stored, {indexed} of {total} places belong to Groups")
        if self.view.pages.count("event_ids") != records:
            self.find("index", "event_ids", "the index of Event IDs has another size than the log")
        self.progress("events", self.events, total)

    def _trim(self, group_id: str) -> Trim | None:
        """What remains of a Group's trimmed beginning; a finding, once, when that cannot be read."""
        if group_id in self.unread_trims:
            return None
        try:
            return self.view.trimmed(group_id)
        except StoreCorrupt as error:
            self.unread_trims.add(group_id)
            self.find("snapshot", f"group {group_id}", str(error))
            return None

    def _trimmed(self, group_id: str, trim: Trim) -> None:
        """The snapshot proves what the log no longer tells (R-16-60)."""
        assert self.registry is not None
        for detail in faults_of(self.view, group_id, trim, self.registry):
            self.find("snapshot", f"group {group_id}", detail)

    def _erased_in_trimmed(self) -> None:
        """Commands erased within trimmed Groups: as many as the policy logs say, for the Events can no longer say so
        (decision F17)."""
        noted = erased_commands(self.view)
        told = sum(
            entry.decision == "event erased"
            for group_id in self.view.groups()
            if noted and self._trim(group_id) is not None
            for entry in policy_log(self.view, group_id)
        )
        if len(noted) > told:
            self.find("tombstone", "erased commands", f"{len(noted)} are noted, the policy logs tell of {told}")
        else:
            self.erased |= noted

    def _event(self, group_id: str, number: int, sequence: int, position: bytes, at: _Chain) -> None:
        where = f"group {group_id} sequence {sequence}" if group_id else f"organization event {sequence}"
        if sequence != at.sequence + 1:
            self.find("sequence", where, f"sequence {at.sequence + 1} is missing")
        at.sequence = sequence
        value = self.view.pages.get("log", position)
        if value is None:
            self.find("event", where, "the Event is missing")
            return
        try:
            record = decode_log_record(U64.unpack(position)[0], value)
        except StoreCorrupt as error:
            self.find("event", where, str(error))
            return
        if (record.group_number, record.sequence) != (number, sequence):
            self.find("event", where, "the record belongs to another place")
        chain = next_chain(at.chain, record.signing_hash)
        if record.chain != chain:
            self.find("chain", where, "the chain value does not follow from the Events before")
        # What comes after is judged by what is stored, so that one fault is one finding.
        at.chain = record.chain
        self._event_document(where, group_id, record, at)

    def _event_document(self, where: str, group_id: str, record: LogRecord, at: _Chain) -> None:
        tombstone = tombstone_in(record.event)
        signing_hash = None if tombstone is not None else record.signing_hash
        verified = self._verified(where, record.event, "event", signing_hash)
        if verified is None:
            return
        event = verified.document
        assert isinstance(event, Event)
        if tombstone is not None:
            self._tombstone(where, group_id, record, event, tombstone)
        expected = (group_id, record.sequence) if group_id else (UNSET, UNSET)
        if (event.group_id, event.sequence) != expected:
            self.find("event", where, "the Event names another place in a Group")
        if event.occurred_at != record.occurred_at:
            self.find("event", where, "the record's time is not the Event's")
        if at.occurred_at is not None and parse(event.occurred_at) < parse(at.occurred_at):
            self.find("event", where, "the Event is dated before the one that precedes it")
        at.occurred_at = event.occurred_at
        self._admitted(where, verified, record.accepted_at)
        if self.view.pages.get("event_ids", text_key(event.event_id)) != U64.pack(record.position):
            self.find("index", where, "the Event's ID leads elsewhere")
        if event.command_hash is not UNSET:
            stored = None if record.command_number is None else self._command_hash(record.command_number)
            if stored is None or f"sha256:{stored.hex()}" != event.command_hash:
                self.find("command", where, "the Command that caused the Event is not the one kept for it")

    def _tombstone(self, where: str, group_id: str, record: LogRecord, event: Event, tombstone_id: str) -> None:
        """An erased Event is right only if a later Event of the same Group says so and names it (decision F17)."""
        try:
            place = self.view.event_place(tombstone_id)
        except StoreCorrupt:
            place = None
        says = None if place is None else self._read_event(*place)
        if place is None or says is None or place[0] != group_id or place[1] <= record.sequence:
            self.find("tombstone", where, "the Event was erased, and no later Event says so")
            return
        named = says["payload"].get("eventId"), says["payload"].get("sequence")
        if not says["kind"].endswith(".event_tombstoned") or named != (event.event_id, record.sequence):
            self.find("tombstone", where, f"the Event was erased, but {tombstone_id} does not name it")
        elif record.command_number is not None:
            self.erased.add(record.command_number)

    def _command_hash(self, number: int) -> bytes | None:
        value = self.view.pages.get("commands", U64.pack(number))
        try:
            return None if value is None else decode_command_record(number, value)[0]
        except StoreCorrupt:
            return None

    def _verified(self, where: str, raw: bytes, kind: str, signing_hash: bytes | None) -> Verified | None:
        """The document, when its signature, its hash and its spelling are right."""
        assert self.registry is not None
        verdict = verify_document(raw, kind, self.registry, bytes_max=len(raw))  # type: ignore[arg-type]  # a literal
        if isinstance(verdict, Failure):
            self.find("signature", where, f"{verdict.stage}: {verdict.reason} {verdict.detail}".strip())
            return None
        if signing_hash is not None and verdict.signing_hash != f"sha256:{signing_hash.hex()}":
            self.find("hash", where, "the stored signing hash is not the document's")
        if jcs.canonical(verdict.document) != raw:
            self.find("hash", where, "the stored bytes are not the canonical ones that were signed")
        return verdict

    def _admitted(self, where: str, verified: Verified, accepted_at: str) -> None:
        assert self.registry is not None
        binding = self.registry.resolve(verified.key_id)
        try:
            inside = binding is not None and binding.valid_at(parse(accepted_at))
        except ValueError:
            inside = False
        if not inside:
            self.find("admission", where, f"the key was not valid when the document was accepted ({accepted_at})")

    # --- Commands ---

    def _commands(self) -> None:
        total = self.view.pages.count("commands")
        if self.view.pages.count("receipts") != total:
            self.find("receipt", "receipts", "there are not as many receipts as accepted Commands")
        expected = 1
        for key, value in self.view.pages.scan("commands", b""):
            number = int(U64.unpack(key)[0])
            where = f"command {number}"
            if number != expected:
                self.find("command", where, f"Command {expected} is missing")
            expected = number + 1
            try:
                signing_hash, accepted_at, raw = decode_command_record(number, value)
            except StoreCorrupt as error:
                self.find("command", where, str(error))
                continue
            if not raw and number in self.erased:
                continue
            verified = self._verified(where, raw, "command", signing_hash)
            if verified is None:
                continue
            self._admitted(where, verified, accepted_at)
            assert isinstance(verified.document, Command)
            self._receipt(where, number, signing_hash, verified.document)
            if self.view.command_number(signing_hash) != number:
                self.find("index", where, "the Command's hash leads elsewhere")
            if number % _REPORT_EVERY == 0:
                self.progress("commands", number, total)
        self.progress("commands", total, total)

    def _receipt(self, where: str, number: int, signing_hash: bytes, command: Command) -> None:
        value = self.view.pages.get("receipts", receipt_key(command.actor.id, command.action_id))
        if value is None:
            self.find("receipt", where, "the Command has no receipt")
            return
        try:
            receipt = self.view.receipt(command.actor.id, command.action_id)
        except (StoreError, ValueError, msgspec.MsgspecError) as error:
            self.find("receipt", where, f"the receipt cannot be read: {error}")
            return
        assert receipt is not None
        if (receipt.signing_hash, receipt.command_number) != (signing_hash, number):
            self.find("receipt", where, "the receipt stands for another Command")
        for group_id, sequence in receipt.events:
            trim = self._trim(group_id)
            if trim is not None and sequence <= trim.through:
                continue
            event = self._read_event(group_id, sequence)
            if event is None or event.get("cause") != {"type": "command", "id": command.action_id}:
                self.find("receipt", where, f"the receipt names an Event of another cause ({group_id} {sequence})")

    def _read_event(self, group_id: str, sequence: int) -> dict[str, Any] | None:
        """An Event's members, as far as they can be read; its own place is where damage is reported."""
        try:
            stored = self.view.event(group_id, sequence)
            return None if stored is None else msgspec.json.decode(stored.event, type=dict[str, Any])
        except (StoreCorrupt, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    # --- the rest ---

    def _documents(self) -> None:
        for key, content in self.view.pages.scan("documents", b""):
            if hashlib.sha256(content).digest() != key:
                self.find("document", f"document sha256:{key.hex()}", "the bytes have another hash")
        admissions = 0
        for key, value in self.view.pages.scan("admissions", b""):
            admissions += 1
            where = f"admission {U64.unpack(key)[0]}"
            try:
                record = msgspec.json.decode(value, type=FirstAdmissionRecord)
            except msgspec.MsgspecError as error:
                self.find("admission", where, str(error))
                continue
            signing_hash = bytes.fromhex(record.signing_hash[7:])
            if self.view.pages.get("admission_hashes", signing_hash) != key:
                self.find("admission", where, "the record's hash leads elsewhere")
        if self.view.pages.count("admission_hashes") != admissions:
            self.find("admission", "admissions", "the index of admissions has another size than the log")

    def _policy_logs(self) -> None:
        expected: Counter[int] = Counter()
        for key, _ in self.view.pages.scan("policy_log", b""):
            number, entry = PLACE.unpack(key)
            expected[number] += 1
            if entry != expected[number]:
                name = "organization" if number == ORGANIZATION_NUMBER else f"group {self.view.group_name(number)}"
                self.find("policy", f"policy log of {name} entry {entry}", f"entry {expected[number]} is missing")
                expected[number] = entry

    def _artifacts(self) -> None:
        references: Counter[bytes] = Counter()
        total = self.view.pages.count("artifacts")
        for content_hash, manifest in self._manifests():
            self.artifacts += 1
            whole = hashlib.sha256()
            where = f"artifact {content_hash}"
            try:
                for key, size in manifest:
                    references[key] += 1
                    whole.update(checked_chunk(self.view, content_hash, key, size))
            except StoreCorrupt as error:
                references.update(key for key, _ in manifest[manifest.index((key, size)) + 1 :])
                self.find("artifact", where, str(error))
            else:
                if f"sha256:{whole.hexdigest()}" != content_hash:
                    self.find("artifact", where, "the bytes have another hash")
            self.progress("artifacts", self.artifacts, total)
        references.update(chunk for _, chunk in self.view.pages.scan("uploads", b""))
        for key, value in self.view.pages.scan("chunk_references", b""):
            if U64.unpack(value)[0] != references.pop(key, 0):
                self.find("artifact", f"chunk {key.hex()}", "the chunk is counted wrongly")
        for key in references:
            self.find("artifact", f"chunk {key.hex()}", "the chunk is not counted")

    def _manifests(self) -> Iterator[tuple[str, tuple[tuple[bytes, int], ...]]]:
        found = manifests(self.view)
        while True:
            try:
                content_hash, manifest = next(found)
            except StopIteration:
                return
            except StoreCorrupt as error:
                self.find("artifact", error.where, str(error))
                return
            yield content_hash, manifest.chunks

    def _rows(self) -> None:
        for kind, where, detail in compare_rows(self.view, self.progress):
            self.find(kind, where, detail)


def verify(
    target: LmdbStore | Path, *, artifacts: bool = True, rows: bool = True, progress: Progress | None = None
) -> Report:
    """Check a store, or the file at a path, which may be in use by its node.

    A damaged file gives findings; a file that cannot be opened at all raises the StoreError of opening it. The check
    sees one state of the file and keeps it from reusing freed pages meanwhile.
    """
    if isinstance(target, Path):
        store = LmdbStore.open(target, read_only=True)
        try:
            return verify(store, artifacts=artifacts, rows=rows, progress=progress)
        finally:
            store.close()
    with target.read() as view:
        return _Check(view, progress).run(artifacts=artifacts, rows=rows)
