"""`mwnode serve --worker`: a Worker inside of the serving process, and an executor of three lines of shell."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from tests.cli.support import ServedHome, cli, environment
from tests.cli.test_readme import example
from tests.patience import PATIENCE_SECONDS

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
SCRIPT = README.partition("```sh\nset -e\n")[2].partition("```")[0]
"""The executor of the README, without its first line."""
PLAN = """\
[mission]
objective = "Sort the words"
coordinator = "coordinator"
deadline = "P1D"
budget = { wallClockSecondsLimit = 600 }

[[mission.definitionOfDone]]
criterionId = "sorted"
description = "The words are in order"
evidenceRequired = ["deterministic_test"]

[[work]]
id = "sort"
goal = "Sort words.txt"
inputs = ["words.txt"]
deliverables = [ { id = "sorted", path = "sorted.txt", mediaType = "text/plain" } ]
criteria = [ { id = "sorted", description = "in order", check = "exit 0" } ]
"""


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """A HOME with a coordinator and a builder, beside a plan and a script."""
    home = tmp_path / "home"
    assert cli("init", home).status == 0
    for name in ("coordinator", "builder"):
        assert cli("agent", "add", name, "--home", home).status == 0
    (tmp_path / "words.txt").write_text("pear\napple\n")
    (tmp_path / "sort.sh").write_text(f"set -e\n{SCRIPT}")
    (tmp_path / "plan.toml").write_text(PLAN)
    return tmp_path


@pytest.fixture
def coordinated(box: Path) -> Iterator[Callable[[], None]]:
    """Starts a coordinator of the plan, as a process that ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        home, quiet = box / "home", subprocess.DEVNULL
        command = [sys.executable, "-m", "mwnode", "coordinator", "--home", str(home), "--plan", str(box / "plan.toml")]
        command += ["--key", str(home / "keys" / "coordinator.key")]
        started.append(subprocess.Popen(command, env=environment(), stdin=quiet, stdout=quiet, stderr=quiet))

    yield start
    for process in started:
        process.kill()
        process.wait(PATIENCE_SECONDS)


def _serve(box: Path, *workers: str) -> ServedHome:
    options = [part for worker in workers for part in ("--worker", worker)]
    return ServedHome(box / "home", "--port", "0", *options)


def _until(mission_id: str, home: Path, state: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (now := cli("mission", "show", mission_id, "--home", home, "--json").json["mission"]["state"]) != state:
        assert time.monotonic() < deadline, f"the Mission is {now}"
        time.sleep(0.1)


def test_the_executor_of_the_readme_has_three_lines() -> None:
    assert [line.split()[0] for line in SCRIPT.splitlines()] == ["sort", "echo"]


def test_the_python_worker_of_the_readme_takes_a_mission_to_approval(
    box: Path, coordinated: Callable[[], None]
) -> None:
    home = box / "home"
    served = ServedHome(home, "--port", "0")
    try:
        code = example("worker").replace("https://127.0.0.1:8765", served.listening["http"])
        (box / "program.py").write_text(code.replace("mwnode-home", str(home)))
        made = cli("mission", "create", box / "plan.toml", "--home", home, "--json").json
        coordinated()
        with subprocess.Popen([sys.executable, "program.py"], cwd=box, env=environment()) as program:
            try:
                _until(made["missionId"], home, "awaiting_approval")
            finally:
                program.terminate()
        made_of = {one["contentHash"] for one in cli("artifact", "list", "--home", home, "--json").json["artifacts"]}
        assert "sha256:" + sha256(b"apple\npear\n").hexdigest() in made_of
    finally:
        served.stop()


def test_one_box_takes_a_mission_from_plan_to_approval(box: Path, coordinated: Callable[[], None]) -> None:
    home = box / "home"
    served = _serve(box, f"builder=sh {box / 'sort.sh'}")
    try:
        coordinated()
        made = cli("mission", "create", box / "plan.toml", "--home", home, "--json").json
        _until(made["missionId"], home, "awaiting_approval")
        listed = cli("artifact", "list", "--home", home, "--json").json
        hashes = {one["contentHash"] for one in listed["artifacts"]}
        target = box / "out"
        contents = set()
        for content_hash in hashes:
            assert cli("artifact", "get", content_hash, "-o", target, "--home", home).status == 0
            contents.add(target.read_text())
        assert "apple\npear\n" in contents
        # What the Worker keeps lies in HOME, so that the next start goes on from it.
        assert (home / "workers" / "builder" / "worker.mdb").is_file()
    finally:
        status, rest = served.stop()
    assert (status, rest) == (0, ""), served.errors
    assert "builder: accepted" in served.errors
    assert "Traceback" not in served.errors


def test_a_stopping_node_brings_its_workers_to_a_checkpoint_first(box: Path, coordinated: Callable[[], None]) -> None:
    home = box / "home"
    served = _serve(box, "builder=sleep 600")
    coordinated()
    mission_id = cli("mission", "create", box / "plan.toml", "--home", home, "--json").json["missionId"]
    deadline = time.monotonic() + PATIENCE_SECONDS
    kinds: list[str] = []
    while "work.started" not in kinds:
        assert time.monotonic() < deadline, kinds
        time.sleep(0.1)
        kinds = _kinds(mission_id, home)
    status, _ = served.stop()
    assert status == 0, served.errors
    assert _kinds(mission_id, home)[-1] == "work.checkpointed"


def _kinds(mission_id: str, home: Path) -> list[str]:
    done = cli("events", mission_id, "--home", home, "--json")
    assert done.status == 0, done.err
    return [json.loads(line)["kind"] for line in done.out.splitlines()]


@pytest.mark.parametrize(
    "worker, told",
    [
        ("builder", "is not KEY=CMD"),
        ("=true", "is not KEY=CMD"),
        ("builder= ", "is not KEY=CMD"),
        ("nobody=true", "nobody.key"),
        ("owner=true", "give an Agent's key"),
        ("builder=no-such-program-here", "no program 'no-such-program-here'"),
    ],
)
def test_what_cannot_work_is_told_before_anything_is_served(box: Path, worker: str, told: str) -> None:
    done = cli("serve", "--home", box / "home", "--port", "0", "--worker", worker)
    assert done.status == (2 if "KEY=CMD" in told else 1)
    assert told in done.err
    assert len(done.err.splitlines()) == 1
    assert not (box / "home" / "served.json").exists()


def test_one_agent_is_one_worker(box: Path) -> None:
    done = cli("serve", "--home", box / "home", "--worker", "builder=true", "--worker", "builder=false")
    assert done.status == 1
    assert "given twice" in done.err
