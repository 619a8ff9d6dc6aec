"""Proof of accepted Commands: their signatures, receipts, index, and what was admitted with them."""

from __future__ import annotations

from typing import Any

import msgspec

from mwnode.authority.intake import EMBEDDED, prepare
from mwnode.protocol.commands import CORE
from mwnode.protocol.documents import Command, FirstAdmissionRecord
from mwnode.store import kept
from mwnode.store.checking import REPORT_EVERY, Checking
from mwnode.store.errors import StoreCorrupt, StoreError
from mwnode.store.fold import REGISTRY_KINDS
from mwnode.store.group_log import HASH_PREFIX, admission_id
from mwnode.store.layout import HASH_BUCKET, U32, U64, receipt_key
from mwnode.store.log_records import decode_command_record
from mwnode.store.snapshots import archival_snapshot
from mwnode.trust.admission import Acceptance, candidate
from mwnode.trust.verification import Failure, Verified
from mwnode.trust.verification import verify as verify_document


class CommandProof(Checking):
    """The part of a verification that looks at Commands."""

    def commands(self) -> None:
        total = self.view.pages.count("commands")
        if self.view.pages.count("receipts") != total:
            self.find("receipt", "receipts", "there are not as many receipts as accepted Commands")
        expected = 1
        registered = kept.registered_at(self.view)
        for key, value in self.view.pages.scan("commands", b""):
            number = int.from_bytes(key, "big")
            where = f"command {number}"
            if number != expected or len(key) != U64.size:
                self.find("command", where, f"Command {expected} is missing")
            expected = number + 1
            try:
                signing_hash, accepted_at, raw = decode_command_record(number, value)
            except StoreCorrupt as error:
                self.find("command", where, str(error))
                continue
            if not raw and number in self.erased:
                continue
            verified = self.verified(where, raw, "command", signing_hash)
            if verified is None:
                continue
            self.admitted_in_time(where, verified, accepted_at)
            assert isinstance(verified.document, Command)
            self._receipt(where, number, signing_hash, verified.document)
            self._embedded(where, accepted_at, verified)
            times = registered.get(_registers(verified.document))
            if times is not None and accepted_at not in times:
                self.find("command", where, "the policy log tells another time of the Command")
            bucket = U32.pack(min(number // HASH_BUCKET, 2**32 - 1)) + signing_hash[:HASH_PREFIX]
            if key not in _numbers(self.view.pages.get("command_hashes", bucket)):
                self.find("index", where, "the Command's hash leads elsewhere")
            if number % REPORT_EVERY == 0:
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
        if receipt.record is not None and command.kind not in REGISTRY_KINDS:
            self.find("receipt", where, "the receipt has a record, which only Registry Commands leave")
        if len(set(receipt.events)) != len(receipt.events) or not (receipt.events or receipt.record):
            self.find("receipt", where, "the receipt does not name the Command's Events once each")
        for group_id, sequence in receipt.events:
            trim = self.trim_of(group_id)
            if trim is not None and sequence <= trim.through:
                continue
            event = self.read_event(group_id, sequence)
            if event is None or event.get("cause") != {"type": "command", "id": command.action_id}:
                self.find("receipt", where, f"the receipt names an Event of another cause ({group_id} {sequence})")

    def _embedded(self, where: str, accepted_at: str, verified: Verified) -> None:
        """The documents that a Command carries were admitted with it, or before it."""
        assert self.registry is not None
        command = verified.document
        assert isinstance(command, Command)
        if command.kind not in EMBEDDED:
            return
        carried = [(each.path, each.verdict) for each in prepare(verified, self.registry).embedded]
        if "snapshotHash" in command.payload and command.group_id:
            # Uploaded before, and kept as a document since.
            content = archival_snapshot(self.view, command.group_id)[1]
            verdict = verify_document(content, "group-snapshot", self.registry, bytes_max=len(content))
            carried.append(("/payload/snapshotHash", verdict))
        for path, verdict in carried:
            if isinstance(verdict, Failure):
                self.find("signature", f"{where} {path}", f"{verdict.stage}: {verdict.reason}")
            else:
                self._admission(f"{where} {path}", accepted_at, verdict)

    def _admission(self, where: str, accepted_at: str, verified: Verified) -> None:
        signing_hash = bytes.fromhex(verified.signing_hash[7:])
        authority = self.view.authority
        if signing_hash in self.admitted or authority is None:
            return
        self.admitted.add(signing_hash)
        record = candidate(verified, Acceptance(admission_id(signing_hash), accepted_at, authority))
        number = self.view.pages.get("admission_hashes", signing_hash)
        stored = None if number is None else self.view.pages.get("admissions", number)
        if isinstance(record, Failure) or stored != msgspec.json.encode(record):
            self.find("admission", where, "the document's admission is not the one that accepting the Command made")

    def admissions(self) -> None:
        admissions = 0
        for key, value in self.view.pages.scan("admissions", b""):
            admissions += 1
            where = f"admission {int.from_bytes(key, 'big')}"
            self.tick("admissions")
            if key != U64.pack(admissions):
                self.find("admission", where, f"admission {admissions} is missing")
            try:
                record = msgspec.json.decode(value, type=FirstAdmissionRecord)
            except msgspec.MsgspecError as error:
                self.find("admission", where, str(error))
                continue
            signing_hash = bytes.fromhex(record.signing_hash[7:])
            if signing_hash not in self.admitted:
                self.find("admission", where, "no accepted Command carries the document")
            if self.view.pages.get("admission_hashes", signing_hash) != key:
                self.find("admission", where, "the record's hash leads elsewhere")
        if self.view.pages.count("admission_hashes") != admissions:
            self.find("admission", "admissions", "the index of admissions has another size than the log")


def _numbers(value: bytes | None) -> set[bytes]:
    """The Command numbers in an entry of the index of hashes, as keys."""
    return set() if value is None else {value[start : start + U64.size] for start in range(0, len(value), U64.size)}


def _registers(command: Command) -> tuple[str, str]:
    """Which entry of the Organization's policy log a Registry Command leads to."""
    payload: dict[str, Any] = command.payload
    if command.kind == f"{CORE}.key_bind":
        return "key bound", str(payload["binding"]["keyId"])
    if command.kind == f"{CORE}.key_restrict":
        return "key restricted", str(payload["keyId"])
    if command.kind == f"{CORE}.profile_register":
        return "extension profile registered", str(payload["profile"]["profileUri"])
    return "", ""
