"""A real disk of 16 MiB, filled to the brim under load: refused, alive, and on again when there is room."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mwnode.client.commands import signed_command
from mwnode.node import Node
from mwnode.protocol.errors import ErrorCode, MissionWeaveError
from mwnode.protocol.identifiers import uuid7_urn
from mwnode.store.environment import LmdbStore
from mwnode.store.errors import StoreFull
from mwnode.store.verify import verify
from mwnode.testing import Harness, ManualClock, MissionHandle
from tests.cli.support import cli
from tests.crash.disks import small_disk
from tests.patience import PATIENCE_SECONDS
from tests.store.archives import archived, say

MIB = 1024**2
SENDERS = 4


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB in memory."""
    with small_disk(tmp_path / "disk", 16) as place:
        yield place


class Load:
    """Several senders that post Messages for as long as they are let; what was acknowledged, and what was refused."""

    def __init__(self, harness: Harness, mission: MissionHandle) -> None:
        self.harness = harness
        self.mission = mission
        self.acknowledged: list[str] = []
        self.refused: list[MissionWeaveError] = []
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self._send) for _ in range(SENDERS)]

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def _send(self) -> None:
        conversation = f"{self.mission.group_id}:mission"
        while not self.stop.is_set():
            with self.lock:
                message_id = self.harness.new_id()
                payload = {"messageId": message_id, "conversationId": conversation, "content": "x" * 8000}
                raw = self.harness.coordinator.command("message.post", payload, group_id=self.mission.group_id)
            try:
                self.harness.send(raw)
            except MissionWeaveError as error:
                self.refused.append(error)
                time.sleep(0.01)
            else:
                self.acknowledged.append(message_id)

    def until(self, count: int, what: list[object]) -> None:
        """Wait until that many more of something happened."""
        wanted, deadline = len(what) + count, time.monotonic() + PATIENCE_SECONDS
        while len(what) < wanted:
            assert time.monotonic() < deadline, f"{len(self.acknowledged)} accepted, {len(self.refused)} refused"
            time.sleep(0.01)


def with_rate(home: Path) -> None:
    settings = home / "mwnode.toml"
    settings.write_text(settings.read_text().replace("[policy]\n", "[policy]\nmessage_rate = 100000\n"))


@pytest.mark.req("R-15.1-15", "R-19-35")
def test_a_disk_filled_to_the_brim_refuses_and_goes_on_when_there_is_room(disk: Path) -> None:
    harness = Harness(disk / "home", durable=True)
    harness.node.close()
    with_rate(disk / "home")
    harness.restart()
    mission = harness.mission()
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(5 * MIB))
    with Load(harness, mission) as load:
        load.until(5 * SENDERS, load.refused)  # type: ignore[arg-type]
        assert {error.code for error in load.refused} == {ErrorCode.INTERNAL_ERROR}
        assert all(error.retryable and error.rejection.retry_after_ms for error in load.refused)
        # Alive: reading goes on, and every other kind of write is refused as clearly.
        assert mission.state == "active"
        with pytest.raises(StoreFull, match="free some"):
            harness.store_bytes(bytes(MIB))
        accepted = len(load.acknowledged)
        ballast.unlink()
        load.until(20, load.acknowledged)  # type: ignore[arg-type]
    assert accepted > 100
    said = [event["payload"]["message"]["messageId"] for event in mission.events() if "message" in event["payload"]]
    assert sorted(said) == sorted(load.acknowledged), "nothing acknowledged is lost, nothing is doubled"
    report = verify(harness.node.store)
    assert report.ok, report.findings
    assert report.artifacts == 0, "half an upload leaves nothing"
    harness.restart()
    report = verify(harness.node.store)
    assert report.ok, report.findings
    assert len(mission.events()) == len(said) + 1
    harness.close()


@pytest.fixture
def settled(disk: Path) -> Path:
    """A HOME of some MiB with Events, an ended and archived Group and an Artifact, on the small disk."""
    harness = Harness(disk / "home")
    harness.node.close()
    with_rate(disk / "home")
    harness.restart()
    archived(harness, content=random.Random(1).randbytes(2 * MIB))
    mission = harness.mission()
    for _ in range(20):
        say(mission, "x" * 8000)
    harness.close()
    return disk / "home"


def filled(disk: Path) -> Path:
    """Take all the room that is left."""
    ballast = disk / "ballast"
    with open(ballast, "wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    assert os.statvfs(disk).f_bavail == 0
    return ballast


def group_ids(home: Path) -> list[str]:
    """The archived Group, and the one at work."""
    store = LmdbStore.open(home / "node.mdb", read_only=True)
    try:
        with store.read() as view:
            return view.groups()
    finally:
        store.close()


COMMANDS = {
    "backup": ("backup", "{disk}/copy.mdb"),
    "backup, compacting": ("backup", "{disk}/copy.mdb", "--compact"),
    "export": ("export", "{disk}/bundle"),
    "compact": ("compact",),
    "compact, trimming": ("compact", "--trim-archived", "{group}"),
    "doctor --rebuild": ("doctor", "--rebuild"),
}


@pytest.mark.req("R-15.1-15")
@pytest.mark.parametrize("what", COMMANDS)
def test_every_command_that_writes_fails_clearly_on_a_full_disk_and_leaves_nothing(
    what: str, settled: Path, disk: Path
) -> None:
    arguments = [part.format(disk=disk, group=group_ids(settled)[0]) for part in COMMANDS[what]]
    before = {path.name for path in disk.iterdir()} | {path.name for path in settled.iterdir()}
    ballast = filled(disk)
    done = cli(*arguments, "--home", settled)
    assert done.status == 1, done.out
    assert "Traceback" not in done.err
    assert "free some" in done.err or "no room" in done.err, done.err
    ballast.unlink()
    assert {path.name for path in disk.iterdir()} | {path.name for path in settled.iterdir()} <= before
    report = verify(settled / "node.mdb")
    assert report.ok, report.findings
    assert report.artifacts == 1
    again = cli(*arguments, "--home", settled, "--json")
    assert again.status == 0, again.err
    assert verify(settled / "node.mdb").ok


def test_a_node_that_serves_a_full_disk_still_starts_and_reads(settled: Path, disk: Path) -> None:
    _, at_work = group_ids(settled)
    ballast = filled(disk)
    with Node.open(settled, clock=ManualClock()) as node:
        with node.read() as view:
            assert len(view.groups()) == 2
        owner = node.home.key("owner")
        command = signed_command(
            owner,
            "mission.cancel",
            {"reason": "no room"},
            action_id=uuid7_urn(node.clock.now(), node.entropy.random(10)),
            issued_at=node.clock.now().text(),
            group_id=at_work,
            membership_epoch=1,
        )
        with pytest.raises(MissionWeaveError) as refused:
            node.send(command)
        assert (refused.value.code, refused.value.retryable) == (ErrorCode.INTERNAL_ERROR, True)
        ballast.unlink()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                assert node.send(command)
                break
            except MissionWeaveError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
    assert verify(settled / "node.mdb").ok
