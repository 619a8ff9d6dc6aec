"""Epochs that do not concern the sender, through a node."""

from __future__ import annotations

import pytest

from mwnode.testing import Harness


@pytest.mark.req("R-19-14", "R-9.1-01")
@pytest.mark.parametrize("epoch", [1, 77])
def test_a_worker_that_states_a_coordinator_epoch_still_lacks_the_role(mwnode: Harness, epoch: int) -> None:
    mission = mwnode.mission()
    worker = mwnode.workers[0]
    mission.add(worker)
    before = mission.events()
    payload = {"workItemId": mwnode.new_id(), "contract": mwnode.contract()}
    error = worker.refused("work.authorize", payload, group_id=mission.group_id, coordinator_epoch=epoch)
    assert error.code == "AUTH_FORBIDDEN"
    assert mission.events() == before


@pytest.mark.req("R-7.2-03", "R-19-13")
@pytest.mark.parametrize("epoch", [2, 77])
def test_the_coordinator_itself_must_state_its_own_epoch(mwnode: Harness, epoch: int) -> None:
    mission = mwnode.mission()
    payload = {"workItemId": mwnode.new_id(), "contract": mwnode.contract()}
    error = mwnode.coordinator.refused("work.authorize", payload, group_id=mission.group_id, coordinator_epoch=epoch)
    assert error.code == "AUTH_STALE_COORDINATOR"
    assert len(mission.events()) == 1
