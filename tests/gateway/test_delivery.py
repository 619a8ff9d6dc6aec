"""Replay and live delivery against a real store, one step at a time: no gap, no race, no leak (sections 8, 16, 17)."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from mwnode.gateway.delivery import ROOM_BYTES, Delivery
from mwnode.gateway.flow import Outbox
from mwnode.gateway.replies import Replies
from mwnode.gateway.subscription import Mode, Subscription
from mwnode.protocol import frames
from mwnode.protocol.commands import CORE
from mwnode.protocol.documents import Actor
from mwnode.store.batch import CommittedEvent
from mwnode.testing import Harness, MissionHandle, Participant
from tests.gateway.wire import unb64


class Reader:
    """A receiver that is read when the test says so."""

    def __init__(self, who: Participant, frames_max: int = 4096, bytes_max: int = 8 << 20) -> None:
        self.actor: Actor = who.principal
        self.outbox = Outbox(frames_max, bytes_max)
        self.subscriptions: dict[str, Subscription] = {}
        self.withheld: dict[tuple[str, int], None] = {}
        self.receiving = True
        self.got: list[dict[str, Any]] = []

    def touched(self) -> None:
        pass

    def read(self) -> list[dict[str, Any]]:
        """Take everything that waits; the new frames."""
        new = []
        while self.outbox:
            new += [json.loads(frame) for taken in self.outbox.take(1 << 30) for frame in taken.frames]
        self.got += new
        return new

    @property
    def sequences(self) -> list[int]:
        return [frame["event"]["sequence"] for frame in self.got if frame["frameType"] == "EVENT"]

    @property
    def marks(self) -> list[str]:
        return [unb64(frame["nonce"]).decode() for frame in self.got if frame["frameType"] == "PING"]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [frame["error"] for frame in self.got if frame["frameType"] == "ERROR"]


class Bench:
    """A delivery on a harness's node; batches are published when the test says so."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.batches: list[Sequence[CommittedEvent]] = []
        harness.node.add_listener(lambda events: self.batches.append(list(events)))
        self.delivery = Delivery(harness.node, Replies(harness.clock, harness.entropy), lambda: None)

    def follow(self, reader: Reader, group_id: str, after: int = 0, attention: Any = None, name: str = "1") -> None:
        members = {} if attention is None else {"attention": msgspec.convert(attention, frames.AttentionFilter)}
        self.delivery.follow(
            reader,
            frames.Subscribe(
                protocol_version="0.1",
                frame_id="urn:test:frame",
                subscription_id=f"urn:test:subscription:{name}",
                groups=(frames.GroupSubscription(group_id=group_id, after_sequence=after, **members),),
            ),
        )

    def settle(self) -> None:
        """Wait for the writer; replies come before the listener is called."""
        self.harness.node.call(lambda txn: None).result()
        self.harness.node.call(lambda txn: None).result()

    def publish(self) -> None:
        self.settle()
        batches, self.batches = self.batches, []
        for batch in batches:
            self.delivery.publish(batch)

    def pump(self) -> None:
        while self.delivery.pump():
            pass


@pytest.fixture
def bench(mwnode: Harness) -> Bench:
    return Bench(mwnode)


def post(mission: MissionHandle, who: Participant | None = None, text: str = "x", **members: Any) -> dict[str, Any]:
    harness = mission.harness
    payload = {"messageId": harness.new_id(), "conversationId": f"{mission.group_id}:mission", "content": text}
    return (who or harness.coordinator).send("message.post", payload | members, group_id=mission.group_id)[0]


@pytest.mark.req("R-16-01", "R-16-06", "R-16-03")
@pytest.mark.parametrize("seed", range(12))
def test_replay_and_live_meet_without_gap_or_double(bench: Bench, seed: int) -> None:
    """Commits, publications, replay steps, reads and fresh subscriptions in any order."""
    draw = random.Random(seed)
    mission = bench.harness.mission()
    for _ in range(draw.randrange(100)):
        bench.harness.clock.advance(1)
        post(mission)
    reader = Reader(bench.harness.coordinator)
    bench.follow(reader, mission.group_id)
    for _ in range(150):
        match draw.randrange(5):
            case 0:
                bench.harness.clock.advance(1)
                post(mission)
            case 1:
                if draw.random() < 0.5:
                    bench.publish()
                else:
                    bench.settle()
                    if bench.batches:
                        bench.delivery.publish(bench.batches.pop(0))
            case 2:
                bench.delivery.pump(1)
            case 3:
                reader.read()
            case 4:
                if draw.random() < 0.1:
                    reader.read()
                    bench.follow(reader, mission.group_id, after=max(reader.sequences, default=0))
    bench.pump()
    bench.publish()
    reader.read()
    assert reader.sequences == list(range(1, len(mission.events()) + 1))


