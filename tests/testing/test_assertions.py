"""What an assertion says when it fails is what somebody needs to go on."""

from __future__ import annotations

import pytest

from mwnode.testing import Harness, assert_events, assert_refused, assert_sound, assert_state, assert_unchanged


def test_a_state_that_is_not_there_is_told_with_what_happened(mwnode: Harness) -> None:
    work = mwnode.work("blocked")
    assert_state(work, "blocked", "queued")
    with pytest.raises(AssertionError) as told:
        assert_state(work, "verified")
    text = str(told.value)
    assert "the WorkItem is blocked, not verified" in text
    assert "work.blocked by urn:mwnode:agent:worker-1: blocked, The data is missing" in text
    with pytest.raises(AssertionError, match="the Mission is active, not approved or failed"):
        assert_state(work.mission, "approved", "failed")


def test_events_are_looked_for_in_order(mwnode: Harness) -> None:
    mission = mwnode.work("active").mission
    assert_events(mission, "work.offer.created", "work.started")
    with pytest.raises(AssertionError, match=r"no work.offer.created after work.started\. Its last Events:\n"):
        assert_events(mission, "work.started", "work.offer.created")
    with pytest.raises(AssertionError, match=r"no work.failed\. "):
        assert_events(mission, "work.failed")


def test_a_refusal_of_another_kind_is_shown(mwnode: Harness) -> None:
    work = mwnode.work("offered")
    error = assert_refused("INVALID_STATE_TRANSITION", work.review)
    assert error.rejection.rule
    with pytest.raises(AssertionError, match=r"refused with INVALID_STATE_TRANSITION, not BUDGET_EXCEEDED: .*offered"):
        assert_refused("BUDGET_EXCEEDED", work.review)
    with pytest.raises(AssertionError, match="accepted, and not refused with WORK_OFFER_EXPIRED"):
        assert_refused("WORK_OFFER_EXPIRED", work.accept)


def test_a_log_that_grew_is_shown(mwnode: Harness) -> None:
    mission = mwnode.mission()
    assert_unchanged(mission, lambda: mission.submit(["sha256:" + "0" * 64]))
    with pytest.raises(AssertionError, match=r"grew by 1 Events\. (?s:.*)message.posted by urn:mwnode:human:owner"):
        assert_unchanged(mission, lambda: mission.post(mwnode.owner, "something"))


def test_a_file_that_is_not_sound_is_told_by_its_findings(mwnode: Harness) -> None:
    mission = mwnode.mission("approved")
    assert_sound(mwnode)
    file = mwnode.node.store.file
    file.writing(lambda txn: txn.drop(file.dbs["receipts"], delete=False))
    with pytest.raises(AssertionError, match="the file is not sound: "):
        assert_sound(mwnode)
    assert mission.state == "approved", "the node is open again"
