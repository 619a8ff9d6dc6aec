"""`mwnode mission retry` where a child Mission does the work: it reaches the right Coordinator, or says what does."""

from __future__ import annotations

from pathlib import Path

import pytest

from mwnode.narrative import short_id
from tests.cli.finished import harness
from tests.cli.support import cli
from tests.coordinator.test_children import Family
from tests.worker.desk import Run, desk

pytestmark = pytest.mark.req("R-14-21")


def test_a_retry_in_a_child_goes_by_way_of_the_parent(tmp_path: Path) -> None:
    node = harness(tmp_path / "home")
    family = Family(node, tmp_path)
    workers = [desk(node, one, lambda assignment: Run(status=1, lines=())) for one in node.workers]
    family.work(*workers, rounds=15)
    assert family.inner.state("guide") == "failed"
    parent, child = family.parent.mission, family.inner.mission
    guide = family.inner.engine.graph.instances()["guide"].work_item_id
    node.close()
    home = ("--home", tmp_path / "home")

    refused = cli("mission", "retry", parent.mission_id, "docs", *home)
    assert refused.status == 1
    assert f"`mwnode mission retry {short_id(child.mission_id)} guide`" in refused.err

    facts = [fact["fact"] for fact in cli("why", "docs", *home, "--json").json]
    assert any(f"`mwnode mission retry {child.mission_id} {guide}`" in fact for fact in facts)

    asked = cli("mission", "retry", child.mission_id, "guide", *home, "--json").json
    assert (asked["workItemId"], asked["through"]) == (guide, [child.mission_id])
    told = cli("events", parent.group_id, *home, "--json").lines[-1]
    assert told["kind"] == "message.posted"
    assert told["payload"]["message"]["author"]["type"] == "human"
