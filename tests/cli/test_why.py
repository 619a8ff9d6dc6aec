"""Why something is where it is: facts with their Events and rules, in order, without what does not matter."""

from __future__ import annotations

from typing import Any

import pytest

from mwnode.cli.exits import Failure
from mwnode.cli.why import RULES, chain, find
from mwnode.protocol.documents import CORE_EVENT_KINDS
from tests.requirements import REQUIREMENTS, load_rows


def event(sequence: int, kind: str, item: str | None = None, **payload: Any) -> dict[str, Any]:
    about = {"workItemId": item} if item else {}
    return {
        "eventId": f"urn:e:{sequence}",
        "sequence": sequence,
        "kind": kind,
        "actor": {"type": "agent", "id": "urn:mwnode:agent:worker"},
        "cause": {"type": payload.pop("cause", "command"), "id": "urn:a"},
        "payload": payload,
        **about,
    }


def item(name: str, state: str, after: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "workItemId": f"urn:w:{name}",
        "state": state,
        "contract": {
            "goal": "do it",
            "constraints": {"localId": name},
            "dependencyWorkItemIds": [f"urn:w:{other}" for other in after],
        },
    }


VIEW = {
    "mission": {"missionId": "urn:m:1", "groupId": "urn:g:1"},
    "workItems": [item("lint", "failed"), item("test", "open", ("lint",))],
}
LOG = [
    event(1, "mission.created", state="active"),
    event(2, "work.authorized", "urn:w:lint", state="open"),
    event(3, "work.authorized", "urn:w:test", state="open"),
    event(4, "mission.coordinator.renewed", state="active"),
    event(5, "work.progressed", "urn:w:lint", state="active"),
    event(6, "work.failed", "urn:w:lint", state="failed", reason="it crashed"),
]


def test_a_work_items_facts_are_its_own_in_order_without_renewals() -> None:
    facts = chain(VIEW, VIEW["workItems"][0], LOG)
    assert [fact["sequence"] for fact in facts] == [2, 6]
    assert facts[-1] == {
        "fact": "work.failed by worker, now failed: it crashed",
        "eventId": "urn:e:6",
        "sequence": 6,
        "rule": "R-10.2-27",
    }


def test_open_work_names_the_dependency_that_holds_it_back() -> None:
    facts = chain(VIEW, VIEW["workItems"][1], LOG)
    assert [fact["fact"] for fact in facts] == [
        "work.authorized by worker, now open",
        "waits for lint, which is failed",
    ]
    assert facts[-1]["rule"] == "R-10.4-03"
    done = [*LOG, event(7, "work.result.accepted", "urn:w:lint", state="verified")]
    assert len(chain(VIEW, VIEW["workItems"][1], done)) == 1


def test_a_missions_facts_are_about_the_mission() -> None:
    assert [fact["fact"] for fact in chain(VIEW, None, LOG)] == ["mission.created by worker, now active"]


def test_what_the_authority_did_by_itself_says_so() -> None:
    expired = event(7, "ext.mwnode.core.lease_expired", "urn:w:lint", state="active", cause="timer")
    fact = chain(VIEW, VIEW["workItems"][0], [expired])[0]
    assert fact["fact"] == "lease_expired, by timer, now active"


def test_every_kind_that_moves_a_work_item_or_a_mission_has_a_rule_of_the_table() -> None:
    rows = {row.id for row in load_rows(REQUIREMENTS)}
    assert set(RULES.values()) <= rows
    moving = {kind for kind in CORE_EVENT_KINDS if kind.startswith(("work.", "mission."))}
    assert moving <= set(RULES)


class OneMission:
    """A reach that knows one Mission."""

    def get(self, path: str, **_: Any) -> dict[str, Any]:
        return {"missions": [{"missionId": "urn:m:1", "groupId": "urn:g:1"}]} if path.endswith("missions") else VIEW


def test_an_item_is_found_by_name_identifier_or_part_of_it() -> None:
    node: Any = OneMission()
    assert find(node, "lint") == find(node, "urn:w:lint") == (VIEW, VIEW["workItems"][0])
    assert find(node, "m:1") == (VIEW, None)
    with pytest.raises(Failure, match="nothing of yours"):
        find(node, "deploy")
    with pytest.raises(Failure, match="means 2 things"):
        find(node, "urn:w")
