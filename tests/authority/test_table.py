"""The tables themselves: complete, consistent, and each with its complement."""

from __future__ import annotations

import pytest

from mwnode.authority.aggregates import DECIDERS
from mwnode.authority.case import Refused
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
COMPLEMENTS = {
    "work.offer": "R-10.2-06",
    "work.accept_offer": "R-10.2-10",
    "approval.grant_execution": "R-10.2-14",
    "work.start": "R-10.2-16",
    "work.checkpoint": "R-10.2-18",
    "work.block": "R-10.2-20",
    "work.unblock": "R-10.2-22",
    "work.submit": "R-10.2-24",
    "work.accept_result": "R-10.2-26",
    "work.fail": "R-10.2-28",
    "work.cancel": "R-10.2-30",
    "mission.create_child": "R-10.2-32",
}
MISSION_COMPLEMENTS = {
    "mission.submit_for_approval": "R-7.1-14",
    "mission.request_changes": "R-7.1-16",
    "mission.approve": "R-7.1-18",
    "mission.cancel": "R-7.1-20",
    "mission.terminate": "R-7.1-22",
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


@pytest.mark.req("R-10.2-39", "R-10.2-40", "R-10.2-42")
@pytest.mark.parametrize("state", WORK_ITEM_STATES)
def test_a_refusal_for_the_state_names_its_rule(state: str) -> None:
    for kind in WORK_ITEM_COMMANDS:
        if (state, kind) in WORK_ITEM_ADMITS:
            continue
        with pytest.raises(Refused) as refused:
            admit_work_item(state, kind)
        rejection = refused.value.rejection
        expected = "R-10.2-39" if state in TERMINAL else COMPLEMENTS.get(kind)
        if expected is None:
            expected = "R-10.2-40" if state == "failed" else "R-10.2-42"
        assert (rejection.rule, rejection.details) == (expected, {"state": state}), kind
        assert kind in rejection.message
        assert state in rejection.message


@pytest.mark.req("R-7.1-23")
@pytest.mark.parametrize("state", MISSION_STATES)
def test_a_refusal_for_the_missions_state_names_its_rule(state: str) -> None:
    for kind, admitted in MISSION_ADMITS.items():
        if state in admitted:
            admit_mission(state, kind)
            continue
        with pytest.raises(Refused) as refused:
            admit_mission(state, kind)
        rejection = refused.value.rejection
        expected = MISSION_COMPLEMENTS.get(kind) or ("R-7.1-23" if state in MISSION_TERMINAL else "R-19-20")
        assert (rejection.rule, rejection.details) == (expected, {"state": state}), kind


LIVE_ONLY = [
    "mission.assign_coordinator",
    "mission.renew_coordinator",
    "membership.change",
    "membership.end",
    "policy.grant_cooperation_override",
    "work.checkpoint",
    "work.block",
    "work.submit",
    "work.fail",
    "work.cancel",
    "artifact.publish",
]
ACTIVE_ONLY = [
    "mission.create_child",
    "membership.grant_delegation",
    "work.propose",
    "work.authorize",
    "work.offer",
    "work.accept_offer",
    "approval.grant_execution",
    "work.start",
    "work.unblock",
    "work.accept_result",
]


@pytest.mark.req("R-7.1-23")
def test_what_a_mission_admits_ends_with_it() -> None:
    """Work begins only while the Mission is active; what runs may come to its end until the Mission's own."""
    assert MISSION_STATES == ("active", "awaiting_approval", "approved", "failed", "cancelled")
    for kind in ACTIVE_ONLY:
        assert MISSION_ADMITS[kind] == {"active"}, kind
    for kind in LIVE_ONLY:
        assert MISSION_ADMITS[kind] == {"active", "awaiting_approval"}, kind
    for kind in ("message.post", "message.correct", "message.retract", "message.redact"):
        assert MISSION_ADMITS[kind] == set(MISSION_STATES), kind  # decision D69
    assert MISSION_ADMITS["ext.missionweaveprotocol.core.group_archive"] == set(MISSION_TERMINAL)
    assert set(MISSION_TERMINAL) == {"approved", "failed", "cancelled"}


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
    for (state, event), following in WORK_ITEM_MOVES.items():
        assert following == {row.next for row in WORK_ITEM if row.state == state and row.event == event}
    for row in MISSION:
        assert MISSION_MOVES[row.state, row.event] == row.next


def test_no_command_has_two_meanings_in_one_state() -> None:
    # work.unblock alone leads two ways: by whether the owner is live (R-10.2-21).
    pairs = [(row.state, row.command) for row in WORK_ITEM if row.command not in (None, "work.unblock")]
    assert len(pairs) == len(set(pairs))
