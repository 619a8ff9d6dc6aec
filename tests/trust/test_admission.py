"""First admission, historical replay and freshness, against a log of our own and against scripted trouble."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from mwnode.protocol import instants, jcs, strict_json
from mwnode.protocol.documents import Actor, FirstAdmissionRecord
from mwnode.protocol.errors import ErrorCode, error_document
from mwnode.protocol.strict_json import SchemaFault
from mwnode.trust import admission
from mwnode.trust.admission import (
    Acceptance,
    AppendOutcome,
    AuthoritativeAbsence,
    Committed,
    Conflict,
    Existing,
    Found,
    LookupOutcome,
    Reason,
    SeenRecords,
    admit,
    candidate,
    check_freshness,
    check_record,
    replay,
)
from mwnode.trust.registry import Registry
from mwnode.trust.verification import Failure, Verified, verify
from tests.trust import makers
from tests.trust.makers import AGENT, AUTHORITY, KINDS, NOW, OTHER_AGENT, raw, registry, signed

SERVICE = AUTHORITY.principal
ACCEPTED_AT = "2026-07-15T10:00:05Z"
REGISTRY = registry()


def verified(kind: Any = "command", evidence: Registry = REGISTRY, **changes: Any) -> Verified:
    outcome = verify(raw(signed(kind, **changes)), kind, evidence)
    assert isinstance(outcome, Verified)
    return outcome


def written(record: FirstAdmissionRecord, **changes: Any) -> bytes:
    return jcs.canonical({**msgspec.to_builtins(record), **changes})


class Log:
    """A small log that keeps its promises, and counts what it is asked."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], bytes] = {}
        self.lookups = self.appends = 0

    def lookup(self, organization_id: str, signing_hash: str) -> LookupOutcome:
        self.lookups += 1
        record = self.records.get((organization_id, signing_hash))
        return AuthoritativeAbsence() if record is None else Found(record, SERVICE)

    def append_or_existing(self, candidate: FirstAdmissionRecord) -> AppendOutcome:
        self.appends += 1
        key = (candidate.organization_id, candidate.signing_hash)
        if key in self.records:
            return Existing(self.records[key], SERVICE)
        self.records[key] = written(candidate)
        return Committed(self.records[key], SERVICE)


class Scripted:
    """A log that answers what it is told."""

    def __init__(self, lookup: LookupOutcome, append: AppendOutcome | None = None) -> None:
        self._lookup, self._append = lookup, append
        self.appends = 0

    def lookup(self, organization_id: str, signing_hash: str) -> LookupOutcome:
        return self._lookup

    def append_or_existing(self, candidate: FirstAdmissionRecord) -> AppendOutcome:
        self.appends += 1
        assert self._append is not None, "nothing should have been appended"
        return self._append


class Acceptor:
    """An accepting service that counts how often it is asked."""

    def __init__(self, time: str = ACCEPTED_AT, service: Actor = SERVICE) -> None:
        self.asked = 0
        self._time, self._service = time, service

    def accept(self) -> Acceptance:
        self.asked += 1
        return Acceptance(f"urn:example:admission:{self.asked}", self._time, self._service)


def good_record(document: Verified) -> FirstAdmissionRecord:
    record = candidate(document, Acceptance("urn:example:admission:1", ACCEPTED_AT, SERVICE))
    assert isinstance(record, FirstAdmissionRecord)
    return record


def failed(outcome: FirstAdmissionRecord | Failure, reason: Reason) -> Failure:
    assert isinstance(outcome, Failure), "it was admitted"
    assert (outcome.stage, outcome.reason) == ("admission", reason)
    assert outcome.code is ErrorCode.AUTH_INVALID_SIGNATURE
    return outcome


