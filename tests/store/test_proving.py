"""A check on several processes finds what one finds; an interrupted one goes on, and believes no state blindly."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mwnode.store import proving, resuming
from mwnode.store.carry import backup
from mwnode.store.environment import LmdbStore
from mwnode.store.errors import StoreCorrupt
from mwnode.store.examining import Asked
from mwnode.store.proving import Prover
from mwnode.store.resuming import StateRefused
from mwnode.store.verify import verify
from mwnode.testing import Harness, MissionHandle
from tests.store.damage import change, event_start, flip, log_key, number_key


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes thousands of documents happens here with a few."""
    monkeypatch.setattr(proving, "BATCH", 4)
    monkeypatch.setattr(proving, "HELP_FROM", 1)
    monkeypatch.setattr(resuming, "SAVE_SECONDS", 0.0)


@pytest.fixture
def done(mwnode: Harness) -> tuple[Harness, MissionHandle]:
    mission = mwnode.mission()
    work = mission.authorize()
    work.run()
    for number in range(12):
        mwnode.coordinator.send(
            "message.post",
            {"messageId": mwnode.new_id(), "conversationId": f"{mission.group_id}:mission", "content": f"{number}"},
            group_id=mission.group_id,
        )
    return mwnode, mission


Done = tuple[Harness, MissionHandle]


def damage(store: LmdbStore, group_id: str) -> None:
    """A few Events and Commands with a flipped byte each, some in one batch."""
    for sequence in (2, 3, 9):
        key = log_key(store, group_id, sequence)
        change(store, "log", key, flip(event_start(store, key) + 40))
    change(store, "log", log_key(store, group_id, 5), flip(20))
    for number in (4, 10):
        change(store, "commands", number_key(number), flip(-30))
    change(store, "commands", number_key(6), lambda value: value[:20])


def test_helpers_find_the_same_in_the_same_order(done: Done) -> None:
    harness, mission = done
    store = harness.node.store
    assert verify(store, jobs=3) == verify(store)
    damage(store, mission.group_id)
    alone = verify(store)
    assert len(alone.findings) > 8
    assert verify(store, jobs=3) == alone


def test_helpers_that_do_not_start_are_done_without(done: Done, monkeypatch: pytest.MonkeyPatch) -> None:
    harness, mission = done
    damage(harness.node.store, mission.group_id)
    alone = verify(harness.node.store)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert verify(harness.node.store, jobs=2) == alone


def test_a_helper_that_dies_in_between_is_done_without(done: Done) -> None:
    harness, _ = done
    with harness.node.read() as view:
        events = [stored.event for stored in view.events(done[1].group_id, 0, 100)]
    prover = Prover(harness.node.registry, harness.node.home.authority_service, 2)
    try:
        asked = [Asked("event", raw, None, "2030-01-01T00:00:00Z") for raw in events]
        answers = []
        for _, examined in prover.examine(asked * 5, lambda each: each, 1000):
            answers.append(examined)
            for helper in prover._helpers:
                helper.kill()
        assert len(answers) == 5 * len(events)
        assert all(examined is not None and examined.verified for examined in answers)
    finally:
        prover.close()
    assert all(helper.poll() is not None for helper in prover._helpers)


def test_what_was_read_before_a_fault_is_answered_before_the_fault(mwnode: Harness) -> None:
    def items() -> object:
        yield from range(6)
        raise StoreCorrupt("the pages end here", "log")

    prover = Prover(mwnode.node.registry, None)
    answers = prover.examine(items(), lambda item: None, 6)  # type: ignore[type-var, arg-type]
    assert [next(answers) for _ in range(6)] == [(number, None) for number in range(6)]
    with pytest.raises(StoreCorrupt, match="end here"):
        next(answers)


class Interrupted(BaseException):
    """Stands for Ctrl-C."""


def interrupted(store: LmdbStore, state: Path, at: str) -> None:
    """A check that ends when it comes to that part."""

    def stop(what: str, done: int, total: int) -> None:
        if what == at:
            raise Interrupted

    with pytest.raises(Interrupted):
        verify(store, progress=stop, resume=state)
    assert state.exists()


def examined_now(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """Fills with every document whose signature is looked at from now on."""
    looked_at: list[Asked] = []
    examine = proving.examine

    def noting(asked: Asked, *rest: object) -> object:
        looked_at.append(asked)
        return examine(asked, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(proving, "examine", noting)
    return looked_at


def test_an_interrupted_check_goes_on_where_it_was(done: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, state = done[0].node.store, tmp_path / "state"
    interrupted(store, state, "rows")
    looked_at = examined_now(monkeypatch)
    report = verify(store, resume=state)
    assert (report.ok, report.warnings, looked_at) == (True, (), [])
    assert not state.exists(), "a check that came to its end leaves nothing to go on from"
    verify(store, resume=state)
    assert looked_at, "and the next one looks at everything"


def test_a_grown_file_is_checked_where_it_grew(done: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness, mission = done
    store, state = harness.node.store, tmp_path / "state"
    interrupted(store, state, "rows")
    before = verify(store).events
    mission.authorize()
    looked_at = examined_now(monkeypatch)
    report = verify(store, resume=state)
    assert (report.ok, report.warnings) == (True, ())
    assert report.events == before + 1
    assert 0 < len(looked_at) <= 2 * proving.BATCH, "the last batch of Events and of Commands"


def test_what_was_changed_since_is_found_all_the_same(done: Done, tmp_path: Path) -> None:
    harness, mission = done
    store, state = harness.node.store, tmp_path / "state"
    work = mission.authorize()
    work.run()
    interrupted(store, state, "rows")
    damage(store, mission.group_id)
    with store.read() as view:
        chunk = next(iter(view.pages.scan("chunks", b"")))[0]
    change(store, "chunks", chunk, flip(0))
    kept = state.read_bytes()
    report = verify(store, resume=state)
    state.write_bytes(kept)
    assert report.findings == verify(store).findings
    assert any(finding.kind == "artifact" for finding in report.findings)


def test_the_state_of_another_file_does_not_count_and_is_told_of(done: Done, tmp_path: Path) -> None:
    harness, mission = done
    store, state = harness.node.store, tmp_path / "state"
    backup(store, tmp_path / "older.mdb")
    mission.authorize()
    interrupted(store, state, "rows")
    report = verify(tmp_path / "older.mdb", resume=state)
    assert report.ok
    assert [warning.kind for warning in report.warnings] == ["resume"]


def test_a_state_that_is_none_is_refused_and_left_alone(done: Done, tmp_path: Path) -> None:
    store, state = done[0].node.store, tmp_path / "notes.txt"
    state.write_bytes(b"dear diary, " * 10)
    with pytest.raises(StateRefused, match="name another file"):
        verify(store, resume=state)
    assert state.read_bytes() == b"dear diary, " * 10
    interrupted(store, tmp_path / "state", "rows")
    whole = (tmp_path / "state").read_bytes()
    (tmp_path / "state").write_bytes(whole[:-1] + bytes((whole[-1] ^ 1,)))
    with pytest.raises(StateRefused, match="damaged"):
        verify(store, resume=tmp_path / "state")


def test_a_state_that_others_may_write_is_refused(done: Done, tmp_path: Path) -> None:
    store, state = done[0].node.store, tmp_path / "state"
    interrupted(store, state, "rows")
    assert state.stat().st_mode & 0o777 == 0o600
    state.chmod(0o620)
    with pytest.raises(StateRefused, match="yours alone"):
        verify(store, resume=state)