@pytest.mark.req("R-17.3-01")
def test_a_replay_reads_ahead_no_further_than_its_reader_goes(bench: Bench) -> None:
    mission = bench.harness.mission()
    for _ in range(100):
        bench.harness.clock.advance(1)
        post(mission, text="x" * 20_000)
    reader = Reader(bench.harness.coordinator)
    bench.follow(reader, mission.group_id)
    most = 0
    for _ in range(100):
        bench.pump()
        most = max(most, reader.outbox.bytes)
        reader.read()
        bench.delivery.drained(reader)
    assert reader.sequences == list(range(1, 102))
    assert most < ROOM_BYTES + 64 * 42_000


@pytest.mark.req("R-17.3-01", "R-17.3-02", "R-19-32", "R-8-24")
def test_a_group_over_its_bound_is_paused_and_the_other_goes_on(bench: Bench) -> None:
    noisy, quiet = bench.harness.mission(), bench.harness.mission()
    reader = Reader(bench.harness.coordinator, frames_max=16)
    bench.follow(reader, noisy.group_id, name="noisy")
    bench.follow(reader, quiet.group_id, name="quiet")
    bench.pump()
    reader.read()
    for _ in range(10):
        post(noisy)
        bench.publish()
    post(quiet)
    bench.publish()
    assert reader.subscriptions[noisy.group_id].mode is Mode.PAUSED
    assert reader.outbox.frames < 16
    reader.read()
    assert [(error["code"], error["groupId"]) for error in reader.errors] == [("BACKPRESSURE", noisy.group_id)]
    assert reader.errors[0]["retryable"] is True
    assert reader.errors[0]["retryAfterMs"] > 0
    assert reader.errors[0]["fatal"] is False
    of = lambda group: [  # noqa: E731
        frame["event"]["sequence"]
        for frame in reader.got
        if frame["frameType"] == "EVENT" and frame["event"]["groupId"] == group
    ]
    assert of(quiet.group_id) == [1, 2]
    position = of(noisy.group_id)[-1]
    assert position < 11
    post(noisy)
    bench.publish()
    assert reader.read() == []
    bench.follow(reader, noisy.group_id, after=position, name="again")
    bench.pump()
    reader.read()
    assert of(noisy.group_id) == list(range(1, 13))


def test_a_mark_ends_each_replay(bench: Bench) -> None:
    mission = bench.harness.mission()
    reader = Reader(bench.harness.coordinator)
    bench.follow(reader, mission.group_id, name="first")
    bench.follow(reader, mission.group_id, name="second")
    bench.pump()
    reader.read()
    assert reader.marks == ["urn:test:subscription:first", "urn:test:subscription:second"]
    bench.follow(reader, "urn:example:invented", name="third")
    reader.read()
    assert reader.marks[-1] == "urn:test:subscription:third"


@pytest.mark.req("R-8-13", "R-8-15")
def test_nothing_before_the_visibility_start(bench: Bench) -> None:
    mission = bench.harness.mission()
    for _ in range(5):
        post(mission)
    worker = bench.harness.workers[0]
    joined = mission.add(worker)
    post(mission)
    reader = Reader(worker)
    bench.follow(reader, mission.group_id)
    bench.pump()
    bench.publish()
    post(mission)
    bench.publish()
    reader.read()
    assert reader.sequences == [joined["sequence"], joined["sequence"] + 1, joined["sequence"] + 2]


@pytest.mark.req("R-8-07", "R-9-04")
def test_a_restricted_conversation_reaches_its_members_and_those_who_see_all(bench: Bench) -> None:
    harness = bench.harness
    mission = harness.mission()
    inside, outside = harness.workers
    for worker in (inside, outside):
        mission.add(worker, visibilityStartSequence=1)
    readers = {name: Reader(who) for name, who in (("in", inside), ("out", outside), ("all", harness.coordinator))}
    for reader in readers.values():
        bench.follow(reader, mission.group_id)
    bench.pump()
    bench.publish()
    conversation_id = harness.new_id()
    conversation = {
        "conversationId": conversation_id,
        "missionId": mission.mission_id,
        "groupId": mission.group_id,
        "type": "restricted",
        "title": "Between us",
        "access": {"mode": "restricted", "members": [{"type": "agent", "id": inside.id}]},
        "createdBy": {"type": "agent", "id": inside.id},
        "createdAt": harness.clock.now().text(),
        "state": "active",
        "revision": 1,
    }
    inside.send(f"{CORE}.conversation_open", {"conversation": conversation}, group_id=mission.group_id)
    post(mission, inside, conversationId=conversation_id)
    post(mission)
    bench.publish()
    late = {name: Reader(who) for name, who in (("in", inside), ("out", outside), ("all", harness.coordinator))}
    for reader in late.values():
        bench.follow(reader, mission.group_id)
    bench.pump()
    head = len(mission.events())
    for group in (readers, late):
        for reader in group.values():
            reader.read()
        assert group["in"].sequences == list(range(1, head + 1))
        assert group["all"].sequences == list(range(1, head + 1))
        assert group["out"].sequences == [sequence for sequence in range(1, head + 1) if sequence not in (4, 5)]


