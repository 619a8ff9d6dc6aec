"""Where Artifacts come from and what became of them: the graph that manifests state (R-13.1-19). Pure over a view.

A reader is told what it may see. A source that it may not read is named by its hash, which stands in a manifest that it
sees, and looks like one that nobody knows; what was made elsewhere is not there at all (R-19-15).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, Literal, Protocol

import msgspec
from msgspec import UNSET, Struct, UnsetType

from mwnode.authority.access import ArtifactReader
from mwnode.authority.artifacts import classification_of
from mwnode.authority.state import ARTIFACTS, CONTENTS, ArtifactRow
from mwnode.authority.view import View
from mwnode.protocol.documents import Actor, Artifact, Classification
from mwnode.protocol.errors import ErrorCode, Rejection
from mwnode.protocol.instants import Instant

Direction = Literal["sources", "derived"]
"""Towards what something was made of, or what was made of it."""
DIRECTIONS: Final[dict[str, Direction]] = {"sources": "sources", "derived": "derived"}

DEPTH_MAX: Final = 64
"""Steps from the Artifact that is asked about."""
DERIVATIONS_DEFAULT: Final = 100
DERIVATIONS_MAX: Final = 1000
"""Steps told in one answer."""
MANIFESTS_MAX: Final = 100
MANIFEST_BYTES: Final = 4 * 1024**2
"""Manifests in one answer: so many, and no further one when they have come to so many bytes."""
_PAGE: Final = 256


class Lineage(View, Protocol):
    """A view that also finds what was made of something."""

    def deriving_groups(self, content_hash: str) -> Iterator[str]:
        """Groups in which something was made of those bytes."""

    def derivations(self, content_hash: str, group_id: str, after: str | None, limit: int) -> list[str]:
        """IDs of the Artifacts of one Group that state those bytes as a source."""


class Content(Struct, frozen=True, rename="camel"):
    """Some bytes that the graph leads to."""

    content_hash: str
    depth: int
    """Steps from the Artifact that was asked about, over the shortest way."""
    known: bool
    """Whether the reader may read them."""
    classification: Classification | None = None
    """How closed they are, whatever a single manifest says; ``None`` for bytes that nobody published."""
    size_bytes: int | None = None
    """``None`` when they are not stored, or not known."""


class Derivation(Struct, frozen=True, rename="camel"):
    """One step: by this manifest the bytes ``content_hash`` were made of the bytes ``source_hash``."""

    source_hash: str
    content_hash: str
    depth: int
    artifact_id: str
    mission_id: str
    group_id: str
    work_item_id: str
    agent_id: str
    media_type: str
    classification: Classification
    created_at: str


class Unfinished(Struct, frozen=True, rename="camel", omit_defaults=True):
    """From where the walk goes on: ask about these bytes, ``after`` that place."""

    content_hash: str
    depth: int
    after: str | UnsetType = UNSET


class Provenance(Struct, frozen=True, rename="camel"):
    """A part of the graph around one Artifact, breadth first."""

    content_hash: str
    direction: Direction
    depth: int
    contents: tuple[Content, ...]
    derivations: tuple[Derivation, ...]
    unfinished: tuple[Unfinished, ...]
    """What this answer had no room for; empty when it is the whole down to ``depth``."""


class Manifests(Struct, frozen=True, rename="camel", omit_defaults=True):
    """What manifests say of some bytes, and how closed those are in the end."""

    content_hash: str
    classification: Classification | None
    knowledge: str | None
    """Classification under which they were opened to the whole Organization; ``None`` when they were not."""
    size_bytes: int | None
    manifests: tuple[msgspec.Raw, ...]
    next: str | UnsetType = UNSET
    """The ``after`` of the next page; absent on the last one."""


def manifests(
    view: Lineage,
    principal: Actor,
    content_hash: str,
    now: Instant,
    *,
    limit: int = MANIFESTS_MAX,
    after: str | None = None,
) -> Manifests | Rejection:
    """The signed manifests of some bytes, oldest first, as far as the reader sees them.

    Whether it may read the bytes was asked before. INVALID_COMMAND for an ``after`` that is no such manifest.
    """
    reader = ArtifactReader(view, principal, now)
    content = view.get(CONTENTS, content_hash)
    found: list[msgspec.Raw] = []
    size, last = 0, ""
    more: str | UnsetType = UNSET
    try:
        for row in _manifests(view, reader, content_hash, after, inclusive=False):
            if len(found) == limit or size > MANIFEST_BYTES:
                more = last
                break
            encoded = msgspec.json.encode(row.artifact)
            last, size = row.artifact.artifact_id, size + len(encoded)
            found.append(msgspec.Raw(encoded))
    except KeyError:
        return _no_place()
    return Manifests(
        content_hash=content_hash,
        classification=None if content is None else classification_of(view, content),
        knowledge=None if content is None else content.knowledge,
        size_bytes=view.has_content(content_hash),
        manifests=tuple(found),
        next=more,
    )


def provenance(
    view: Lineage,
    principal: Actor,
    content_hash: str,
    now: Instant,
    *,
    direction: Direction,
    depth: int = 1,
    limit: int = DERIVATIONS_DEFAULT,
    after: str | None = None,
) -> Provenance | Rejection:
    """Walk from some bytes to what they were made of, or to what was made of them, ``depth`` steps far.

    At most ``limit`` steps are told; ``unfinished`` says from where to go on. Whether the reader may read the bytes was
    asked before. INVALID_COMMAND for an ``after`` that no answer gave. What was made in a Group that the reader is not
    in is left out, also where it became knowledge of the Organization: that leads to its sources.
    """
    walk = _Walk(view, ArtifactReader(view, principal, now), direction)
    walk.meet(content_hash, 0)
    waiting: deque[Unfinished] = deque([Unfinished(content_hash, 0, UNSET if after is None else after)])
    told: list[Derivation] = []
    while waiting:
        place = waiting.popleft()
        try:
            for step, here in walk.steps(place):
                if len(told) == limit:
                    waiting.appendleft(place)
                    break
                place = Unfinished(place.content_hash, place.depth, here)
                told.append(step)
                other = step.source_hash if direction == "sources" else step.content_hash
                if walk.meet(other, step.depth, step.work_item_id) and step.depth < depth:
                    waiting.append(Unfinished(other, step.depth))
            else:
                continue
        except KeyError:
            return _no_place()
        break
    return Provenance(
        content_hash=content_hash,
        direction=direction,
        depth=depth,
        contents=tuple(walk.contents.values()),
        derivations=tuple(told),
        unfinished=tuple(waiting),
    )


class _Walk:
    """What was met on one walk, and the steps from each place."""

    def __init__(self, view: Lineage, reader: ArtifactReader, direction: Direction) -> None:
        self._view = view
        self._reader = reader
        self._direction = direction
        self.contents: dict[str, Content] = {}

    def meet(self, content_hash: str, depth: int, work_item_id: str | None = None) -> bool:
        """Note bytes that the walk came to; whether it goes on from there."""
        if content_hash in self.contents:
            return False
        # From a manifest that is seen on: what it stands for is the reader's, what it was made of need not be.
        known = depth == 0 or self._direction == "derived" or self._reader.reads(content_hash)
        if not known and work_item_id is not None and self._view.get(CONTENTS, content_hash) is None:
            known = self._reader.sees_input(work_item_id, content_hash)
        if not known:
            self.contents[content_hash] = Content(content_hash, depth, known=False)
            return False
        row = self._view.get(CONTENTS, content_hash)
        closed = None if row is None else classification_of(self._view, row)
        size = self._view.has_content(content_hash)
        self.contents[content_hash] = Content(content_hash, depth, True, closed, size)
        return True

    def steps(self, place: Unfinished) -> Iterator[tuple[Derivation, str]]:
        """The steps from a place, each with the ``after`` that goes on behind it; KeyError for no place."""
        if self._direction == "sources":
            yield from self._to_sources(place)
        else:
            yield from self._to_derived(place)

    def _to_sources(self, place: Unfinished) -> Iterator[tuple[Derivation, str]]:
        start, artifact_id = 0, None
        if place.after is not UNSET:
            told, _, artifact_id = place.after.partition(" ")
            if not told.isascii() or not told.isdigit() or len(told) > 9:
                raise KeyError(place.after)
            start = int(told)
        for row in _manifests(self._view, self._reader, place.content_hash, artifact_id, inclusive=True):
            sources = row.artifact.source_artifact_hashes
            for number in range(start, len(sources)):
                here = f"{number + 1} {row.artifact.artifact_id}"
                yield _derivation(row.artifact, sources[number], place.depth + 1), here
            start = 0

    def _to_derived(self, place: Unfinished) -> Iterator[tuple[Derivation, str]]:
        view, after, beginning = self._view, None, None
        if place.after is not UNSET:
            after = place.after
            row = view.get(ARTIFACTS, after)
            if row is None or not self._sees(row) or place.content_hash not in row.artifact.source_artifact_hashes:
                raise KeyError(after)
            beginning = row.artifact.group_id
        for group_id in view.deriving_groups(place.content_hash):
            if beginning is not None and group_id != beginning:
                continue
            beginning = None
            if self._reader.sight(group_id) is None:
                continue
            while page := view.derivations(place.content_hash, group_id, after, _PAGE):
                for artifact_id in page:
                    row = view.get(ARTIFACTS, artifact_id)
                    if row is not None and self._sees(row):
                        yield _derivation(row.artifact, place.content_hash, place.depth + 1), artifact_id
                after = page[-1]
            after = None

    def _sees(self, row: ArtifactRow) -> bool:
        return self._reader.sees_manifest(row, self._view.get(CONTENTS, row.artifact.content_hash))


def _manifests(
    view: Lineage, reader: ArtifactReader, content_hash: str, after: str | None, *, inclusive: bool
) -> Iterator[ArtifactRow]:
    """The manifests of some bytes that the reader sees, from behind ``after`` on, or from it on; KeyError when that is
    none of them."""
    content = view.get(CONTENTS, content_hash)
    waiting = after is not None
    for artifact_id in () if content is None else content.artifact_ids:
        if waiting and artifact_id != after:
            continue
        row = view.get(ARTIFACTS, artifact_id)
        if row is None or not reader.sees_manifest(row, content):
            continue
        passed, waiting = waiting, False
        if inclusive or not passed:
            yield row
    if waiting:
        raise KeyError(after)


def _derivation(artifact: Artifact, source_hash: str, depth: int) -> Derivation:
    return Derivation(
        source_hash=source_hash,
        content_hash=artifact.content_hash,
        depth=depth,
        artifact_id=artifact.artifact_id,
        mission_id=artifact.mission_id,
        group_id=artifact.group_id,
        work_item_id=artifact.work_item_id,
        agent_id=artifact.producer.agent_id,
        media_type=artifact.media_type,
        classification=artifact.classification,
        created_at=artifact.created_at,
    )


def _no_place() -> Rejection:
    return Rejection(ErrorCode.INVALID_COMMAND, "after is a place that an answer about this Artifact gave", "R-19-19")
