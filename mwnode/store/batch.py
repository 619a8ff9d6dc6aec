"""What one write transaction does for a batch: each Command in its turn, from receipt look-up to signed Events.

Nothing here reaches anybody outside before the transaction is durable. A batch may be run again from its start, when
the file has to grow, so that all it changes is the transaction and its own lists.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import lmdb
import msgspec
from msgspec import UNSET, Struct

from mwnode.authority.archival import erased_payload
from mwnode.authority.case import Context, Services
from mwnode.authority.decide import decide, decide_due
from mwnode.authority.evolve import evolve
from mwnode.authority.policy import Policy
from mwnode.authority.request import Decision, EventFact, Request
from mwnode.authority.state import Row, Table
from mwnode.protocol import jcs, strict_json
from mwnode.protocol.documents import Command, Event, FirstAdmissionRecord, PolicyLogEntry
from mwnode.protocol.errors import SIGNED_DOCUMENT_REJECTED, ErrorCode, Rejection
from mwnode.protocol.events import EventTombstoned
from mwnode.protocol.identifiers import uuid7_maker
from mwnode.protocol.instants import Instant
from mwnode.protocol.ports import Entropy
from mwnode.store.deciding import BatchView
from mwnode.store.environment import LmdbWriting
from mwnode.store.group_log import admission_id
from mwnode.store.outcome import INTERNAL, Accepted, CommittedEvent, Outcome
from mwnode.store.port import ORGANIZATION, AuditRow, DueEntry, NewEvent, Receipt
from mwnode.store.prefetch import rows_wanted
from mwnode.store.projections import encode_row
from mwnode.store.sealing import Draft, Sealed, Sealer
from mwnode.store.trim import erase_trimmed
from mwnode.trust import admission
from mwnode.trust.keys import UNSIGNED
from mwnode.trust.registry import Registry
from mwnode.trust.verification import Failure, Verified

__all__ = ["Accepted", "Batch", "CommittedEvent", "Outcome", "Poisoned", "Waiting"]

DUE_MAX: Final = 256
"""Due rows looked at in one batch; the rest follow in the next."""
TIMER_RETRY_SECONDS: Final = 60
"""When a timer is looked at again whose decision failed by a fault of ours."""
LATE_RESULT: Final = "work.submit"
LATE_CODES: Final = frozenset({ErrorCode.WORK_STALE_OWNERSHIP, ErrorCode.WORK_LEASE_EXPIRED})
"""How the result of an owner is refused that was fenced, or whose lease ran out, while it worked."""
_log = logging.getLogger("mwnode.store")
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


class Waiting(Struct):
    """A decision whose Events wait to be signed and written with the others of its batch."""

    request: Request | None
    """``None`` for what a timer led to."""
    decision: Decision
    command_hash: bytes = b""
    outcome: Accepted | None = None
    """The answer, once written."""

    @property
    def command(self) -> Command | None:
        document = None if self.request is None else self.request.verified.document
        return document if isinstance(document, Command) else None


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


def _caused(decision: Decision, command: Command) -> list[int]:
    """Which of the Events the Command is told of: the receipt first, then its others in their order (decision B17)."""
    facts = decision.facts
    own_group = None if command.group_id is UNSET else command.group_id
    caused = [
        index
        for index, fact in enumerate(facts)
        if fact.group_id == own_group and fact.cause.type == "command" and fact.cause.id == command.action_id
    ]
    return [decision.receipt, *(index for index in caused if index != decision.receipt)]


class Batch:
    """One run of a batch inside one transaction: each Command is decided in its turn; ``settle`` signs and writes what
    was decided, all of it together."""

    def __init__(
        self,
        txn: LmdbWriting,
        *,
        now: Instant,
        policy: Policy,
        organization_id: str,
        services: Services,
        registry: Registry,
        sealer: Sealer,
        entropy: Entropy,
        is_token: Callable[[str], bool] | None = None,
    ) -> None:
        self.txn = txn
        self.now = now
        self.now_text = now.text()
        self.policy = policy
        self.organization_id = organization_id
        self.services = services
        self.registry = registry
        self.is_token = is_token
        self.events: list[CommittedEvent] = []
        self.audits: list[AuditRow] = []
        self._earliest = now.plus(-policy.freshness_window)
        self._latest = now.plus(policy.clock_skew)
        self.new_id = uuid7_maker(now, entropy.random)
        self.view = BatchView(txn, self.settle)
        self._sealer = sealer
        self._context: Context | None = None
        self._waiting: list[Waiting] = []
        self._receipts: set[tuple[str, str]] = set()
        """Actors and Action IDs whose receipts wait to be written."""
        self._failure: BaseException | None = None
        """Why settling failed: half of the batch may be written, so that the transaction is good for nothing."""
        self._new: set[tuple[str, str]] = set()
        """Actors and Action IDs that had no receipt before this batch, and were not met in it yet."""
        self._rows: dict[tuple[int, str], tuple[Table[Any], Row, Request | None]] = {}
        """Rows noted in the transaction and not yet written, and whose change is the newest."""

    @property
    def context(self) -> Context:
        """What deciding gets; made anew only when the Registry changed."""
        if self._context is None:
            self._context = Context(
                now=self.now,
                now_text=self.now_text,
                policy=self.policy,
                organization_id=self.organization_id,
                services=self.services,
                registry=self.registry,
                new_id=self.new_id,
                evolve=evolve,
                is_token=self.is_token,
            )
        return self._context

    # --- Commands ---

    def prefetch(self, requests: Sequence[Request]) -> None:
        """Read what the batch will ask for in a few calls."""
        commands = [request.verified.document for request in requests]
        identities = [(c.actor.id, c.action_id) for c in commands if isinstance(c, Command)]
        self._new.update(self.txn.prefetch_receipts(identities))
        if len(requests) > 1:
            # What a lone Command asks for is found as quickly one by one, and mostly remembered.
            self.txn.prefetch(rows_wanted(requests))

    def look_again(self) -> None:
        """Forget what was read ahead about receipts: somebody else wrote to the transaction."""
        self._new.clear()
        self.txn.forget_prefetched()

    def command(self, request: Request) -> Outcome | Waiting:
        """Decide one Command. Order: reading 2. What it is answered when accepted stands in the ``Waiting`` once the
        batch is settled."""
        verified = request.verified
        command = verified.document
        assert isinstance(command, Command)
        signing_hash = bytes.fromhex(verified.signing_hash[7:])
        identity = (command.actor.id, command.action_id)
        if identity in self._receipts:
            self.settle()
        if identity in self._new:
            self._new.discard(identity)
        else:
            receipt = self.txn.receipt(*identity)
            if receipt is not None:
                return self._duplicate(command, signing_hash, receipt)
        failure = self._not_fresh(verified) or self._outside_key_interval(verified)
        if failure is not None:
            return self._refuse_signed(failure, verified, command)
        records = self._admit_embedded(request) if request.embedded else []
        if isinstance(records, Failure):
            return self._refuse_signed(records, verified, command)
        try:
            decision = decide(self.view, request, self.context)
        except lmdb.Error:
            raise  # of the file, which deciding may write what waits into: it says nothing about the Command
        except Exception:
            # Nothing was changed yet: this Command's fault stays its own.
            _log.exception("%s %s could not be decided", command.kind, command.action_id)
            return INTERNAL
        if isinstance(decision, Rejection):
            self._audit_embedded(request, command)
            if command.kind == LATE_RESULT and decision.code in LATE_CODES:
                self._audit_late(request, command, decision)
            return decision
        waiting = Waiting(request, decision, signing_hash)
        try:
            for record in records:
                self.txn.put_admission(record)
            self._take(waiting)
        except lmdb.Error:
            raise
        except Exception as error:
            raise Poisoned(request, error) from error
        self._receipts.add(identity)
        return waiting

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
        place = receipt.events[0] if receipt.events else None
        return Accepted(tuple(events), receipt.record, duplicate=True, place=place)

    def _not_fresh(self, verified: Verified) -> Failure | None:
        if self._earliest <= verified.protected_time <= self._latest:
            return None
        return admission.check_freshness(
            verified.protected_time,
            self.now,
            window_seconds=self.policy.freshness_window,
            skew_seconds=self.policy.clock_skew,
        )

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

    def _take(self, waiting: Waiting) -> None:
        """Let the next decisions see this one."""
        decision = waiting.decision
        for table, row in decision.changes:
            key = self.txn.note(table, row)
            self._rows[(table.code, key)] = (table, row, waiting.request)
        for note in decision.policy_notes:
            self.txn.put_policy(note.group_id, note.entry)
        for content_hash, content in decision.stored_documents:
            if self.txn.put_document(content) != content_hash:
                raise ValueError(f"a document to be stored is not {content_hash}")
        if decision.registry is not None:
            self.registry = decision.registry
            self._context = None
        self.view.advance(decision)
        self._waiting.append(waiting)

    def settle(self) -> None:
        """Sign and write everything that was decided so far.

        What failed once fails again: a decision that asked for it must not go on as if nothing had happened.
        """
        if self._failure is not None:
            raise self._failure
        if not self._waiting:
            return
        try:
            self._settle()
        except BaseException as error:
            self._failure = error
            raise

    def _settle(self) -> None:
        waiting, self._waiting = self._waiting, []
        rows, self._rows = self._rows, {}
        self._receipts.clear()
        self.view.heads.clear()
        blamed: Request | None = None
        try:
            drafts: list[Draft] = []
            for each in waiting:
                blamed = each.request
                for fact in each.decision.facts:
                    drafts.append(self._sealer.draft(fact))
            sealed = iter(self._sealer.seal(drafts))
            for each in waiting:
                blamed = each.request
                each.outcome = self._write(each, sealed)
            for (_, key), (table, row, request) in rows.items():
                blamed = request
                self.txn.put_record(table, key, encode_row(table, row))
        except lmdb.Error:
            raise
        except Exception as error:
            if blamed is None:
                raise
            # The batch is run again without the one whose fault this is.
            raise Poisoned(blamed, error) from error

    def _write(self, waiting: Waiting, sealed: Iterator[Sealed]) -> Accepted:
        """The records of one decision: Command, Events, receipt."""
        decision, command = waiting.decision, waiting.command
        number = None
        if waiting.request is not None:
            whole = whole_command(waiting.request.verified)
            number = self.txn.put_command(waiting.command_hash, whole, self.now_text)
        places: list[tuple[str, int]] = []
        texts: list[bytes] = []
        for fact in decision.facts:
            one = next(sealed)
            texts.append(one.encoded)
            places.append(self._append(fact, one, number, command))
            if type(fact.payload) is EventTombstoned:
                self._erase(fact.group_id or ORGANIZATION, fact.payload, fact.event_id)
        record = None if decision.record is None else jcs.canonical(decision.record)
        if command is None or number is None:
            return Accepted((), record)
        if len(places) > 1:
            caused = _caused(decision, command)
            places, texts = [places[index] for index in caused], [texts[index] for index in caused]
        receipt = Receipt(waiting.command_hash, tuple(places), record, number)
        self.txn.put_receipt(command.actor.id, command.action_id, receipt)
        return Accepted(tuple(texts), record, place=places[0] if places else None)

    def _erase(self, group_id: str, tombstone: EventTombstoned, tombstone_event_id: str) -> None:
        """Put a tombstone where a Message's Event was: same ID, place, hash and chain, signed anew (decision F17)."""
        stored = self.txn.event(group_id, tombstone.sequence)
        trim = self.txn.trimmed(group_id)
        if trim is not None and tombstone.sequence <= trim.through:
            erase_trimmed(self.txn, group_id, tombstone.sequence)
            return
        if stored is None or stored.event_id != tombstone.event_id:
            raise ValueError(f"{group_id} {tombstone.sequence} is not Event {tombstone.event_id}")
        event = strict_json.trusted(stored.event, Event)
        payload = erased_payload(event.payload, tombstone_event_id, tombstone.policy_reason)
        draft = msgspec.structs.replace(event, payload=payload, signature=UNSIGNED)
        self.txn.erase_event(group_id, tombstone.sequence, self._sealer.seal_again(draft))

    def _append(
        self, fact: EventFact, sealed: Sealed, command_number: int | None, command: Command | None
    ) -> tuple[str, int]:
        """Append one signed Event and remember it for delivery; its place."""
        log = fact.group_id or ORGANIZATION
        sequence = self.txn.append(
            NewEvent(
                log,
                fact.event_id,
                fact.occurred_at,
                self.now_text,
                sealed.encoded,
                sealed.signing_hash,
                command_number,
            )
        ).sequence
        if fact.sequence is not None and sequence != fact.sequence:
            raise ValueError(f"{fact.group_id}: decided at sequence {fact.sequence}, appended at {sequence}")
        self.events.append(
            CommittedEvent(
                fact.group_id,
                fact.sequence,
                fact.event_id,
                fact.kind,
                fact.conversation_id,
                fact.work_item_id,
                fact.actor,
                sealed.encoded,
                fact.payload,
                fact.cause.id if fact.cause.type == "command" else None,
                fact.actor if command is None else command.actor,
            )
        )
        return log, sequence

    def _try_out(self, decision: Decision) -> None:
        """Raise now what would fail once nobody can be blamed for it: a timer has no Command to refuse."""
        for fact in decision.facts:
            self._sealer.draft(fact)
        for table, row in decision.changes:
            encode_row(table, row)

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

    def _audit_late(self, request: Request, command: Command, rejection: Rejection) -> None:
        """Keep a fenced owner's result for auditors: it counts for nothing, and it was work (R-11.5-03)."""
        self.audits.append(
            AuditRow(
                at=self.now_text,
                stage="ownership",
                reason=rejection.code.value,
                document_kind="command",
                key_id=request.verified.key_id,
                signing_hash=request.verified.signing_hash,
                group_id=None if command.group_id is UNSET else command.group_id,
                actor=f"{command.actor.type} {command.actor.id}",
                details={"command": whole_command(request.verified).decode()},
            )
        )

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
                    decision="late_result_kept" if row.stage == "ownership" else "verification_failed",
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
            found = decide_due(self.view, entry.table_code, entry.key, self.context)
            if isinstance(found, Decision):
                self._try_out(found)
        except lmdb.Error:
            raise
        except Exception:
            _log.exception("what came due could not be decided: table %s, %s", entry.table_code, entry.key)
            found = self.now.plus(TIMER_RETRY_SECONDS)
        if isinstance(found, Instant):
            # Never again at once, or the timer would turn in place.
            self.txn.postpone_due(entry, max(found, self.now.plus(1)))
            return
        if found is not None:
            self._take(Waiting(None, found))
        # Looked at: an entry that its row still names would come due for ever.
        self.txn.drop_due(entry)
