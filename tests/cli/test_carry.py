"""export and import, from the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.support import CHECKOUT, ServedHome, cli

PLAN = CHECKOUT / "fixtures" / "plans" / "release.toml"


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A HOME with two Missions, one of them ended and archived."""
    home = tmp_path_factory.mktemp("carry") / "home"
    assert cli("init", home).status == 0
    assert cli("agent", "add", "coordinator", "--home", home).status == 0
    made = [cli("mission", "create", PLAN, "--home", home, "--json").json for _ in range(2)]
    assert cli("mission", "cancel", made[0]["missionId"], "--home", home).status == 0
    assert cli("mission", "archive", made[0]["missionId"], "--home", home).status == 0
    return home


@pytest.fixture
def home(worked: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(worked, tmp_path / "home"))


def root_key(home: Path) -> str:
    return str(json.loads((home / "keys" / "organization.key").read_text())["publicKey"])


def test_groups_travel_to_a_new_home_that_knows_only_the_root_key(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.bundle"
    served = ServedHome(home)
    try:
        made = cli("export", out, "--home", home, "--json").json
    finally:
        served.stop()
    assert len(made["groups"]) == 2
    assert made["rootKey"] == root_key(home)
    told = cli("verify", out)
    assert told.status == 1
    assert "mwnode import" in told.err
    nowhere = cli("export", tmp_path / "gone" / "out.bundle", "--home", home)
    assert nowhere.status == 1
    assert "make the directory" in nowhere.err
    again = cli("export", out, "--home", home)
    assert again.status == 1
    assert "exists already" in again.err
    elsewhere = tmp_path / "elsewhere"
    unknown = cli("import", out, "--home", elsewhere)
    assert unknown.status == 1
    assert "--root" in unknown.err
    wrong = cli("import", out, "--home", elsewhere, "--root", "A" * 43)
    assert wrong.status == 1
    assert "not to the one given" in wrong.err
    assert not elsewhere.exists()
    brought = cli("import", out, "--home", elsewhere, "--root", root_key(home), "--json").json
    assert brought["groups"] == made["groups"]
    report = cli("verify", "--home", elsewhere, "--json").json
    assert (report["ok"], report["groups"]) == (True, 2)
    assert list((elsewhere / "keys").iterdir()) == []
    twice = cli("import", out, "--home", elsewhere)
    assert twice.status == 1
    assert "is here already" in twice.err
    # With the Organization's keys the copy is a node like any other.
    for name in ("organization", "authority", "owner"):
        shutil.copy(home / "keys" / f"{name}.key", elsewhere / "keys")
    assert len(cli("mission", "list", "--home", elsewhere, "--json").json["missions"]) == 2


def test_one_group_is_carried_and_an_import_is_refused_while_served(home: Path, tmp_path: Path) -> None:
    groups = [entry["groupId"] for entry in cli("mission", "list", "--home", home, "--json").json["missions"]]
    out = tmp_path / "one.bundle"
    made = cli("export", out, "--home", home, "--group", groups[0][-12:], "--json").json
    assert made["groups"] == groups[:1]
    key_file = home / "keys" / "organization.key"
    assert cli("import", out, "--home", tmp_path / "new", "--root", key_file, "--json").json["groups"] == groups[:1]
    served = ServedHome(home)
    try:
        refused = cli("import", out, "--home", home)
    finally:
        served.stop()
    assert refused.status == 1
    assert "is in use by process" in refused.err
    assert "no bundle of mwnode" in cli("import", key_file, "--home", home).err


def test_a_bad_bundle_leaves_no_home_behind(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.bundle"
    cli("export", out, "--home", home)
    raw = bytearray(out.read_bytes())
    raw[-20_000] ^= 1
    out.write_bytes(raw)
    refused = cli("import", out, "--home", tmp_path / "new", "--root", root_key(home))
    assert refused.status == 1
    assert "was changed" in refused.err
    assert not (tmp_path / "new").exists()


@pytest.fixture
def keyless(home: Path, tmp_path: Path) -> Path:
    """What an import makes where there was no HOME."""
    cli("export", tmp_path / "out.bundle", "--home", home)
    made = cli("import", tmp_path / "out.bundle", "--home", tmp_path / "read", "--root", root_key(home))
    assert "mwnode verify" in made.out
    assert "--key FILE" in made.out
    return tmp_path / "read"


def test_an_imported_home_is_read_with_a_known_key_and_changed_by_nobody(home: Path, keyless: Path) -> None:
    owner, root = home / "keys" / "owner.key", home / "keys" / "organization.key"
    before = (keyless / "node.mdb").read_bytes()
    here = ("--home", keyless, "--key", owner)
    listed = cli("mission", "list", *here, "--json")
    assert listed.json == cli("mission", "list", "--home", home, "--json").json
    assert listed.err == ""
    mission = next(one["missionId"] for one in listed.json["missions"] if one["state"] == "active")
    for reading in (("events", mission), ("why", mission), ("waiting",), ("agent", "list"), ("key", "list")):
        assert cli(*reading, *here, "--json").out == cli(*reading, "--home", home, "--json").out
    changing = (
        (("mission", "direct", mission, "hello"), owner),
        (("mission", "cancel", mission), owner),
        (("artifact", "put", owner), owner),
        (("agent", "add", "new"), root),
        (("human", "add", "new"), root),
        (("key", "add", "new", "--principal", "human:urn:x"), root),
    )
    for command, key in changing:
        refused = cli(*command, "--home", keyless, "--key", key)
        assert refused.status == 1, command
        assert "for reading and proving only" in refused.err
    assert list((keyless / "keys").iterdir()) == []
    assert (keyless / "node.mdb").read_bytes() == before
    doctor = cli("doctor", "--home", keyless)
    assert doctor.status == 0, doctor.out
    assert "HOME is for reading and proving" in doctor.out


MISSING = {
    "a person's key": (("mission", "list"), ("owner.key", "mwnode human add", "mwnode agent add", "--key FILE")),
    "the Organization's key": (
        ("agent", "add", "x"),
        ("organization.key", "made once, by `mwnode init`", "--key FILE"),
    ),
    "the audit key": (("doctor", "--audit"), ("audit.key", "sealed for", "--key FILE")),
    "the authority's key": (("serve", "--port", "0"), ("authority.key", "from a copy of keys/")),
    "the authority's key to export by": (("export", "none"), ("authority.key", "that signs Events")),
}


@pytest.mark.parametrize("name", MISSING)
def test_whoever_needs_a_key_is_told_which_and_where_it_comes_from(keyless: Path, name: str) -> None:
    command, told = MISSING[name]
    done = cli(*command, "--home", keyless)
    assert done.status == 1
    assert all(text in done.err for text in told), done.err
    assert len(done.err.splitlines()) == 1
