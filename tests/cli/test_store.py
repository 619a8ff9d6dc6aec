"""verify, backup and compact on a real file, at rest and in use."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from mwnode.node import Node
from mwnode.testing import Harness
from tests.cli.support import ServedHome, cli

CONTENT = b"the one deliverable of this Mission\n"


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A HOME in which one Mission got as far as a verified WorkItem."""
    home = tmp_path_factory.mktemp("worked") / "home"
    harness = Harness(home)
    harness.mission().authorize().run(content=CONTENT)
    harness.close()
    return home


@pytest.fixture
def home(worked: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged at will."""
    return Path(shutil.copytree(worked, tmp_path / "home"))


def damage(store: Path, needle: bytes, place: int) -> None:
    """Flip one bit of a stored value, wherever its bytes stand in the file."""
    raw = bytearray(store.read_bytes())
    start = raw.index(needle)
    raw[start + place] ^= 1
    store.write_bytes(raw)


def test_verify_counts_what_it_proved(home: Path) -> None:
    report = cli("verify", "--home", home, "--json").json
    assert report["ok"]
    assert report["findings"] == []
    assert (report["groups"], report["artifacts"]) == (1, 1)
    assert report["events"] > 10
    assert cli("verify", "--home", home).out.startswith("all good: 1 Groups")


def test_a_flipped_bit_in_an_event_is_found_with_its_group_and_sequence(home: Path) -> None:
    damage(home / "node.mdb", b'"kind":"mission.created"', 9)
    done = cli("verify", "--home", home)
    assert done.status == 1
    assert "sequence 1" in done.out
    assert "group urn:uuid:" in done.out


def test_a_flipped_bit_in_an_artifact_is_found_with_its_hash(home: Path) -> None:
    damage(home / "node.mdb", CONTENT, 3)
    done = cli("verify", "--home", home)
    assert done.status == 1
    assert "artifact sha256:" in done.out


def test_a_backup_is_a_store_of_its_own_also_of_a_served_home(home: Path, tmp_path: Path) -> None:
    before = cli("verify", "--home", home, "--json").json
    served = ServedHome(home)
    try:
        made = cli("backup", tmp_path / "copy.mdb", "--home", home, "--json").json
        assert cli("verify", "--home", home, "--json").json["ok"]
        refused = cli("compact", "--home", home)
        assert refused.status == 1
        assert "is in use by process" in refused.err
    finally:
        served.stop()
    assert Path(made["file"]) == tmp_path / "copy.mdb"
    shutil.copy(made["file"], home / "node.mdb")
    assert cli("verify", "--home", home, "--json").json == before
    again = cli("backup", tmp_path / "copy.mdb", "--home", home)
    assert again.status == 1
    assert "exists already" in again.err


def test_compact_leaves_a_file_that_proves_itself(home: Path) -> None:
    before = cli("verify", "--home", home, "--json").json
    told = cli("compact", "--home", home, "--json").json
    assert told["bytesAfter"] == (home / "node.mdb").stat().st_size
    assert cli("verify", "--home", home, "--json").json == before


def test_a_home_whose_store_is_gone_says_so(home: Path) -> None:
    (home / "node.mdb").unlink()
    done = cli("verify", "--home", home)
    assert done.status == 1
    assert "mwnode init" in done.err
    assert len(done.err.splitlines()) == 1


def test_a_backup_is_verified_where_it_lies(home: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.mdb"
    assert cli("backup", copy, "--home", home).status == 0
    whole = cli("verify", copy, "--home", tmp_path / "nowhere", "--json").json
    assert whole["ok"]
    assert whole["events"] == cli("verify", "--home", home, "--json").json["events"]
    damage(copy, CONTENT, 3)
    damaged = cli("verify", copy)
    assert damaged.status == 1
    assert cli("verify", "--home", home).status == 0
    assert cli("verify", tmp_path / "none.mdb").status == 2


def test_a_key_file_that_others_can_read_is_warned_about(tmp_path: Path) -> None:
    home = tmp_path / "fresh"
    assert cli("init", home).status == 0
    assert cli("mission", "list", "--home", home).err == ""
    (home / "keys" / "owner.key").chmod(0o644)
    warned = cli("mission", "list", "--home", home, "--json")
    assert warned.status == 0
    assert "chmod 600" in warned.err
    assert warned.json == {"missions": []}


def test_an_interrupted_verification_is_taken_up_by_its_state_alone(home: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert cli("verify", "--home", home, "--resume", state, "--jobs", 2).status == 0
    assert not state.exists()
    state.write_text("something else\n")
    done = cli("verify", "--home", home, "--resume", state)
    assert done.status == 1
    assert "name another file" in done.err
    assert state.read_text() == "something else\n"


def test_compact_lets_old_uploads_go_that_nothing_names(home: Path, tmp_path: Path) -> None:
    node = Node.open(home)
    writer = node.artifacts.begin_put()
    writer.write(b"named by nobody\n")
    writer.finish()
    node.close()
    assert cli("compact", "--home", home, "--json").json["uploadsRemoved"] == 0, "not before its grace is over"
    settings = home / "mwnode.toml"
    settings.write_text(settings.read_text().replace("[policy]\n", "[policy]\nupload_retention = 1\n"))
    time.sleep(1.5)
    assert cli("compact", "--home", home, "--json").json["uploadsRemoved"] == 1
    report = cli("verify", "--home", home, "--json").json
    assert (report["ok"], report["artifacts"]) == (True, 1), "the published one stays"
