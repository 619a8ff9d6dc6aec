"""What a Worker keeps on its own machine, and that losing it loses nothing."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from mwnode.client.fold import WorkView
from mwnode.testing import Harness
from mwnode.worker import scheduler
from mwnode.worker.effects import Assignment
from mwnode.worker.engine import GroupState
from mwnode.worker.jobs import Kept
from mwnode.worker.memory import Buffered, GroupMemory, Memory
from tests.worker.desk import CHECKED, Desk, Run, desk

AGENT = "urn:example:agent"


def never(assignment: Assignment) -> Run:
    return Run(status=None)


def saved(memory: Memory, worker: Desk) -> None:
    """Keep everything the way the shell does."""
    memory.save(
        (
            GroupMemory(state.group_id, state.mission_id, tuple(state.scopes), worker.at[state.group_id]),
            state.views.values(),
        )
        for state in worker.engine.groups.values()
    )


def restored(memory: Memory, worker: Desk) -> Desk:
    """Take it up the way the shell does."""
    worker.engine.kept = memory.runs()
    for group, views in memory.groups():
        state = GroupState(group.group_id, group.mission_id, frozenset(group.scopes))
        state.views = {view.work_item_id: view for view in views}
        worker.engine.restore(state)
        worker.at[group.group_id] = group.cursor
        worker.deliver()
        worker.engine.caught_up(group.group_id)
    return worker


def queues(worker: Desk) -> dict[str, list[str]]:
    return {group_id: worker.engine.scheduler.queue(group_id) for group_id in sorted(worker.engine.groups)}


def busy_worker(mwnode: Harness) -> Desk:
    """Two Groups with items running and queued."""
    for number in range(2):
        mission = mwnode.mission()
        for urgency in ("routine", "critical", "normal"):
            work = mission.authorize(**CHECKED, goal=f"{number} {urgency}", requestedUrgency=urgency)
            work.offer(mwnode.workers[0])
            mwnode.clock.advance(1)
    return desk(mwnode, behave=never).step()


@pytest.mark.req("R-11.1-02", "R-11.1-03", "R-5-03")
def test_queues_are_the_same_from_memory_and_from_replay(mwnode: Harness, tmp_path: Path) -> None:
    worker = busy_worker(mwnode)
    memory = Memory.open(tmp_path / "worker.mdb", AGENT)
    saved(memory, worker)
    memory.close()
    assert sum(len(queue) for queue in queues(worker).values()) == 5
    worker.agent.connect()
    memory = Memory.open(tmp_path / "worker.mdb", AGENT)
    from_memory = restored(memory, desk(mwnode, behave=never))
    memory.close()
    from_nothing = desk(mwnode, behave=never)
    from_nothing.deliver()
    assert queues(from_memory) == queues(from_nothing)
    assert sum(len(queue) for queue in queues(from_memory).values()) == 6, "the running one came back to its queue"


@pytest.mark.req("R-16-55", "R-16-56")
def test_cursor_and_work_are_kept_in_one_step(tmp_path: Path) -> None:
    memory = Memory.open(tmp_path / "worker.mdb", AGENT)
    memory.save([(GroupMemory("urn:example:group", None, (), 4), [])])

    class Crash(Exception):
        pass

    def half() -> list[WorkView]:
        raise Crash

    def rows() -> object:
        yield GroupMemory("urn:example:group", None, (), 9), half()

    with pytest.raises(Crash):
        memory.save(rows())  # type: ignore[arg-type]  # dies in the middle, as a crash would
    memory.close()
    memory = Memory.open(tmp_path / "worker.mdb", AGENT)
    assert [group.cursor for group, _ in memory.groups()] == [4]
    memory.close()


def test_a_result_that_was_uploaded_is_not_made_twice(mwnode: Harness, tmp_path: Path) -> None:
    mission = mwnode.mission()
    work = mission.authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=never).step()
    worker.lose_link()
    worker.end(worker.launched[0].run_id, 0)
    worker.step()
    memory = Memory.open(tmp_path / "worker.mdb", AGENT)
    for kept in worker.kept_runs.values():
        memory.keep_run(kept)
    saved(memory, worker)
    worker.agent.connect()
    again = restored(memory, desk(mwnode)).step()
    memory.close()
    assert again.launched == [], "the executor does not run again"
    assert work.state == "submitted"


def test_tries_are_not_forgotten(mwnode: Harness, tmp_path: Path) -> None:
    mission = mwnode.mission()
    retry = {"maxAttempts": 2, "backoff": "fixed", "maxDelay": "PT5S", "retryableFailures": []}
    work = mission.authorize(**CHECKED, retryPolicy=retry)
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=lambda assignment: Run(status=75)).step()
    assert len(worker.launched) == 1
    memory = Memory.open(tmp_path / "worker.mdb", AGENT)
    for kept in worker.kept_runs.values():
        memory.keep_run(kept)
    worker.agent.connect()
    again = restored(memory, desk(mwnode, behave=lambda assignment: Run(status=75))).step()
    memory.close()
    assert [launch.attempt for launch in again.launched] == [2]
    assert work.state == "failed"
    assert again.launched[0].idempotency_key == worker.launched[0].idempotency_key


def test_runs_and_buffer_are_kept_in_order_and_forgotten(tmp_path: Path) -> None:
    memory = Memory.open(tmp_path / "worker.mdb", AGENT)
    memory.keep_run(Kept("urn:example:work", 2, 1, 0))
    memory.keep_run(Kept("urn:example:work", 2, 2, 1))
    for number in (10, 2, 300):
        memory.buffer(Buffered(number, "urn:example:work", b"{}"))
    memory.close()
    memory = Memory.open(tmp_path / "worker.mdb", AGENT)
    assert memory.runs() == {("urn:example:work", 2): Kept("urn:example:work", 2, 2, 1)}
    assert [entry.number for entry in memory.buffered()] == [2, 10, 300]
    memory.unbuffer(10)
    memory.forget_run("urn:example:work", 2)
    assert (memory.runs(), [entry.number for entry in memory.buffered()]) == ({}, [2, 300])
    memory.close()


def test_forgetting_a_group_leaves_the_others(mwnode: Harness, tmp_path: Path) -> None:
    worker = busy_worker(mwnode)
    memory = Memory.open(tmp_path / "worker.mdb", AGENT)
    saved(memory, worker)
    gone, stays = sorted(worker.engine.groups)
    memory.forget_group(gone)
    assert [(group.group_id, len(views)) for group, views in memory.groups()] == [(stays, 3)]
    memory.close()


@pytest.mark.parametrize("damage", ["other agent", "no LMDB file"])
def test_a_file_that_cannot_be_used_is_begun_anew(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "worker.mdb"
    if damage == "other agent":
        memory = Memory.open(path, "urn:example:somebody-else")
        memory.save([(GroupMemory("urn:example:group", None, (), 4), [])])
        memory.close()
    else:
        path.write_bytes(b"this is no LMDB file, but long enough to be taken for one" * 200)
    memory = Memory.open(path, AGENT)
    assert memory.groups() == []
    memory.close()


def test_the_map_grows_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mwnode.worker.memory.MAP_BYTES", 128 * 1024)
    memory = Memory.open(tmp_path / "worker.mdb", AGENT)
    for number in range(200):
        memory.buffer(Buffered(number, "urn:example:work", b"x" * 4000))
    assert len(memory.buffered()) == 200
    memory.close()


@pytest.mark.req("R-11.3-26", "R-11.3-25")
def test_preemption_checkpoints_frees_the_slot_and_resumes_later(mwnode: Harness) -> None:
    long = mwnode.mission().authorize(**CHECKED, goal="long")
    long.offer(mwnode.workers[0])
    rules = scheduler.Settings(preempt_margin_seconds=30.0)
    safe = {"checkpoint": {"phase": "half"}}
    worker = desk(mwnode, behave=lambda one: Run(status=None), scheduling=rules, run_seconds=100.0).step()
    other = mwnode.mission().authorize(**CHECKED, goal="pressing", requestedUrgency="critical")
    other.offer(mwnode.workers[0])
    worker.pass_time(70)
    assert (long.state, other.state, worker.asked) == ("active", "queued", []), "no safe point yet"
    worker.engine.runs.reported(worker.launched[0].run_id, safe)
    worker.step()
    assert worker.asked == [worker.launched[0].run_id]
    assert (long.state, other.state) == ("queued", "active")
    order = [name for name in worker.trace if name in ("ask to stop", "work.checkpoint", "launch")]
    assert order == ["launch", "ask to stop", "work.checkpoint", "launch"]
    assert worker.engine.scheduler.queue(long.mission.group_id) == [long.work_item_id]
    worker.end(worker.launched[1].run_id, 0)
    worker.step()
    assert (long.state, other.state) == ("active", "submitted")
    assert worker.launched[2].checkpoint is not None
    assert worker.launched[2].checkpoint.phase == "half"


@pytest.mark.req("R-12-13")
def test_nothing_of_the_process_gets_into_the_file(tmp_path: Path) -> None:
    """Unused parts of a page are never what the process had in its memory before, such as keys."""
    secret = os.urandom(32)
    with closing(Memory.open(tmp_path / "worker.mdb", AGENT)) as memory:
        for number in range(50):
            pages = [bytearray(secret * 128) for _ in range(50)]
            pages.clear()
            memory.buffer(Buffered(number, "urn:uuid:work", b"{}"))
            memory.save([(GroupMemory(f"urn:uuid:{number}", None, (), number), ())])
    assert secret not in (tmp_path / "worker.mdb").read_bytes()
