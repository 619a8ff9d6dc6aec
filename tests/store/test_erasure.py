"""What a tombstone erases, in the whole file; and what stands in its place (decisions F17, F41)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from mwnode.protocol.commands import CORE
from mwnode.protocol.errors import ErrorCode, MissionWeaveError
from mwnode.store.carry import compact
from mwnode.store.log_records import decode_command_record
from mwnode.store.verify import Report, verify
from mwnode.testing import Harness, MissionHandle
from mwnode.trust.verification import Verified
from mwnode.trust.verification import verify as verify_signed
from tests.store.archives import say
from tests.store.damage import change, log_key, number_key

WORDS = "the words that a court wants gone"
TOMBSTONE = f"{CORE}.event_tombstone"


def erase(mission: MissionHandle, event: dict[str, Any]) -> list[dict[str, Any]]:
    """The Organization erases the Event of a Message."""
    return mission.harness.organization.send(
        TOMBSTONE,
        {"eventId": event["eventId"], "policyReason": "order 7 of the court"},
        group_id=mission.group_id,
        expected_revision=mission.revision,
    )


def kinds(report: Report) -> set[str]:
    return {finding.kind for finding in report.findings}


@pytest.mark.req("R-7.4-05", "R-7.4-06")
def test_an_erased_message_is_gone_from_log_command_and_rows(mwnode: Harness) -> None:
    mission = mwnode.mission()
    before, said, after = (say(mission, text) for text in ("before", WORDS, "after"))
    head = mission.events()
    store = mwnode.node.store
    with store.read() as view:
        stored = view.event(mission.group_id, said["sequence"])
    (receipt,) = erase(mission, said)
    assert receipt["kind"] == f"{CORE}.event_tombstoned"
    assert receipt["payload"]["eventId"] == said["eventId"]
    assert receipt["payload"]["sequence"] == said["sequence"]
    assert receipt["payload"]["policyReason"] == "order 7 of the court"
    assert receipt["actor"] == msgspec.to_builtins(mwnode.organization.principal)
    now = mission.events()
    assert [event["eventId"] for event in now[:-1]] == [event["eventId"] for event in head]
    assert [event["sequence"] for event in now] == list(range(1, len(head) + 2))
    assert [event for event in now[:-1] if event != said][: len(head) - 1] != []
    for kept in (before, after):
        assert kept in now
    stone = now[said["sequence"] - 1]
    assert stone["payload"]["tombstone"]["eventId"] == receipt["eventId"]
    assert WORDS not in str(now)
    with store.read() as view:
        erased = view.event(mission.group_id, said["sequence"])
        everything = [value for db in store.file.dbs for _, value in view.pages.scan(db, b"")]
        facts = view.event_facts(mission.group_id, said["sequence"])
        assert facts is not None
        assert facts.command_number is not None
        kept_command = view.pages.get("commands", number_key(facts.command_number))
    assert stored is not None
    assert erased is not None
    # The old signing hash and chain value stay; what stands there now is signed by the authority.
    assert (erased.signing_hash, erased.chain) == (stored.signing_hash, stored.chain)
    verdict = verify_signed(erased.event, "event", mwnode.node.registry)
    assert isinstance(verdict, Verified)
    assert not any(WORDS.encode() in value for value in everything)
    assert kept_command is not None
    assert decode_command_record(facts.command_number, kept_command)[2] == b""


def test_the_command_of_an_erased_message_still_counts_as_accepted(mwnode: Harness) -> None:
    mission = mwnode.mission()
    payload = {"messageId": mwnode.new_id(), "conversationId": f"{mission.group_id}:mission", "content": WORDS}
    raw = mwnode.owner.command("message.post", payload, group_id=mission.group_id)
    (said,) = mwnode.send(raw)
    erase(mission, said)
    (again,) = mwnode.send(raw)
    assert again["eventId"] == said["eventId"]
    assert WORDS not in str(again)
    with pytest.raises(MissionWeaveError) as refused:
        erase(mission, said)
    assert refused.value.code is ErrorCode.INVALID_STATE_TRANSITION


def test_verify_accepts_the_tombstone_and_warns_until_compact_was_run(mwnode: Harness) -> None:
    mission = mwnode.mission()
    assert verify(mwnode.node.store).warnings == ()
    erase(mission, say(mission, WORDS))
    report = verify(mwnode.node.store)
    assert report.ok, report.findings
    assert [warning.kind for warning in report.warnings] == ["erasure"]
    assert "mwnode compact" in report.warnings[0].detail
    path: Path = mwnode.node.store.path
    mwnode.node.close()
    compact(path)
    assert WORDS.encode() not in path.read_bytes()
    mwnode.restart()
    report = verify(mwnode.node.store)
    assert (report.ok, report.warnings) == (True, ())


def test_a_tombstone_that_no_event_tells_of_is_found(mwnode: Harness) -> None:
    mission = mwnode.mission()
    said, other = say(mission, WORDS), say(mission, "something else")
    (receipt,) = erase(mission, said)
    store = mwnode.node.store
    key = log_key(store, mission.group_id, said["sequence"])

    def name(event_id: str, instead: str) -> None:
        change(store, "log", key, lambda value: value.replace(event_id.encode(), instead.encode()))

    # Naming another Event breaks its signature; that it also does not tell of the erasure is a finding of its own.
    for instead in (other["eventId"], mwnode.new_id()):
        name(receipt["eventId"], instead)
        assert kinds(verify(store)) >= {"signature"}
        name(instead, receipt["eventId"])
    # Without the later Event nothing says that the words were erased by right.
    stone = log_key(store, mission.group_id, receipt["sequence"])
    with store.read() as view:
        whole = view.pages.get("log", stone)
    assert whole is not None
    change(store, "log", stone, lambda value: None)
    assert "tombstone" in kinds(verify(store))


def test_a_command_without_its_words_and_without_a_tombstone_is_found(mwnode: Harness) -> None:
    mission = mwnode.mission()
    say(mission, WORDS)
    store = mwnode.node.store
    with store.read() as view:
        facts = view.event_facts(mission.group_id, 2)
    assert facts is not None
    assert facts.command_number is not None
    key = number_key(facts.command_number)
    change(store, "commands", key, lambda value: value[: value.index(b"{")])
    assert not verify(store).ok
