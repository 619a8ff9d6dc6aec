"""Proof of the logs: numbers, chains, signatures, places, and the Commands behind the Events."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec
from msgspec import UNSET, Struct

from mwnode.authority.views import policy_log
from mwnode.protocol.documents import Event
from mwnode.protocol.instants import parse
from mwnode.store.checking import REPORT_EVERY, Checking, read_verified
from mwnode.store.errors import StoreCorrupt
from mwnode.store.examining import CLEAN, Asked, Examined, examine
from mwnode.store.layout import PLACE, U32, U64, next_chain, text_key
from mwnode.store.log_records import LogRecord, decode_command_record, decode_log_record
from mwnode.store.port import NO_CHAIN, Trim
from mwnode.store.trim import erased_commands, faults_of


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


def question_of(record: LogRecord) -> Asked:
    """What is to be examined about a stored Event."""
    signing_hash = None if tombstone_in(record.event) is not None else record.signing_hash
    return Asked("event", record.event, signing_hash, record.accepted_at)


class LogProof(Checking):
    """The part of a verification that follows the logs."""

    proven_through = 0
    """Position up to which Events were examined."""

    def prove_events(self) -> None:
        """Examine every Event in the order of commits; what is wrong with one is told at its place in its Group."""
        assert self.prover is not None
        total = self.view.pages.count("log")
        done = 0
        try:
            for (position, _), examined in self.prover.examine(self._stored(), lambda stored: stored[1], total):
                self.proven_through = position
                if examined is not None and examined != CLEAN:
                    self.unclean[position] = examined
                done += 1
                if done % REPORT_EVERY == 0:
                    self.progress("signatures of Events", done, total)
        except StoreCorrupt:
            # The structure of the log was looked at before, and each Event that is left is examined at its place.
            self.renew()

    def _stored(self) -> Iterator[tuple[int, Asked | None]]:
        for key, value in self.view.pages.scan("log", b""):
            position = int.from_bytes(key, "big")
            try:
                yield position, question_of(decode_log_record(position, value))
            except StoreCorrupt:
                yield position, None

    def _examined(self, record: LogRecord) -> Examined:
        if record.position <= self.proven_through:
            return self.unclean.get(record.position, CLEAN)
        assert self.registry is not None
        return examine(question_of(record), self.registry, self.view.authority)

    def logs(self, groups: list[str]) -> None:
        total = self.view.pages.count("places")
        indexed = 0
        for group_id in groups:
            where = f"group {group_id}" if group_id else "organization"
            indexed += self.part(where, partial(self._log, group_id, total), told=False) or 0
        records = self.view.pages.count("log")
        if records != indexed or indexed != total:
            self.find("index", "log", f"{records} Events are stored, {indexed} of {total} places belong to Groups")
        if self.view.pages.count("event_ids") != records:
            self.find("index", "event_ids", "the index of Event IDs has another size than the log")
        self.progress("events", self.events, total)

    def _log(self, group_id: str, total: int) -> int:
        """Follow one log; how many places it has."""
        number = self.view.group_number(group_id)
        if number is None:
            self.find("index", f"group {group_id}", "the Group has a name and no number")
            return 0
        trim = self.trim_of(group_id)
        if trim is not None:
            self._trimmed(group_id, trim)
        at = _Chain(0, NO_CHAIN) if trim is None else _Chain(trim.through, trim.chain, trim.last_occurred_at)
        indexed = 0
        for key, position in self.view.pages.scan("places", PLACE.pack(number, 0), U32.pack(number) + b"\xff" * 9):
            indexed += 1
            if len(key) != PLACE.size or len(position) != U64.size:
                self.find("index", f"places {key.hex()}", "the entry is damaged")
                continue
            self._event(group_id, number, PLACE.unpack(key)[1], position, at)
            self.events += 1
            if self.events % REPORT_EVERY == 0:
                self.progress("events", self.events, total)
        return indexed

    def _trimmed(self, group_id: str, trim: Trim) -> None:
        """The snapshot proves what the log no longer tells (R-16-60)."""
        assert self.registry is not None
        for detail in faults_of(self.view, group_id, trim, self.registry):
            self.find("snapshot", f"group {group_id}", detail)

    def erased_in_trimmed(self) -> None:
        """Commands erased within trimmed Groups: as many as the policy logs say, for the Events can no longer say so
        (decision F17)."""
        noted = erased_commands(self.view)
        told = sum(
            entry.decision == "event erased"
            for group_id in self.view.groups()
            if noted and self.trim_of(group_id) is not None
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
        examined = self._examined(record)
        if not self.told_of(where, examined):
            return
        event = read_verified(question_of(record))
        assert isinstance(event, Event)
        if tombstone is not None:
            self._tombstone(where, group_id, record, event, tombstone)
        expected = (group_id, record.sequence) if group_id else (UNSET, UNSET)
        if (event.group_id, event.sequence) != expected:
            self.find("event", where, "the Event names another place in a Group")
        if event.occurred_at != record.occurred_at:
            self.find("event", where, "the record's time is not the Event's")
        # Only a Group's Events never go back in time when the node's clock did (decision A44).
        if group_id and at.occurred_at is not None and parse(event.occurred_at) < parse(at.occurred_at):
            self.find("event", where, "the Event is dated before the one that precedes it")
        at.occurred_at = event.occurred_at
        self.told_late(where, examined, record.accepted_at)
        if self.view.pages.get("event_ids", text_key(event.event_id)) != U64.pack(record.position):
            self.find("index", where, "the Event's ID leads elsewhere")
        if event.command_hash is not UNSET:
            stored = None if record.command_number is None else self._command_facts(record.command_number)
            if stored is None or f"sha256:{stored[0].hex()}" != event.command_hash:
                self.find("command", where, "the Command that caused the Event is not the one kept for it")
            elif stored[1] != record.accepted_at:
                self.find("command", where, "the Command that caused the Event was accepted at another time")
        elif record.command_number is not None:
            self._follows(where, record)

    def _follows(self, where: str, record: LogRecord) -> None:
        """An Event that another Event caused belongs to the Command of that one, which stands beside it."""
        assert record.command_number is not None
        facts = self._command_facts(record.command_number)
        if facts is None or facts[1] != record.accepted_at:
            self.find("command", where, "the Command that led to the Event is not the one kept for it")
        beside = [
            self.view.pages.get("log", U64.pack(record.position + step)) for step in (-1, 1) if record.position > 1
        ]
        if beside and all(value is not None and _command_of(value) != record.command_number for value in beside):
            self.find("command", where, "no Event beside it belongs to the Command that is kept for it")

    def _tombstone(self, where: str, group_id: str, record: LogRecord, event: Event, tombstone_id: str) -> None:
        """An erased Event is right only if a later Event of the same Group says so and names it (decision F17)."""
        try:
            place = self.view.event_place(tombstone_id)
        except StoreCorrupt:
            place = None
        says = None if place is None else self.read_event(*place)
        if place is None or says is None or place[0] != group_id or place[1] <= record.sequence:
            self.find("tombstone", where, "the Event was erased, and no later Event says so")
            return
        named = says["payload"].get("eventId"), says["payload"].get("sequence")
        if not says["kind"].endswith(".event_tombstoned") or named != (event.event_id, record.sequence):
            self.find("tombstone", where, f"the Event was erased, but {tombstone_id} does not name it")
        elif record.command_number is not None:
            self.erased.add(record.command_number)

    def _command_facts(self, number: int) -> tuple[bytes, str] | None:
        value = self.view.pages.get("commands", U64.pack(number))
        try:
            return None if value is None else decode_command_record(number, value)[:2]
        except StoreCorrupt:
            return None


def _command_of(value: bytes) -> int | None:
    try:
        return decode_log_record(0, value).command_number
    except StoreCorrupt:
        return None
