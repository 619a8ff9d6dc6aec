"""doctor, from the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mwnode.home import make_key
from mwnode.protocol.documents import Actor
from mwnode.testing import Harness, SeededEntropy
from mwnode.trust.keys import dump
from tests.cli.support import ServedHome, cli


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("doctor") / "home"
    assert cli("init", home, "--json").status == 0
    assert cli("agent", "add", "coordinator", "--home", home, "--json").status == 0
    return home


@pytest.fixture
def home(founded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(founded, tmp_path / "home"))


def test_a_healthy_home_is_ok_at_rest_and_served(home: Path) -> None:
    told = cli("doctor", "--home", home, "--json").json
    assert told["ok"]
    assert {"check", "level", "detail"} <= set(told["findings"][0])
    served = ServedHome(home)
    try:
        assert "owns the file and listens at" in cli("doctor", "--home", home).out
        refused = cli("doctor", "--rebuild", "--home", home)
        assert refused.status == 1
        assert "is in use by process" in refused.err
    finally:
        served.stop()


def test_faults_around_the_file_are_found_and_give_exit_1(home: Path) -> None:
    (home / "keys" / "owner.key").chmod(0o644)
    (home / "keys" / "authority.key").unlink()
    done = cli("doctor", "--home", home)
    assert done.status == 1
    assert "chmod 600" in done.out
    assert "authority.key is gone" in done.out


def test_rows_are_rebuilt(home: Path) -> None:
    before = cli("verify", "--home", home, "--json").json
    assert cli("doctor", "--rebuild", "--home", home, "--json").json["rows"] > 0
    assert cli("verify", "--home", home, "--json").json == before
    both = cli("doctor", "--rebuild", "--audit", "--home", home)
    assert both.status == 2


def test_protected_rows_are_printed_for_the_holder_of_the_audit_key(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "home")
    mission = harness.mission()
    payload = {"messageId": harness.new_id(), "conversationId": f"{mission.group_id}:mission", "content": "when"}
    raw = harness.owner.command("message.post", payload, group_id=mission.group_id)
    with pytest.raises(Exception, match="signed document rejected"):
        harness.node.send(raw.replace(b'"when"', b'"then"'))
    harness.close()
    (row,) = cli("doctor", "--audit", "--home", harness.home, "--json").json["audit"]
    assert (row["number"], row["stage"]) == (1, "signature")
    assert "signature" in cli("doctor", "--audit", "--home", harness.home).out
    other = make_key("other", Actor(type="service", id="urn:example:other"), "urn:example:o", SeededEntropy(7))
    (tmp_path / "other.key").write_bytes(dump(other))
    refused = cli("doctor", "--audit", "--home", harness.home, "--key", tmp_path / "other.key")
    assert refused.status == 1
    assert "audit key" in refused.err
