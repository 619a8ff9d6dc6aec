"""The node is killed again and again at random moments of running Missions; nothing acknowledged is lost or doubled."""

from __future__ import annotations

import random
import shlex
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Timer

import pytest

from mwnode.cli.compose import new_id, now
from mwnode.client.commands import signed_command
from mwnode.client.errors import Unreachable
from mwnode.client.http import HttpClient
from mwnode.demo.assets import assets
from mwnode.demo.log import GroupLog
from mwnode.demo.processes import Deadline, Processes, run
from mwnode.home import load_key
from mwnode.narrative import work_item_of
from tests.patience import PATIENCE_SECONDS

PLAN = assets() / "plans" / "survey.toml"
KILL_AFTER_SECONDS = 6.0
"""Longest wait before the kill: about as long as a Mission takes when nobody disturbs it."""


class Stage:
    """A HOME with a node, a coordinator and two workers, all of them processes."""

    def __init__(self, home: Path, processes: Processes) -> None:
        self.home = home
        self.processes = processes
        run("init", str(home))
        settings = home / "mwnode.toml"
        # The owner talks all the time here: that is how acknowledged Commands are made.
        settings.write_text(settings.read_text().replace("# message_rate = 120", "message_rate = 1000000"))
        self.listening = processes.serve(home)
        self.ledger = home / "ledger.txt"
        self.ledger.touch()
        for name, slots in (("lead", "1"), ("builder", "3"), ("scribe", "3")):
            capabilities = {
                "builder": ("demo.source.check@1.0.0",),
                "scribe": ("demo.release.write@1.0.0", "demo.release.sign@1.0.0"),
            }.get(name, ())
            named = [argument for capability in capabilities for argument in ("--capability", capability)]
            run("agent", "add", name, "--slots", slots, *named, "--home", str(home))
        executor = shlex.join([sys.executable, str(assets() / "executors" / "survey.py"), str(self.ledger)])
        for name in ("builder", "scribe"):
            processes.start(name, "worker", *self.reach(name), "--exec", executor, "--slots", "3")
        processes.start("lead", "coordinator", *self.reach("lead"), "--plan", str(PLAN))

    def reach(self, name: str) -> tuple[str, ...]:
        key = self.home / "keys" / f"{name}.key"
        return ("--url", self.listening.url, "--ca", str(self.listening.ca), "--key", str(key))

    def client(self) -> HttpClient:
        return HttpClient(self.listening.http, load_key(self.home / "keys" / "owner.key"), self.listening.ca)


class Talk:
    """The owner's Messages: each signed once, and sent again with the same bytes until it is acknowledged."""

    def __init__(self, stage: Stage, group_id: str, membership_epoch: int) -> None:
        self.stage = stage
        self.group_id = group_id
        self.epoch = membership_epoch
        self.acknowledged: dict[str, str] = {}
        self.unanswered: bytes | None = None

    def say(self, client: HttpClient) -> None:
        """Post one Message; Unreachable when the node is gone, and then nobody knows whether it was taken."""
        action_id = new_id()
        payload = {"messageId": new_id(), "conversationId": f"{self.group_id}:mission", "content": "and another thing"}
        key = load_key(self.stage.home / "keys" / "owner.key")
        self.unanswered = signed_command(
            key,
            "message.post",
            payload,
            action_id=action_id,
            issued_at=now().text(),
            group_id=self.group_id,
            membership_epoch=self.epoch,
        )
        self.settle(client)

    def settle(self, client: HttpClient) -> None:
        """Send what is unanswered, and note that it is acknowledged."""
        if self.unanswered is not None:
            receipt = client.command(self.unanswered)["events"][0]
            self.acknowledged[receipt["cause"]["id"]] = receipt["eventId"]
            self.unanswered = None


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.req("R-5-02", "R-15.1-13", "R-15.1-15")
def test_a_mission_survives_the_node_killed_at_a_random_moment(
    tmp_path: Path, scale: Callable[[int, int], int]
) -> None:
    seed = 20_301_231
    moments = random.Random(seed)
    with Processes(tmp_path / "logs") as processes:
        stage = Stage(tmp_path / "home", processes)
        for number in range(scale(2, 20)):
            _one_round(stage, moments.uniform(0.05, KILL_AFTER_SECONDS), f"round {number} of seed {seed}")
    assert run("verify", "--home", str(tmp_path / "home"))["ok"]


def _talk_on(talk: Talk, log: GroupLog, client: HttpClient) -> None:
    """Talk and read for as long as the node answers."""
    while True:
        talk.say(client)
        log.read(client, wait=0)


def _one_round(stage: Stage, kill_after: float, which: str) -> None:
    created = run("mission", "create", str(PLAN), *stage.reach("owner"))
    runs_before = len(stage.ledger.read_text().split())
    log = GroupLog(created["groupId"])
    with stage.client() as client:
        (membership,) = [m for m in client.mission(created["missionId"])["memberships"] if m["role"] == "mission_owner"]
        talk = Talk(stage, created["groupId"], membership["membershipEpoch"])
        killing = Timer(kill_after, stage.processes.kill, ("node",))
        killing.start()
        # The node dies while a Message is on its way: whether that one was taken shows only afterwards.
        with pytest.raises(Unreachable):
            _talk_on(talk, log, client)
        killing.join()
    before = log.encoded()
    assert stage.processes.serve(stage.home).url == stage.listening.url
    with stage.client() as client:
        talk.settle(client)
        deadline = Deadline(PATIENCE_SECONDS, f"the Mission of {which}")
        while log.mission_state != "awaiting_approval":
            deadline.check()
            log.read(client, wait=1)
    run("mission", "approve", created["missionId"], "--yes", *stage.reach("owner"))
    whole = GroupLog(created["groupId"])
    with stage.client() as client:
        while whole.read(client, wait=0):
            pass
    assert whole.mission_state == "approved", which
    assert whole.encoded()[: len(before)] == before, which
    assert [event["sequence"] for event in whole.events] == list(range(1, len(whole.events) + 1)), which
    effects = Counter(
        (event["cause"]["id"], event["kind"], work_item_of(event))
        for event in whole.events
        if event["cause"]["type"] == "command"
    )
    assert max(effects.values()) == 1, which
    posted = {event["cause"]["id"]: event["eventId"] for event in whole.of_kind("message.posted")}
    assert posted == talk.acknowledged, which
    results = Counter(whole.names[work_item_of(event) or ""] for event in whole.of_kind("work.result.accepted"))
    assert results == {"north": 1, "south": 1, "east": 1, "sum": 1}, which
    runs = Counter(stage.ledger.read_text().split()[runs_before:])
    assert max(runs.values()) == 1, which
