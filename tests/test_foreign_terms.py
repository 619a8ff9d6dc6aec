"""Contracts, Messages and manifests of others: what is free in them may have any shape, and ends no reader."""

from __future__ import annotations

import asyncio
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mwnode.authority.requests import unanswered
from mwnode.cli.missions import file_names
from mwnode.narrative import mission_title, work_item_name, work_item_round
from mwnode.protocol.identifiers import (
    CORE_EXTENSION,
    EVIDENCE_SCHEMA,
    INPUTS_SCHEMA,
    OVERRIDE_SCHEMA,
    RETRY_SCHEMA,
    mission_conversation_id,
)
from mwnode.testing import Harness
from mwnode.worker.effects import Assignment
from mwnode.worker.slots import Slot, SlotError
from tests.coordinator.desk import SINGLE, coordinate, make_plan
from tests.coordinator.test_growing import propose
from tests.worker.desk import Run, desk

odd = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from([0, -1, 7, 1.5]),
        st.sampled_from(["", "x", "exit 0", "report", "../up", "a\x00b", "sha256:" + "0" * 64]),
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["path", "report", "green", "contentHash", "question", "answer", "round", "workItemId", "files"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
NAMES = (
    "localId",
    "run",
    "deliverables",
    "checks",
    "inputs",
    "clarifications",
    "correction",
    "rework",
    "review",
    "attempt",
)
constraints = st.dictionaries(st.sampled_from(NAMES), odd, max_size=5)
SCHEMAS = (RETRY_SCHEMA, INPUTS_SCHEMA, EVIDENCE_SCHEMA, OVERRIDE_SCHEMA)
"""Clarifications have one shape, which the authority enforces."""
blocks = st.builds(
    lambda schema, data: {"type": "data_ref", "schema": schema, "data": data}, st.sampled_from(SCHEMAS), odd
)


async def _nothing(content_hash: str, path: Path) -> None:
    path.write_bytes(b"")


def _through_a_slot(assignment: Assignment, place: Path) -> None:
    """All that a slot reads of a contract."""
    slot = Slot(place, assignment)
    with suppress(SlotError):  # the only fault that a Worker reports as its work's
        asyncio.run(slot.prepare(_nothing, None))
        slot.environment({})
        (slot.outputs / "report").write_bytes(b"result\n")
        slot.deliverables(1_000_000)


@settings(max_examples=40)
@given(given_constraints=constraints)
def test_a_worker_takes_or_declines_whatever_a_contract_says_besides(given_constraints: dict[str, Any]) -> None:
    with TemporaryDirectory() as place, closing(Harness(Path(place) / "home", threads=False)) as harness:
        work = harness.mission().authorize(constraints=given_constraints)
        work.offer(harness.workers[0])
        launched: list[Assignment] = []

        def behave(assignment: Assignment) -> Run:
            launched.append(assignment)
            return Run()

        worker = desk(harness, harness.workers[0], behave)
        worker.step()
        for number, assignment in enumerate(launched):
            _through_a_slot(assignment, Path(place) / f"slots{number}")
        assert launched or worker.sent, "it said what it does about the offer"


@settings(max_examples=40)
@given(proposed=constraints, said=st.lists(blocks, min_size=1, max_size=3))
def test_a_coordinator_goes_on_whatever_is_proposed_or_said(proposed: dict[str, Any], said: list[Any]) -> None:
    with TemporaryDirectory() as place, closing(Harness(Path(place) / "home", threads=False)) as harness:
        coordinator = coordinate(harness, plan=make_plan(SINGLE))
        coordinator.step()
        worker = desk(harness, harness.workers[0], lambda assignment: Run(status=None))
        worker.step()
        coordinator.step()
        group_id = coordinator.mission.group_id
        propose(harness, coordinator, constraints=proposed)
        main = mission_conversation_id(group_id)
        for author in (harness.owner, harness.workers[0]):
            message = {"messageId": harness.new_id(), "conversationId": main, "content": said}
            author.send("message.post", message, group_id=group_id)
        coordinator.step()
        worker.step()
        coordinator.step()
        with harness.node.read() as view:
            unanswered(view, coordinator.mission.row)
        assert coordinator.engine.board.sequence == len(coordinator.mission.events())


@given(value=odd, constraints=constraints)
def test_what_is_shown_to_people_has_a_name_whatever_the_documents_say(value: Any, constraints: dict[str, Any]) -> None:
    extensions = {CORE_EXTENSION: {"version": "1.0.0", "critical": False, "data": value}}
    item = {"contract": {"goal": "Sort", "constraints": constraints}, "extensions": extensions}
    mission = {"objective": "Sort the words", "extensions": extensions}
    assert work_item_name(item)
    assert isinstance(work_item_name(item), str)
    assert isinstance(work_item_round(item), int)
    assert isinstance(mission_title(mission), str)
    assert all(isinstance(name, str) for name in file_names({"extensions": extensions}))
