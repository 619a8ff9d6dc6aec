"""A node without threads of its own does everything when it is told to, and nothing before."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from mwnode.client.commands import signed_command
from mwnode.gateway.ports import Origin
from mwnode.node import Node
from mwnode.protocol.errors import MissionWeaveError
from mwnode.testing import Harness, ManualClock, SeededEntropy


def opened(home: Path, calls: list[None], clock: ManualClock | None = None) -> Node:
    return Node.open(
        home,
        clock=clock or ManualClock(),
        entropy=SeededEntropy(7),
        durable=False,
        on_work=lambda: calls.append(None),
    )


def command(node: Node) -> bytes:
    key = node.home.key("owner")
    now = node.clock.now().text()
    payload = {"missionId": "urn:example:mission", "groupId": "urn:example:group"}
    return signed_command(
        key, "mission.create", payload, action_id="urn:example:1", issued_at=now, group_id="urn:example:group"
    )


def test_it_has_no_threads_and_acts_only_when_stepped(tmp_path: Path) -> None:
    before, calls = threading.active_count(), []
    with opened(tmp_path / "home", calls) as node:
        assert threading.active_count() == before
        calls.clear()
        answers: list[object] = []
        node.submit(command(node), Origin(transport="http"), answers.append)
        assert calls
        assert not answers
        while node.step():
            pass
        assert len(answers) == 1
        assert not node.step()


def test_who_waits_for_an_answer_does_the_work(tmp_path: Path) -> None:
    with opened(tmp_path / "home", []) as node:
        with pytest.raises(MissionWeaveError):
            node.send(command(node))
        assert node.call(lambda txn: txn.put_meta("kept", b"1")).result() is None
        with node.read() as view:
            assert view.meta("kept") == b"1"
        future = node.call(lambda txn: txn.put_meta("kept", b"2"))
    assert future.done(), "closing finishes what is queued"


def test_a_result_that_nothing_leads_to_is_told(tmp_path: Path) -> None:
    with opened(tmp_path / "home", []) as node:
        answer = node._future()
        with pytest.raises(RuntimeError, match="nothing is left to do"):
            answer.result()


def test_what_comes_due_waits_for_a_step_too(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "home")
    mission = harness.mission(coordinatorLeaseSeconds=60)
    harness.close()
    clock = ManualClock(harness.clock.now().text())
    with opened(tmp_path / "home", [], clock) as node:

        def kinds() -> list[str]:
            with node.read() as view:
                return [msgspec.json.decode(one.event)["kind"] for one in view.events(mission.group_id, 0, 100)]

        while node.step():
            pass
        assert node.seconds_to_due() is not None
        before = kinds()
        clock.advance(3600)
        assert node.seconds_to_due() == 0
        assert kinds() == before
        while node.step():
            pass
        assert len(kinds()) > len(before)
