"""What stands before policy and state in a whole node, and what a fault in one Group leaves of another."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from mwnode.authority.state import ACCOUNTS
from mwnode.protocol.errors import MissionWeaveError
from mwnode.protocol.jcs import canonical
from mwnode.store import batch
from mwnode.store.environment import LmdbWriting
from mwnode.store.port import Head, NewEvent
from mwnode.store.verify import verify
from mwnode.testing import Harness, MissionHandle, flip_base64url
from mwnode.trust.keys import sign_mapping


def said(mwnode: Harness, mission: MissionHandle) -> dict[str, Any]:
    payload = {"messageId": mwnode.new_id(), "conversationId": f"{mission.group_id}:mission", "content": "hello"}
    command: dict[str, Any] = json.loads(mwnode.owner.command("message.post", payload, group_id=mission.group_id))
    return command


def unsigned(command: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in command.items() if name != "signature"}


def resigned(mwnode: Harness, command: dict[str, Any], **changes: Any) -> bytes:
    """The Command changed and signed anew by the owner."""
    return canonical(sign_mapping({**unsigned(command), **changes}, mwnode.owner.key, command["issuedAt"]))


def envelope(command: dict[str, Any], **changes: Any) -> bytes:
    return canonical({**command, "signature": {**command["signature"], **changes}})


STAGES: dict[str, tuple[Callable[[Harness, dict[str, Any]], bytes], str]] = {
    "1 parse": (lambda node, command: canonical(command)[:-1], "PROTOCOL_VIOLATION"),
    "2 schema": (lambda node, command: canonical({**command, "foo": 1}), "SCHEMA_VALIDATION_FAILED"),
    "3 envelope": (
        lambda node, command: envelope(command, createdAt="2031-01-01T00:00:00Z"),
        "AUTH_INVALID_SIGNATURE",
    ),
    "4 key": (lambda node, command: envelope(command, keyId="urn:example:key:none"), "AUTH_INVALID_SIGNATURE"),
    "4 signer": (
        lambda node, command: resigned(node, command, actor={"type": "human", "id": "urn:example:human:other"}),
        "AUTH_INVALID_SIGNATURE",
    ),
    "5 canonicalization": (
        lambda node, command: canonical(command).replace(b'"hello"', b'"\\ud800"'),
        "PROTOCOL_VIOLATION",
    ),
    "6 signature": (
        lambda node, command: envelope(command, value=flip_base64url(command["signature"]["value"])),
        "AUTH_INVALID_SIGNATURE",
    ),
    "freshness": (
        lambda node, command: canonical(
            sign_mapping(
                {**unsigned(command), "issuedAt": "2029-06-01T00:00:00Z"}, node.owner.key, "2029-06-01T00:00:00Z"
            )
        ),
        "AUTH_INVALID_SIGNATURE",
    ),
}


@pytest.mark.req("R-6.4-37", "R-6.4-78")
@pytest.mark.parametrize("stage", STAGES)
def test_nothing_is_decided_or_written_before_all_stages_passed(
    mwnode: Harness, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """Neither policy nor the log hears of a document that does not verify."""
    mission = mwnode.mission()
    before = mission.events()
    command = said(mwnode, mission)
    build, code = STAGES[stage]
    heard: list[str] = []
    real_decide, real_append = batch.decide, LmdbWriting.append

    def deciding(*arguments: Any) -> Any:
        heard.append("decide")
        return real_decide(*arguments)

    def appending(self: LmdbWriting, event: NewEvent) -> Head:
        heard.append("append")
        return real_append(self, event)

    monkeypatch.setattr(batch, "decide", deciding)
    monkeypatch.setattr(LmdbWriting, "append", appending)
    with pytest.raises(MissionWeaveError) as refused:
        mwnode.send(build(mwnode, command))
    assert refused.value.code == code
    assert heard == []
    assert mission.events() == before
    mwnode.send(canonical(command))
    assert heard == ["decide", "append"]


@pytest.mark.req("R-6.4-78", "R-8-05", "R-19-14")
def test_a_good_signature_gives_no_role(mwnode: Harness) -> None:
    """Who may is asked after who is: well signed, and refused as forbidden."""
    mission = mwnode.mission()
    worker = mwnode.workers[0]
    mission.add(worker)
    for who, kind, payload in (
        (worker, "mission.cancel", {"reason": "no"}),
        (mwnode.coordinator, "mission.cancel", {"reason": "no"}),
        (mwnode.organization, "membership.end", {"principal": {"type": "agent", "id": worker.id}}),
    ):
        error = who.refused(kind, payload, group_id=mission.group_id)
        assert error.code == "AUTH_FORBIDDEN", kind
        assert error.message != "signed document rejected"
    assert mission.state == "active"


@pytest.mark.req("R-4-07", "R-15.1-15")
def test_a_fault_in_one_group_leaves_the_other_whole(mwnode: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each log stands for itself; what is to be undone is undone by further Events."""
    home = mwnode.mission()
    other = mwnode.mission()
    home.add(mwnode.workers[0])
    work = home.authorize()
    work.offer()
    work.accept()
    work.start()
    content = work.publish()
    before = {mission.group_id: mission.events() for mission in (home, other)}
    payload = {"artifactHash": content, "toGroupId": other.group_id, "reason": "they need it"}
    forward = mwnode.owner.command("ext.mwnode.core.artifact_forward", payload, group_id=home.group_id)
    real = LmdbWriting.append

    def breaks_in_the_other(self: LmdbWriting, event: NewEvent) -> Head:
        if json.loads(event.event).get("groupId") == other.group_id:
            raise OSError("the other Group's log")
        return real(self, event)

    with monkeypatch.context() as patch:
        patch.setattr(LmdbWriting, "append", breaks_in_the_other)
        with pytest.raises(MissionWeaveError) as refused:
            mwnode.send(forward)
    assert refused.value.code == "INTERNAL_ERROR"
    assert {mission.group_id: mission.events() for mission in (home, other)} == before
    assert verify(mwnode.node.store).ok
    # The Groups go on, each by itself, and the same Command succeeds once the fault is gone.
    mwnode.send(canonical(said(mwnode, other)))
    mwnode.send(forward)
    kinds = [mission.events()[-1]["kind"] for mission in (home, other)]
    assert kinds == ["ext.mwnode.core.artifact_forwarded"] * 2
    assert [event["sequence"] for event in other.events()] == list(range(1, len(other.events()) + 1))
    mwnode.owner.send("mission.cancel", {"reason": "not needed"}, group_id=other.group_id)
    assert (home.state, other.state) == ("active", "cancelled")
    assert verify(mwnode.node.store).ok


