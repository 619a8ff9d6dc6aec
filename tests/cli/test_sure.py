"""What cannot be taken back takes whole names, and asks where somebody can answer."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from tests.cli.support import CHECKOUT, cli
from tests.cli.test_main import run


class Terminal(io.StringIO):
    """Standard input as a person types it."""

    def isatty(self) -> bool:
        return True


def statuses(home: Path) -> dict[str, str]:
    agents = cli("agent", "list", "--home", home, "--json").json["agents"]
    return {row["agentId"].rpartition(":")[2]: row["status"] for row in agents}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    assert cli("init", tmp_path / "home").status == 0
    assert cli("agent", "add", "lead2", "--home", tmp_path / "home").status == 0
    return tmp_path / "home"


def test_a_part_of_a_name_revokes_nobody(home: Path) -> None:
    refused = cli("agent", "revoke", "lead", "--home", home)
    assert refused.status == 1
    assert "lead2" in refused.err
    assert "whole name" in refused.err
    assert statuses(home)["lead2"] == "active"
    assert cli("agent", "show", "lead", "--home", home).status == 0
    assert cli("agent", "revoke", "lead2", "--home", home).status == 0
    assert statuses(home)["lead2"] == "revoked"


def test_a_part_of_a_key_id_revokes_no_key(home: Path) -> None:
    key_id = next(
        one["keyId"] for one in cli("key", "list", "--home", home, "--json").json["keys"] if "lead2" in one["keyId"]
    )
    assert cli("key", "revoke", "lead2", "--home", home).status == 1
    assert all(one["revokedAt"] is None for one in cli("key", "list", "--home", home, "--json").json["keys"])
    assert cli("key", "revoke", key_id[-8:], "--home", home, "--json").json["keyId"] == key_id


def test_a_part_of_an_identifier_cancels_no_mission(home: Path) -> None:
    plan = CHECKOUT / "fixtures" / "plans" / "release.toml"
    made = cli("mission", "create", plan, "--coordinator", "lead2", "--home", home, "--json").json
    assert cli("mission", "cancel", made["missionId"][-4:], "--home", home).status == 1
    assert cli("mission", "show", made["missionId"], "--home", home, "--json").json["mission"]["state"] == "active"
    assert cli("mission", "cancel", made["missionId"][-8:], "--home", home).status == 0


@pytest.mark.parametrize("answer, status", [("n\n", "active"), ("y\n", "revoked")])
def test_on_a_terminal_it_is_asked(home: Path, monkeypatch: pytest.MonkeyPatch, answer: str, status: str) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    done = cli("agent", "revoke", "lead2", "--home", home)
    assert "Revoke urn:mwnode:agent:lead2 for good?" in done.err
    assert statuses(home)["lead2"] == status
    assert (done.status == 0) == (status == "revoked")


def test_nobody_is_asked_who_has_said_yes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(""))
    assert cli("agent", "revoke", "lead2", "--yes", "--home", home).status == 0


def test_a_capability_without_a_second_word_is_told_the_rule(home: Path) -> None:
    done = cli("agent", "add", "zz", "--capability", "foo@1.0.0", "--home", home)
    assert done.status == 2
    assert "'foo@1.0.0' is not ID@VERSION" in done.err
    assert "two or more words" in done.err


@pytest.mark.parametrize("words", [(), ("mission",)])
def test_without_a_command_the_help_is_shown_in_lines(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage:")
    assert len(done.stderr.splitlines()) > 10


def test_a_dry_run_tells_of_a_deadline_in_the_past(tmp_path: Path) -> None:
    plan = (CHECKOUT / "fixtures" / "plans" / "release.toml").read_text()
    late = re.sub(r'^deadline = ".*?"', 'deadline = "2020-01-01T00:00:00Z"', plan, count=1, flags=re.MULTILINE)
    (tmp_path / "plan.toml").write_text(re.sub(r"^inputs = .*$", "", late, flags=re.MULTILINE))
    done = cli("mission", "create", tmp_path / "plan.toml", "--dry-run")
    assert done.status == 1
    assert "mission.deadline: 2020-01-01T00:00:00Z is in the past" in done.err


def test_a_dry_run_tells_of_a_works_deadline_in_the_past(tmp_path: Path) -> None:
    plan = (CHECKOUT / "fixtures" / "plans" / "release.toml").read_text()
    late = plan.replace("[[work]]\n", '[[work]]\ndeadline = "2020-01-01T00:00:00Z"\n', 1)
    (tmp_path / "plan.toml").write_text(re.sub(r"^inputs = .*$", "", late, flags=re.MULTILINE))
    done = cli("mission", "create", tmp_path / "plan.toml", "--dry-run")
    assert done.status == 1
    line = late.splitlines().index('deadline = "2020-01-01T00:00:00Z"') + 1
    assert f"plan.toml:{line}: work[0].deadline: 2020-01-01T00:00:00Z of " in done.err
    assert "is in the past" in done.err
