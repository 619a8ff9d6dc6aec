"""What was made of what: the graph that manifests state, as far as a reader may see it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mwnode.authority.provenance import Manifests, Provenance, manifests, provenance
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import Rejection
from tests.authority.scene import GROUP, Scene
from tests.authority.test_artifacts import FORWARD, KNOWLEDGE, OTHER_GROUP, active, publication


def walked(scene: Scene, who: Actor, content_hash: str, **asked: Any) -> Provenance:
    found = provenance(scene.view, who, content_hash, scene.now, **{"direction": "sources", **asked})
    assert isinstance(found, Provenance), found
    return found


def steps(found: Provenance) -> list[tuple[int, str, str]]:
    """Depth, what was made, and of what."""
    return [(step.depth, step.content_hash, step.source_hash) for step in found.derivations]


class Chain:
    """One item's Artifacts: ``c`` made of ``b``, ``b`` and ``other`` made of ``a``, ``d`` made of ``c`` and ``a``."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.anna = scene.workers["anna"]
        self.item = active(scene)
        self.a = self.publish(b"a", classification="public")
        self.b = self.publish(b"b", self.a)
        self.other = self.publish(b"other", self.a)
        self.c = self.publish(b"c", self.b, classification="restricted")
        self.d = self.publish(b"d", self.c, self.a, classification="restricted")

    def publish(self, data: bytes, *sources: str, **members: Any) -> str:
        return self.scene.publish(self.item, self.anna, data, sourceArtifactHashes=list(sources), **members)


@pytest.mark.req("R-13.1-19")
def test_a_derived_artifact_leads_to_every_source_and_every_source_to_it() -> None:
    scene = Scene()
    chain = Chain(scene)
    a, b, c, d = chain.a, chain.b, chain.c, chain.d
    whole = walked(scene, scene.owner, d, depth=9)
    assert steps(whole) == [(1, d, c), (1, d, a), (2, c, b), (3, b, a)]
    assert {content.content_hash: content.depth for content in whole.contents} == {d: 0, c: 1, a: 1, b: 2}
    assert {content.content_hash: content.classification for content in whole.contents} == {
        d: "restricted",
        c: "restricted",
        b: "internal",
        a: "public",
    }
    assert all(content.known and content.size_bytes == 1 for content in whole.contents)
    assert whole.unfinished == ()
    assert whole.derivations[0].agent_id == chain.anna.id
    assert whole.derivations[0].work_item_id == chain.item
    assert steps(walked(scene, scene.owner, d)) == [(1, d, c), (1, d, a)]
    assert steps(walked(scene, scene.owner, d, depth=2)) == [(1, d, c), (1, d, a), (2, c, b)]
    assert steps(walked(scene, scene.owner, a)) == []
    made = walked(scene, scene.owner, a, direction="derived", depth=9)
    assert set(steps(made)) == {(1, b, a), (1, chain.other, a), (1, d, a), (2, c, b), (3, d, c)}
    assert steps(walked(scene, scene.owner, d, direction="derived")) == []


@pytest.mark.req("R-13.1-19")
@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("direction", ["sources", "derived"])
def test_an_answer_is_bounded_and_says_from_where_to_go_on(direction: str, limit: int) -> None:
    scene = Scene()
    chain = Chain(scene)
    # The same bytes once more, made of something else this time.
    chain.publish(b"d", chain.other, classification="restricted")
    start = chain.d if direction == "sources" else chain.a
    whole = walked(scene, scene.owner, start, direction=direction, depth=9)
    told: set[tuple[int, str, str]] = set()
    waiting: list[tuple[str, int, str | None]] = [(start, 0, None)]
    answers = 0
    while waiting:
        content_hash, depth, after = waiting.pop(0)
        part = walked(scene, scene.owner, content_hash, direction=direction, depth=9 - depth, limit=limit, after=after)
        answers += 1
        assert len(part.derivations) <= limit
        told |= {(depth + down, made, source) for down, made, source in steps(part)}
        for place in part.unfinished:
            there = None if place.after is msgspec.UNSET else place.after
            waiting.append((place.content_hash, depth + place.depth, there))
    assert told >= set(steps(whole))
    assert {step[1:] for step in told} == {step[1:] for step in steps(whole)}
    assert 1 < answers < 40


@pytest.mark.req("R-13.1-19", "R-19-15")
def test_what_a_reader_may_not_see_looks_like_what_nobody_knows() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    loose = scene.store(b"an input that nobody published")
    item = active(scene, inputArtifacts=[loose])
    early = scene.publish(item, anna, b"early", sourceArtifactHashes=[loose])
    late = scene.worker("late")
    made = scene.publish(item, anna, b"made", sourceArtifactHashes=[early, loose])
    whole = walked(scene, anna, made, depth=9)
    assert steps(whole) == [(1, made, early), (1, made, loose), (2, early, loose)]
    assert [(content.known, content.classification, content.size_bytes) for content in whole.contents] == [
        (True, "internal", 4),
        (True, "internal", 5),
        (True, None, len(b"an input that nobody published")),
    ]
    # Who came later sees the manifest, and of what came before only that it is named there.
    part = walked(scene, late, made, depth=9)
    assert steps(part) == [(1, made, early), (1, made, loose)]
    unseen = [msgspec.to_builtins(content) for content in part.contents[1:]]
    assert unseen == [
        {"contentHash": name, "depth": 1, "known": False, "classification": None, "sizeBytes": None}
        for name in (early, loose)
    ]
    assert walked(scene, late, early, direction="derived").derivations[0].content_hash == made
    assert steps(walked(scene, late, loose, direction="derived", depth=9)) == [(1, made, loose)]
    assert len(steps(walked(scene, anna, loose, direction="derived", depth=9))) == 3


