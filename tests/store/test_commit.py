"""The writer: batches, receipts, time, refusals, and what it leaves behind when something fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import pytest

from mwnode.gateway.ports import Origin
from mwnode.genesis import service_command
from mwnode.protocol.commands import CORE
from mwnode.protocol.errors import ErrorCode, MissionWeaveError, Rejection
from mwnode.protocol.instants import parse
from mwnode.protocol.jcs import signing_bytes, signing_hash
from mwnode.store import batch, commit, mapped_file
from mwnode.store.audit import opened
from mwnode.store.commit import Accepted, CommittedEvent, Committer
from mwnode.store.environment import LmdbWriting
from mwnode.store.errors import StoreFull
from mwnode.store.port import AuditRow, Head, NewEvent, Receipt
from mwnode.store.verify import verify
from mwnode.testing import Harness, MissionHandle
from tests.patience import PATIENCE_SECONDS

HTTP = Origin(transport="http")
MIB = 1024**2


def message(harness: Harness, mission: MissionHandle, text: str = "hello", **envelope: Any) -> bytes:
    """The bytes of one Message of the owner."""
    payload = {"messageId": harness.new_id(), "conversationId": f"{mission.group_id}:mission", "content": text}
    return harness.owner.command("message.post", payload, group_id=mission.group_id, **envelope)


def writer(harness: Harness) -> Committer:
    return harness.node._committer


@contextmanager
def held(harness: Harness) -> Iterator[Callable[[bytes], Future[Any]]]:
    """Hold the writer up while Commands are handed over, so that they share its next batch."""
    entered, release = threading.Event(), threading.Event()

    def wait(txn: LmdbWriting) -> None:
        entered.set()
        release.wait(PATIENCE_SECONDS)

    blocked = writer(harness).call(wait)
    entered.wait(PATIENCE_SECONDS)

    def submit(raw: bytes) -> Future[Any]:
        answer: Future[Any] = Future()
        harness.node.submit(raw, HTTP, answer.set_result)
        return answer

    try:
        yield submit
        # Everything handed over passes the verifier before the writer is let go.
        while harness.node._verifier.pending:
            threading.Event().wait(0.001)
        threading.Event().wait(0.05)
    finally:
        release.set()
    blocked.result(PATIENCE_SECONDS)


# --- receipts ---


def test_a_retry_is_answered_with_the_original_events_and_changes_nothing(mwnode: Harness) -> None:
    mission = mwnode.mission()
    raw = message(mwnode, mission)
    first = mwnode.node.decide(raw)
    before = mission.events()
    again = mwnode.node.decide(raw)
    assert again.events == first.events
    assert (first.duplicate, again.duplicate) == (False, True)
    assert mission.events() == before


def test_a_retry_after_a_restart_is_still_known(mwnode: Harness) -> None:
    mission = mwnode.mission()
    raw = message(mwnode, mission)
    first = mwnode.node.send(raw)
    mwnode.restart()
    assert mwnode.node.send(raw) == first


def test_a_retry_in_the_same_batch_is_one_command(mwnode: Harness) -> None:
    mission = mwnode.mission()
    raw = message(mwnode, mission)
    head = len(mission.events())
    with held(mwnode) as submit:
        answers = [submit(raw) for _ in range(5)]
    outcomes = [answer.result(PATIENCE_SECONDS) for answer in answers]
    assert [outcome.duplicate for outcome in outcomes] == [False, True, True, True, True]
    assert len({outcome.events for outcome in outcomes}) == 1
    assert len(mission.events()) == head + 1


@pytest.mark.req("R-19-22")
def test_one_action_id_with_two_contents_is_a_collision(mwnode: Harness) -> None:
    mission = mwnode.mission()
    action_id = mwnode.new_id()
    mwnode.node.send(message(mwnode, mission, "one", action_id=action_id))
    with pytest.raises(MissionWeaveError) as refused:
        mwnode.node.send(message(mwnode, mission, "two", action_id=action_id))
    assert refused.value.code is ErrorCode.ACTION_ID_COLLISION
    assert len(mission.events()) == 2


def test_a_refused_command_does_not_bind_its_action_id(mwnode: Harness) -> None:
    mission = mwnode.mission()
    action_id = mwnode.new_id()
    payload = {"messageId": mwnode.new_id(), "conversationId": "urn:example:nowhere", "content": "hello"}
    error = mwnode.owner.refused("message.post", payload, group_id=mission.group_id, action_id=action_id)
    assert error.code is ErrorCode.INVALID_COMMAND
    mwnode.node.send(message(mwnode, mission, action_id=action_id))


def test_a_registry_command_is_answered_with_its_record_and_the_same_again(mwnode: Harness) -> None:
    raw: list[bytes] = []
    real = mwnode.send
    mwnode.send = lambda command: raw.append(command) or real(command)  # type: ignore[method-assign, func-returns-value]
    mwnode.human("second")
    first = mwnode.node.decide(raw[0])
    assert first.events == ()
    assert first.record is not None
    assert first.duplicate
    assert mwnode.node.decide(raw[0]).record == first.record


# --- batches ---


def test_commands_that_wait_together_share_one_commit_and_keep_their_order(mwnode: Harness) -> None:
    mission = mwnode.mission()
    batches: list[list[CommittedEvent]] = []
    mwnode.node.add_listener(lambda events: batches.append(list(events)))
    raws = [message(mwnode, mission, f"message {number}") for number in range(50)]
    commits = writer(mwnode).commits
    with held(mwnode) as submit:
        answers = [submit(raw) for raw in raws]
    sequences = [msgspec.json.decode(answer.result(PATIENCE_SECONDS).events[0])["sequence"] for answer in answers]
    assert sequences == list(range(sequences[0], sequences[0] + 50))
    assert writer(mwnode).commits - commits <= 3, "the one that held it up, and the shared one"
    told = [event for batch in batches for event in batch]
    assert [event.sequence for event in told] == sequences
    assert told[0].event == answers[0].result().events[0]
    assert told[0].issuer == mwnode.owner.principal


def test_a_thousand_writes_from_many_threads_are_all_there_once(mwnode: Harness) -> None:
    mission = mwnode.mission()
    raws = [[message(mwnode, mission, f"{thread} {number}") for number in range(100)] for thread in range(10)]
    # Over the policy's rate of Messages a minute; the rate itself is not what is tested here.
    mwnode.node._policy = msgspec.structs.replace(mwnode.node.policy, message_rate=10_000)
    failed: list[BaseException] = []

    def send(mine: list[bytes]) -> None:
        try:
            for raw in mine:
                mwnode.node.send(raw)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=send, args=(mine,)) for mine in raws]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    events = mission.events()
    assert [event["sequence"] for event in events] == list(range(1, 1002))
    texts = [event["payload"]["message"]["content"][0]["text"] for event in events[1:]]
    assert sorted(texts) == sorted(f"{thread} {number}" for thread in range(10) for number in range(100))
    assert verify(mwnode.node.store).ok


def test_nothing_is_answered_or_told_before_it_is_durable(mwnode: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    mission = mwnode.mission()
    order: list[str] = []
    store = mwnode.node.store
    real = store.file._attempt

    def attempt(change: Callable[[Any], Any]) -> Any:
        result = real(change)
        order.append("durable")
        return result

    monkeypatch.setattr(store.file, "_attempt", attempt)
    mwnode.node.add_listener(lambda events: order.append("told"))
    answered: Future[Any] = Future()

    def reply(outcome: Any) -> None:
        order.append("answered")
        answered.set_result(outcome)

    mwnode.node.submit(message(mwnode, mission), HTTP, reply)
    assert isinstance(answered.result(PATIENCE_SECONDS), Accepted)
    writer(mwnode).call(lambda txn: None).result(PATIENCE_SECONDS)
    assert order[:3] == ["durable", "answered", "told"]


def test_too_many_waiting_commands_are_refused_and_may_be_sent_again(
    mwnode: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    mission = mwnode.mission()
    raws = [message(mwnode, mission, str(number)) for number in range(6)]
    monkeypatch.setattr(commit, "QUEUE_MAX", 4)
    with held(mwnode) as submit:
        answers = [submit(raw) for raw in raws]
    outcomes = [answer.result(PATIENCE_SECONDS) for answer in answers]
    assert [type(outcome) for outcome in outcomes] == [Accepted] * 4 + [Rejection] * 2
    assert outcomes[4].code is ErrorCode.BACKPRESSURE
    assert outcomes[4].retry_after_ms
    assert mwnode.node.send(raws[4])


# --- failures ---


@pytest.mark.req("R-19-35", "R-15.1-15")
def test_a_failed_commit_refuses_everybody_changes_nothing_and_a_retry_succeeds(
    mwnode: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    mission = mwnode.mission()
    before = mission.events()
    raws = [message(mwnode, mission, str(number)) for number in range(3)]
    with held(mwnode) as submit:
        answers = [submit(raw) for raw in raws]
        broken = monkeypatch.context()
        patch = broken.__enter__()
        real = LmdbWriting.append

        def full(self: LmdbWriting, event: NewEvent) -> Head:
            real(self, event)
            raise StoreFull("no room")

        patch.setattr(LmdbWriting, "append", full)
    outcomes = [answer.result(PATIENCE_SECONDS) for answer in answers]
    assert {outcome.code for outcome in outcomes} == {ErrorCode.INTERNAL_ERROR}
    assert mission.events() == before
    broken.__exit__(None, None, None)
    for raw in raws:
        assert not mwnode.node.decide(raw).duplicate
    assert verify(mwnode.node.store).ok


@pytest.mark.req("R-15.1-15")
def test_a_fault_between_two_events_of_one_command_leaves_neither(
    mwnode: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    mission = mwnode.mission()
    mission.authorize()
    before = mission.events()
    cancel = mwnode.owner.command("mission.cancel", {"reason": "enough"}, group_id=mission.group_id)
    other = message(mwnode, mission)
    real = LmdbWriting.append
    appended: list[str] = []

    def breaks_at_the_second(self: LmdbWriting, event: NewEvent) -> Head:
        if b'"work.cancelled"' in event.event:
            raise OSError("the second Event")
        appended.append(event.event_id)
        return real(self, event)

    with monkeypatch.context() as patch:
        patch.setattr(LmdbWriting, "append", breaks_at_the_second)
        with held(mwnode) as submit:
            answers = [submit(cancel), submit(other)]
        outcomes = [answer.result(PATIENCE_SECONDS) for answer in answers]
    assert appended, "the first Event had been appended"
    assert outcomes[0].code is ErrorCode.INTERNAL_ERROR
    assert isinstance(outcomes[1], Accepted), "the others of the batch go on without it"
    kinds = [event["kind"] for event in mission.events()[len(before) :]]
    assert kinds == ["message.posted"]
    assert mission.state == "active"
    mwnode.node.send(cancel)
    assert mission.state == "cancelled"
    assert verify(mwnode.node.store).ok


def test_a_fault_in_deciding_is_that_commands_own(
    mwnode: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mission = mwnode.mission()
    bad, good = message(mwnode, mission, "bad"), message(mwnode, mission, "good")
    real = batch.decide

    def breaks(view: Any, request: Any, context: Any) -> Any:
        if b"bad" in request.verified.canonical:
            raise RuntimeError("a fault of ours")
        return real(view, request, context)

    monkeypatch.setattr(batch, "decide", breaks)
    with held(mwnode) as submit:
        answers = [submit(bad), submit(good)]
    assert answers[0].result(PATIENCE_SECONDS).code is ErrorCode.INTERNAL_ERROR
    assert isinstance(answers[1].result(PATIENCE_SECONDS), Accepted)
    assert "could not be decided" in caplog.text


def test_a_map_that_fills_while_deciding_is_grown_and_the_command_accepted(
    mwnode: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Deciding reads, and what is read may first have to be written."""
    mission = mwnode.mission()
    real, full = batch.decide, iter([lmdb.MapFullError("full")])

    def fills(view: Any, request: Any, context: Any) -> Any:
        for error in full:
            raise error
        return real(view, request, context)

    before = mwnode.node.store.file.map_bytes()
    monkeypatch.setattr(batch, "decide", fills)
    with held(mwnode) as submit:
        answers = [submit(message(mwnode, mission)) for _ in range(2)]
    assert all(isinstance(answer.result(PATIENCE_SECONDS), Accepted) for answer in answers)
    assert mwnode.node.store.file.map_bytes() > before
    assert caplog.text == ""