# --- the record -------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-6.4-49", "R-6.4-51", "R-6.4-54", "R-6.4-55", "R-6.4-56", "R-6.4-57", "R-6.4-59")
def test_a_record_has_exactly_nine_members() -> None:
    members = msgspec.to_builtins(good_record(verified()))
    assert len(members) == 9
    assert strict_json.decode(jcs.canonical(members), FirstAdmissionRecord) == good_record(verified())
    broken: list[dict[str, Any]] = [
        {name: it for name, it in members.items() if name != left_out} for left_out in members
    ]
    broken += [
        {**members, "signature": signed("command")["signature"]},
        {**members, "protocolVersion": "0.2"},
        {**members, "documentKind": "message"},
        {**members, "signingHash": members["signingHash"].upper()},
        {**members, "keyId": "key"},
        {**members, "principal": {**members["principal"], "name": "x"}},
        {**members, "acceptedBy": {"type": "agent", "id": SERVICE.id}},
        {**members, "trustedAcceptedAt": "2016-12-31T23:59:60Z"},
    ]
    for wrong in broken:
        with pytest.raises(SchemaFault):
            strict_json.decode(jcs.canonical(wrong), FirstAdmissionRecord)
        log = Scripted(Found(jcs.canonical(wrong), SERVICE))
        failed(replay(verified(), log), Reason.RECORD_SCHEMA_INVALID)


MISMATCH = {
    "organizationId": "urn:example:organization:other",
    "documentKind": "evidence",
    "signingHash": "sha256:" + "b" * 64,
    "keyId": OTHER_AGENT.key_id,
    "principal": makers.actor(OTHER_AGENT),
}


@pytest.mark.req("R-6.4-53", "R-6.4-54", "R-6.4-55", "R-6.4-56", "R-6.4-57", "R-6.4-65")
@pytest.mark.parametrize("member", MISMATCH)
def test_a_record_of_something_else_is_refused(member: str) -> None:
    document = verified()
    wrong = written(good_record(document), **{member: MISMATCH[member]})
    failed(replay(document, Scripted(Found(wrong, SERVICE))), Reason.RECORD_BINDING_MISMATCH)
    failed(admit(document, Scripted(Found(wrong, SERVICE)), Acceptor()), Reason.RECORD_BINDING_MISMATCH)
    for outcome in (Committed(wrong, SERVICE), Existing(wrong, SERVICE)):
        failed(admit(document, Scripted(AuthoritativeAbsence(), outcome), Acceptor()), Reason.RECORD_BINDING_MISMATCH)


@pytest.mark.req("R-6.4-57")
def test_the_type_of_the_principal_counts() -> None:
    document = verified()
    wrong = written(good_record(document), principal={"type": "human", "id": AGENT.principal.id})
    failed(replay(document, Scripted(Found(wrong, SERVICE))), Reason.RECORD_BINDING_MISMATCH)


@pytest.mark.req("R-6.4-59")
def test_the_log_authenticates_the_service_that_the_record_names() -> None:
    document = verified()
    record = written(good_record(document))
    for other in (makers.ORGANIZATION_KEY.principal, Actor(type="agent", id=SERVICE.id)):
        failed(replay(document, Scripted(Found(record, other))), Reason.LOG_AUTHENTICATION_FAILED)
    assert isinstance(replay(document, Scripted(Found(record, SERVICE))), FirstAdmissionRecord)


@pytest.mark.req("R-6.4-58")
def test_the_trusted_time_keeps_its_spelling_and_compares_exactly() -> None:
    document = verified(evidence=registry().restrict(AGENT.key_id, NOW, valid_until="2026-07-15T11:00:00.000000001Z"))
    inside = "2026-07-15t16:30:00.000000000+05:30"
    record = candidate(document, Acceptance("urn:example:admission:1", inside, SERVICE))
    assert isinstance(record, FirstAdmissionRecord)
    assert record.trusted_accepted_at == inside
    outcome = candidate(document, Acceptance("urn:example:admission:1", "2026-07-15T16:30:00.000000001+05:30", SERVICE))
    assert isinstance(outcome, Failure)
    assert outcome.reason == Reason.OUTSIDE_KEY_INTERVAL


@pytest.mark.req("R-6.4-73")
@pytest.mark.parametrize("spoil", ["bom", "duplicate", "extra", "trailing", "utf-8", "empty"])
def test_a_returned_record_is_parsed_strictly(spoil: str) -> None:
    document = verified()
    good = written(good_record(document))
    spoiled = {
        "bom": b"\xef\xbb\xbf" + good,
        "duplicate": good.replace(b"{", b'{"keyId":"urn:example:key:other",', 1),
        "extra": good.replace(b"{", b'{"note":1,', 1),
        "trailing": good + b"{}",
        "utf-8": good.replace(b"urn:example:admission:1", b"urn:example:admission:\xff"),
        "empty": b"",
    }[spoil]
    failed(replay(document, Scripted(Found(spoiled, SERVICE))), Reason.RECORD_SCHEMA_INVALID)


