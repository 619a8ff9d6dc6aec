"""What one write transaction does for a batch: each Command in its turn, from receipt look-up to signed Events.

Nothing here reaches anybody outside before the transaction is durable. A batch may be run again from its start, when
the file has to grow, so that all it changes is the transaction and its own lists.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Struct

from mwnode.authority.archival import erased_payload
from mwnode.authority.case import Context, Services
from mwnode.authority.decide import decide, decide_due
from mwnode.authority.evolve import evolve
from mwnode.authority.policy import Policy
from mwnode.authority.request import Decision, EventFact, Request
from mwnode.protocol import jcs
from mwnode.protocol.documents import Command, Event, FirstAdmissionRecord, PolicyLogEntry
from mwnode.protocol.errors import SIGNED_DOCUMENT_REJECTED, ErrorCode, Rejection
from mwnode.protocol.events import EventTombstoned
from mwnode.protocol.identifiers import uuid7_urn
from mwnode.protocol.instants import Instant
from mwnode.protocol.ports import Entropy
from mwnode.store.environment import LmdbWriting
from mwnode.store.group_log import admission_id
from mwnode.store.outcome import INTERNAL, Accepted, CommittedEvent, Outcome
from mwnode.store.port import ORGANIZATION, AuditRow, DueEntry, NewEvent, Receipt
from mwnode.store.prefetch import rows_wanted
from mwnode.store.projections import encode_row
from mwnode.trust import admission
from mwnode.trust.keys import UNSIGNED, SignedBytes, SigningKey, sign_bytes
from mwnode.trust.registry import Registry
from mwnode.trust.verification import Failure, Verified

__all__ = ["Accepted", "Batch", "CommittedEvent", "Outcome", "Poisoned"]

DUE_MAX: Final = 256
"""Due rows looked at in one batch; the rest follow in the next."""
TIMER_RETRY_SECONDS: Final = 60
"""When a timer is looked at again whose decision failed by a fault of ours."""
_log = logging.getLogger("mwnode.store")
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


class Prepared(Struct, frozen=True):
    """A decision made ready to be written: nothing about it can fail any more."""

    events: list[SignedBytes]
    rows: list[bytes]


class Poisoned(Exception):
    """One Command's own fault undid the transaction; the batch is run again without it."""

    def __init__(self, request: Request, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.request = request


def whole_command(verified: Verified) -> bytes:
    """The canonical bytes of a verified Command with its signature put back in its sorted place."""
    command = verified.document
    assert isinstance(command, Command)
    member = b'"signature":' + _encode_sorted(command.signature)
    body = verified.canonical
    if command.work_item_id is UNSET:
        return b"".join((body[:-1], b",", member, b"}"))
    # Of all members of a Command only workItemId sorts behind its signature.
    last = b',"workItemId":"' + command.work_item_id.encode() + b'"}'
    if not body.endswith(last):
        raise ValueError("workItemId is not the last member of a canonical Command")
    return b"".join((body[: -len(last)], b",", member, last))


class Batch:
    """One run of a batch inside one transaction."""

    def __init__(
        self,
        txn: LmdbWriting,
        *,
        now: Instant,
        policy: Policy,
        organization_id: str,
        services: Services,
        registry: Registry,
        authority_key: SigningKey,
        entropy: Entropy,
    ) -> None:
        self.txn = txn
        self.now = now
        self.now_text = now.text()
        self.policy = policy
        self.organization_id = organization_id
        self.services = services
        self.registry = registry
        self.authority_key = authority_key
        self.entropy = entropy
        self.events: list[CommittedEvent] = []
        self.audits: list[AuditRow] = []
        self._context: Context | None = None

    def new_id(self) -> str:
        return uuid7_urn(self.now, self.entropy.random(10))

    @property
    def context(self) -> Context:
        """What deciding gets; made anew only when the Registry changed."""
        if self._context is None:
            self._context = Context(
                now=self.now,
                policy=self.policy,
                organization_id=self.organization_id,
                services=self.services,
                registry=self.registry,
                new_id=self.new_id,
                evolve=evolve,
            )
        return self._context

    # --- Commands ---

    def prefetch(self, requests: Sequence[Request]) -> None:
        """Read what the batch will ask for in a few calls."""
        commands = [request.verified.document for request in requests]
        self.txn.prefetch_receipts([(c.actor.id, c.action_id) for c in commands if isinstance(c, Command)])
        self.txn.prefetch(rows_wanted(requests))

    def command(self, request: Request) -> Outcome:
        """Decide one Command and write what follows from it. Order: reading 2."""
        verified = request.verified
        command = verified.document
        assert isinstance(command, Command)
        signing_hash = bytes.fromhex(verified.signing_hash[7:])
        receipt = self.txn.receipt(command.actor.id, command.action_id)
        if receipt is not None:
            return self._duplicate(command, signing_hash, receipt)
        failure = admission.check_freshness(
            verified.protected_time,
            self.now,
            window_seconds=self.policy.freshness_window,
            skew_seconds=self.policy.clock_skew,
        ) or self._outside_key_interval(verified)
        if failure is not None:
            return self._refuse_signed(failure, verified, command)
        records = self._admit_embedded(request)
        if isinstance(records, Failure):
            return self._refuse_signed(records, verified, command)
        try:
            decision = decide(self.txn, request, self.context)
            if isinstance(decision, Rejection):
                self._audit_embedded(request, command)
                return decision
            prepared = self._prepare(decision)
        except Exception:
            # Nothing was written yet: this Command's fault stays its own.
            _log.exception("%s %s could not be decided", command.kind, command.action_id)
            return INTERNAL
        try:
            return self._accept(request, command, signing_hash, records, decision, prepared)
        except Exception as error:
            raise Poisoned(request, error) from error

    def _duplicate(self, command: Command, signing_hash: bytes, receipt: Receipt) -> Outcome:
        """The original answer again, or a collision: an Action ID stands for one content for ever (R-19-22)."""
        if receipt.signing_hash != signing_hash:
            return Rejection(
                ErrorCode.ACTION_ID_COLLISION,
                f"actionId {command.action_id} already stands for another Command of this actor",
                "R-19-22",
            )
        events = []
        for group_id, sequence in receipt.events:
            stored = self.txn.event(group_id, sequence)
            if stored is None:
                # Only archived Groups are trimmed, with all their Events in the snapshot.
                return Rejection(
                    ErrorCode.CURSOR_TOO_OLD, "accepted; its Events are only in the archived snapshot", "R-19-33"
                )
            events.append(stored.event)
        return Accepted(tuple(events), receipt.record, duplicate=True)

    def _outside_key_interval(self, verified: Verified) -> Failure | None:
        """Whether the key is good at the trusted time, by the Registry as it is now (R-6.4-74)."""
        binding = self.registry.resolve(verified.key_id)
        if binding is not None and binding.valid_at(self.now) and binding.valid_at(verified.protected_time):
            return None
        return admission.failure(admission.Reason.OUTSIDE_KEY_INTERVAL)

    def _admit_embedded(self, request: Request) -> list[FirstAdmissionRecord] | Failure:
        """The records under which the documents inside the payload are admitted, new or standing (decision D1)."""
        records: list[FirstAdmissionRecord] = []
        for embedded in request.embedded:
            verified = embedded.verdict
            if isinstance(verified, Failure):
                continue
            failure = self._outside_key_interval(verified)
            if failure is not None:
                return failure
            signing_hash = bytes.fromhex(verified.signing_hash[7:])
            standing = self.txn.admission(signing_hash)
            if standing is None:
                acceptance = admission.Acceptance(admission_id(signing_hash), self.now_text, self.services.authority)
                record = admission.candidate(verified, acceptance)
            else:
                record = admission.check_record(_encode_sorted(standing), self.services.authority, verified)
            if isinstance(record, Failure):
                return record
            records.append(record)
        return records

    def _accept(
        self,
        request: Request,
        command: Command,
        signing_hash: bytes,
        records: list[FirstAdmissionRecord],
        decision: Decision,
        prepared: Prepared,
    ) -> Accepted:
        number = self.txn.put_command(signing_hash, whole_command(request.verified), self.now_text)
        for record in records:
            self.txn.put_admission(record)
        stored = self._write(decision, prepared, number, command)
        own_group = None if command.group_id is UNSET else command.group_id
        caused = [
            index
            for index, fact in enumerate(decision.facts)
            if fact.group_id == own_group and fact.cause.type == "command" and fact.cause.id == command.action_id
        ]
        if decision.facts:
            caused = [decision.receipt, *(index for index in caused if index != decision.receipt)]
        record_bytes = None if decision.record is None else jcs.canonical(decision.record)
        places = tuple((decision.facts[index].group_id or ORGANIZATION, stored[index][0]) for index in caused)
        self.txn.put_receipt(command.actor.id, command.action_id, Receipt(signing_hash, places, record_bytes, number))
        return Accepted(tuple(stored[index][1] for index in caused), record_bytes)

    def _prepare(self, decision: Decision) -> Prepared:
        """Everything that can fail about a decision, before the first write: signing Events, checking rows."""
        return Prepared(
            [self._sign(fact) for fact in decision.facts],
            [encode_row(table, row) for table, row in decision.changes],
        )

    def _sign(self, fact: EventFact) -> SignedBytes:
        draft = Event(
            protocol_version="0.1",
            event_id=fact.event_id,
            kind=fact.kind,
            actor=fact.actor,
            cause=fact.cause,
            correlation_id=fact.correlation_id,
            occurred_at=fact.occurred_at,
            payload=fact.payload,  # type: ignore[arg-type]  # encoded just like the mapping it stands for
            accepted_by=self.services.authority,
            signature=UNSIGNED,
            group_id=UNSET if fact.group_id is None else fact.group_id,
            sequence=UNSET if fact.sequence is None else fact.sequence,
            aggregate_revision=UNSET if fact.aggregate_revision is None else fact.aggregate_revision,
            conversation_id=UNSET if fact.conversation_id is None else fact.conversation_id,
            work_item_id=UNSET if fact.work_item_id is None else fact.work_item_id,
            command_hash=UNSET if fact.command_hash is None else fact.command_hash,
            extensions=UNSET if fact.extensions is None else dict(fact.extensions),
        )
        return sign_bytes(draft, self.authority_key, fact.occurred_at)

    def _write(
        self, decision: Decision, prepared: Prepared, command_number: int | None, command: Command | None
    ) -> list[tuple[int, bytes]]:
        """Everything a decision changes; sequence and bytes of each Event."""
        stored = [
            self._append(fact, signed, command_number, command)
            for fact, signed in zip(decision.facts, prepared.events, strict=True)
        ]
        for fact in decision.facts:
            if isinstance(fact.payload, EventTombstoned):
                self._erase(fact.group_id or ORGANIZATION, fact.payload, fact.event_id)
        for (table, row), encoded in zip(decision.changes, prepared.rows, strict=True):
            self.txn.put_encoded(table, row, encoded)
        for note in decision.policy_notes:
            self.txn.put_policy(note.group_id, note.entry)
        for content_hash, content in decision.stored_documents:
            if self.txn.put_document(content) != content_hash:
                raise ValueError(f"a document to be stored is not {content_hash}")
        if decision.registry is not None:
            self.registry = decision.registry
            self._context = None
        return stored

    def _erase(self, group_id: str, tombstone: EventTombstoned, tombstone_event_id: str) -> None:
        """Put a tombstone where a Message's Event was: same ID, place, hash and chain, signed anew (decision F17)."""
        stored = self.txn.event(group_id, tombstone.sequence)
        if stored is None or stored.event_id != tombstone.event_id:
            raise ValueError(f"{group_id} {tombstone.sequence} is not Event {tombstone.event_id}")
        event = msgspec.json.decode(stored.event, type=Event)
        payload = erased_payload(event.payload, tombstone_event_id, tombstone.policy_reason)
        draft = msgspec.structs.replace(event, payload=payload, signature=UNSIGNED)
        self.txn.erase_event(
            group_id, tombstone.sequence, sign_bytes(draft, self.authority_key, event.occurred_at).encoded
        )

    def _append(
        self, fact: EventFact, signed: SignedBytes, command_number: int | None, command: Command | None
    ) -> tuple[int, bytes]:
        """Append one signed Event and remember it for delivery."""
        appended = self.txn.append_event(
            NewEvent(
                fact.group_id or ORGANIZATION,
                fact.event_id,
                fact.occurred_at,
                self.now_text,
                signed.encoded,
                bytes.fromhex(signed.signing_hash[7:]),
                command_number,
            )
        )
        if fact.sequence is not None and appended.sequence != fact.sequence:
            raise ValueError(f"{fact.group_id}: decided at sequence {fact.sequence}, appended at {appended.sequence}")
        self.events.append(
            CommittedEvent(
                fact.group_id,
                fact.sequence,
                fact.event_id,
                fact.kind,
                fact.conversation_id,
                fact.work_item_id,
                fact.actor,
                signed.encoded,
                fact.payload,
                fact.cause.id if fact.cause.type == "command" else None,
                fact.actor if command is None else command.actor,
            )
        )
        return appended.sequence, signed.encoded

    # --- refusals that leave a trace ---

    def _refuse_signed(self, failure: Failure, verified: Verified, command: Command) -> Rejection:
        """The one answer to every fault of signature, key, admission or freshness; the reason goes to the audit."""
        self.audits.append(self._audit_row(failure, "command", verified.signing_hash, verified.key_id, command))
        return Rejection(ErrorCode.AUTH_INVALID_SIGNATURE, SIGNED_DOCUMENT_REJECTED, "R-6.4-76")

    def _audit_embedded(self, request: Request, command: Command) -> None:
        for embedded in request.embedded:
            failure = embedded.verdict
            if isinstance(failure, Failure):
                key_id = embedded.document.signature.key_id
                self.audits.append(self._audit_row(failure, embedded.path, None, key_id, command))

    def _audit_row(
        self, failure: Failure, kind: str, signing_hash: str | None, key_id: str, command: Command
    ) -> AuditRow:
        return AuditRow(
            at=self.now_text,
            stage=failure.stage,
            reason=failure.reason,
            document_kind=kind,
            key_id=key_id,
            signing_hash=signing_hash,
            group_id=None if command.group_id is UNSET else command.group_id,
            actor=f"{command.actor.type} {command.actor.id}",
            details={"detail": failure.detail} if failure.detail else None,
        )

    def put_audit(self, row: AuditRow) -> None:
        """Keep a protected diagnostic, and refer to it in the Group's policy log without its reason (R-6.4-83)."""
        number = self.txn.put_audit(row)
        if row.group_id is not None and self.txn.head(row.group_id):
            self.txn.put_policy(
                row.group_id,
                PolicyLogEntry(
                    entry_id=self.new_id(),
                    decision="verification_failed",
                    actor=self.services.authority,
                    occurred_at=self.now_text,
                    details={"auditRecord": number, "policyVersion": self.policy.version},
                ),
            )

    # --- time ---

    def timers(self) -> bool:
        """Look at what is due; whether more is."""
        entries = self.txn.due(self.now, DUE_MAX)
        for entry in entries:
            self._timer(entry)
        return len(entries) == DUE_MAX

    def _timer(self, entry: DueEntry) -> None:
        try:
            found = decide_due(self.txn, entry.table_code, entry.key, self.context)
            prepared = self._prepare(found) if isinstance(found, Decision) else None
        except Exception:
            _log.exception("what came due could not be decided: table %s, %s", entry.table_code, entry.key)
            found, prepared = self.now.plus(TIMER_RETRY_SECONDS), None
        if isinstance(found, Instant):
            # Never again at once, or the timer would turn in place.
            self.txn.postpone_due(entry, max(found, self.now.plus(1)))
            return
        if found is not None and prepared is not None:
            self._write(found, prepared, None, None)
        # Looked at: an entry that its row still names would come due for ever.
        self.txn.drop_due(entry)
