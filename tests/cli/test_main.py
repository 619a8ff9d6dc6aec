"""The command's manners: exit status, one line on stderr, never a traceback for a mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mwnode.home import create_home
from mwnode.system import OsEntropy, SystemClock
from tests.patience import PATIENCE_SECONDS

CHECKOUT = Path(__file__).resolve().parents[2]


def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `mwnode` as a process of its own in an empty directory."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MWNODE_")}
    return subprocess.run(
        [sys.executable, "-m", "mwnode", *arguments],
        cwd=cwd,
        env={**clean, "PYTHONPATH": str(CHECKOUT), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


MISTAKES = {
    "no such command": (["frobnicate"], 2, "No such command"),
    "a missing argument": (["mission", "show"], 2, "Missing argument"),
    "half a public key": (["agent", "add", "x", "--key-id", "urn:k"], 2, "names the key of --public-key"),
    "a public key that is too short": (["human", "add", "x", "--public-key", "AAAA"], 2, "holds 3 bytes"),
    "a public key that is no base64url": (
        ["key", "add", "x", "--principal", "human:urn:x", "--public-key", "A=!"],
        2,
        "is not base64url",
    ),
    "a state that there is none of": (["mission", "watch", "x", "--until", "done"], 2, "'awaiting_approval'"),
    "no HOME": (["mission", "list"], 1, "mwnode init"),
    "a HOME that is none": (["mission", "list", "--home", "/dev/null"], 1, "is no mwnode HOME"),
    "a node and nobody who asks": (
        ["mission", "list", "--url", "https://127.0.0.1:1"],
        1,
        "nothing says who asks: give your key by --key FILE",
    ),
    "neither HOME nor node": (["waiting"], 1, "or name a node elsewhere by --url, --ca and --key"),
    "a plan that is not there": (["mission", "create", "nowhere.toml"], 1, "nowhere.toml: cannot be read"),
    "no capability": (["agent", "add", "x", "--capability", "Testing"], 2, "ID@VERSION"),
    "no number of slots": (["agent", "add", "x", "--slots", "0"], 2, "0 is not in the range"),
    "a key file that is not there": (
        ["mission", "list", "--url", "https://127.0.0.1:1", "--key", "none.key"],
        1,
        "no key file none.key",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_in_one_line_with_what_to_do(name: str, tmp_path: Path) -> None:
    arguments, status, told = MISTAKES[name]
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_a_node_that_is_not_there_is_told_with_its_address(tmp_path: Path) -> None:
    home = create_home(tmp_path / "home", SystemClock(), OsEntropy())
    key, ca = str(home.key_path("owner")), str(home.ca_path)
    done = run("mission", "list", "--url", "https://127.0.0.1:1", "--key", key, "--ca", ca, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("mwnode: https://127.0.0.1:1 cannot be reached")
    assert len(done.stderr.splitlines()) == 1


def test_the_wrong_kind_of_file_as_key_is_told_without_its_content(tmp_path: Path) -> None:
    (tmp_path / "wrong.key").write_text(json.dumps({"password": "hunter2"}))
    done = run("mission", "list", "--url", "https://127.0.0.1:1", "--key", "wrong.key", cwd=tmp_path)
    assert done.returncode == 1
    assert "wrong.key is no usable key file" in done.stderr
    assert "hunter2" not in done.stderr


def test_help_and_version_need_nothing(tmp_path: Path) -> None:
    assert run("--version", cwd=tmp_path).stdout.startswith("mwnode, version ")
    shown = run("--help", cwd=tmp_path).stdout
    assert "waiting" in shown
    assert "Print JSON" in run("mission", "approve", "--help", cwd=tmp_path).stdout


def test_home_is_taken_from_the_environment(tmp_path: Path) -> None:
    done = run("mission", "list", cwd=tmp_path, MWNODE_HOME=str(tmp_path / "there"))
    assert str(tmp_path / "there") in done.stderr
