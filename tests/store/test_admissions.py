"""The Admission Log: who may write to it, and that a look-up notices what was changed behind its back."""

from __future__ import annotations

import json

import msgspec
import pytest

from mwnode.protocol.documents import FirstAdmissionRecord
from mwnode.protocol.errors import WorkStaleOwnership
from mwnode.store.audit import opened
from mwnode.store.errors import StoreCorrupt, WriterRefused
from mwnode.store.verify import verify
from mwnode.testing import Harness
from tests.store.damage import change, number_key


def embedded_hash(harness: Harness) -> bytes:
    """Signing hash of a document that came inside a Command."""
    with harness.node.store.read() as view:
        return next(iter(view.pages.scan("admission_hashes", b"")))[0]


def with_record(harness: Harness, signing_hash: bytes) -> FirstAdmissionRecord:
    with harness.node.read() as view:
        record = view.admission(signing_hash)
    assert record is not None
    return record


@pytest.mark.req("R-6.4-61")
def test_nobody_but_the_accepting_service_writes_to_the_log(mwnode: Harness) -> None:
    mwnode.mission().authorize().run()
    record = with_record(mwnode, embedded_hash(mwnode))
    foreign = {**msgspec.to_builtins(record), "signingHash": "sha256:" + "7" * 64}
    foreign["acceptedBy"] = {"type": "service", "id": "urn:example:other-authority"}
    forged = msgspec.convert(foreign, FirstAdmissionRecord)
    with pytest.raises(WriterRefused, match=r"urn:example:other-authority is not the service that accepts here"):
        mwnode.node.store.write(lambda txn: txn.put_admission(forged))
    with mwnode.node.read() as view:
        assert view.admission(bytes.fromhex("7" * 64)) is None
    assert verify(mwnode.node.store).ok


@pytest.mark.req("R-6.4-61")
def test_a_record_that_is_there_is_never_replaced(mwnode: Harness) -> None:
    mwnode.mission().authorize().run()
    signing_hash = embedded_hash(mwnode)
    record = with_record(mwnode, signing_hash)
    later = msgspec.convert(
        {**msgspec.to_builtins(record), "trustedAcceptedAt": "2031-01-01T00:00:00Z"}, FirstAdmissionRecord
    )
    assert mwnode.node.store.write(lambda txn: txn.put_admission(later)) == record
    assert with_record(mwnode, signing_hash) == record


@pytest.mark.req("R-6.4-61")
def test_a_changed_record_fails_the_next_look_up(mwnode: Harness) -> None:
    mwnode.mission().authorize().run()
    store, signing_hash = mwnode.node.store, embedded_hash(mwnode)
    with store.read() as view:
        number = view.pages.get("admission_hashes", signing_hash)
    assert number is not None
    change(store, "admissions", number[:8], lambda value: value.replace(b"2030-01-01", b"2029-01-01", 1))
    with pytest.raises(StoreCorrupt, match="not as it was written"):
        with_record(mwnode, signing_hash)
    assert any(finding.kind == "admission" for finding in verify(store).findings)


@pytest.mark.req("R-6.4-61")
@pytest.mark.parametrize(
    "before, after",
    [(b"Run the unit tests", b"Rob the unit tests"), (b"2030-01-01T00:00:00Z", b"2029-01-01T00:00:00Z")],
)
def test_a_changed_command_fails_the_next_look_up(mwnode: Harness, before: bytes, after: bytes) -> None:
    mission = mwnode.mission()
    raw = mwnode.coordinator.command(
        "work.authorize", {"workItemId": mwnode.new_id(), "contract": mwnode.contract()}, group_id=mission.group_id
    )
    mwnode.send(raw)
    store = mwnode.node.store
    with store.read() as view:
        number = view.pages.count("commands")
        value = view.pages.get("commands", number_key(number))
        assert value is not None
        signing_hash = value[1:33]
        assert view.admission(signing_hash) is not None
    # The first one in the record: the words in the Command, or the time at its head.
    change(store, "commands", number_key(number), lambda value: value.replace(before, after, 1))
    with store.read() as view, pytest.raises(StoreCorrupt, match=r"not as it was signed|not accepted at one time"):
        view.admission(signing_hash)


@pytest.mark.req("R-11.5-03")
def test_a_late_result_counts_for_nothing_and_is_kept_for_auditors(mwnode: Harness) -> None:
    mission = mwnode.mission()
    first, second = mwnode.workers
    work = mission.authorize()
    work.offer(first)
    work.accept(first)
    work.start(first)
    content_hash = work.publish(worker=first)
    held = work.held
    evidence = [work.evidence(first, "deterministic_test", artifact_hashes=[content_hash])]
    late = first.command(
        "work.submit", {**held, "artifactHashes": [content_hash], "evidence": evidence}, group_id=mission.group_id
    )
    mwnode.advance(1000)
    work.offer(second)
    work.accept(second)
    work.start(second)
    resigned = json.loads(late)
    again = first.command("work.submit", resigned["payload"], group_id=mission.group_id)
    head = len(mission.events())
    with pytest.raises(WorkStaleOwnership):
        mwnode.send(again)
    assert len(mission.events()) == head, "the log does not change"
    assert work.state == "active"
    with mwnode.node.read() as view:
        row = opened(view.audit(0, 100)[-1][1], mwnode.node.home.key("audit"))
        noted = view.policy_log(mission.group_id)[-1]
    assert (row.stage, row.reason, row.actor) == ("ownership", "WORK_STALE_OWNERSHIP", f"agent {first.id}")
    assert row.details is not None
    assert row.details["command"].encode() == again, "the signed bytes, for whoever must judge them"
    assert noted.decision == "late_result_kept"
    assert verify(mwnode.node.store).ok
