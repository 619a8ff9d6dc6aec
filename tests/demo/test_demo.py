"""`mwnode demo` in full: real processes, real sockets, a real SIGKILL."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mwnode.demo.assets import assets
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
