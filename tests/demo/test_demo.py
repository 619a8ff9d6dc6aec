"""`mwnode demo` in full: real processes, real sockets, a real SIGKILL."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mwnode.demo import processes, scenario
from mwnode.demo.assets import assets
from mwnode.demo.processes import Deadline, GaveUp
from mwnode.demo.report import Check, Summary
from tests.cli.support import cli, environment


@pytest.mark.timeout(300)
@pytest.mark.req("R-4-09", "R-5-02", "R-7.3-06", "R-10.4-02", "R-10.4-03", "R-13.2-01", "R-17.1-01")
def test_every_check_holds_and_the_file_proves_itself(tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = subprocess.run(
        [sys.executable, "-m", "mwnode", "demo", "--home", str(home), "--json"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *lines, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert summary["passed"]
    assert [check["name"] for check in summary["checks"] if not check["passed"]] == []
    assert len({check["name"] for check in summary["checks"]}) >= 25
    shown = [line for line in lines if "check" in line]
    assert [line["check"] for line in shown] == [check["name"] for check in summary["checks"]]
    assert any("killed by SIGKILL" in line.get("step", "") for line in lines)
    assert all(Path(path).exists() for path in summary["paths"].values())
    assert list((home / "demo" / "workers").iterdir()) == []
    assert cli("verify", "--home", home, "--json").json["ok"]
    olivia = ("--home", home, "--key", home / "keys" / "olivia.key")
    missions = cli("mission", "list", *olivia, "--json").json["missions"]
    assert [entry["state"] for entry in missions] == ["approved", "approved"]
    assert "work.result.accepted" in cli("why", "sign-off", *olivia).out
    assert len(cli("artifact", "list", *olivia, "--json").json["artifacts"]) == 10


def test_a_home_that_is_taken_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    done = cli("demo", "--home", tmp_path)
    assert done.status == 1
    assert "nothing was changed" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_what_the_demonstration_needs_is_where_it_looks() -> None:
    assert {"plans", "project", "executors"} <= {path.name for path in assets().iterdir()}


class Heard:
    """A report that keeps its steps."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, dict[str, Any]]] = []

    def step(self, text: str, **facts: Any) -> None:
        self.steps.append((text, facts))

    def event(self, *_: Any) -> None:
        """Events are of no interest here."""

    def check(self, check: Check) -> None:
        assert check.passed, check

    def end(self, summary: Summary) -> None:
        raise AssertionError("it was to be given up")


def test_what_is_waited_for_is_said_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "TELL_SECONDS", 0.0)
    told: list[str] = []
    deadline = Deadline(60, "the Mission to be approved", told.append)
    deadline.check()
    deadline.check()
    assert told == ["still waiting for the Mission to be approved"] * 2


@pytest.mark.timeout(120)
def test_giving_up_tells_who_is_awaited_and_what_they_said_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenario, "MISSION_SECONDS", 0.0)
    heard = Heard()
    with pytest.raises(GaveUp, match="gave up waiting for the Mission to be awaiting_approval"):
        scenario.Scenario(tmp_path / "home", heard).run()
    waits = [(text, facts["action"]) for text, facts in heard.steps if text.startswith("waits for ")]
    assert waits
    logs = {text for text, facts in heard.steps if text.endswith(".log") and facts["line"]}
    assert logs <= {"node.log", "coordinator.log", "builder.log", "scribe.log"}
    assert logs
