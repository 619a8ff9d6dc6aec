"""Uploads that nothing names go after their grace; what anything names stays, whoever came first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mwnode.authority.policy import Policy
from mwnode.protocol.commands import CORE
from mwnode.protocol.errors import InvalidCommand
from mwnode.store.collecting import TAIL_MAX, Collector
from mwnode.store.upkeep import COLLECT_FIRST_SECONDS, COLLECT_SECONDS
from mwnode.store.verify import verify
from mwnode.testing import Harness, MissionHandle
from tests.store.archives import archive, say, snapshot_of
from tests.store.test_upkeep import restarted

RETENTION = Policy().upload_retention


def collector(harness: Harness) -> Collector:
    return Collector(harness.node.store, harness.node.artifacts, lambda change: harness.node.call(change).result())


def collect_all(harness: Harness) -> int:
    """Take every upload for old."""
    return collector(harness).collect(harness.clock.now().plus(1)).artifacts


def stored(harness: Harness) -> set[str]:
    return {info.content_hash for info in harness.node.artifacts.list()}


# --- what stays -------------------------------------------------------------------------------------------------------


def as_input(mission: MissionHandle, content_hash: str) -> None:
    mission.authorize(inputArtifacts=[content_hash])


def as_input_of_an_earlier_contract(mission: MissionHandle, content_hash: str) -> None:
    work = mission.authorize(inputArtifacts=[content_hash])
    revised = mission.harness.contract(contractVersion=2)
    work.offer(contract=revised)
    assert not work.row.item.contract.input_artifacts


def as_input_of_a_proposal(mission: MissionHandle, content_hash: str) -> None:
    harness = mission.harness
    contract = harness.contract(inputArtifacts=[content_hash])
    harness.coordinator.send(
        "work.propose", {"proposalId": harness.new_id(), "contract": contract}, group_id=mission.group_id
    )


def as_evidence(mission: MissionHandle, content_hash: str) -> None:
    work = mission.authorize()
    report = work.evidence(mission.harness.coordinator, "failure_report", "failed", artifact_hashes=[content_hash])
    work.fail(evidence=[report])


def as_context(mission: MissionHandle, content_hash: str) -> None:
    coordinator, harness = mission.harness.coordinator, mission.harness
    package = coordinator.sign(
        contextPackageId=harness.new_id(),
        version=1,
        missionId=mission.mission_id,
        groupId=mission.group_id,
        sourceEventRange={"fromSequence": 1, "toSequence": 1, "eventIds": [mission.events()[0]["eventId"]]},
        artifactHashes=[content_hash],
        summary="all there is",
        decisions=[],
        constraints=[],
        unresolvedQuestions=[],
        generatedBy={"type": "agent", "id": coordinator.id},
        generatedAt=harness.clock.now().text(),
    )
    coordinator.send(f"{CORE}.context_package_publish", {"contextPackage": package}, group_id=mission.group_id)


def as_words(mission: MissionHandle, content_hash: str) -> None:
    say(mission, f"please look at urn:mwnode:artifact:{content_hash}")


def as_result(mission: MissionHandle, content_hash: str) -> None:
    assert mission.authorize().run(content=b"an upload\n") == content_hash


NAMING: dict[str, Callable[[MissionHandle, str], None]] = {
    "an input of a WorkItem": as_input,
    "an input of a contract that was revised": as_input_of_an_earlier_contract,
    "an input of a proposal": as_input_of_a_proposal,
    "Evidence": as_evidence,
    "a Context Package": as_context,
    "words of a Message": as_words,
    "a published manifest": as_result,
}


@pytest.mark.req("R-13.1-01")
@pytest.mark.parametrize("naming", NAMING)
def test_what_is_named_stays(mwnode: Harness, naming: str) -> None:
    mission = mwnode.mission()
    content_hash, idle = mwnode.store_bytes(b"an upload\n"), mwnode.store_bytes(b"named by nobody\n")
    NAMING[naming](mission, content_hash)
    before = stored(mwnode)
    assert collect_all(mwnode) == 1
    assert stored(mwnode) == before - {idle}
    assert content_hash in stored(mwnode)
    mwnode.restart()
    assert collect_all(mwnode) == 0, "nor after a restart, when nothing is remembered"
    assert verify(mwnode.node.store).ok


def test_the_uploaded_snapshot_of_an_archival_stays(mwnode: Harness) -> None:
    mission = mwnode.mission("approved")
    snapshot = mwnode.node.snapshots(mission.group_id)[-1]
    content_hash = mwnode.store_bytes(snapshot)
    assert snapshot_of(mission)
    archive(mission, {"snapshotHash": content_hash})
    collect_all(mwnode)
    assert b"".join(mwnode.node.artifacts.read(content_hash)) == snapshot


# --- what goes, and when ----------------------------------------------------------------------------------------------


def test_a_node_collects_by_itself_after_the_grace_and_not_before(mwnode: Harness) -> None:
    mwnode.store_bytes(b"first\n")
    mwnode.advance(RETENTION)
    second = mwnode.store_bytes(b"second\n")
    assert len(stored(mwnode)) == 2, "not older than the grace"
    mwnode.advance(COLLECT_SECONDS)
    assert stored(mwnode) == {second}
    mwnode.advance(RETENTION)
    assert stored(mwnode) == set()
    report = verify(mwnode.node.store)
    assert (report.ok, report.artifacts) == (True, 0)


def test_putting_the_same_bytes_again_begins_the_grace_anew(mwnode: Harness) -> None:
    content_hash = mwnode.store_bytes(b"the same\n")
    mwnode.advance(RETENTION - 10)
    assert mwnode.store_bytes(b"the same\n") == content_hash
    mwnode.advance(COLLECT_SECONDS)
    assert stored(mwnode) == {content_hash}
    mwnode.mission().authorize(inputArtifacts=[content_hash])
    mwnode.advance(10 * RETENTION)
    assert stored(mwnode) == {content_hash}
    assert verify(mwnode.node.store).ok


def test_policy_keeps_uploads_for_good(mwnode: Harness) -> None:
    restarted(mwnode, upload_retention=0)
    content_hash = mwnode.store_bytes(b"kept\n")
    mwnode.advance(100 * RETENTION)
    assert stored(mwnode) == {content_hash}


def test_a_shorter_grace_is_obeyed_by_the_running_clock(mwnode: Harness) -> None:
    restarted(mwnode, upload_retention=60)
    mwnode.store_bytes(b"soon gone\n")
    mwnode.advance(COLLECT_FIRST_SECONDS)
    assert stored(mwnode) == set()


# --- races ------------------------------------------------------------------------------------------------------------


def test_a_command_between_the_search_and_the_deletion_keeps_the_bytes(
    mwnode: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    mission, content_hash = mwnode.mission(), mwnode.store_bytes(b"just in time\n")
    collecting = collector(mwnode)
    search = collecting._search

    def then_named(wanted: set[bytes]) -> set[bytes]:
        found = search(wanted)
        mission.authorize(inputArtifacts=[content_hash])
        return found

    monkeypatch.setattr(collecting, "_search", then_named)
    assert collecting.collect(mwnode.clock.now().plus(1)).artifacts == 0
    assert stored(mwnode) == {content_hash}


def test_a_put_between_the_search_and_the_deletion_keeps_the_bytes(
    mwnode: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    content_hash = mwnode.store_bytes(b"put again\n")
    collecting = collector(mwnode)
    search = collecting._search

    def then_put(wanted: set[bytes]) -> set[bytes]:
        found = search(wanted)
        mwnode.clock.advance(2)
        mwnode.store_bytes(b"put again\n")
        return found

    monkeypatch.setattr(collecting, "_search", then_put)
    assert collecting.collect(mwnode.clock.now().plus(1)).artifacts == 0
    assert stored(mwnode) == {content_hash}


def test_more_than_a_transaction_should_look_through_is_left_for_the_next_time(
    mwnode: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    content_hash = mwnode.store_bytes(b"waits\n")
    monkeypatch.setattr("mwnode.store.collecting.TAIL_MAX", 2)
    assert TAIL_MAX > 2
    mission = mwnode.mission()
    collecting = collector(mwnode)
    search = collecting._search

    def then_much(wanted: set[bytes]) -> set[bytes]:
        found = search(wanted)
        for _ in range(3):
            say(mission, "and another thing")
        return found

    monkeypatch.setattr(collecting, "_search", then_much)
    assert collecting.collect(mwnode.clock.now().plus(1)).artifacts == 0
    assert collector(mwnode).collect(mwnode.clock.now().plus(1)).artifacts == 1
    assert content_hash not in stored(mwnode)


def test_an_unfinished_upload_of_the_same_bytes_is_untouched(mwnode: Harness) -> None:
    content_hash = mwnode.store_bytes(b"x" * 5_000_000)
    writer = mwnode.node.artifacts.begin_put()
    writer.write(b"x" * 5_000_000)
    assert collect_all(mwnode) == 1
    assert stored(mwnode) == set()
    assert writer.finish(content_hash).new
    assert b"".join(mwnode.node.artifacts.read(content_hash)) == b"x" * 5_000_000
    assert verify(mwnode.node.store).ok


def test_what_is_being_read_stays_until_it_was_read(mwnode: Harness) -> None:
    content = bytes(range(256)) * 20_000
    content_hash = mwnode.store_bytes(content)
    pieces = mwnode.node.artifacts.read(content_hash)
    first = next(pieces)
    assert collect_all(mwnode) == 0
    assert first + b"".join(pieces) == content
    late = mwnode.node.artifacts.read(content_hash)
    assert collect_all(mwnode) == 1
    with pytest.raises(KeyError):
        next(late)


@pytest.mark.req("R-13.1-05")
def test_no_accepted_command_ever_names_bytes_that_were_collected(mwnode: Harness, tmp_path: Path) -> None:
    """Everything counts as old, so that each upload races the collection for its Command."""
    mission = mwnode.mission()
    stop = threading.Event()
    accepted: list[str] = []
    refused: list[str] = []
    faults: list[BaseException] = []

    def collect() -> None:
        collecting = collector(mwnode)
        try:
            while not stop.is_set():
                collecting.collect(mwnode.clock.now().plus(1))
        except BaseException as fault:
            faults.append(fault)

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        for number in range(60):
            content_hash = mwnode.store_bytes(b"upload %d\n" % number)
            try:
                mission.authorize(inputArtifacts=[content_hash], goal=f"Run number {number}")
            except InvalidCommand:
                refused.append(content_hash)
            else:
                accepted.append(content_hash)
    finally:
        stop.set()
        thread.join()
    assert not faults
    collect_all(mwnode)
    assert stored(mwnode) == set(accepted)
    assert len(accepted) + len(refused) == 60
    assert verify(mwnode.node.store).ok