@pytest.mark.req("R-3-04")
def test_a_restart_shows_the_same_authority(mwnode: Harness) -> None:
    mission = mwnode.mission()
    for _ in range(3):
        mwnode.send(canonical(said(mwnode, mission)))
        mwnode.restart()
    events = mission.events()
    assert len({(event["acceptedBy"]["id"], event["signature"]["keyId"]) for event in events}) == 1
    assert len({frozenset(event) for event in events if event["kind"] == "message.posted"}) == 1


@pytest.mark.req("R-12-25", "R-5-02")
def test_the_ledger_survives_a_restart(mwnode: Harness) -> None:
    six = {
        "currency": "EUR",
        "financialLimit": 2.5,
        "modelTokenLimit": 100,
        "toolCallLimit": 100,
        "computeSecondsLimit": 100,
        "wallClockSecondsLimit": 10_000,
        "externalSideEffectLimit": 100,
    }
    mission = mwnode.mission(budget=six)
    mission.add(mwnode.workers[0])
    work = mission.authorize(budget={**six, "financialLimit": 1.25})
    work.offer()
    work.accept()
    work.start()
    delta = {
        "financialMicrounits": 250_001,
        "modelTokens": 1,
        "toolCalls": 2,
        "computeSeconds": 3,
        "wallClockSeconds": 4,
        "externalActions": 5,
    }
    kind = "ext.missionweaveprotocol.core.resource_usage_record"
    mwnode.workers[0].send(kind, {**work.held, "usageDelta": delta}, group_id=mission.group_id)

    def ledger() -> list[Any]:
        with mwnode.node.read() as view:
            return [view.get(ACCOUNTS, name) for name in (mission.mission_id, work.work_item_id)]

    before = ledger()
    assert [row.used for row in before] == [(250_001, 1, 2, 3, 4, 5)] * 2
    mwnode.restart()
    assert ledger() == before
    over = {**work.held, "usageDelta": {**delta, "financialMicrounits": 1_000_000}}
    assert mwnode.workers[0].refused(kind, over, group_id=mission.group_id).code == "BUDGET_EXCEEDED"
