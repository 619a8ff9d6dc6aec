"""What one Command costs does not grow with what is there: counted in calls, which are the same on every machine.

The node has no threads here, so everything that it does for a Command happens in the thread that counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from mwnode.gateway.engine import Engine
from mwnode.gateway.replies import Replies
from mwnode.testing import Harness, MissionHandle

GROWTH = 1.25
"""How much more a Command may cost where fifty times as much is there: a tree of keys is a level deeper."""


@pytest.fixture
def still(tmp_path: Path) -> Iterator[Harness]:
    """A node that does nothing by itself."""
    harness = Harness(tmp_path / "home", threads=False)
    yield harness
    harness.close()


def called(action: Callable[[], object]) -> list[str]:
    """The names of all functions of Python and of C that are called meanwhile."""
    names: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            names.append(frame.f_code.co_name)
        elif event == "c_call":
            names.append(argument.__name__)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return names


def calls(action: Callable[[], object]) -> int:
    """How many functions are called meanwhile."""
    return len(called(action))


def cost(harness: Harness, mission: MissionHandle) -> int:
    """What an ordinary Command costs now: the least of three, since caches fill and some looks are taken seldom."""
    raws = []
    for _ in range(3):
        payload = {
            "messageId": harness.new_id(),
            "conversationId": f"{mission.group_id}:mission",
            "content": "how much",
        }
        raws.append(harness.owner.command("message.post", payload, group_id=mission.group_id))
    return min(calls(lambda sent=raw: harness.node.send(sent)) for raw in raws)


def quiet(harness: Harness) -> None:
    """Let the minute of the rate limit pass."""
    harness.advance(61)


def test_a_command_costs_the_same_with_many_keys(still: Harness) -> None:
    mission = still.mission()
    few = cost(still, mission)
    for number in range(100):
        still.bind(still.stranger(f"h{number}", "human"))
    assert len(still.node.registry) > 100
    assert cost(still, mission) <= few * GROWTH


def test_a_command_costs_the_same_in_a_long_log_and_beside_many_groups(still: Harness) -> None:
    mission = still.mission()
    mission.post(still.owner, "first")
    short = cost(still, mission)
    for number in range(600):
        if number % 100 == 0:
            quiet(still)
        mission.post(still.owner, "word")
    for _ in range(10):
        still.mission()
    quiet(still)
    assert cost(still, mission) <= short * GROWTH


def test_the_rate_is_counted_without_looking_at_the_log(still: Harness) -> None:
    mission = still.mission()
    mission.post(still.owner, "first")
    at_first = cost(still, mission)
    for _ in range(100):
        mission.post(still.owner, "word")
    # A hundred Messages within the minute, and the limit is near: it is one row, not a scan.
    assert cost(still, mission) <= at_first * GROWTH


def test_usage_costs_the_same_with_many_accounts(still: Harness) -> None:
    mission = still.mission()
    work = mission.work("active")
    kind = "ext.missionweaveprotocol.core.resource_usage_record"
    usage = dict.fromkeys(("modelTokens", "toolCalls", "computeSeconds", "wallClockSeconds"), 1)
    payload = {**work.held, "usageDelta": {**usage, "financialMicrounits": 0, "externalActions": 0}}

    def charge() -> int:
        raws = [still.workers[0].command(kind, payload, group_id=mission.group_id) for _ in range(3)]
        return min(calls(lambda sent=raw: still.node.send(sent)) for raw in raws)

    few = charge()
    for _ in range(60):
        mission.authorize(budget={"wallClockSecondsLimit": 1})
    assert charge() <= few * GROWTH


def test_a_frame_is_read_without_loading_a_schema(still: Harness) -> None:
    first, engine = (Engine(still.node, Replies(still.clock, still.entropy)) for _ in range(2))
    worker = still.workers[0]
    hello = (
        b'{"agentId":"%b","clientNonce":"Y2xpZW50","frameId":"urn:x:1","frameType":"HELLO","keyId":"%b",'
        b'"phase":"client_init","protocolVersion":"0.1","supportedVersions":["0.1"]}'
    ) % (worker.id.encode(), worker.key.key_id.encode())
    first.receive(hello)
    names = called(lambda: engine.receive(hello))
    assert len(names) < 1_000
    assert not {"open", "read", "read_text", "read_bytes", "compile"} & set(names)


def test_an_event_is_rendered_once_for_all_who_get_it(still: Harness) -> None:
    mission = still.mission()
    mission.post(still.owner, "for everybody")
    with still.node.read() as view:
        first, second = (view.events(mission.group_id, 1, 10)[0].event for _ in range(2))
    assert first == second == still.node.send(still.owner.sent)[0], "stored, sent and told again: the very same bytes"
