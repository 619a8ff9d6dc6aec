"""Executors as real processes: their slot, their limits, and that all of them ends."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mwnode.protocol.documents import WorkContract
from mwnode.worker.effects import Assignment, Exit
from mwnode.worker.executor import (
    ExecutorError,
    ExecutorLimits,
    HandlerExecutor,
    Stop,
    SubprocessExecutor,
    Work,
    command_line,
)
from mwnode.worker.slots import Slot, SlotError
from tests.patience import PATIENCE_SECONDS, until

DIGEST = "sha256:" + "ab" * 32


def assignment(run_id: str = "urn:example:work:1:1", **contract: Any) -> Assignment:
    members = {
        "contractVersion": 1,
        "goal": "the secret of this Mission",
        "requiredDeliverables": [
            {"deliverableId": "report", "description": "r", "mediaType": "text/plain", "schema": "urn:example:any"}
        ],
        "acceptanceCriteria": [
            {"criterionId": "green", "description": "all pass", "evidenceRequired": ["deterministic_test"]}
        ],
        "inputArtifacts": [],
        "dependencyWorkItemIds": [],
        "allowedResources": [],
        "requiredCapabilities": [{"id": "mwnode.generic", "version": "1.0.0"}],
        "deadline": "2030-01-01T00:00:00Z",
        "requestedUrgency": "normal",
        "businessImpact": "b",
        "retryPolicy": {"maxAttempts": 1, "backoff": "none", "maxDelay": "PT1S", "retryableFailures": []},
        "budget": {"toolCallLimit": 1},
        "sideEffectRisk": "none",
        "executionApproval": "not_required",
    }
    return Assignment(
        run_id=run_id,
        group_id="urn:example:group",
        mission_id="urn:example:mission",
        work_item_id="urn:example:work",
        ownership_epoch=2,
        contract=msgspec.convert({**members, **contract}, WorkContract),
        attempt=1,
        idempotency_key="k" * 64,
        context_package_id=None,
        checkpoint=None,
        wall_seconds_max=None,
    )


async def fetch(content_hash: str, path: Path) -> None:
    path.write_text(content_hash)


async def make_slot(tmp_path: Path, **contract: Any) -> Slot:
    slot = Slot(tmp_path / "slots", assignment(**contract))
    await slot.prepare(fetch, {"summary": "s"})
    return slot


async def run(
    slot: Slot, command: str, *, stop: Stop | None = None, limits: ExecutorLimits | None = None
) -> tuple[Exit, list[Mapping[str, Any]]]:
    lines: list[Mapping[str, Any]] = []
    environment = {"PATH": os.environ["PATH"], "SECRET": "of the Worker", "LANG": "C"}
    executor = SubprocessExecutor(command, directory=slot.path.parent, environment=environment, limits=limits)
    ended = await executor.run(slot, stop or Stop(), lines.append, lambda seconds: None)
    return ended, lines


def python(code: str) -> str:
    return f"{sys.executable} -c '{code}'"


async def test_a_three_line_shell_script_is_an_executor(tmp_path: Path) -> None:
    script = tmp_path / "do.sh"
    script.write_text(
        '#!/bin/sh\ncp inputs/source.txt outputs/report\necho \'{"usage":{"toolCalls":1}}\' >> "$MWNODE_PROGRESS"\n'
    )
    script.chmod(0o755)
    slot = await make_slot(
        tmp_path,
        inputArtifacts=[DIGEST],
        constraints={"inputs": [{"path": "source.txt", "contentHash": DIGEST}]},
    )
    ended, lines = await run(slot, str(script))
    assert (ended.status, ended.error) == (0, None)
    assert lines == [{"usage": {"toolCalls": 1}}]
    assert [path.read_text() for _, path in slot.deliverables(1000)] == [DIGEST]


async def test_the_work_item_file_tells_the_executor_what_to_do(tmp_path: Path) -> None:
    slot = await make_slot(tmp_path, inputArtifacts=[DIGEST])
    told = json.loads(slot.work_item_file.read_text())
    assert told["contract"]["goal"] == "the secret of this Mission"
    assert told["contextPackage"] == {"summary": "s"}
    assert told["idempotencyKey"] == "k" * 64
    assert told["inputs"] == [{"path": f"inputs/{'ab' * 32}", "contentHash": DIGEST}]
    assert (slot.path / told["inputs"][0]["path"]).read_text() == DIGEST


@pytest.mark.req("R-11.1-14", "R-11.1-15", "R-13.3-12")
async def test_a_slot_sees_nothing_of_the_worker_or_of_another_slot(tmp_path: Path) -> None:
    slot = await make_slot(tmp_path)
    ended, _ = await run(slot, "env > outputs/report; pwd >> outputs/report; ls -a >> outputs/report")
    seen = (slot.outputs / "report").read_text()
    assert ended.status == 0
    assert "of the Worker" not in seen
    assert f"HOME={slot.path}" in seen
    other = Slot(tmp_path / "slots", assignment("urn:example:work:2:1", goal="another Mission's marker"))
    await other.prepare(fetch, None)
    assert other.path != slot.path
    assert stat.S_IMODE(os.stat(slot.path).st_mode) == 0o700
    for path in slot.path.rglob("*"):
        assert not path.is_file() or "another Mission's marker" not in path.read_text()


@pytest.mark.req("R-11.1-16", "R-11.1-18")
async def test_reports_and_keys_of_two_slots_never_meet(tmp_path: Path) -> None:
    slots = []
    for number in (1, 2):
        one = Slot(tmp_path / "slots", assignment(f"urn:example:work:{number}:1"))
        await one.prepare(fetch, None)
        slots.append(one)
    line = '{"checkpoint":{"phase":"same"}}'
    _, first = await run(slots[0], f"echo '{line}' >> \"$MWNODE_PROGRESS\"")
    _, second = await run(slots[1], "true")
    assert (len(first), second) == (1, [])
    assert slots[0].progress_file != slots[1].progress_file


@pytest.mark.parametrize("status", [0, 1, 75])
async def test_the_exit_status_is_told(tmp_path: Path, status: int) -> None:
    ended, _ = await run(await make_slot(tmp_path), f"sh -c 'echo why >&2; exit {status}'")
    assert (ended.status, ended.tail) == (status, "why")


async def test_a_hung_executor_that_ignores_sigterm_is_ended_after_its_grace(tmp_path: Path) -> None:
    stop = Stop()
    slot = await make_slot(tmp_path)
    working = asyncio.create_task(run(slot, "trap '' TERM; touch ready; while true; do sleep 0.05; done", stop=stop))
    await until(lambda: (slot.path / "ready").exists())
    started = time.monotonic()
    stop.ask(0.3)
    ended, _ = await working
    assert ended.status == -9
    assert time.monotonic() - started > 0.25, "it was given its grace"


async def test_sigterm_lets_an_executor_write_its_checkpoint(tmp_path: Path) -> None:
    stop = Stop()
    slot = await make_slot(tmp_path)
    script = """trap 'echo "{\\"checkpoint\\":{\\"phase\\":\\"half\\"}}" >> "$MWNODE_PROGRESS"; exit 0' TERM
    touch ready; while true; do sleep 0.05; done"""
    working = asyncio.create_task(run(slot, script, stop=stop))
    await until(lambda: (slot.path / "ready").exists())
    stop.ask(PATIENCE_SECONDS)
    ended, lines = await working
    assert ended.status == 0
    assert lines == [{"checkpoint": {"phase": "half"}}]


async def test_everything_that_an_executor_started_ends_with_it(tmp_path: Path) -> None:
    stop = Stop()
    slot = await make_slot(tmp_path)
    # One child in the group, one that left it for a session of its own.
    script = (
        "sleep 3600 & echo $! > child; setsid sh -c 'echo $$ > runaway; exec sleep 3600' & sleep 0.3; touch ready; wait"
    )
    working = asyncio.create_task(run(slot, script, stop=stop))
    await until(lambda: (slot.path / "ready").exists() and (slot.path / "runaway").exists())
    pids = [int((slot.path / name).read_text()) for name in ("child", "runaway")]
    assert all(_alive(pid) for pid in pids)
    stop.kill()
    ended, _ = await working
    assert ended.status == -9
    await until(lambda: not any(_alive(pid) for pid in pids))


async def test_children_left_behind_by_an_executor_that_ended_well_end_too(tmp_path: Path) -> None:
    slot = await make_slot(tmp_path)
    ended, _ = await run(slot, "setsid sleep 3600 & echo $! > runaway; exit 0")
    assert ended.status == 0
    pid = int((slot.path / "runaway").read_text())
    await until(lambda: not _alive(pid))


@pytest.mark.parametrize(
    "limits, command",
    [
        (ExecutorLimits(cpu_seconds=1), python("while True: pass")),
        (ExecutorLimits(memory_bytes=256 * 1024 * 1024), python("x = bytearray(1 << 30)")),
        (ExecutorLimits(file_bytes=1024 * 1024), "dd if=/dev/zero of=outputs/report bs=65536 count=64"),
        (ExecutorLimits(open_files=16), python("import os; [os.dup(0) for _ in range(64)]")),
    ],
    ids=["cpu", "memory", "file size", "open files"],
)
async def test_limits_end_what_takes_too_much(tmp_path: Path, limits: ExecutorLimits, command: str) -> None:
    slot = await make_slot(tmp_path)
    ended, _ = await run(slot, command, limits=limits)
    assert ended.status != 0
    if (slot.outputs / "report").exists():
        assert (slot.outputs / "report").stat().st_size <= 1024 * 1024


async def test_processor_time_is_metered_from_the_process_itself(tmp_path: Path) -> None:
    slot = await make_slot(tmp_path)
    code = "import time; end = time.process_time() + 0.8\nwhile time.process_time() < end: pass"
    (slot.path / "burn.py").write_text(code)
    ended, _ = await run(slot, f"{sys.executable} burn.py")
    assert ended.status == 0
    assert 0.2 < ended.compute_seconds <= ended.wall_seconds + 1
    assert ended.wall_seconds >= 0.8


async def test_unreadable_progress_is_reported_and_the_rest_is_read(tmp_path: Path) -> None:
    slot = await make_slot(tmp_path)
    ended, lines = await run(slot, 'printf \'no json\\n{"usage":{"toolCalls":2}}\' >> "$MWNODE_PROGRESS"')
    assert ended.status == 0
    assert lines == [{"unreadable": "no json"}, {"usage": {"toolCalls": 2}}]


@pytest.mark.parametrize("depth", [600, 100_000])
async def test_progress_that_is_nested_without_end_is_unreadable(tmp_path: Path, depth: int) -> None:
    slot = await make_slot(tmp_path)
    deep = f'head -c {depth} /dev/zero | tr "\\0" "["; head -c {depth} /dev/zero | tr "\\0" "]"'
    script = (
        f'(printf \'{{"progress":\'; {deep}; printf \'}}\\n{{"usage":{{"toolCalls":2}}}}\\n\') >> "$MWNODE_PROGRESS"'
    )
    ended, lines = await run(slot, script)
    assert ended.status == 0
    assert lines[-1] == {"usage": {"toolCalls": 2}}
    assert len(lines) >= 2


@pytest.mark.req("R-12-13")
async def test_what_an_executor_reports_is_cleaned_before_it_is_signed(tmp_path: Path) -> None:
    async def handler(work: Work) -> None:
        work.report(progress={"currentPhase": "\x1b[31mred\x1b[0m"})

    slot = await make_slot(tmp_path)
    _, lines = await run(slot, 'printf \'{"blocked":{"reason":"\\\\u001b[31mred"}}\\n\' >> "$MWNODE_PROGRESS"')
    await HandlerExecutor(handler).run(slot, Stop(), lines.append, lambda seconds: None)
    assert lines == [{"blocked": {"reason": "red"}}, {"progress": {"currentPhase": "red"}}]


COMMANDS = {
    "missing program": ("nowhere-to-be-found --flag", "no program 'nowhere-to-be-found'"),
    "empty": ("  ", "is empty"),
    "unclosed quote": ("echo 'oops", "cannot be read"),
}


@pytest.mark.parametrize("case", COMMANDS.values(), ids=COMMANDS.keys())
def test_a_command_that_cannot_run_is_told_at_once(tmp_path: Path, case: tuple[str, str]) -> None:
    command, told = case
    with pytest.raises(ExecutorError, match=told):
        command_line(command, tmp_path)


def test_relative_files_of_a_command_are_found_where_the_worker_was_started(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "x.py").write_text("")
    (tmp_path / "count").write_text("")
    argv = command_line(f"{sys.executable} tools/x.py count", tmp_path)
    assert argv == [sys.executable, str(tmp_path / "tools" / "x.py"), "count"]
    # A link is left one: a virtual environment's interpreter works only by its own name.
    (tmp_path / "tools" / "python").symlink_to(sys.executable)
    assert command_line("tools/python x", tmp_path)[0] == str(tmp_path / "tools" / "python")


OUTPUTS = {
    "missing": (lambda slot: None, "outputs/report was not written"),
    "a folder": (lambda slot: (slot.outputs / "report").mkdir(), "is a folder: pack it"),
    "a way out": (lambda slot: (slot.outputs / "report").symlink_to("/etc/hostname"), "leads out of the slot"),
    "too large": (lambda slot: (slot.outputs / "report").write_bytes(b"x" * 2000), "1000 are allowed"),
}


@pytest.mark.parametrize("case", OUTPUTS.values(), ids=OUTPUTS.keys())
async def test_outputs_that_cannot_be_used_are_named(tmp_path: Path, case: tuple[Any, str]) -> None:
    make, told = case
    slot = await make_slot(tmp_path)
    make(slot)
    with pytest.raises(SlotError, match=told):
        slot.deliverables(1000)


async def test_inputs_never_leave_the_slot(tmp_path: Path) -> None:
    for path in ("../escaped", "/etc/escaped", "a/../../escaped"):
        with pytest.raises(SlotError, match="not a relative path inside"):
            await make_slot(
                tmp_path, inputArtifacts=[DIGEST], constraints={"inputs": [{"path": path, "contentHash": DIGEST}]}
            )
    assert not list(tmp_path.rglob("escaped"))


async def test_a_retry_finds_empty_outputs_and_its_inputs(tmp_path: Path) -> None:
    slot = await make_slot(tmp_path, inputArtifacts=[DIGEST])
    (slot.outputs / "report").write_text("half")
    fetched: list[str] = []

    async def again(content_hash: str, path: Path) -> None:
        fetched.append(content_hash)

    await slot.prepare(again, None)
    assert list(slot.outputs.iterdir()) == []
    assert fetched == []


async def test_a_python_function_is_an_executor(tmp_path: Path) -> None:
    async def handler(work: Work) -> None:
        work.report(usage={"toolCalls": 1})
        (work.outputs / "report").write_text(work.contract.goal)

    slot = await make_slot(tmp_path)
    lines: list[Mapping[str, Any]] = []
    ended = await HandlerExecutor(handler).run(slot, Stop(), lines.append, lambda seconds: None)
    assert ended.status == 0
    assert lines == [{"usage": {"toolCalls": 1}}]
    assert (slot.outputs / "report").read_text() == "the secret of this Mission"


async def test_a_handler_that_raises_or_will_not_stop_is_an_exit_like_any_other(tmp_path: Path) -> None:
    async def broken(work: Work) -> None:
        raise RuntimeError("no such table")

    async def stubborn(work: Work) -> None:
        await asyncio.sleep(3600)

    slot = await make_slot(tmp_path)
    ended = await HandlerExecutor(broken).run(slot, Stop(), lambda line: None, lambda seconds: None)
    assert (ended.status, ended.tail) == (1, "RuntimeError: no such table")
    stop = Stop()
    stop.ask(0.05)
    ended = await HandlerExecutor(stubborn).run(slot, stop, lambda line: None, lambda seconds: None)
    assert ended.status == -15


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("constraints, step", [({"run": "lint all"}, "lint all"), ({}, ""), ({"run": 3}, "")])
async def test_a_shell_script_learns_its_step_without_reading_json(
    tmp_path: Path, constraints: dict[str, Any], step: str
) -> None:
    slot = await make_slot(tmp_path, constraints=constraints)
    assert slot.environment({})["MWNODE_STEP"] == step
