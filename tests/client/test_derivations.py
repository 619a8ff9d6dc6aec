"""A walk over as many answers as it takes tells what one large answer would, and nothing twice."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mwnode.authority.provenance import Provenance, provenance
from mwnode.client.derivations import Direction, Provenances
from tests.authority.scene import Scene
from tests.authority.test_artifacts import active


@pytest.mark.req("R-13.1-19")
@pytest.mark.parametrize("depth", [1, 3, 64])
@pytest.mark.parametrize("limit", [1, 2, 5, 1000])
@pytest.mark.parametrize("direction", ["sources", "derived"])
def test_every_step_is_told_once_whatever_an_answer_holds(direction: Direction, limit: int, depth: int) -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene)
    ends: list[str] = []
    # A ladder: of each rung two are made, and of those two the next rung; every way up leads over the same bytes.
    rung = scene.publish(item, anna, b"rung 0")
    ends.append(rung)
    for number in range(1, 5):
        sides = [
            scene.publish(item, anna, b"%s %d" % (side, number), sourceArtifactHashes=[rung])
            for side in (b"left", b"right")
        ]
        rung = scene.publish(item, anna, b"rung %d" % number, sourceArtifactHashes=[*sides, ends[0]])
        ends.append(rung)
    start = ends[-1] if direction == "sources" else ends[0]
    asked = 0

    def ask(content_hash: str, way: Direction, *, depth: int, after: str | None, limit: int = limit) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        found = provenance(
            scene.view, scene.owner, content_hash, scene.now, direction=way, depth=depth, limit=limit, after=after
        )
        assert isinstance(found, Provenance)
        document: dict[str, Any] = msgspec.to_builtins(found)
        assert len(document["derivations"]) <= limit
        return document

    walk = Provenances(ask, start, direction, depth)
    steps = [(step["artifactId"], step["sourceHash"]) for step in walk]
    whole = ask(start, direction, depth=depth, after=None, limit=1000)
    assert not whole["unfinished"]
    assert sorted(steps) == sorted((step["artifactId"], step["sourceHash"]) for step in whole["derivations"])
    assert walk.contents == {content["contentHash"]: content for content in whole["contents"]}
    assert asked <= 3 * len(steps) + 2
