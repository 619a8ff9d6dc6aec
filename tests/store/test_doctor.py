"""The doctor names what is odd about a file, and what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from mwnode.authority.state import AGENTS, KEYS, MISSIONS, WORK_ITEMS
from mwnode.genesis import service_command
from mwnode.protocol.commands import CORE
from mwnode.protocol.limits import Limits
from mwnode.store import doctor
from mwnode.store.audit import SEALED, opened
from mwnode.store.doctor import Observation, examine, readers_of, space_of
from mwnode.store.environment import LmdbStore
from mwnode.store.errors import StoreCorrupt
from mwnode.store.fold import rebuild
from mwnode.store.port import AuditRow
from mwnode.store.verify import verify
from mwnode.testing import Harness
from mwnode.trust.boxes import BoxFault
from tests.store.archives import approved, archived, say
from tests.store.damage import change, flip, keys, log_key

HOLD = """
import sys
from pathlib import Path
from mwnode.store.environment import LmdbStore
store = LmdbStore.open(Path(sys.argv[1]), read_only=True)
with store.read() as view:
    view.groups()
    print("reading", flush=True)
    sys.stdin.read()
"""


def look(harness: Harness, **limits: int) -> dict[str, Observation]:
    """What the doctor finds that is not all right, by what was looked at."""
    found = examine(harness.node.store, harness.clock.now(), Limits(**limits))
    assert all(observation.advice for observation in found if observation.level != "ok")
    return {observation.check: observation for observation in found if observation.level != "ok"}


def calm(found: dict[str, Observation]) -> dict[str, Observation]:
    """Without what this machine's own disk may add."""
    return {check: each for check, each in found.items() if check not in {"file system", "disk"}}


def test_a_healthy_file_in_use_has_nothing_to_tell(mwnode: Harness) -> None:
    mwnode.mission()
    mwnode.node.store.set_holder("https://127.0.0.1:1")
    assert calm(look(mwnode)) == {}
    everything = examine(mwnode.node.store, mwnode.clock.now(), Limits())
    told = {observation.check: observation.detail for observation in everything}
    assert "owns the file and listens at https://127.0.0.1:1" in told["owner"]
    assert "LMDB" in told["versions"]
    assert {"versions", "file system", "owner", "readers", "space", "disk", "format", "clock", "keys"} <= set(told)


def test_a_file_that_does_not_open_is_a_finding(tmp_path: Path, mwnode: Harness) -> None:
    found = examine(tmp_path / "node.mdb", mwnode.clock.now(), Limits())
    assert found[-1].check == "file"
    assert "there is no store" in found[-1].detail
    (tmp_path / "node.mdb").write_bytes(b"not a store at all" * 1000)
    assert examine(tmp_path / "node.mdb", mwnode.clock.now(), Limits())[-1].level == "fault"


def test_an_owner_that_was_killed_is_told_of(tmp_path: Path, mwnode: Harness) -> None:
    mwnode.node.close()
    (mwnode.home / "node.mdb.owner").write_text('{"pid":999999,"url":null}')
    found = examine(mwnode.home / "node.mdb", mwnode.clock.now(), Limits())
    assert [each.level for each in found if "999999 held the file" in each.detail] == ["notice"]


