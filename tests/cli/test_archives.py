"""mission archive, from the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import mwnode.cli.missions as missions_module
from tests.cli.support import CHECKOUT, ServedHome, cli

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


@pytest.mark.req("R-16-60", "R-19-33", "R-7.4-01")
def test_an_archived_group_is_trimmed_and_its_snapshot_answers_for_it(home: Path, tmp_path: Path) -> None:
    made, live = ended(home), cli("mission", "create", PLAN, "--home", home, "--json").json
    for group in (made["groupId"], live["missionId"], "nothing of that name"):
        before = (home / "node.mdb").read_bytes()
        refused = cli("compact", "--trim-archived", group, "--home", home)
        assert refused.status == 1
        assert "archive it first" in refused.err or "name one" in refused.err
        assert (home / "node.mdb").read_bytes() == before
    archived = cli("mission", "archive", made["missionId"], "--home", home, "--json").json
    told = cli("compact", "--trim-archived", made["groupId"][-12:], "--home", home, "--json").json
    (trimmed,) = told["trimmed"]
    assert trimmed == {
        "groupId": made["groupId"],
        "throughSequence": archived["throughSequence"],
        "events": archived["throughSequence"],
        "snapshotArtifactHash": archived["snapshotHash"],
    }
    assert cli("verify", "--home", home, "--json").json["ok"]
    served = ServedHome(home)
    try:
        refused = cli("events", made["groupId"], "--home", home)
        assert refused.status == 1
        assert "CURSOR_TOO_OLD" in refused.err
        assert archived["snapshotHash"] in refused.err
        fetched = cli("artifact", "get", archived["snapshotHash"], "-o", tmp_path / "snapshot.json", "--home", home)
        assert fetched.status == 0, fetched.err
        rest = cli("events", made["groupId"], "--after", str(archived["throughSequence"]), "--home", home, "--json")
        assert [event["kind"] for event in rest.lines] == ["group.snapshot.created", "group.archived"]
        assert cli("events", live["groupId"], "--home", home, "--json").lines[0]["sequence"] == 1
    finally:
        served.stop()
    checked = cli("check", "group-snapshot", tmp_path / "snapshot.json", "--home", home, "--json")
    assert checked.status == 0, checked.err + checked.out
