"""What was made of what, over HTTP: pages, bounds, and what is nobody else's business."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mwnode.client.derivations import Direction
from mwnode.client.http import HttpClient, segment
from mwnode.protocol.errors import GroupNotFound, InvalidCommand
from mwnode.store.trim import trim_group
from mwnode.testing import Harness, WorkHandle
from tests.gateway.conftest import Served
from tests.store.archives import archive

WIDE = 40
"""Artifacts made of one."""


def published(harness: Harness) -> tuple[WorkHandle, dict[str, str]]:
    """A wide and deep graph: ``root``, ``WIDE`` made of it, and a ``top`` made of all those; their hashes."""
    work = harness.mission().work("active")
    root = work.publish(b"root", classification="public")
    wide = [work.publish(b"wide %d" % number, sourceArtifactHashes=[root]) for number in range(WIDE)]
    top = work.publish(b"top", sourceArtifactHashes=wide, classification="confidential")
    return work, {"root": root, "wide": wide[0], "top": top}


def walk(http: HttpClient, content_hash: str, direction: Direction, depth: int) -> tuple[list[Any], dict[str, Any]]:
    found = http.walk(content_hash, direction, depth=depth)
    return list(found), found.contents


@pytest.mark.req("R-13.1-19")
async def test_the_whole_graph_is_walked_in_bounded_answers(served: Served) -> None:
    work, hashes = await asyncio.to_thread(published, served.harness)
    http = served.http(served.harness.owner)
    first = await asyncio.to_thread(http.provenance, hashes["top"], depth=5, limit=30)
    assert len(first["derivations"]) == 30
    assert first["unfinished"][0] == {"contentHash": hashes["top"], "depth": 0, "after": f"30 {top_id(first)}"}
    small = http.provenance

    def few(content_hash: str, direction: Direction, *, depth: int, after: str | None) -> dict[str, Any]:
        return small(content_hash, direction, depth=depth, limit=7, after=after)

    http.provenance = few  # type: ignore[method-assign,assignment]
    for start, direction in ((hashes["top"], "sources"), (hashes["root"], "derived")):
        steps, contents = await asyncio.to_thread(walk, http, start, direction, 5)  # type: ignore[arg-type]
        assert len(steps) == len({(step["artifactId"], step["sourceHash"]) for step in steps}) == 2 * WIDE
        assert {step["depth"] for step in steps} == {1, 2}
        assert len(contents) == WIDE + 2
        assert contents[hashes["top"]]["classification"] == "confidential"
        assert contents[hashes["root"]]["classification"] == "public"
        near, _ = await asyncio.to_thread(walk, http, start, direction, 1)  # type: ignore[arg-type]
        assert len(near) == WIDE
    shown = await asyncio.to_thread(http.artifact, hashes["wide"])
    assert (shown["classification"], shown["knowledge"], shown["sizeBytes"]) == ("internal", None, 6)
    (manifest,) = shown["manifests"]
    assert manifest["sourceArtifactHashes"] == [hashes["root"]]
    assert manifest["workItemId"] == work.work_item_id
    assert "next" not in shown


def top_id(answer: dict[str, Any]) -> str:
    return str(answer["derivations"][0]["artifactId"])


@pytest.mark.req("R-13.1-19", "R-19-15")
async def test_a_graph_that_is_not_the_callers_looks_like_one_that_is_not_there(served: Served) -> None:
    harness = served.harness
    _, hashes = await asyncio.to_thread(published, harness)
    stranger = served.http(harness.workers[1])
    absent = "sha256:" + "0" * 64
    answers = []
    for name in (hashes["root"], absent, "nonsense"):
        for ask in (stranger.provenance, stranger.artifact):
            with pytest.raises(GroupNotFound) as refused:
                await asyncio.to_thread(ask, name)
            answers.append(refused.value.rejection)
    assert all(answer == answers[0] for answer in answers)
    # What somebody has uploaded and nobody published is its uploader's, and has no provenance yet.
    loose = await asyncio.to_thread(stranger.put_artifact, b"loose")
    shown = await asyncio.to_thread(stranger.artifact, loose["contentHash"])
    assert (shown["sizeBytes"], shown["classification"], shown["manifests"]) == (5, None, [])
    found = await asyncio.to_thread(stranger.provenance, loose["contentHash"])
    assert (found["derivations"], found["unfinished"]) == ([], [])
    with pytest.raises(GroupNotFound):
        await asyncio.to_thread(served.http(harness.owner).artifact, loose["contentHash"])


@pytest.mark.parametrize(
    "query",
    [
        {"direction": "up"},
        {"depth": 0},
        {"depth": 65},
        {"depth": "x"},
        {"limit": 0},
        {"limit": 1001},
        {"after": "urn:example:none"},
        {"direction": "derived", "after": "urn:example:none"},
    ],
)
async def test_questions_out_of_range_are_refused(served: Served, query: dict[str, Any]) -> None:
    work = served.harness.mission().work("active")
    content = await asyncio.to_thread(work.publish, b"bytes")
    http = served.http(served.harness.owner)
    with pytest.raises(InvalidCommand):
        await asyncio.to_thread(http.get, f"/v0.1/artifacts/{segment(content)}/provenance", **query)


@pytest.mark.req("R-13.1-19", "R-7.4-03")
async def test_the_graph_outlives_the_events_of_an_archived_group(served: Served) -> None:
    harness = served.harness

    def ended() -> tuple[str, str, str]:
        mission = harness.mission()
        work = mission.work("active")
        source = work.publish(b"source")
        made = work.publish(b"made", sourceArtifactHashes=[source])
        work.submit([made])
        work.review()
        mission.submit([made])
        mission.approve()
        archive(mission)
        trim_group(lambda step: harness.node.call(step).result(), mission.group_id)  # type: ignore[arg-type]
        return mission.group_id, source, made

    group_id, source, made = await asyncio.to_thread(ended)
    with harness.node.read() as view:
        assert view.trimmed(group_id) is not None
    http = served.http(harness.owner)
    (step,), _ = await asyncio.to_thread(walk, http, made, "sources", 3)
    (back,), _ = await asyncio.to_thread(walk, http, source, "derived", 3)
    assert step["sourceHash"] == source
    assert back == step
