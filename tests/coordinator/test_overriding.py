"""What a limit of policy stops: the Coordinator asks for an override, and goes on with it, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mwnode.authority import views
from mwnode.protocol.commands import MessagePost
from mwnode.protocol.documents import Actor, DataBlock
from mwnode.protocol.errors import RateLimited
from mwnode.protocol.events import CooperationOverrideGrant
from mwnode.testing import Harness
from tests.cli.finished import harness
from tests.cli.support import cli
from tests.coordinator.desk import coordinate
from tests.coordinator.test_children import Family
from tests.coordinator.test_engine import team

pytestmark = pytest.mark.req("R-15.1-12", "R-20-07")


def _waiting(node: Harness) -> list[dict[str, Any]]:
    with node.node.read() as view:
        owner = Actor(type="human", id=node.owner.id)
        return views.waiting_for(view, owner, node.node.policy, node.clock.now())


def _asked(family: Family) -> list[dict[str, Any]]:
    return [
        block["data"]
        for event in family.parent.mission.events()
        if event["kind"] == "message.posted"
        for block in event["payload"]["message"]["content"]
        if block.get("schema") == "urn:mwnode:schema:override"
    ]


def _flat(node: Harness) -> None:
    """No Mission may have a child from now on."""
    settings = node.node.home.path / "mwnode.toml"
    settings.write_text(settings.read_text().replace("[policy]\n", "[policy]\ndelegation_depth = 0\n"))
    node.restart()


@pytest.mark.req("R-14-11")
def test_a_child_beyond_the_depth_is_asked_for_and_made_once_granted(tmp_path: Path) -> None:
    node = harness(tmp_path / "home")
    _flat(node)
    family = Family(node, tmp_path)
    family.work(rounds=8)
    (data,) = _asked(family)
    assert (data["policyName"], data["targetCommandKind"]) == ("delegation_depth", "mission.create_child")
    assert family.parent.followed == []
    # Nothing is hammered: refused once, then asked.
    assert family.parent.refused == [("mission.create_child", "RATE_LIMITED")]
    waits = [one for one in _waiting(node) if one["action"].startswith("policy.grant_cooperation_override")]
    assert [(one["who"]["id"], one["on"]["kind"]) for one in waits] == [(node.owner.id, "mission")]
    # A Coordinator that starts anew finds its own request.
    family.parent = coordinate(node, family.parent.mission, family.plan)
    family.parent.absent.add(family.second.id)
    family.work(rounds=3)
    assert len(_asked(family)) == 1
    mission_id, people = family.parent.mission.mission_id, team(node)
    node.close()

    home = ("--home", tmp_path / "home")
    assert "nobody can be asked" in cli("mission", "override", mission_id, *home).err
    granted = cli("mission", "override", mission_id, "--yes", *home)
    assert granted.status == 0, granted.err
    again = cli("mission", "override", mission_id, "--yes", *home)
    assert again.status == 1
    assert "asked for no override that is still open" in again.err

    node.restart()
    assert [one for one in _waiting(node) if one["action"].startswith("policy.")] == []
    family.parent.step()
    family.work(*people, rounds=25)
    assert family.parent.state("docs") == "verified"
    create = [one for one in family.parent.sent if one.kind == "mission.create_child"][-1]
    assert (create.action_id, create.cooperation_override_grant_id is not None) == (data["targetActionId"], True)


@pytest.mark.req("R-20-08")
def test_in_a_child_mission_the_organization_grants_it(tmp_path: Path) -> None:
    node = harness(tmp_path / "home")
    family = Family(node, tmp_path)
    family.work(rounds=3)
    child = family.inner.mission
    data = {
        "policyName": "delegation_depth",
        "targetCommandKind": "work.authorize",
        "targetActionId": "urn:example:action:deep",
        "reason": "authorize deep: one level more",
    }
    block = {"type": "data_ref", "schema": "urn:mwnode:schema:override", "data": data}
    family._post(child, family.second, [{"type": "text", "text": "please"}, block])
    assert any(one["action"].endswith("authorize deep: one level more") for one in _waiting(node))
    node.close()
    granted = cli("mission", "override", child.mission_id, "--yes", "--home", tmp_path / "home")
    assert granted.status == 0, granted.err
    node.restart()
    (event,) = [one for one in child.events() if one["kind"] == "policy.cooperation_override.granted"]
    grant = event["payload"]["cooperationOverrideGrant"]
    assert grant["approver"]["type"] == "service"
    assert (grant["beneficiary"]["id"], grant["targetActionId"]) == (family.second.id, data["targetActionId"])
    node.close()


def test_a_grant_that_ran_out_is_asked_for_anew_and_a_rate_is_waited_for(mwnode: Harness) -> None:
    desk = coordinate(mwnode).step()
    overriding, board = desk.engine.overriding, desk.engine.board
    limited = RateLimited("too deep; wait", details={"policyName": "delegation_depth"})
    first = overriding.question("promote x", "mission.create_child", limited)
    assert first is not None
    target = _target(first)
    board.asked_overrides.add(target)
    assert overriding.question("promote x", "mission.create_child", limited) is None
    board.overrides[target] = _grant(mwnode, target, seconds=60)
    passed = overriding.passed("promote x", "mission.create_child")
    assert passed is not None
    assert passed.action_id == target
    assert overriding.passed("promote y", "mission.create_child") is None
    mwnode.advance(61)
    assert overriding.passed("promote x", "mission.create_child") is None
    second = overriding.question("promote x", "mission.create_child", limited)
    assert second is not None
    assert _target(second) != target
    busy = RateLimited("120 per minute", details={"policyName": "message_rate"}, retry_after_ms=500)
    assert overriding.question("say x", "message.post", busy) is None


def _target(message: MessagePost) -> str:
    (block,) = [one for one in message.content if isinstance(one, DataBlock)]
    assert isinstance(block.data, dict)
    return str(block.data["targetActionId"])


def _grant(node: Harness, target: str, seconds: int) -> CooperationOverrideGrant:
    now, owner = node.clock.now(), Actor(type="human", id=node.owner.id)
    return CooperationOverrideGrant(
        grant_id="urn:example:grant:1",
        mission_id="urn:example:mission:1",
        group_id="urn:example:group:1",
        policy_name="delegation_depth",
        beneficiary=Actor(type="agent", id=node.coordinator.id),
        target_command_kind="mission.create_child",
        target_action_id=target,
        approver=owner,
        reason="so be it",
        granted_at=now.text(),
        expires_at=now.plus(seconds).text(),
    )