@pytest.mark.req("R-6.4-75", "R-6.4-76")
def test_an_event_never_anchors_itself() -> None:
    document = verified("event")
    failed(replay(document, Scripted(Found(raw(signed("event")), SERVICE))), Reason.EVENT_SELF_ANCHORING)
    other = raw(signed("event", eventId="urn:example:event:2"))
    failed(replay(document, Scripted(Found(other, SERVICE))), Reason.RECORD_SCHEMA_INVALID)
    citing = verified("event", payload={"admissionRecord": json.loads(written(good_record(document)))})
    assert isinstance(admit(citing, Log(), Acceptor()), FirstAdmissionRecord), "an Event may cite a record"


@pytest.mark.req("R-6.4-52")
def test_one_record_id_stands_for_one_document() -> None:
    seen = SeenRecords()
    first = good_record(verified())
    assert seen.check(first) is first
    assert seen.check(first) is first, "the same record again is no reuse"
    second = good_record(verified(actionId="urn:example:action:2"))
    failed(seen.check(second), Reason.INTEGRITY_NOT_ESTABLISHED)


# --- first admission --------------------------------------------------------------------------------------------------


@pytest.mark.req("R-6.4-60", "R-6.4-67", "R-6.4-68")
@pytest.mark.parametrize("kind", KINDS)
def test_admitting_twice_gives_the_same_record(kind: Any) -> None:
    log, acceptor = Log(), Acceptor()
    first = admit(verified(kind), log, acceptor)
    assert isinstance(first, FirstAdmissionRecord)
    assert first.document_kind == kind
    assert admit(verified(kind), log, acceptor) == first
    assert (log.appends, acceptor.asked, len(log.records)) == (1, 1, 1), "the second run asks for no acceptance time"


@pytest.mark.req("R-6.4-68")
def test_a_concurrent_winner_may_differ_in_id_and_time_only() -> None:
    document = verified()
    winner = written(good_record(document), admissionRecordId="urn:example:admission:99", trustedAcceptedAt=NOW)
    outcome = admit(document, Scripted(AuthoritativeAbsence(), Existing(winner, SERVICE)), Acceptor())
    assert isinstance(outcome, FirstAdmissionRecord)
    assert outcome.admission_record_id == "urn:example:admission:99"
    thief = written(good_record(document), principal=makers.actor(OTHER_AGENT))
    outcome = admit(document, Scripted(AuthoritativeAbsence(), Existing(thief, SERVICE)), Acceptor())
    failed(outcome, Reason.RECORD_BINDING_MISMATCH)


TROUBLE = {
    Reason.LOG_AUTHENTICATION_FAILED: admission.Unauthenticated(),
    Reason.INTEGRITY_NOT_ESTABLISHED: admission.IntegrityFailed(),
    Reason.LOG_UNAVAILABLE: admission.Unavailable(),
    Reason.LOG_INDETERMINATE: admission.Indeterminate(),
}


@pytest.mark.req("R-6.4-62", "R-6.4-63", "R-6.4-64")
@pytest.mark.parametrize("reason", TROUBLE)
def test_trouble_with_the_log_is_never_absence(reason: Reason) -> None:
    log, acceptor = Scripted(TROUBLE[reason]), Acceptor()
    failed(admit(verified(), log, acceptor), reason)
    failed(replay(verified(), log), reason)
    assert (log.appends, acceptor.asked) == (0, 0)


@pytest.mark.req("R-6.4-63", "R-6.4-65")
@pytest.mark.parametrize("reason", [*TROUBLE, Reason.RECORD_CONFLICT, Reason.COMMIT_FAILED])
def test_an_append_that_did_not_commit_admits_nothing(reason: Reason) -> None:
    outcomes: dict[Reason, AppendOutcome] = {
        **TROUBLE,
        Reason.RECORD_CONFLICT: Conflict(),
        Reason.COMMIT_FAILED: admission.CommitFailed(),
    }
    failed(admit(verified(), Scripted(AuthoritativeAbsence(), outcomes[reason]), Acceptor()), reason)


