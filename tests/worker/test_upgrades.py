"""Another Agent Card while work waits or runs."""

from __future__ import annotations

import msgspec
import pytest

from mwnode.genesis import service_command
from mwnode.protocol.documents import CapabilityRef
from mwnode.testing import Harness
from mwnode.trust.keys import sign_mapping
from tests.worker.desk import CHECKED, Run, card_of, desk, never


def register(mwnode: Harness, *versions: str) -> tuple[CapabilityRef, ...]:
    """The Organization registers a new Card of the first Worker with these versions of its capability."""
    card = card_of(mwnode)
    capabilities = [
        {
            **msgspec.to_builtins(card.capabilities[0]),
            "id": f"mwnode.generic{index or ''}",
            "version": one,
        }
        for index, one in enumerate(versions)
    ]
    root, now = mwnode.organization.key, mwnode.clock.now().text()
    members = {name: value for name, value in msgspec.to_builtins(card).items() if name != "signature"}
    members |= {"cardVersion": card.card_version + 1, "capabilities": capabilities, "issuedAt": now}
    payload = {"card": sign_mapping(members, root, now)}
    kind = "ext.missionweaveprotocol.registry.agent_card_register"
    mwnode.send(service_command(root, kind, payload, mwnode.clock, mwnode.entropy))
    return tuple(CapabilityRef(id=one["id"], version=one["version"]) for one in capabilities)


@pytest.mark.req("R-6.1-08")
def test_after_an_incompatible_upgrade_work_runs_on_only_when_accepted_anew(mwnode: Harness) -> None:
    mission = mwnode.mission()
    running, waiting = mission.authorize(**CHECKED), mission.authorize(**CHECKED, businessImpact="second")
    for work in (running, waiting):
        work.offer(mwnode.workers[0])
    line = {"checkpoint": {"phase": "half", "completedMilestones": ["a"]}}
    worker = desk(mwnode, behave=lambda assignment: Run(status=None, lines=(line,))).step()
    assert (running.state, waiting.state) == ("active", "queued")
    worker.engine.upgraded(register(mwnode, "2.0.0"))
    worker.step()
    assert worker.asked == [worker.launched[0].run_id]
    assert running.state == "queued"
    checkpoint = running.row.checkpoints[-1]
    assert checkpoint.phase == "half"
    # Nothing runs on, neither what was stopped nor what still waited, and nothing is held on to.
    worker.pass_time(930, 30)
    assert len(worker.launched) == 1
    assert "work.start" not in worker.kinds()[worker.kinds().index("work.checkpoint") :]
    held = {"ownershipEpoch": running.row.ownership_epoch, "workItemId": running.work_item_id}
    assert mwnode.workers[0].refused("work.start", held, group_id=mission.group_id).code.value in (
        "AUTH_FORBIDDEN",
        "WORK_LEASE_EXPIRED",
    )
    # Offered under a contract that the new Card satisfies, it is accepted and goes on from the checkpoint.
    contract = mwnode.contract(
        **CHECKED, contractVersion=2, requiredCapabilities=[{"id": "mwnode.generic", "version": "2.0.0"}]
    )
    running.offer(mwnode.workers[0], contract=contract)
    worker.step()
    assert running.state == "active"
    assert running.row.ownership_epoch > 1
    assert worker.launched[1].checkpoint is not None
    assert worker.launched[1].checkpoint.phase == "half"


@pytest.mark.req("R-6.1-07")
def test_after_a_compatible_upgrade_work_goes_on_in_place(mwnode: Harness) -> None:
    work = mwnode.mission().authorize(**CHECKED)
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=never).step()
    worker.engine.upgraded(register(mwnode, "1.4.0", "3.0.0"))
    worker.pass_time(10)
    assert worker.asked == []
    worker.end(worker.launched[0].run_id, 0)
    worker.step()
    assert work.state == "submitted"
