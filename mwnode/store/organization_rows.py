"""Rows of the whole Organization once a Group was trimmed: the logs that are left no longer tell all of them.

What the snapshot settled is compared with the rows of its Group (``trim.faults_of``); from those rows, and from the
Organization's own log, follows what Agents carry and which Artifacts stand for some bytes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Set

from msgspec import UNSET, structs

from mwnode.authority.state import AGENTS, ARTIFACTS, CONTENTS, WORK_ITEMS, AgentRow, ContentRow
from mwnode.store.environment import LmdbReading

Fault = tuple[str, str, str]


def faults(source: LmdbReading, folded: LmdbReading) -> Iterator[Fault]:
    """What is wrong with them, as kind, where, detail. ``folded`` holds what the logs that are left tell."""
    yield from _agents(source, folded)
    yield from _contents(source)


def agents(source: LmdbReading, folded: LmdbReading) -> Iterator[AgentRow]:
    """Every Agent: Card and Session Epoch as the Organization's log tells, load as the WorkItems of ``source`` do."""
    counts: Counter[tuple[str, str]] = Counter()
    active: defaultdict[str, list[str]] = defaultdict(list)
    for item in (row.item for row in source.each(WORK_ITEMS)):
        if item.owner is not UNSET and item.state in ("queued", "active"):
            counts[item.owner.agent_id, item.state] += 1
            if item.state == "active":
                active[item.owner.agent_id].append(item.work_item_id)
    for row in folded.each(AGENTS):
        name = row.card.agent_id
        load = counts[name, "queued"], counts[name, "active"]
        yield structs.replace(row, queued=load[0], active=load[1], active_ids=tuple(sorted(active[name])))


def _agents(source: LmdbReading, folded: LmdbReading) -> Iterator[Fault]:
    expected = {row.card.agent_id: row for row in agents(source, folded)}
    for row in source.each(AGENTS):
        told = expected.pop(row.card.agent_id, None)
        if told is None:
            yield "projection", f"agents {row.card.agent_id}", "the log does not tell of this row"
        elif told != row:
            yield "projection", f"agents {row.card.agent_id}", "the row is not what the logs and the WorkItems tell"
    for name in expected:
        yield "projection", f"agents {name}", "the row is missing"


def _manifests(source: LmdbReading) -> defaultdict[str, dict[str, str]]:
    """ID and Group of each published manifest, by the hash of the bytes that it stands for."""
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for artifact in (row.artifact for row in source.each(ARTIFACTS)):
        found[artifact.content_hash][artifact.artifact_id] = artifact.group_id
    return found


def contents(source: LmdbReading, folded: LmdbReading, untold: Set[str]) -> Iterator[ContentRow]:
    """Rows of bytes that got into a trimmed Group: what was known of them there, and what the other logs tell."""
    manifests = _manifests(source)
    known = {row.content_hash: row for row in source.each(CONTENTS)}
    for content_hash in manifests.keys() | known.keys():
        published = manifests.get(content_hash, {})
        kept = known.get(content_hash, ContentRow(content_hash))
        if untold.isdisjoint((*published.values(), *kept.group_ids)):
            continue
        told = folded.get(CONTENTS, content_hash) or ContentRow(content_hash)
        arrivals = tuple(dict.fromkeys((*kept.arrivals, *told.arrivals)))
        group_ids = {*published.values(), *(group_id for group_id, _ in arrivals)}
        in_order = dict.fromkeys((*kept.artifact_ids, *told.artifact_ids, *published))
        yield ContentRow(
            content_hash,
            tuple(artifact_id for artifact_id in in_order if artifact_id in published),
            tuple(sorted(group_ids)),
            kept.knowledge or told.knowledge,
            arrivals,
        )


def _contents(source: LmdbReading) -> Iterator[Fault]:
    """Each manifest stands for its bytes, in its Group, and nothing else does."""
    manifests = _manifests(source)
    for row in source.each(CONTENTS):
        published = manifests.pop(row.content_hash, {})
        where = f"contents {row.content_hash}"
        if sorted(row.artifact_ids) != sorted(published):
            yield "projection", where, "the row does not name the Artifacts that stand for the bytes"
        brought = {group_id for group_id, _ in row.arrivals}
        if set(row.group_ids) != brought | set(published.values()):
            yield "projection", where, "the row tells of other Groups than those that got the bytes"
    for content_hash in manifests:
        yield "projection", f"contents {content_hash}", "the row is missing"