@pytest.mark.req("R-6.4-74", "R-6.4-69")
@pytest.mark.parametrize(
    "time", ["2026-06-30T23:59:59Z", "2026-07-20T00:00:00Z", "2026-07-20T00:00:00.1Z", "2027-01-01T00:00:00Z"]
)
def test_a_backdated_signature_gains_nothing(time: str) -> None:
    for end in ("valid_until", "revoked_at"):
        document = verified(evidence=registry().restrict(AGENT.key_id, NOW, **{end: "2026-07-20T00:00:00Z"}))
        log = Log()
        failed(admit(document, log, Acceptor(time)), Reason.OUTSIDE_KEY_INTERVAL)
        assert not log.records, "nothing is appended for a candidate that is not good"
        late = written(good_record(document), trustedAcceptedAt=time)
        failed(replay(document, Scripted(Found(late, SERVICE))), Reason.OUTSIDE_KEY_INTERVAL)


@pytest.mark.req("R-6.4-76")
def test_a_bad_acceptance_is_refused_before_the_log_is_touched() -> None:
    log = Log()
    failed(admit(verified(), log, Acceptor("not-a-timestamp")), Reason.MALFORMED_TRUSTED_TIME)
    failed(admit(verified(), log, Acceptor(service=AGENT.principal)), Reason.RECORD_SCHEMA_INVALID)
    assert not log.records


@pytest.mark.req("R-6.4-66", "R-6.4-48")
def test_the_log_is_asked_only_for_what_verified() -> None:
    document = signed("command")
    document["payload"]["x"] = 1
    log = Log()
    outcome = verify(raw(document), "command", REGISTRY)
    if isinstance(outcome, Verified):
        admit(outcome, log, Acceptor())
    assert isinstance(outcome, Failure)
    assert log.lookups == 0


# --- historical replay ------------------------------------------------------------------------------------------------


@pytest.mark.req("R-6.4-50", "R-6.4-71")
def test_replay_needs_a_record_and_appends_none() -> None:
    log = Log()
    failed(replay(verified(), log), Reason.RECORD_MISSING)
    assert (log.appends, log.records) == (0, {})
    perfect = good_record(verified())
    assert isinstance(perfect, FirstAdmissionRecord), "and yet nobody believes it while the log is empty"
    failed(replay(verified(), log), Reason.RECORD_MISSING)


@pytest.mark.req("R-6.4-70", "R-6.4-72")
@pytest.mark.parametrize("end", ["valid_until", "revoked_at"])
def test_a_later_end_leaves_what_was_admitted_valid(end: str) -> None:
    log = Log()
    before = admit(verified(), log, Acceptor())
    later = registry().restrict(AGENT.key_id, "2026-07-16T00:00:00Z", **{end: "2026-07-16T00:00:00Z"})
    assert replay(verified(evidence=later), log) == before


@pytest.mark.req("R-6.4-72", "R-6.4-74")
def test_an_end_moved_before_the_acceptance_makes_replay_fail() -> None:
    log = Log()
    admit(verified(), log, Acceptor())
    between = registry().restrict(AGENT.key_id, "2026-07-16T00:00:00Z", revoked_at="2026-07-15T10:00:01Z")
    failed(replay(verified(evidence=between), log), Reason.OUTSIDE_KEY_INTERVAL)


# --- freshness --------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-6.4-77", "R-19-11", "R-22-09")
@pytest.mark.parametrize(
    "issued_at, fresh",
    [
        ("2026-07-15T10:00:00Z", True),
        ("2026-07-15T09:55:00Z", True),
        ("2026-07-15T09:54:59.999999999Z", False),
        ("2026-07-15T10:01:00Z", True),
        ("2026-07-15T10:01:00.000000001Z", False),
        ("2025-07-15T10:00:00Z", False),
    ],
)
def test_a_command_is_fresh_within_its_window(issued_at: str, fresh: bool) -> None:
    outcome = check_freshness(instants.parse(issued_at), instants.parse(NOW), window_seconds=300, skew_seconds=60)
    if fresh:
        assert outcome is None
    else:
        assert outcome is not None
        failed(outcome, Reason.NOT_FRESH)


@pytest.mark.req("R-6.4-76", "R-6.4-81")
def test_every_admission_failure_looks_the_same_on_the_wire() -> None:
    failures = [admission.failure(reason, f"detail of {reason}") for reason in Reason]
    documents = {jcs.canonical(error_document(failure.rejection(), NOW)) for failure in failures}
    assert len(documents) == 1
    assert len({failure.reason for failure in failures}) == len(Reason)


def test_check_record_is_what_both_paths_use() -> None:
    document = verified()
    record = good_record(document)
    assert check_record(written(record), SERVICE, document) == record
