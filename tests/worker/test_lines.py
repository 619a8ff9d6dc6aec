"""Whatever an executor reports, the Worker goes on, and sends nothing that the authority cannot read."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mwnode.testing import Harness
from mwnode.worker.steps import USAGE_LINE
from tests.worker.desk import CHECKED, Desk, Run, desk

MEMBERS = {
    "progress": (
        "currentPhase",
        "completedMilestones",
        "nextCheckpoint",
        "blockers",
        "updatedCompletionEstimate",
        "evidenceIds",
    ),
    "usage": tuple(USAGE_LINE),
    "evidence": ("criterionId", "type", "result", "method"),
    "checkpoint": ("phase", "completedMilestones", "nextStep"),
    "blocked": ("reason", "requiredResolution"),
}
UNREADABLE = frozenset({"INVALID_COMMAND", "SCHEMA_VALIDATION_FAILED", "PROTOCOL_VIOLATION", "INTERNAL_ERROR"})
odd = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([1, -1, 0.5, 2**53, 2**63, 2**64, 10**400, -(10**30), 1e16, 1e308, float("inf"), float("nan")]),
    st.sampled_from(["", "x" * 20_000, "2030-01-01T00:00:00Z", "green", "typo", "passed", "deterministic_test"]),
    st.sampled_from([[], {}, ["a", 1, None], [["x"]], {"phase": None}, {"a": [{}]}]),
)
lines = st.sampled_from(sorted(MEMBERS)).flatmap(
    lambda name: st.fixed_dictionaries(
        {name: odd | st.fixed_dictionaries({}, optional=dict.fromkeys(MEMBERS[name], odd))}
    )
)


def worked(harness: Harness, said: tuple[dict[str, Any], ...], status: int = 0) -> Desk:
    """A Worker whose executor has said all of that, and what came of it a while later."""
    work = harness.mission().authorize(**CHECKED)
    work.offer(harness.workers[0])
    worker = desk(harness, harness.workers[0], lambda assignment: Run(lines=said, status=status))
    worker.step()
    for _ in range(3):
        harness.clock.advance(60)
        worker.step()
    return worker


@settings(max_examples=60)
@given(said=st.lists(lines, min_size=1, max_size=4).map(tuple), status=st.sampled_from([0, 1, 75]))
def test_no_line_ends_the_worker_or_makes_a_command_that_cannot_be_read(said: Any, status: int) -> None:
    with TemporaryDirectory() as place, closing(Harness(Path(place) / "home", threads=False)) as harness:
        worker = worked(harness, said, status)
        assert [code for _, code in worker.refused if code in UNREADABLE] == []
        assert worker.launched


@pytest.mark.req("R-11.1-17")
@pytest.mark.parametrize("amount", [2**53, 2**64, 10**400, 1e308, float("inf")])
def test_usage_that_nobody_can_have_is_told_of_and_not_recorded(mwnode: Harness, amount: float) -> None:
    worker = worked(mwnode, ({"usage": {"toolCalls": amount, "modelTokens": 5}}, {"usage": {"toolCalls": 2}}))
    ignored = [note.details for note in worker.notes if note.event == "usage_ignored"]
    assert [one["because"].partition(":")[0] for one in ignored] == ["toolCalls"]
    used = [send.payload.usage_delta for send in worker.sent if send.kind.endswith("resource_usage_record")]
    assert sum(one.tool_calls for one in used) == 2
    assert sum(one.model_tokens for one in used) == 5


@pytest.mark.req("R-13.2-01")
@pytest.mark.parametrize(
    "name, value", [("criterionId", "typo"), ("type", "guess"), ("result", "perhaps"), ("type", {})]
)
def test_evidence_about_nothing_is_told_with_what_it_may_be_about(mwnode: Harness, name: str, value: Any) -> None:
    line = {"criterionId": "green", "type": "deterministic_test", "result": "passed"}
    worker = worked(mwnode, ({"evidence": {**line, name: value}},))
    (failed,) = [send.payload for send in worker.sent if send.kind == "work.fail"]
    assert failed.reason.startswith("EVIDENCE_MISSING: ")
    assert f"has the {name} {value!r}, which is none of " in failed.reason
    assert worker.refused == []