@pytest.mark.req("R-13.1-19", "R-19-15", "R-13.3-13")
def test_the_graph_ends_at_the_border_of_a_group_unless_it_was_opened() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene)
    secret = scene.publish(item, anna, b"secret")
    source = scene.publish(item, anna, b"source", sourceArtifactHashes=[secret])
    stranger, second = scene.human("stranger"), scene.agent("second")
    payload = scene.mission_payload("urn:example:mission:2", OTHER_GROUP, coordinatorAgentId=second.id)
    scene.ok(stranger, "mission.create", payload, groupId=OTHER_GROUP)
    knowledge = {"artifactHash": source, "classification": "internal", "reason": "useful to all"}
    scene.ok(scene.owner, KNOWLEDGE, knowledge, groupId=GROUP)
    # Knowledge comes with its provenance, and what it was made of stays closed.
    opened = walked(scene, stranger, source, depth=9)
    assert steps(opened) == [(1, source, secret)]
    assert [content.known for content in opened.contents] == [True, False]
    there = {"groupId": OTHER_GROUP}
    bert = scene.agent("bert")
    member = {"principal": {"type": "agent", "id": bert.id}, "role": "worker"}
    scene.ok(second, "membership.change", member, **there)
    other = "urn:example:work:there"
    scene.ok(second, "work.authorize", {"workItemId": other, "contract": scene.contract()}, **there)
    scene.ok(second, "work.offer", scene.offer_payload(other, bert), **there)
    scene.ok(bert, "work.accept_offer", {"workItemId": other}, **there)
    scene.ok(bert, "work.start", {"workItemId": other, "ownershipEpoch": 1}, **there)
    built = publication(scene, other, bert, data=b"built on it", sourceArtifactHashes=[source])
    scene.ok(bert, "artifact.publish", built, **there)
    made = built["artifact"]["contentHash"]
    assert steps(walked(scene, bert, source, direction="derived")) == [(1, made, source)]
    assert steps(walked(scene, anna, source, direction="derived")) == []
    assert steps(walked(scene, scene.owner, source, direction="derived")) == []
    assert steps(walked(scene, scene.organization, secret, direction="derived", depth=2)) == [
        (1, source, secret),
        (2, made, source),
    ]
    # A place of somebody else's is no place.
    alien = provenance(scene.view, anna, source, scene.now, direction="derived", after=built["artifact"]["artifactId"])
    invented = provenance(scene.view, anna, source, scene.now, direction="derived", after="urn:example:none")
    assert isinstance(alien, Rejection)
    assert alien == invented
    # What was made elsewhere is not listed when it is opened in its turn: it leads back by itself.
    opened_too = {"artifactHash": made, "classification": "internal", "reason": "useful as well"}
    scene.ok(stranger, KNOWLEDGE, opened_too, **there)
    assert steps(walked(scene, anna, source, direction="derived")) == []
    assert steps(walked(scene, anna, made)) == [(1, made, source)]


@pytest.mark.req("R-13.1-16", "R-13.3-14")
def test_the_same_bytes_are_as_closed_as_their_strictest_manifest() -> None:
    scene = Scene()
    anna = scene.workers["anna"]
    item = active(scene)
    content = scene.publish(item, anna, b"bytes", classification="internal")
    scene.publish(item, anna, b"bytes", classification="confidential")
    shown = manifests(scene.view, scene.owner, content, scene.now)
    assert isinstance(shown, Manifests)
    assert (shown.classification, shown.knowledge, shown.size_bytes) == ("confidential", None, 5)
    documents = [msgspec.json.decode(manifest) for manifest in shown.manifests]
    assert [document["classification"] for document in documents] == ["internal", "confidential"]
    assert all(document["signature"]["algorithm"] == "Ed25519" for document in documents)
    first = manifests(scene.view, scene.owner, content, scene.now, limit=1)
    assert isinstance(first, Manifests)
    assert first.next == documents[0]["artifactId"]
    second = manifests(scene.view, scene.owner, content, scene.now, limit=1, after=documents[0]["artifactId"])
    assert isinstance(second, Manifests)
    assert (second.manifests, second.next) == (shown.manifests[1:], msgspec.UNSET)
    assert isinstance(manifests(scene.view, scene.owner, content, scene.now, after="urn:example:none"), Rejection)
    # In another Group the bytes are read; the manifests belong to the Events of the first.
    scene.found("urn:example:mission:2", OTHER_GROUP)
    member = {"principal": {"type": "agent", "id": scene.agent("bert").id}, "role": "worker"}
    scene.ok(scene.coordinator, "membership.change", member, groupId=OTHER_GROUP)
    forward = {"artifactHash": content, "toGroupId": OTHER_GROUP, "reason": "they need it"}
    scene.ok(scene.coordinator, FORWARD, forward, groupId=GROUP)
    bert = Actor(type="agent", id=member["principal"]["id"])  # type: ignore[index]
    forwarded = manifests(scene.view, bert, content, scene.now)
    assert isinstance(forwarded, Manifests)
    assert (forwarded.classification, forwarded.manifests) == ("confidential", ())


@pytest.mark.parametrize("after", ["", " ", "1", "x urn:example:none", "0 urn:example:none", "-1 x", "9" * 20 + " x"])
def test_a_place_that_no_answer_gave_is_refused(after: str) -> None:
    scene = Scene()
    chain = Chain(scene)
    found = provenance(scene.view, scene.owner, chain.d, scene.now, direction="sources", after=after)
    assert isinstance(found, Rejection)
    assert found.code.value == "INVALID_COMMAND"