def test_readers_that_were_killed_or_are_old_are_named(mwnode: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    mission = mwnode.mission()
    store = mwnode.node.store
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(store.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "reading\n"
    for number in range(5):
        say(mission, f"{number}")
    reader = next(reader for reader in readers_of(store) if reader.pid == process.pid)
    assert (reader.alive, (reader.behind or 0) >= 5) == (True, True)
    assert "readers" not in look(mwnode)
    monkeypatch.setattr(doctor, "LAG_TRANSACTIONS", 3)
    assert f"process {process.pid} reads a state" in look(mwnode)["readers"].detail
    process.kill()
    process.communicate()
    assert "processes that are gone" in look(mwnode)["readers"].detail
    assert store.clear_dead_readers() == 1
    assert "readers" not in look(mwnode)


def test_space_is_explained(mwnode: Harness) -> None:
    store = mwnode.node.store
    before = space_of(store)
    assert before.data + before.free <= before.file + 4096
    for number in range(40):
        store.write(lambda txn, number=number: txn.put_meta(f"{number}", b"x" * 1_000_000))  # type: ignore[misc]
    assert "space" not in look(mwnode)
    store.write(lambda txn: [txn.pages.delete("meta", f"{number}".encode()) for number in range(40)])
    assert space_of(store).free > 30_000_000
    assert "never shrinks by itself" in look(mwnode)["space"].detail
    full = look(mwnode, free_bytes_reserve=1 << 60, map_bytes=1024**2)
    assert "Commands are refused" in full["disk"].detail
    assert "map_bytes" in full["ceiling"].detail


def test_a_clock_behind_the_events_and_timers_overdue_are_told(mwnode: Harness) -> None:
    mwnode.mission()
    mwnode.clock.step(-10)
    assert "the clock was set back" in look(mwnode)["clock"].detail
    mwnode.clock.step(100_000)
    found = look(mwnode)
    assert "clock" not in found
    assert "has been due since" in found["timers"].detail


def test_keys_that_end_are_told(mwnode: Harness) -> None:
    second = mwnode.human("second")
    end = mwnode.clock.now().plus(5 * 86_400).text()
    restrict = service_command(
        mwnode.organization.key,
        f"{CORE}.key_restrict",
        {"keyId": second.key.key_id, "validUntil": end},
        mwnode.clock,
        mwnode.entropy,
    )
    mwnode.node.send(restrict)
    found = look(mwnode)["keys"]
    assert (found.level, f"ends at {end}" in found.detail) == ("warning", True)
    mwnode.advance(6 * 86_400)
    found = look(mwnode)["keys"]
    assert (found.level, "ended at" in found.detail) == ("notice", True)


def test_erased_bytes_idle_uploads_and_trimmed_groups_are_told(mwnode: Harness) -> None:
    mission = approved(mwnode)
    said = say(mission, "to forget")
    mwnode.organization.send(
        f"{CORE}.event_tombstone",
        {"eventId": said["eventId"], "policyReason": "law"},
        group_id=mission.group_id,
        expected_revision=mission.revision,
    )
    mwnode.store_bytes(b"nobody publishes this")
    found = look(mwnode)
    assert "mwnode compact" in found["erasures"].advice
    assert "1 uploads" in found["uploads"].detail


# --- rows -------------------------------------------------------------------------------------------------------------


def silent(what: str, done: int, total: int) -> None:
    """A progress that nobody looks at."""


def test_rows_are_rebuilt_from_the_log_alone(mwnode: Harness) -> None:
    mission = archived(mwnode)
    live = mwnode.mission()
    making = live.work("active")
    making.publish(b"made", sourceArtifactHashes=[making.publish(b"source")])
    work = live.authorize()
    work.offer()
    store = mwnode.node.store
    derived = ("entities", "listing", "derivations")
    with store.read() as view:
        before = {db: [key for key, _ in view.pages.scan(db, b"")] for db in derived}
        due = {key[8:] for key, _ in view.pages.scan("due", b"")}
    mwnode.node.close()
    path = store.path
    store = LmdbStore.open(path, durable=False)
    # Damage of every kind: a row changed, one gone, one that cannot be read, listings and due times lost.
    with store.read() as view:
        row, key_row = view.get(MISSIONS, mission.mission_id), view.all(KEYS)
    assert row is not None
    wrong = msgspec.structs.replace(row, title="wrong")
    store.write(lambda txn: txn.put(MISSIONS, wrong))
    entities = [key for key in keys(store, "entities") if key[0] in {AGENTS.code, WORK_ITEMS.code}]
    change(store, "entities", entities[0], lambda value: None)
    change(store, "entities", entities[1], flip(0))
    for db in ("listing", "due", "derivations"):
        for key in keys(store, db):
            change(store, db, key, lambda value: None)
    assert not verify(store).ok
    assert rebuild(store, silent) > 10
    report = verify(store)
    assert report.ok, report.findings
    # What nothing states goes as well.
    store.write(lambda txn: txn.pages.put("derivations", b"\x01" * 53, b"urn:example:invented"))
    assert {finding.where for finding in verify(store).findings} == {"derivations"}
    rebuild(store, silent)
    report = verify(store)
    assert report.ok, report.findings
    with store.read() as view:
        assert {db: [key for key, _ in view.pages.scan(db, b"")] for db in derived} == before
        # The same rows come due; what a timer has put off is looked at once more.
        assert {key[8:] for key, _ in view.pages.scan("due", b"")} == due
        assert view.all(KEYS) == key_row
    store.close()
    mwnode.restart()
    work.accept()


def test_a_log_that_cannot_be_folded_leaves_the_rows_as_they_are(mwnode: Harness) -> None:
    mission = mwnode.mission()
    store = mwnode.node.store
    with store.read() as view:
        before = list(view.pages.scan("entities", b""))
    change(
        store, "log", log_key(store, mission.group_id, 1), lambda value: value.replace(b'"missionId"', b'"missionXd"')
    )
    with pytest.raises(StoreCorrupt, match="cannot be folded"):
        rebuild(store, silent)
    with store.read() as view:
        assert list(view.pages.scan("entities", b"")) == before


# --- audit ------------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-7.4-04", "R-6.4-82")
def test_protected_diagnostics_are_sealed_for_the_audit_key(mwnode: Harness) -> None:
    row = AuditRow(mwnode.clock.now().text(), "signature", "a telling reason", actor="agent urn:example:a")
    mwnode.node.call(lambda txn: txn.put_audit(row)).result()
    with mwnode.node.read() as view:
        ((_, kept),) = view.audit(0, 10)
        raw = b"".join(value for _, value in view.pages.scan("audit", b""))  # type: ignore[attr-defined]
    assert (kept.at, kept.stage, kept.actor) == (row.at, SEALED, None)
    assert b"telling" not in raw
    assert opened(kept, mwnode.node.home.key("audit")) == row
    with pytest.raises(BoxFault):
        opened(kept, mwnode.owner.key)
    assert opened(row, mwnode.owner.key) == row, "a row from before sealing"


def test_rows_stay_sealed_when_the_audit_key_is_taken_away(mwnode: Harness, tmp_path: Path) -> None:
    mwnode.node.close()
    kept = tmp_path / "audit.key"
    (mwnode.home / "keys" / "audit.key").rename(kept)
    mwnode.restart()
    row = AuditRow(mwnode.clock.now().text(), "parse", "garbage")
    mwnode.node.call(lambda txn: txn.put_audit(row)).result()
    with mwnode.node.read() as view:
        ((_, sealed),) = view.audit(0, 10)
    assert sealed.stage == SEALED
    kept.rename(mwnode.home / "keys" / "audit.key")
    assert opened(sealed, mwnode.node.home.key("audit")) == row
