"""A node from opening to closing, in process, through what ``mwnode.testing`` offers to everybody."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mwnode.home import HomeError
from mwnode.node import Node
from mwnode.store.audit import opened
from mwnode.store.errors import StoreBusy
from mwnode.store.layout import DATABASES
from mwnode.store.pages import ReadPages
from mwnode.store.verify import verify
from mwnode.testing import Harness, ManualClock, SeededEntropy


@pytest.mark.req("R-5-02", "R-4-09", "R-7.1-17")
def test_a_mission_lives_through_restarts(mwnode: Harness) -> None:
    mission = mwnode.mission()
    work = mission.authorize()
    mwnode.restart()
    work.offer()
    mwnode.restart()
    work.accept()
    work.start()
    mwnode.restart()
    content_hash = work.publish()
    work.submit([content_hash])
    mwnode.restart()
    work.review()
    assert mission.state == "active", "verified work alone does not complete a Mission"
    mission.submit([content_hash])
    mission.approve()
    before = mission.events()
    mwnode.restart()
    assert mission.state == "approved"
    assert mission.events() == before


@pytest.mark.req("R-5-02")
def test_a_node_starts_from_its_rows_and_replays_nothing(mwnode: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: Counter[str] = Counter()

    def counted(name: str) -> None:
        real = getattr(ReadPages, name)

        def reading(self: ReadPages, db: str, *arguments: Any) -> Any:
            reads[db] += 1
            found = real(self, db, *arguments)
            return map(partial(noted, db), found) if name == "scan" else found

        monkeypatch.setattr(ReadPages, name, reading)

    def noted(db: str, entry: Any) -> Any:
        reads[db] += 1
        return entry

    for name in ("get", "get_many", "scan", "last"):
        counted(name)

    def started() -> dict[str, int]:
        before = everything(mwnode)
        reads.clear()
        mwnode.restart()
        after = {db: reads[db] for db in ("log", "places", "event_ids", "commands", "receipts", "entities", "listing")}
        assert everything(mwnode) == before
        return after

    mission = mwnode.mission()
    mission.work("active")
    short = started()
    for number in range(100):
        mission.post(mwnode.owner, f"line {number}")
    long = started()
    assert long == {**short, "entities": long["entities"]}, "no Event is read, however many there are"
    assert long["entities"] - short["entities"] < 100, "and not the rows of what was said"
    report = verify(mwnode.node.store)
    assert report.ok, report.findings


def everything(harness: Harness) -> dict[str, list[tuple[bytes, bytes]]]:
    """Every entry of the file but the diagnostics."""
    with harness.node.store.read() as view:
        return {db: list(view.pages.scan(db, b"")) for db in DATABASES if db not in {"audit", "proofs"}}


@pytest.mark.req("R-6.4-77", "R-19-11")
@pytest.mark.parametrize("seconds,accepted", [(-300, True), (-301, False), (60, True), (61, False)])
def test_a_command_must_be_fresh_on_both_sides(mwnode: Harness, seconds: int, accepted: bool) -> None:
    mission = mwnode.mission()
    payload = {"messageId": mwnode.new_id(), "conversationId": f"{mission.group_id}:mission", "content": "when"}
    issued_at = mwnode.clock.now().plus(seconds).text()
    if accepted:
        # The owner's key is valid since a freshness window before the node was made.
        assert mwnode.owner.send("message.post", payload, group_id=mission.group_id, issued_at=issued_at)
    else:
        error = mwnode.owner.refused("message.post", payload, group_id=mission.group_id, issued_at=issued_at)
        assert error.code == "AUTH_INVALID_SIGNATURE"
        assert error.message == "signed document rejected"
        assert len(mission.events()) == 1


def test_a_second_node_on_one_file_is_told_who_holds_it(mwnode: Harness) -> None:
    with pytest.raises(StoreBusy, match="in use by"):
        Node.open(mwnode.home, clock=ManualClock(), entropy=SeededEntropy(9))


def test_a_store_of_another_organization_is_refused(tmp_path: Path) -> None:
    clock, entropy = ManualClock(), SeededEntropy(1)
    Node.open(tmp_path / "one", clock=clock, entropy=entropy, durable=False).close()
    Node.open(tmp_path / "two", clock=clock, entropy=entropy, durable=False).close()
    for name in ("node.mdb",):
        (tmp_path / "two" / name).write_bytes((tmp_path / "one" / name).read_bytes())
    with pytest.raises(HomeError, match="belongs to Organization"):
        Node.open(tmp_path / "two", clock=clock, entropy=entropy, durable=False)


def test_a_changed_policy_becomes_a_new_version_in_the_log(tmp_path: Path) -> None:
    clock, entropy = ManualClock(), SeededEntropy(2)
    with Node.open(tmp_path / "home", clock=clock, entropy=entropy, durable=False) as node:
        assert node.policy.version == "1.0.0"
    settings = tmp_path / "home" / "mwnode.toml"
    settings.write_text(settings.read_text().replace("[policy]\n", "[policy]\nmessage_rate = 7\n"))
    for _ in range(2):
        with Node.open(tmp_path / "home", clock=clock, entropy=entropy, durable=False) as node:
            assert node.policy.version == "1.1.0", "the same policy again is no new version"
            assert node.policy.message_rate == 7
            with node.read() as view:
                adopted = [e for e in view.policy_log(None) if e.decision == "policy adopted"]
    assert [entry.details["policyVersion"] for entry in adopted] == ["1.0.0", "1.1.0"]


@pytest.mark.req("R-6.4-81", "R-6.4-82")
def test_a_refused_signature_tells_the_wire_nothing_and_the_audit_everything(mwnode: Harness) -> None:
    mission = mwnode.mission()
    payload = {"messageId": mwnode.new_id(), "conversationId": f"{mission.group_id}:mission", "content": "when"}
    command = json.loads(mwnode.owner.command("message.post", payload, group_id=mission.group_id))
    command["payload"]["content"] = "changed afterwards"
    with pytest.raises(Exception, match=r"^signed document rejected$"):
        mwnode.node.send(json.dumps(command).encode())
    mwnode.node.call(lambda txn: None).result()
    with mwnode.node.read() as view:
        rows = [row for _, row in view.audit(0, 100)]
    assert [opened(row, mwnode.node.home.key("audit")).stage for row in rows] == ["signature"]
    assert len(mission.events()) == 1
