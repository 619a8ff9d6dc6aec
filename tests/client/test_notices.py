"""What tells an Agent of a Group comes outside of the Group's order, and must not be taken for a place in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from mwnode.client.engine import CaughtUp, ClientEngine, Delivered, Phase
from mwnode.gateway.replies import Replies
from mwnode.testing import Harness, MissionHandle, Participant


class Wire:
    """An engine of one Agent that is connected, and frames of a server."""

    def __init__(self, harness: Harness, who: Participant, mission: MissionHandle) -> None:
        self.replies = Replies(harness.clock, harness.entropy)
        self.mission = mission
        self.engine = ClientEngine(who.key, harness.clock, harness.entropy)
        self.engine.phase = Phase.LIVE

    def stored(self, sequence: int) -> bytes:
        with self.mission.harness.node.read() as view:
            found = view.event(self.mission.group_id, sequence)
        assert found is not None
        return found.event

    def take(self, *sequences: int) -> list[int]:
        """The server sends Events; the sequences of those handed on."""
        got: list[int] = []
        for sequence in sequences:
            for notice in self.engine.receive(self.replies.event(self.stored(sequence))):
                if isinstance(notice, Delivered):
                    assert isinstance(notice.event.sequence, int)
                    got.append(notice.event.sequence)
        return got

    def subscribed(self) -> dict[str, Any]:
        """The one SUBSCRIBE that went out."""
        (frame,) = [msgspec.json.decode(raw) for raw in self.engine.outgoing() if b'"SUBSCRIBE"' in raw]
        found: dict[str, Any] = frame
        return found

    def replayed(self, subscription_id: str) -> list[int]:
        """The server marks the end of a replay; the sequences that it lets out."""
        notices = self.engine.receive(self.replies.mark(subscription_id))
        assert isinstance(notices[-1], CaughtUp)
        return [notice.event.sequence for notice in notices if isinstance(notice, Delivered)]  # type: ignore[misc]


@pytest.fixture
def harness(tmp_path: Path) -> Any:
    made = Harness(tmp_path / "home")
    yield made
    made.close()


def test_a_group_asked_for_twice_is_caught_up_at_the_end_of_the_later_replay(harness: Harness) -> None:
    mission, worker = harness.mission(), harness.workers[0]
    mission.add(worker)
    wire = Wire(harness, worker, mission)
    asked = []
    for _ in range(2):
        wire.engine.subscribe({mission.group_id: 0})
        asked.append(wire.subscribed()["subscriptionId"])
    assert wire.engine.receive(wire.replies.mark(asked[0])) == []
    (caught_up,) = wire.engine.receive(wire.replies.mark(asked[1]))
    assert caught_up == CaughtUp((mission.group_id,))


@pytest.mark.req("R-16-56", "R-16-02")
@pytest.mark.parametrize("position", [0, 1])
def test_a_notice_on_its_way_before_the_replay_hides_nothing_of_it(harness: Harness, position: int) -> None:
    mission, worker = harness.mission(), harness.workers[0]
    mission.authorize()
    mission.add(worker)
    head = len(mission.events())
    wire = Wire(harness, worker, mission)
    wire.engine.subscribe({mission.group_id: position})
    assert wire.take(head, head) == []
    assert wire.take(*range(position + 1, head + 1)) == list(range(position + 1, head + 1))
    assert wire.replayed(wire.subscribed()["subscriptionId"]) == []
    assert wire.engine.position(mission.group_id) == head


def test_a_notice_whose_place_the_replay_withholds_comes_at_its_end(harness: Harness) -> None:
    mission, worker = harness.mission(), harness.workers[0]
    mission.authorize()
    mission.add(worker)
    head = len(mission.events())
    wire = Wire(harness, worker, mission)
    wire.engine.subscribe({mission.group_id: 0})
    assert wire.take(head) == []
    assert wire.replayed(wire.subscribed()["subscriptionId"]) == [head]


@pytest.mark.req("R-16-56")
def test_who_is_put_into_a_group_again_hears_what_was_missed(harness: Harness) -> None:
    mission, worker = harness.mission(), harness.workers[0]
    mission.add(worker)
    joined = len(mission.events())
    event = harness.coordinator.send(
        "membership.end",
        {"principal": msgspec.to_builtins(worker.principal), "reason": "for a while"},
        group_id=mission.group_id,
    )[0]
    ended, epoch = event["sequence"], event["payload"]["membership"]["membershipEpoch"]
    mission.authorize()
    mission.add(worker, expectedMembershipEpoch=epoch)
    head = len(mission.events())
    assert head > ended + 1
    wire = Wire(harness, worker, mission)
    wire.engine.subscribe({mission.group_id: 0})
    assert wire.take(*range(1, joined + 1)) == list(range(1, joined + 1))
    wire.replayed(wire.subscribed()["subscriptionId"])
    assert wire.take(*range(joined + 1, ended + 1)) == list(range(joined + 1, ended + 1))
    assert wire.take(head) == [], "the notice is no place in the order"
    again = wire.subscribed()
    assert [entry["afterSequence"] for entry in again["groups"]] == [ended]
    assert wire.take(*range(ended + 1, head + 1)) == list(range(ended + 1, head + 1))
    wire.replayed(again["subscriptionId"])
    assert wire.take(head) == []


def test_an_end_and_a_return_within_one_replay_ask_for_nothing(harness: Harness) -> None:
    mission, worker = harness.mission(), harness.workers[0]
    mission.add(worker)
    epoch = harness.coordinator.send(
        "membership.end",
        {"principal": msgspec.to_builtins(worker.principal), "reason": "for a while"},
        group_id=mission.group_id,
    )[0]["payload"]["membership"]["membershipEpoch"]
    mission.add(worker, expectedMembershipEpoch=epoch)
    mission.authorize()
    head = len(mission.events())
    wire = Wire(harness, worker, mission)
    wire.engine.subscribe({mission.group_id: 0})
    subscription_id = wire.subscribed()["subscriptionId"]
    assert wire.take(*range(1, head + 1)) == list(range(1, head + 1))
    assert wire.replayed(subscription_id) == []
    assert not any(b"SUBSCRIBE" in raw for raw in wire.engine.outgoing())


@pytest.mark.req("R-16-56", "R-16-02")
def test_what_lies_between_an_end_and_a_return_in_one_replay_is_handed_on(harness: Harness) -> None:
    mission, worker = harness.mission(), harness.workers[0]
    mission.add(worker)
    epoch = harness.coordinator.send(
        "membership.end",
        {"principal": msgspec.to_builtins(worker.principal), "reason": "for a while"},
        group_id=mission.group_id,
    )[0]["payload"]["membership"]["membershipEpoch"]
    mission.authorize()
    mission.add(worker, expectedMembershipEpoch=epoch)
    head = len(mission.events())
    wire = Wire(harness, worker, mission)
    wire.engine.subscribe({mission.group_id: 0})
    subscription_id = wire.subscribed()["subscriptionId"]
    assert wire.take(*range(1, head + 1)) == list(range(1, head + 1))
    assert wire.replayed(subscription_id) == []


@pytest.mark.req("R-16-56")
def test_an_end_that_a_replay_tells_of_last_is_an_end(harness: Harness) -> None:
    mission, worker = harness.mission(), harness.workers[0]
    mission.add(worker)
    event = harness.coordinator.send(
        "membership.end",
        {"principal": msgspec.to_builtins(worker.principal), "reason": "for a while"},
        group_id=mission.group_id,
    )[0]
    ended, epoch = event["sequence"], event["payload"]["membership"]["membershipEpoch"]
    wire = Wire(harness, worker, mission)
    wire.engine.subscribe({mission.group_id: 0})
    assert wire.take(*range(1, ended + 1)) == list(range(1, ended + 1))
    wire.replayed(wire.subscribed()["subscriptionId"])
    mission.authorize()
    mission.add(worker, expectedMembershipEpoch=epoch)
    assert wire.take(len(mission.events())) == [], "what happened meanwhile comes first"
    assert [entry["afterSequence"] for entry in wire.subscribed()["groups"]] == [ended]