def test_a_map_that_fills_while_a_timer_is_decided_is_grown_and_the_lease_ends(
    mwnode: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mission = mwnode.mission()
    mission.add(mwnode.workers[0])
    work = mission.authorize()
    work.offer(mwnode.workers[0])
    work.accept(mwnode.workers[0])
    real, full = batch.decide_due, iter([lmdb.MapFullError("full")])

    def fills(*arguments: Any) -> Any:
        for error in full:
            raise error
        return real(*arguments)

    before = mwnode.node.store.file.map_bytes()
    monkeypatch.setattr(batch, "decide_due", fills)
    mwnode.advance(3600)
    assert work.state == "queued"
    assert mission.events()[-1]["kind"] == "ext.mwnode.core.lease_expired"
    assert mwnode.node.store.file.map_bytes() > before
    assert caplog.text == ""


def test_somebody_elses_callback_cannot_stop_the_writer(mwnode: Harness, caplog: pytest.LogCaptureFixture) -> None:
    mission = mwnode.mission()

    def breaks(value: Any) -> None:
        raise RuntimeError("not the writer's fault")

    mwnode.node.add_listener(breaks)
    mwnode.node.submit(message(mwnode, mission), HTTP, breaks)
    assert mwnode.node.send(message(mwnode, mission))
    assert len(mission.events()) == 3
    assert "a callback of the writer failed" in caplog.text


def test_a_closed_writer_refuses(mwnode: Harness) -> None:
    committer = writer(mwnode)
    mwnode.node.close()
    with pytest.raises(Exception, match="closed"):
        committer.call(lambda txn: None).result(PATIENCE_SECONDS)


# --- calls ---


def test_a_call_is_durable_when_its_result_is_there(mwnode: Harness) -> None:
    mission = mwnode.mission()
    agent = mwnode.coordinator.id
    assert mwnode.node.call(lambda txn: txn.put_cursor(agent, mission.group_id, 1)).result(PATIENCE_SECONDS) is None
    with mwnode.node.read() as view:
        assert view.cursor(agent, mission.group_id) == 1


def test_calls_that_fill_the_map_have_it_grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of uploads, as much as anything else, find room as long as the disk has some."""
    monkeypatch.setattr(mapped_file, "MAP_BYTES_FIRST", 4 * MIB)
    with closing(Harness(tmp_path / "small")) as harness:
        before = harness.node.store.file.map_bytes()
        assert before == 4 * MIB
        with held(harness):
            answers = [
                harness.node.call(partial(LmdbWriting.put_document, content=bytes([number]) * MIB))
                for number in range(6)
            ]
        names = [answer.result(PATIENCE_SECONDS) for answer in answers]
        assert harness.node.store.file.map_bytes() > before
        with harness.node.read() as view:
            assert all(view.document(name) for name in names)


def test_a_call_that_fails_undoes_its_own_writes_and_nobody_elses(mwnode: Harness) -> None:
    mission = mwnode.mission()

    def half(txn: LmdbWriting) -> None:
        txn.put_meta("half", b"written")
        txn.put_cursor("urn:example:agent:a", mission.group_id, 1)
        raise ValueError("half-way")

    with held(mwnode) as submit:
        answer = submit(message(mwnode, mission))
        failed = mwnode.node.call(half)
        good = mwnode.node.call(lambda txn: txn.put_meta("good", b"written"))
    with pytest.raises(ValueError, match="half-way"):
        failed.result(PATIENCE_SECONDS)
    good.result(PATIENCE_SECONDS)
    assert isinstance(answer.result(PATIENCE_SECONDS), Accepted)
    with mwnode.node.read() as view:
        assert view.meta("half") is None
        assert view.cursor("urn:example:agent:a", mission.group_id) == 0
        assert view.meta("good") == b"written"
    assert verify(mwnode.node.store).ok


# --- freshness, keys and admission ---


def test_an_accepted_command_has_its_first_admission(mwnode: Harness) -> None:
    mission = mwnode.mission()
    raw = message(mwnode, mission)
    event = msgspec.json.decode(mwnode.node.send(raw)[0])
    mwnode.clock.advance(10)
    mwnode.node.send(raw)
    with mwnode.node.read() as view:
        record = view.admission(bytes.fromhex(event["commandHash"][7:]))
        command = view.command(bytes.fromhex(event["commandHash"][7:]))
    assert record is not None
    assert record.document_kind == "command"
    assert record.signing_hash == event["commandHash"]
    assert record.principal == mwnode.owner.principal
    assert parse(record.trusted_accepted_at) == mwnode.clock.now().plus(-10), "of the first time, not of the retry"
    assert record.accepted_by.id == mwnode.node.authority_key.principal.id
    assert command == raw


def test_documents_inside_a_command_are_admitted_with_it(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize()
    work.offer()
    work.accept()
    work.start()
    work.publish()
    (published,) = [event for event in mission.events() if event["kind"] == "artifact.published"]
    artifact_hash = signing_hash(signing_bytes(published["payload"]["artifact"]))
    with mwnode.node.read() as view:
        record = view.admission(bytes.fromhex(artifact_hash[7:]))
    assert record is not None
    assert record.document_kind == "artifact"
    assert record.key_id == published["payload"]["artifact"]["signature"]["keyId"]


def test_a_refused_command_is_not_admitted(mwnode: Harness) -> None:
    mission = mwnode.mission()
    payload = {"messageId": mwnode.new_id(), "conversationId": "urn:example:nowhere", "content": "hello"}
    raw = mwnode.owner.command("message.post", payload, group_id=mission.group_id)
    with pytest.raises(MissionWeaveError):
        mwnode.node.send(raw)
    command_hash = signing_hash(signing_bytes(msgspec.json.decode(raw)))
    with mwnode.node.read() as view:
        assert view.admission(bytes.fromhex(command_hash[7:])) is None


def test_a_key_revoked_while_a_command_waits_does_not_pass(mwnode: Harness) -> None:
    mission = mwnode.mission()
    second = mwnode.human("second")
    now = mwnode.clock.now().text()
    restrict = service_command(
        mwnode.organization.key,
        f"{CORE}.key_restrict",
        {"keyId": second.key.key_id, "revokedAt": now},
        mwnode.clock,
        mwnode.entropy,
    )
    payload = {"messageId": mwnode.new_id(), "conversationId": f"{mission.group_id}:mission", "content": "late"}
    late = second.command("message.post", payload, group_id=mission.group_id)
    with held(mwnode) as submit:
        answers = [submit(restrict), submit(late)]
    assert isinstance(answers[0].result(PATIENCE_SECONDS), Accepted)
    outcome = answers[1].result(PATIENCE_SECONDS)
    assert outcome.code is ErrorCode.AUTH_INVALID_SIGNATURE
    with mwnode.node.read() as view:
        reasons = [opened(row, mwnode.node.home.key("audit")).reason for _, row in view.audit(0, 100)]
    assert reasons[-1] == "trusted-time-outside-key-interval"


@pytest.mark.req("R-6.4-83")
def test_a_failed_verification_in_a_group_is_referred_to_in_its_policy_log_without_the_reason(mwnode: Harness) -> None:
    mission = mwnode.mission()
    mwnode.clock.advance(1000)
    stale = mwnode.clock.now().plus(-400).text()
    with pytest.raises(MissionWeaveError) as refused:
        mwnode.node.decide(message(mwnode, mission, issued_at=stale), bearer=mwnode.owner.principal)
    assert refused.value.code is ErrorCode.AUTH_INVALID_SIGNATURE
    assert "fresh" not in str(refused.value)
    with mwnode.node.read() as view:
        number, row = view.audit(0, 100)[-1]
        entry = view.policy_log(mission.group_id)[-1]
    row = opened(row, mwnode.node.home.key("audit"))
    assert (row.stage, row.reason, row.group_id) == ("admission", "not-fresh", mission.group_id)
    assert entry.decision == "verification_failed"
    assert entry.details["auditRecord"] == number
    assert row.reason not in msgspec.json.encode(entry).decode()


def test_a_flood_of_garbage_does_not_fill_the_audit(mwnode: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "AUDIT_BURST", 10)
    committer = writer(mwnode)
    committer._audit_tokens = 10.0
    for number in range(500):
        committer.audit(AuditRow(mwnode.clock.now().text(), "parse", f"garbage {number}"))
    committer.call(lambda txn: None).result(PATIENCE_SECONDS)
    with mwnode.node.read() as view:
        assert len(view.audit(0, 1000)) == 10
    mwnode.clock.advance(10)
    committer.audit(AuditRow(mwnode.clock.now().text(), "parse", "the next"))
    committer.call(lambda txn: None).result(PATIENCE_SECONDS)
    with mwnode.node.read() as view:
        _, row = view.audit(10, 1000)[0]
    row = opened(row, mwnode.node.home.key("audit"))
    assert row.details == {"leftOutBefore": 490}


# --- time ---


def test_what_comes_due_is_decided_by_the_nodes_own_timer(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize()
    work.offer()
    work.accept()
    work.start()
    kinds = [event["kind"] for event in mission.events()]
    mwnode.advance(100_000)
    fresh = mission.events()[len(kinds) :]
    assert any(event["kind"].endswith("lease_expired") for event in fresh)
    assert {event["cause"]["type"] for event in fresh} <= {"timer", "policy", "event"}
    with mwnode.node.read() as view:
        upcoming = view.next_due()
    assert upcoming is None or upcoming > mwnode.clock.now(), "nothing stays due for ever"
    assert verify(mwnode.node.store).ok


def test_timers_survive_a_restart(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize()
    work.offer()
    work.accept()
    work.start()
    count = len(mission.events())
    mwnode.clock.advance(100_000)
    mwnode.restart()
    mwnode.node.run_timers()
    assert len(mission.events()) > count


def test_a_timer_that_fails_is_tried_again_later_and_blocks_nothing(
    mwnode: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    mission = mwnode.mission()

    def breaks(*arguments: Any) -> None:
        raise RuntimeError("a fault of ours")

    count = len(mission.events())
    with monkeypatch.context() as patch:
        patch.setattr(batch, "decide_due", breaks)
        mwnode.advance(100_000)
    assert len(mission.events()) == count
    assert mwnode.node.send(message(mwnode, mission))
    mwnode.advance(batch.TIMER_RETRY_SECONDS)
    assert any(event["kind"].endswith("lease_expired") for event in mission.events())


@pytest.mark.req("R-12-13")
def test_a_token_of_this_node_is_refused_and_a_text_of_that_shape_is_not(mwnode: Harness) -> None:
    mission = mwnode.mission()
    token = mwnode.node.tokens.issue({"sub": "urn:example:anybody"})
    payload = {"messageId": mwnode.new_id(), "conversationId": f"{mission.group_id}:mission"}
    error = mwnode.owner.refused("message.post", {**payload, "content": f"use {token}"}, group_id=mission.group_id)
    assert error.code is ErrorCode.INVALID_COMMAND
    assert token not in str(mission.events())
    foreign = f"{token[:-86]}{'A' * 86}"
    mwnode.owner.send("message.post", {**payload, "content": f"use {foreign}"}, group_id=mission.group_id)


def said_by(harness: Harness, mission: MissionHandle, number: int) -> bytes:
    """A Message of the Coordinator."""
    payload = {
        "messageId": harness.new_id(),
        "conversationId": f"{mission.group_id}:mission",
        "content": f"number {number}",
    }
    return harness.coordinator.command("message.post", payload, group_id=mission.group_id)


@pytest.mark.req("R-19-12")
def test_a_session_replaced_within_a_batch_fences_the_rest_of_it(mwnode: Harness) -> None:
    mission = mwnode.mission()
    raws = [said_by(mwnode, mission, number) for number in range(4)]
    with held(mwnode) as submit:
        answers = [submit(raw) for raw in raws[:2]]
        grant = mwnode.node.open_session(mwnode.coordinator.id, mwnode.coordinator.key.key_id)
        answers += [submit(raw) for raw in raws[2:]]
    outcomes = [answer.result(PATIENCE_SECONDS) for answer in answers]
    assert grant.result(PATIENCE_SECONDS)
    assert [isinstance(outcome, Accepted) for outcome in outcomes] == [True, True, False, False]
    assert {outcome.code for outcome in outcomes[2:]} == {ErrorCode.AUTH_STALE_SESSION}


@pytest.mark.req("R-20-01")
def test_messages_of_one_batch_count_against_the_rate_together(mwnode: Harness) -> None:
    mission = mwnode.mission()
    limit = mwnode.node.policy.message_rate
    raws = [said_by(mwnode, mission, number) for number in range(limit + 2)]
    with held(mwnode) as submit:
        answers = [submit(raw) for raw in raws]
    outcomes = [answer.result(PATIENCE_SECONDS) for answer in answers]
    assert [isinstance(outcome, Accepted) for outcome in outcomes] == [True] * limit + [False] * 2
    assert {outcome.code for outcome in outcomes[limit:]} == {ErrorCode.RATE_LIMITED}
    assert verify(mwnode.node.store).ok


@pytest.mark.req("R-19-22")
def test_a_receipt_that_a_call_of_the_same_batch_wrote_is_seen(mwnode: Harness) -> None:
    mission = mwnode.mission()
    action_id = mwnode.new_id()
    raw = message(mwnode, mission, action_id=action_id)

    def bind(txn: LmdbWriting) -> None:
        txn.put_receipt(mwnode.owner.id, action_id, Receipt(bytes(32), ((mission.group_id, 1),), None, 1))

    with held(mwnode) as submit:
        called = writer(mwnode).call(bind)
        answer = submit(raw)
    called.result(PATIENCE_SECONDS)
    assert answer.result(PATIENCE_SECONDS).code is ErrorCode.ACTION_ID_COLLISION
