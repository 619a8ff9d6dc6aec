"""mission archive, from the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import mwnode.cli.missions as missions_module
from tests.cli.support import CHECKOUT, cli

PLAN = CHECKOUT / "fixtures" / "plans" / "release.toml"


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A HOME with a Coordinator."""
    home = tmp_path_factory.mktemp("archives") / "home"
    assert cli("init", home, "--json").status == 0
    assert cli("agent", "add", "coordinator", "--home", home, "--json").status == 0
    return home


@pytest.fixture
def home(founded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(founded, tmp_path / "home"))


def ended(home: Path) -> dict[str, str]:
    made: dict[str, str] = cli("mission", "create", PLAN, "--home", home, "--json").json
    assert cli("mission", "cancel", made["missionId"], "--home", home).status == 0
    return made


@pytest.mark.req("R-7.4-02", "R-15.1-09")
@pytest.mark.parametrize("large", [False, True])
def test_an_ended_mission_is_archived_once(home: Path, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr(missions_module, "FRAME_BYTES", 100)
    made = ended(home)
    told = cli("mission", "archive", made["missionId"], "--home", home, "--json").json
    assert told["groupId"] == made["groupId"]
    view = cli("mission", "show", made["missionId"], "--home", home, "--json").json
    assert (view["group"]["state"], view["group"]["archiveSnapshotId"]) == ("archived", told["snapshotId"])
    events = cli("events", made["groupId"], "--home", home, "--json").lines
    assert [event["kind"] for event in events[-2:]] == ["group.snapshot.created", "group.archived"]
    assert told["throughSequence"] == len(events) - 2
    again = cli("mission", "archive", made["missionId"], "--home", home)
    assert again.status == 1
    assert "is archived already" in again.err
    assert cli("verify", "--home", home, "--json").json["ok"]


def test_a_mission_at_work_is_not_archived(home: Path) -> None:
    made = cli("mission", "create", PLAN, "--home", home, "--json").json
    refused = cli("mission", "archive", made["missionId"], "--home", home)
    assert refused.status == 1
    assert "only the Group of an ended Mission is archived" in refused.err
