"""``verify`` proves a whole file, and names what is damaged."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from mwnode.authority.state import WORK_ITEMS
from mwnode.store.carry import backup
from mwnode.store.environment import LmdbStore
from mwnode.store.layout import PLACE, receipt_key, text_key
from mwnode.store.projections import entity_key
from mwnode.store.verify import Report, verify
from mwnode.testing import Harness, MissionHandle
from tests.store.damage import change, event_start, flip, keys, log_key, number_key


@pytest.fixture
def done(mwnode: Harness) -> tuple[Harness, MissionHandle, str]:
    """A node with one approved Mission, and the hash of its Artifact."""
    mission = mwnode.mission()
    work = mission.authorize()
    work.offer()
    work.accept()
    work.start()
    content_hash = work.publish()
    work.submit([content_hash])
    work.review()
    mission.submit([content_hash])
    mission.approve()
    return mwnode, mission, content_hash


Done = tuple[Harness, MissionHandle, str]


def found(report: Report) -> set[tuple[str, str]]:
    assert report.ok == (not report.findings)
    return {(finding.kind, finding.where) for finding in report.findings}


@pytest.mark.req("R-7.3-01", "R-7.2-08")
def test_a_whole_mission_is_proven_from_the_file_alone(done: Done, tmp_path: Path) -> None:
    harness, mission, _ = done
    report = verify(harness.node.store)
    assert found(report) == set()
    assert report.groups == 1
    assert report.artifacts == 1
    with harness.node.read() as view:
        organization = len(view.organization_events(0, 1000))
    assert report.events == len(mission.events()) + organization
    backup(harness.node.store, tmp_path / "copy.mdb")
    assert verify(tmp_path / "copy.mdb") == report


def test_the_progress_of_a_verification_is_told(done: Done) -> None:
    told: list[tuple[str, int, int]] = []
    report = verify(done[0].node.store, progress=lambda what, so_far, total: told.append((what, so_far, total)))
    assert {what for what, _, _ in told} >= {"events", "commands", "artifacts", "rows"}
    assert ("events", report.events, report.events) in told


def test_a_flipped_byte_in_any_event_names_its_group_and_sequence(done: Done, scale: Callable[[int, int], int]) -> None:
    harness, mission, _ = done
    store = harness.node.store
    draw = random.Random(5)
    sequences = range(1, len(mission.events()) + 1)
    for _ in range(scale(40, 2000)):
        sequence = draw.choice(sequences)
        key = log_key(store, mission.group_id, sequence)
        with store.read() as view:
            value = view.pages.get("log", key)
        assert value is not None
        place = draw.randrange(event_start(store, key), len(value))
        change(store, "log", key, flip(place))
        report = verify(store, artifacts=False, rows=False)
        wheres = {finding.where for finding in report.findings}
        assert f"group {mission.group_id} sequence {sequence}" in wheres, f"byte {place} of sequence {sequence}"
        change(store, "log", key, flip(place))
    assert verify(store).ok, "flipping back heals it: nothing else was touched"


def test_a_flipped_byte_in_the_records_own_head_names_its_place(done: Done) -> None:
    harness, mission, _ = done
    store = harness.node.store
    key = log_key(store, mission.group_id, 3)
    for place in range(event_start(store, key)):
        change(store, "log", key, flip(place))
        wheres = {finding.where for finding in verify(store, artifacts=False, rows=False).findings}
        assert any(where.startswith(f"group {mission.group_id} sequence") for where in wheres), f"byte {place}"
        change(store, "log", key, flip(place))


def test_a_flipped_byte_in_an_artifact_names_it(done: Done) -> None:
    harness, _, content_hash = done
    store = harness.node.store
    (key,) = keys(store, "chunks")
    change(store, "chunks", key, flip(0))
    assert found(verify(store)) == {("artifact", f"artifact {content_hash}")}


def test_a_lost_chunk_and_a_damaged_manifest_name_the_artifact(done: Done) -> None:
    harness, _, content_hash = done
    store = harness.node.store
    change(store, "artifacts", bytes.fromhex(content_hash[7:]), flip(-1))
    assert ("artifact", f"artifact {content_hash}") in found(verify(store))
    change(store, "artifacts", bytes.fromhex(content_hash[7:]), flip(-1))
    change(store, "chunks", keys(store, "chunks")[0], lambda value: None)
    assert ("artifact", f"artifact {content_hash}") in found(verify(store))


def test_a_chunk_counted_wrongly_is_found(done: Done) -> None:
    store = done[0].node.store
    (key,) = keys(store, "chunk_references")
    change(store, "chunk_references", key, flip(-1))
    assert found(verify(store)) == {("artifact", f"chunk {key.hex()}")}


def test_a_missing_event_is_found_and_named(done: Done) -> None:
    harness, mission, _ = done
    store = harness.node.store
    change(store, "log", log_key(store, mission.group_id, 4), lambda value: None)
    assert ("event", f"group {mission.group_id} sequence 4") in found(verify(store, rows=False))


def test_an_event_whose_place_is_lost_is_found(done: Done) -> None:
    harness, mission, _ = done
    store = harness.node.store
    with store.read() as view:
        number = view.group_number(mission.group_id)
    assert number is not None
    change(store, "places", PLACE.pack(number, 4), lambda value: None)
    report = found(verify(store, rows=False))
    assert ("sequence", f"group {mission.group_id} sequence 5") in report
    assert ("index", "log") in report


def test_two_events_that_changed_places_are_found(done: Done) -> None:
    harness, mission, _ = done
    store = harness.node.store
    first, second = (log_key(store, mission.group_id, sequence) for sequence in (2, 3))
    with store.read() as view:
        values = view.pages.get("log", first), view.pages.get("log", second)
    change(store, "log", first, lambda value: values[1])
    change(store, "log", second, lambda value: values[0])
    report = found(verify(store, rows=False))
    assert ("event", f"group {mission.group_id} sequence 2") in report
    assert ("chain", f"group {mission.group_id} sequence 2") in report


def test_a_lost_index_entry_of_an_event_id_is_found(done: Done) -> None:
    harness, mission, _ = done
    store = harness.node.store
    event_id = mission.events()[1]["eventId"]
    change(store, "event_ids", text_key(event_id), lambda value: None)
    assert ("index", f"group {mission.group_id} sequence 2") in found(verify(store, rows=False))


def test_a_damaged_command_is_found(done: Done) -> None:
    store = done[0].node.store
    change(store, "commands", number_key(3), flip(-20))
    assert ("signature", "command 3") in found(verify(store, rows=False))


def test_a_lost_command_is_found_by_its_events_too(done: Done) -> None:
    harness, mission, _ = done
    store = harness.node.store
    with store.read() as view:
        facts = view.event_facts(mission.group_id, 2)
    assert facts is not None
    assert facts.command_number is not None
    change(store, "commands", number_key(facts.command_number), lambda value: None)
    report = found(verify(store, rows=False))
    assert ("command", f"command {facts.command_number + 1}") in report
    assert ("command", f"group {mission.group_id} sequence 2") in report


def test_a_lost_or_altered_receipt_is_found(done: Done) -> None:
    harness, mission, _ = done
    store = harness.node.store
    created = mission.events()[0]
    key = receipt_key(created["actor"]["id"], created["cause"]["id"])
    with store.read() as view:
        facts = view.event_facts(mission.group_id, 1)
    assert facts is not None
    where = f"command {facts.command_number}"
    for place in (1, 40, 45, -1):
        change(store, "receipts", key, flip(place))
        assert ("receipt", where) in found(verify(store, rows=False)), f"byte {place}"
        change(store, "receipts", key, flip(place))
    change(store, "receipts", key, lambda value: None)
    report = found(verify(store, rows=False))
    assert {("receipt", where), ("receipt", "receipts")} <= report


def test_a_hole_in_a_policy_log_is_found(done: Done) -> None:
    harness, mission, _ = done
    store = harness.node.store
    with store.read() as view:
        number = view.group_number(mission.group_id)
        entries = len(view.policy_log(mission.group_id))
    assert number is not None
    assert entries
    change(store, "policy_log", PLACE.pack(number, 1), lambda value: None)
    report = verify(store, rows=False)
    assert entries == 1 or any(finding.kind == "policy" for finding in report.findings)


def test_a_damaged_document_is_found(done: Done) -> None:
    store = done[0].node.store
    content_hash = store.write(lambda txn: txn.put_document(b"a document"))
    change(store, "documents", bytes.fromhex(content_hash[7:]), flip(2))
    assert ("document", f"document {content_hash}") in found(verify(store, rows=False))


def test_a_lost_admission_is_found(done: Done) -> None:
    store = done[0].node.store
    change(store, "admissions", number_key(1), lambda value: None)
    assert ("admission", "admissions") in found(verify(store, rows=False))


@pytest.mark.req("R-11.1-04")
def test_a_row_that_is_not_the_fold_of_the_log_is_found(done: Done) -> None:
    harness, mission, _ = done
    store = harness.node.store
    with store.read() as view:
        (row,) = view.in_group(WORK_ITEMS, mission.group_id)
    key = entity_key(WORK_ITEMS.code, WORK_ITEMS.key(row))
    change(store, "entities", key, lambda value: value.replace(b"verified", b"rejected"))
    (finding,) = verify(store).findings
    assert finding.kind == "projection"
    assert row.item.work_item_id in finding.where or key[1:].hex() in finding.where or finding.where.startswith("work")


def test_a_lost_and_an_invented_row_are_found(done: Done) -> None:
    harness, mission, _ = done
    store = harness.node.store
    with store.read() as view:
        (row,) = view.in_group(WORK_ITEMS, mission.group_id)
    where = f"work_items {row.item.work_item_id}"
    change(store, "entities", entity_key(WORK_ITEMS.code, row.item.work_item_id), lambda value: None)
    assert ("projection", where) in found(verify(store))
    harness.node.store.write(lambda txn: txn.put(WORK_ITEMS, row))
    assert verify(store).ok


def test_a_file_in_use_by_its_node_is_verified_from_beside_it(done: Done) -> None:
    import subprocess
    import sys

    script = (
        "import sys; from pathlib import Path; from mwnode.store.verify import verify\n"
        "report = verify(Path(sys.argv[1])); print(report.ok, report.groups)"
    )
    path = str(done[0].node.store.path)
    beside = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
    assert beside.stdout == "True 1\n"


def test_a_store_without_an_organization_has_nothing_to_prove_signatures_with(tmp_path: Path) -> None:
    store = LmdbStore.open(tmp_path / "node.mdb", durable=False)
    assert ("registry", "the Registry's rows") in found(verify(store))
    store.close()
