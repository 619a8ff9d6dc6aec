"""A HOME that lost a file says so; it never begins anew by itself."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from mwnode.home import HomeError, make_key, open_home
from mwnode.node import Node
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import InternalError
from mwnode.store import mapped_file
from mwnode.store.carry import compact
from mwnode.store.environment import LmdbStore
from mwnode.store.errors import StoreFull, StoreMissing
from mwnode.store.verify import verify
from mwnode.testing import Harness, ManualClock, SeededEntropy
from tests.cli.support import cli


def reopened(path: Path, **options: bool) -> Node:
    return Node.open(path, clock=ManualClock(), durable=False, **options)


def test_a_store_that_is_gone_is_not_silently_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "home"
    reopened(path).close()
    organization = open_home(path).organization_id
    for leave in (lambda: (path / "node.mdb").unlink(), lambda: None):
        leave()
        with pytest.raises(HomeError, match=r"node\.mdb is gone or empty.*backup.*--new-store"):
            reopened(path)
        assert not (path / "node.mdb").exists()
    done = cli("serve", "--home", path, "--port", "0")
    assert (done.status, done.err.count("\n")) == (1, 1)
    node = reopened(path, new_store=True)
    with node.read() as view:
        assert view.meta("organization") == organization.encode()
    node.close()
    reopened(path).close()


def test_an_empty_store_in_the_place_of_the_lost_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "home"
    reopened(path).close()
    (path / "node.mdb").unlink()
    LmdbStore.open(path / "node.mdb").close()
    with pytest.raises(HomeError, match="gone or empty"):
        reopened(path)


def test_a_home_that_never_had_a_store_and_one_from_before_the_mark_open(tmp_path: Path) -> None:
    path = tmp_path / "home"
    reopened(path).close()
    (path / "founded").unlink()
    reopened(path).close()
    assert (path / "founded").exists(), "noted the first time that the store is seen"


def test_nothing_makes_a_store_in_passing(tmp_path: Path) -> None:
    path = tmp_path / "home"
    reopened(path).close()
    (path / "node.mdb").unlink()
    for command in (("compact",), ("verify",), ("doctor", "--rebuild"), ("compact", "--trim-archived", "x")):
        done = cli(*command, "--home", path)
        assert done.status == 1, command
        assert "there is no store" in done.err, command
        assert not (path / "node.mdb").exists(), command
    with pytest.raises(StoreMissing):
        compact(path / "node.mdb")


def test_another_organizations_file_is_named_by_verify(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        reopened(path).close()
    shutil.copy(first / "node.mdb", second / "node.mdb")
    done = cli("verify", "--home", second)
    assert done.status == 1
    ours, theirs = open_home(second).organization_id, open_home(first).organization_id
    assert "organization: " in done.out
    assert ours in done.out
    assert theirs in done.out
    assert verify(second / "node.mdb").ok, "the file for itself is whole"


@pytest.mark.req("R-6.4-22")
def test_a_second_authority_key_is_bound_only_when_told(tmp_path: Path) -> None:
    path = tmp_path / "home"
    node = reopened(path)
    first = node.authority_key.key_id
    node.close()
    home = open_home(path)
    kept = (path / "keys" / "authority.key").read_bytes()
    other = reopened(tmp_path / "other")
    entropy = other.entropy
    other.close()
    (path / "keys" / "authority.key").unlink()
    home.add_key("authority", make_key("authority", home.authority_service, home.organization_id, entropy))
    second = home.key("authority").key_id
    with pytest.raises(HomeError, match=r"authority\.key holds .*put that key file back; .*--new-keys"):
        reopened(path)
    node = reopened(path, new_keys=True)
    assert node.registry.resolve(second) is not None
    node.close()
    (path / "keys" / "authority.key").write_bytes(kept)
    node = reopened(path)
    assert node.authority_key.key_id == first
    assert node.registry.resolve(second) is not None
    node.close()


@pytest.mark.req("R-19-35")
def test_a_node_opens_below_the_reserve_and_refuses_commands_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    harness = Harness(tmp_path / "home")
    mission = harness.mission()
    working = mission.authorize()
    working.offer()
    working.accept()
    working.start()
    monkeypatch.setattr(mapped_file, "ROOM_SECONDS", 0.0)
    real = os.statvfs

    def full(path: Path) -> os.statvfs_result:
        told = list(real(path))
        told[4] = 1  # blocks free for anybody
        return os.statvfs_result(told)

    monkeypatch.setattr(os, "statvfs", full)
    harness.restart()
    assert "Commands are refused and reading goes on" in caplog.text
    assert mission.events()
    with pytest.raises(InternalError) as refused:
        mission.authorize()
    assert refused.value.rejection.retry_after_ms
    caplog.clear()
    harness.clock.advance(1_000_000)
    harness.node._committer.poke()
    with pytest.raises(InternalError):
        mission.authorize()
    assert caplog.text.count("a commit failed") < 20, "what is due does not make the writer turn in place"
    monkeypatch.setattr(os, "statvfs", real)
    harness.advance(2)
    assert sum(event["kind"].endswith("lease_expired") for event in mission.events()) == 3
    harness.close()


@pytest.mark.req("R-6.4-22")
def test_another_owner_key_is_bound_only_when_told(tmp_path: Path) -> None:
    path, other = tmp_path / "home", tmp_path / "other"
    for home in (path, other):
        reopened(home).close()
    # One Organization's name for its first human is the same as another's; the keys are not.
    own, foreign = path / "keys" / "owner.key", other / "keys" / "owner.key"
    kept = own.read_bytes()
    own.write_bytes(foreign.read_bytes())
    with pytest.raises(HomeError, match=r"owner\.key holds .*put that key file back; .*--new-keys"):
        reopened(path)
    stranger = open_home(path)
    own.unlink()
    entropy = SeededEntropy(5)
    key = make_key("owner", Actor(type="human", id="urn:example:somebody"), stranger.organization_id, entropy)
    stranger.add_key("owner", key)
    with pytest.raises(HomeError, match=r"urn:example:somebody.*put that key file back"):
        reopened(path)
    node = reopened(path, new_keys=True)
    assert node.registry.resolve(key.key_id) is not None
    node.close()
    own.write_bytes(kept)
    reopened(path).close()


@pytest.mark.req("R-19-35")
def test_a_policy_changed_below_the_reserve_is_adopted_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    harness = Harness(tmp_path / "home")
    mission = harness.mission()
    monkeypatch.setattr(mapped_file, "ROOM_SECONDS", 0.0)
    real = os.statvfs

    def full(path: Path) -> os.statvfs_result:
        told = list(real(path))
        told[4] = 1  # blocks free for anybody
        return os.statvfs_result(told)

    harness.node.close()
    settings = tmp_path / "home" / "mwnode.toml"
    settings.write_text(settings.read_text().replace("[policy]\n", "[policy]\nmessage_rate = 7\n"))
    monkeypatch.setattr(os, "statvfs", full)
    harness.restart()
    before = harness.node.policy
    assert (before.message_rate, before.version) == (120, "1.0.0")
    assert "stays in force" in caplog.text
    assert mission.events()
    with pytest.raises(StoreFull):
        harness.node.run_timers()
    harness.node._look_after()
    assert harness.node.policy == before
    monkeypatch.setattr(os, "statvfs", real)
    harness.node.run_timers()
    assert (harness.node.policy.message_rate, harness.node.policy.version) == (7, "1.1.0")
    with harness.node.read() as view:
        adopted = [entry.details["policyVersion"] for entry in view.policy_log(None) if "adopted" in entry.decision]
    assert adopted == ["1.0.0", "1.1.0"]
    assert mission.authorize()
    harness.close()
