"""How Agents do is counted per capability and Mission, outside their Cards, and never made one score."""

from __future__ import annotations

import msgspec
import pytest

from mwnode.authority.performance import Performance, performance_of
from mwnode.authority.state import AGENTS
from mwnode.authority.views import missions_of
from mwnode.protocol.documents import Actor
from tests.authority.scene import GROUP, ITEM_BUDGET, Scene, later, usage

COUNTS = ("completed", "failed", "sent_back", "reassigned", "late", "budgets_spent", "leases_expired")
RECORD_USAGE = "ext.missionweaveprotocol.core.resource_usage_record"


def told(scene: Scene, reader: Actor, about: Actor) -> list[Performance]:
    sights = [sight for _, sight in missions_of(scene.view, reader, scene.now)]
    return performance_of(scene.view, sights, about.id)


def counts(scene: Scene, about: Actor) -> dict[str, int]:
    """What is not nought of the one record there is."""
    (record,) = told(scene, scene.owner, about)
    return {name: getattr(record, name) for name in COUNTS if getattr(record, name)}


@pytest.mark.req("R-6.1-10", "R-6.1-11")
def test_an_outcome_is_counted_for_its_owner_and_no_card_changes() -> None:
    scene = Scene(workers=("anna", "bert"))
    anna = scene.workers["anna"]
    card = scene.view.get(AGENTS, anna.id)
    assert card is not None
    scene.bring(scene.authorize("good"), "verified", anna)
    scene.bring(scene.authorize("running"), "active", anna)
    assert counts(scene, anna) == {"completed": 1}
    scene.fail(scene.bring(scene.authorize("bad"), "active", anna))
    assert counts(scene, anna) == {"completed": 1, "failed": 1}
    scene.fail(scene.bring(scene.authorize("poor"), "submitted", anna))
    assert counts(scene, anna) == {"completed": 1, "failed": 2, "sent_back": 1}
    (record,) = told(scene, scene.owner, anna)
    assert record.group_id == GROUP
    owner = scene.item(scene.bring(scene.authorize("more"), "queued", anna)).item.owner
    assert record.capability in owner.capability_pins  # type: ignore[union-attr]  # a queued item has an owner
    after = scene.view.get(AGENTS, anna.id)
    assert after is not None
    assert after.card == card.card
    assert told(scene, scene.owner, scene.workers["bert"]) == []
    assert {"capability", "groupId"} <= msgspec.to_builtins(record).keys(), "no figure without its context"


@pytest.mark.req("R-6.1-10")
def test_what_nobody_owned_is_counted_for_nobody() -> None:
    scene = Scene()
    scene.bring(scene.authorize("open"), "failed", scene.workers["anna"])
    scene.bring(scene.authorize("offered"), "offered", scene.workers["anna"])
    assert told(scene, scene.owner, scene.workers["anna"]) == []


@pytest.mark.req("R-6.1-10")
def test_lapses_reassignments_and_lateness_are_counted() -> None:
    scene = Scene(workers=("anna", "bert"))
    anna, bert = scene.workers["anna"], scene.workers["bert"]
    item = scene.bring(scene.authorize("item", deadline=later(scene, 2000)), "active", anna)
    scene.advance(1000)
    lapsed = counts(scene, anna)
    assert lapsed.keys() == {"leases_expired"}
    scene.offer(item, bert)
    assert counts(scene, anna) == {**lapsed, "reassigned": 1}
    scene.accept(item, bert)
    scene.advance(1001)
    scene.keep_coordinator()
    scene.fail(item)
    late = counts(scene, bert)
    assert {name: late[name] for name in late if name != "leases_expired"} == {"failed": 1, "late": 1}
    assert counts(scene, anna) == {**lapsed, "reassigned": 1}


@pytest.mark.req("R-6.1-10")
def test_a_budget_used_up_is_counted_at_the_end() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item"), "active", anna)
    limit = ITEM_BUDGET["wallClockSecondsLimit"]
    spent = {**scene.three(item), "usageDelta": usage(wallClockSeconds=limit)}
    scene.ok(anna, RECORD_USAGE, spent)
    assert told(scene, scene.owner, anna) == []
    scene.fail(item)
    assert counts(scene, anna) == {"failed": 1, "budgets_spent": 1}


@pytest.mark.req("R-6.1-10")
def test_only_who_sees_the_whole_group_reads_of_others() -> None:
    scene = Scene(workers=("anna", "bert"))
    anna, bert = scene.workers["anna"], scene.workers["bert"]
    scene.bring(scene.authorize("good"), "verified", anna)
    assert told(scene, bert, anna) == []
    assert told(scene, anna, anna) == told(scene, scene.owner, anna) != []
    assert told(scene, scene.human("stranger"), anna) == []
