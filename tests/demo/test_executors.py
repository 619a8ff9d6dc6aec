"""The demonstration's executors do real work and notice bad input; run as a Worker runs them, in a slot."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.patience import PATIENCE_SECONDS

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
EVERY_STEP = ("count", "test", "archive", "smoke", "notes", "sign-off")


class Slot:
    """A Worker's slot: inputs, outputs, and what the executor is told."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        shutil.copytree(FIXTURES / "project", directory / "inputs" / "project")

    def run(self, step: str, willing: tuple[str, ...] = EVERY_STEP) -> subprocess.CompletedProcess[str]:
        item = self.directory / "item.json"
        item.write_text(json.dumps({"contract": {"constraints": {"run": step}}, "idempotencyKey": "k"}))
        environment = {
            "PATH": os.environ["PATH"],
            "MWNODE_WORK_ITEM": str(item),
            "MWNODE_PROGRESS": str(self.directory / "progress.jsonl"),
        }
        command = [sys.executable, str(FIXTURES / "executors" / "release.py"), *willing]
        done = subprocess.run(
            command,
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        for path in (self.directory / "outputs").glob("*"):
            shutil.copy(path, self.directory / "inputs" / path.name)  # as later WorkItems find earlier results
        return done


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    return Slot(tmp_path)


def test_the_whole_release_runs_step_by_step(slot: Slot) -> None:
    for step in EVERY_STEP:
        done = slot.run(step)
        assert done.returncode == 0, (step, done.stderr)
    outputs = slot.directory / "outputs"
    assert json.loads((outputs / "tests.json").read_text())["ran"] == 6
    assert (outputs / "notes.md").read_text().startswith("# tally 1.4\n\n* `tally --top N`")
    sums = dict(line.split()[::-1] for line in (outputs / "SHA256SUMS").read_text().splitlines())
    assert sums["tally.tar"] == hashlib.sha256((outputs / "tally.tar").read_bytes()).hexdigest()
    assert set(sums) == {"tally.tar", "notes.md"}
    progress = [json.loads(line) for line in (slot.directory / "progress.jsonl").read_text().splitlines()]
    assert progress == [{"usage": {"toolCalls": 1}}] * len(EVERY_STEP)


def test_the_archive_is_the_same_bytes_again_and_holds_every_source_file(tmp_path: Path) -> None:
    archives = []
    for name in ("one", "two"):
        slot = Slot(tmp_path / name)
        os.utime(slot.directory / "inputs" / "project" / "CHANGES.md", (1, 1))
        assert slot.run("archive").returncode == 0
        archives.append((slot.directory / "outputs" / "tally.tar").read_bytes())
    assert archives[0] == archives[1]
    with tarfile.open(tmp_path / "one" / "outputs" / "tally.tar") as tar:
        assert "tally-1.4/tally/count.py" in tar.getnames()


def test_a_broken_source_is_found_by_lint_and_by_tests(slot: Slot) -> None:
    module = slot.directory / "inputs" / "project" / "tally" / "count.py"
    module.write_text(module.read_text().replace("key=lambda", "key = \tlambda").replace("lines=len", "lines=1+len"))
    assert slot.run("count").returncode == 1
    findings = json.loads((slot.directory / "outputs" / "source.json").read_text())["findings"]
    assert any("count.py" in finding for finding in findings)
    assert slot.run("test").returncode == 1
    assert not json.loads((slot.directory / "outputs" / "tests.json").read_text())["passed"]


def test_sign_off_refuses_a_bad_result_and_a_missing_one(slot: Slot) -> None:
    for step in ("test", "archive", "count", "notes"):
        slot.run(step)
    missing = slot.run("sign-off")
    assert missing.returncode == 1
    assert "smoke.json" in missing.stderr
    (slot.directory / "inputs" / "smoke.json").write_text('{"passed": false}')
    assert slot.run("sign-off").returncode == 1


def test_a_step_that_the_worker_is_not_willing_to_do_is_not_done(slot: Slot) -> None:
    done = slot.run("archive", willing=("count", "test"))
    assert done.returncode == 1
    assert "does not do 'archive'" in done.stderr
    assert not (slot.directory / "outputs").exists()
