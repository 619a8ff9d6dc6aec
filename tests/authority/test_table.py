"""The tables themselves: complete, consistent, and each with its complement."""

from __future__ import annotations

import pytest

from mwnode.authority.case import Refused
from mwnode.authority.aggregates import DECIDERS
from mwnode.authority.standing import MAY_SEND
from mwnode.authority.table import (
    MISSION,
    MISSION_ADMITS,
    MISSION_MOVES,
    MISSION_STATES,
    MISSION_TERMINAL,
    TERMINAL,
    WORK_ITEM,
    WORK_ITEM_ADMITS,
    WORK_ITEM_COMMANDS,
    WORK_ITEM_MOVES,
    WORK_ITEM_STATES,
    admit_mission,
    admit_work_item,
)
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import EVENT_PAYLOADS
from tests.requirements import REQUIREMENTS, load_rows

# Section 10.2 as it is written: Command, source states, next states.
SECTION_10_2 = {
    "work.offer": ("open offered queued active blocked failed", {"offered"}),
    "work.accept_offer": ("offered", {"queued"}),
    "approval.grant_execution": ("queued", {"queued"}),
    "work.start": ("queued", {"active"}),
    "work.checkpoint": ("active", {"queued"}),
    "work.block": ("active", {"blocked"}),
    "work.unblock": ("blocked", {"queued", "open"}),
    "work.submit": ("active", {"submitted"}),
    "work.accept_result": ("submitted", {"verified"}),
    "work.fail": ("open offered queued active blocked submitted", {"failed"}),
    "work.cancel": ("open offered queued active blocked submitted", {"cancelled"}),
    "mission.create_child": ("open offered queued active blocked", {"blocked"}),
}
SECTION_7_1 = {
    "mission.submit_for_approval": ("active", "awaiting_approval"),
    "mission.request_changes": ("awaiting_approval", "active"),
    "mission.approve": ("awaiting_approval", "approved"),
    "mission.cancel": ("active awaiting_approval", "cancelled"),
    "mission.terminate": ("active awaiting_approval", "failed"),
}


@pytest.mark.parametrize("kind", SECTION_10_2)
def test_work_item_rows_are_those_of_section_10_2(kind: str) -> None:
    sources, following = SECTION_10_2[kind]
    rows = [row for row in WORK_ITEM if row.command == kind]
    assert {row.state for row in rows} == set(sources.split())
    assert {row.next for row in rows} == following


@pytest.mark.parametrize("kind", SECTION_7_1)
def test_mission_rows_are_those_of_section_7_1(kind: str) -> None:
    sources, following = SECTION_7_1[kind]
    rows = [row for row in MISSION if row.command == kind]
    assert {row.state for row in rows} == set(sources.split())
    assert {row.next for row in rows} == {following}


@pytest.mark.req("R-10.2-42")
@pytest.mark.parametrize("state", WORK_ITEM_STATES)
def test_every_pair_outside_the_table_is_refused(state: str) -> None:
    for kind in WORK_ITEM_COMMANDS:
        if (state, kind) in WORK_ITEM_ADMITS:
            assert admit_work_item(state, kind).state == state
            continue
        with pytest.raises(Refused) as refused:
            admit_work_item(state, kind)
        assert refused.value.rejection.code is ErrorCode.INVALID_STATE_TRANSITION


@pytest.mark.req("R-10.2-39")
def test_ended_work_items_have_no_way_out() -> None:
    assert not [row for row in WORK_ITEM if row.state in TERMINAL and row.next != row.state]
    for state in TERMINAL:
        assert not [kind for kind in WORK_ITEM_COMMANDS if (state, kind) in WORK_ITEM_ADMITS]


@pytest.mark.req("R-10.2-40")
def test_failed_work_items_leave_by_an_offer_only() -> None:
    leaving = {row.command for row in WORK_ITEM if row.state == "failed" and row.next != "failed"}
    assert leaving == {"work.offer"}


@pytest.mark.req("R-7.1-23")
@pytest.mark.parametrize("state", MISSION_TERMINAL)
def test_ended_missions_have_no_way_out(state: str) -> None:
    assert not [row for row in MISSION if row.state == state]
    for kind in SECTION_7_1:
        with pytest.raises(Refused) as refused:
            admit_mission(state, kind)
        assert refused.value.rejection.code is ErrorCode.INVALID_STATE_TRANSITION


def test_every_kind_knows_in_which_mission_states_it_is_possible() -> None:
    assert set(MISSION_ADMITS) == set(MAY_SEND) - {kind for kind in MAY_SEND if _without_mission(kind)}
    assert all(states <= set(MISSION_STATES) for states in MISSION_ADMITS.values())


def _without_mission(kind: str) -> bool:
    return kind.rsplit(".", 1)[1] in (
        "agent_card_register",
        "session_open",
        "key_bind",
        "key_restrict",
        "profile_register",
    )


def test_tables_name_kinds_and_requirements_that_exist() -> None:
    known = {row.id for row in load_rows(REQUIREMENTS)}
    for row in (*WORK_ITEM, *MISSION):
        assert row.event in EVENT_PAYLOADS
        assert row.command is None or row.command in DECIDERS
        assert row.rule in known, row.rule


def test_moves_agree_with_the_rows() -> None:
    for row in WORK_ITEM:
        assert row.next in WORK_ITEM_MOVES[row.state, row.event]
    for row in MISSION:
        assert MISSION_MOVES[row.state, row.event] == row.next


def test_no_command_has_two_meanings_in_one_state() -> None:
    # work.unblock alone leads two ways: by whether the owner is live (R-10.2-21).
    pairs = [(row.state, row.command) for row in WORK_ITEM if row.command not in (None, "work.unblock")]
    assert len(pairs) == len(set(pairs))
