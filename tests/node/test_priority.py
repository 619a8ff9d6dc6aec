"""A priority class is set by one Command for one revision, whatever is sent again."""

from __future__ import annotations

import pytest

from mwnode.authority.founding import priority_of
from mwnode.protocol.commands import CORE
from mwnode.protocol.errors import RevisionConflict
from mwnode.testing import Harness

PRIORITIZE = f"{CORE}.mission_prioritize"


@pytest.mark.req("R-11.1-08", "R-15.3-01")
def test_an_old_wish_sent_again_changes_nothing_and_a_stale_one_is_refused(mwnode: Harness) -> None:
    mission = mwnode.mission()
    revision = mission.revision
    high = {"priority": "high", "reason": "the customer waits"}
    raw = mwnode.owner.command(PRIORITIZE, high, group_id=mission.group_id, expected_revision=revision)
    first = mwnode.node.send(raw)
    mwnode.owner.send(PRIORITIZE, {"priority": "low", "reason": "it no longer does"}, group_id=mission.group_id)
    # The same bytes again are answered by the same receipt, and do not bring the old class back.
    assert mwnode.node.send(raw) == first
    assert (priority_of(mission.row.mission), mission.revision) == ("low", revision + 2)
    # Who decided on what was there before is told what is there now.
    with pytest.raises(RevisionConflict) as refused:
        mwnode.owner.send(PRIORITIZE, high, group_id=mission.group_id, expected_revision=revision)
    assert refused.value.rejection.current_revision == revision + 2
    assert priority_of(mission.row.mission) == "low"
    kinds = [event["kind"] for event in mission.events()]
    assert kinds.count(f"{CORE}.mission_prioritized") == 2
    mwnode.restart()
    assert priority_of(mission.row.mission) == "low"