@pytest.mark.req("R-8-09")
def test_a_provisional_member_reads_until_it_runs_out(bench: Bench) -> None:
    harness = bench.harness
    mission = harness.mission()
    worker = harness.workers[0]
    package = harness.coordinator.sign(
        contextPackageId=harness.new_id(),
        version=1,
        missionId=mission.mission_id,
        groupId=mission.group_id,
        sourceEventRange={"fromSequence": 1, "toSequence": 1, "eventIds": [mission.events()[0]["eventId"]]},
        artifactHashes=[],
        summary="all there is",
        decisions=[],
        constraints=[],
        unresolvedQuestions=[],
        generatedBy={"type": "agent", "id": harness.coordinator.id},
        generatedAt=harness.clock.now().text(),
    )
    expires = harness.clock.now().plus(600).text()
    mission.add(worker, provisional=True, provisionalExpiresAt=expires, contextPackage=package)
    reader = Reader(worker)
    bench.follow(reader, mission.group_id)
    bench.pump()
    bench.publish()
    post(mission)
    bench.publish()
    harness.clock.advance(600)
    post(mission)
    bench.publish()
    reader.read()
    assert reader.sequences == [2, 3]
    bench.follow(reader, mission.group_id)
    reader.read()
    assert reader.errors[-1]["code"] == "MEMBERSHIP_REQUIRED"


@pytest.mark.parametrize("replaying", [True, False])
def test_the_end_of_a_membership_ends_the_stream_after_its_own_event(bench: Bench, replaying: bool) -> None:
    harness = bench.harness
    mission = harness.mission()
    worker = harness.workers[0]
    mission.add(worker)
    reader = Reader(worker)
    bench.follow(reader, mission.group_id)
    if not replaying:
        bench.pump()
    bench.publish()
    principal = {"type": "agent", "id": worker.id}
    harness.coordinator.send("membership.end", {"principal": principal}, group_id=mission.group_id)
    post(mission)
    bench.publish()
    bench.pump()
    reader.read()
    assert reader.sequences == [2, 3]
    assert reader.subscriptions[mission.group_id].mode is Mode.OVER


def test_a_membership_that_begins_again_reads_from_the_start_that_it_states(bench: Bench) -> None:
    harness = bench.harness
    mission = harness.mission()
    worker = harness.workers[0]
    mission.add(worker)
    principal = {"type": "agent", "id": worker.id}
    harness.coordinator.send("membership.end", {"principal": principal}, group_id=mission.group_id)
    post(mission)
    mission.add(worker, expectedMembershipEpoch=2)
    post(mission)
    reader = Reader(worker)
    bench.follow(reader, mission.group_id)
    bench.pump()
    reader.read()
    assert reader.sequences == [2, 3, 4, 5, 6]


def test_a_fenced_receiver_gets_nothing(bench: Bench) -> None:
    mission = bench.harness.mission()
    reader = Reader(bench.harness.coordinator)
    bench.follow(reader, mission.group_id)
    bench.pump()
    reader.read()
    bench.delivery.leave(reader)
    post(mission)
    bench.publish()
    assert reader.read() == []
    assert bench.delivery.followed == 0


@pytest.mark.req("R-8-21", "R-17.2-01")
def test_a_coordinator_can_take_summaries_now_and_everything_later(bench: Bench) -> None:
    mission = bench.harness.mission()
    reader = Reader(bench.harness.coordinator)
    bench.follow(reader, mission.group_id, after=1, attention={"eventKinds": ["work.authorized"]})
    bench.pump()
    post(mission, bench.harness.owner)
    mission.authorize()
    bench.publish()
    reader.read()
    assert reader.sequences == [3]
    bench.follow(reader, mission.group_id, after=1)
    bench.pump()
    reader.read()
    assert reader.sequences == [3, 2, 3]
