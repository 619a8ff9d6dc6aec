"""Proof of accepted Commands: their signatures, receipts, index, and what was admitted with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from mwnode.authority.intake import EMBEDDED
from mwnode.protocol.commands import CORE
from mwnode.protocol.documents import Command, FirstAdmissionRecord
from mwnode.store import kept
from mwnode.store.checking import REPORT_EVERY, Checking, read_verified
from mwnode.store.errors import StoreCorrupt, StoreError
from mwnode.store.examining import Asked, Carried, Examined, admission_due
from mwnode.store.fold import REGISTRY_KINDS
from mwnode.store.group_log import HASH_PREFIX
from mwnode.store.layout import HASH_BUCKET, U32, U64, admission_check, receipt_key
from mwnode.store.log_records import decode_command_record
from mwnode.store.snapshots import archival_snapshot
from mwnode.trust.verification import verify as verify_document


class _Stored(Struct, frozen=True):
    """A Command as it lies in the file. ``asked`` is ``None`` for an erased one, and for one that cannot be read."""

    key: bytes
    number: int
    asked: Asked | None
    fault: str = ""


class CommandProof(Checking):
    """The part of a verification that looks at Commands."""

    def commands(self) -> None:
        total = self.view.pages.count("commands")
        if self.view.pages.count("receipts") != total:
            self.find("receipt", "receipts", "there are not as many receipts as accepted Commands")
        expected = 1
        registered = kept.registered_at(self.view)
        assert self.prover is not None
        for stored, examined in self.prover.examine(self._stored_commands(), lambda stored: stored.asked, total):
            key, number, asked = stored.key, stored.number, stored.asked
            where = f"command {number}"
            if number != expected or len(key) != U64.size:
                self.find("command", where, f"Command {expected} is missing")
            expected = number + 1
            if asked is None or examined is None:
                if stored.fault:
                    self.find("command", where, stored.fault)
                continue
            if not self.told_of(where, examined):
                continue
            self.told_late(where, examined, asked.accepted_at)
            command = read_verified(asked)
            assert isinstance(command, Command)
            signing_hash = asked.signing_hash or b""
            self._receipt(where, number, signing_hash, command)
            self._carried(where, asked.accepted_at, command, examined)
            times = registered.get(_registers(command))
            if times is not None and asked.accepted_at not in times:
                self.find("command", where, "the policy log tells another time of the Command")
            bucket = U32.pack(min(number // HASH_BUCKET, 2**32 - 1)) + signing_hash[:HASH_PREFIX]
            if key not in _numbers(self.view.pages.get("command_hashes", bucket)):
                self.find("index", where, "the Command's hash leads elsewhere")
            if number % REPORT_EVERY == 0:
                self.progress("commands", number, total)
        self.progress("commands", total, total)

    def _stored_commands(self) -> Iterator[_Stored]:
        for key, value in self.view.pages.scan("commands", b""):
            number = int.from_bytes(key, "big")
            try:
                signing_hash, accepted_at, raw = decode_command_record(number, value)
            except StoreCorrupt as error:
                yield _Stored(key, number, None, str(error))
                continue
            erased = not raw and number in self.erased
            yield _Stored(key, number, None if erased else Asked("command", raw, signing_hash, accepted_at))

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

    def _carried(self, where: str, accepted_at: str, command: Command, examined: Examined) -> None:
        """The documents that a Command carries were admitted with it, or before it."""
        for carried in examined.carried:
            self._admission(where, carried)
        if command.kind in EMBEDDED and "snapshotHash" in command.payload and command.group_id:
            # Uploaded before, and kept as a document since.
            assert self.registry is not None
            content = archival_snapshot(self.view, command.group_id)[1]
            verdict = verify_document(content, "group-snapshot", self.registry, bytes_max=len(content))
            authority = self.view.authority
            self._admission(where, admission_due("/payload/snapshotHash", verdict, accepted_at, authority))

    def _admission(self, where: str, carried: Carried) -> None:
        if carried.failure:
            self.find("signature", f"{where} {carried.path}", carried.failure)
            return
        if carried.signing_hash in self.admitted or not carried.signing_hash:
            return
        self.admitted.add(carried.signing_hash)
        number = self.view.pages.get("admission_hashes", carried.signing_hash)
        stored = None if number is None else self.view.pages.get("admissions", number[: U64.size])
        if carried.record is None or stored != carried.record:
            detail = "the document's admission is not the one that accepting the Command made"
            self.find("admission", f"{where} {carried.path}", detail)

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
            if self.view.pages.get("admission_hashes", signing_hash) != key + admission_check(key, value):
                self.find("admission", where, "the record's hash leads elsewhere, or to another record")
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
