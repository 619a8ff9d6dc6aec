"""Artifacts: published by the lease holder, forwarded to another Group, published to the whole Organization."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn

from msgspec import UNSET, structs

from mwnode.authority.case import Case, refuse
from mwnode.authority.item_fold import find, fold
from mwnode.authority.items import emit, hold, hold_execution, item_in_group
from mwnode.authority.request import EventFact
from mwnode.authority.state import (
    AGENTS,
    ARTIFACTS,
    CONTENTS,
    GROUPS,
    MEMBERSHIPS,
    MISSIONS,
    ArtifactRow,
    ContentRow,
    MissionRow,
    WorkItemRow,
    membership_key,
)
from mwnode.authority.table import admit_mission
from mwnode.authority.view import Overlay, View
from mwnode.protocol.capabilities import covers
from mwnode.protocol.commands import CORE, ArtifactForward, ArtifactPublish, KnowledgePublish
from mwnode.protocol.documents import Artifact, Cause, Classification, Owner
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import ArtifactForwarded, ArtifactPublished, KnowledgePublished
from mwnode.protocol.identifiers import artifact_uri
from mwnode.protocol.instants import parse

CLASSIFICATIONS: tuple[Classification, ...] = ("public", "internal", "confidential", "restricted")
"""From the most open to the most closed."""


def most_closed(classifications: Iterable[Classification]) -> Classification:
    """The strictest of several classifications; ``public`` when there is none."""
    return max(classifications, key=CLASSIFICATIONS.index, default="public")


# --- artifact.publish -------------------------------------------------------------------------------------------------


def publish(case: Case) -> None:
    """Publish one signed manifest of bytes that are stored already (R-13.1-01 to R-13.1-18, R-15.1-46, B14)."""
    payload = case.payload(ArtifactPublish)
    artifact = payload.artifact
    envelope = case.command.work_item_id
    if envelope is not UNSET and envelope != artifact.work_item_id:
        _misfit("workItemId differs between the envelope and the Artifact", "artifact/workItemId", "R-19-19")
    row = item_in_group(case, artifact.work_item_id)
    owner = hold(case, row, payload.ownership_epoch)
    hold_execution(case, row, payload.execution_lease_id)
    case.expect_revision(row.item.revision)
    _check_identity(case, row, owner, artifact)
    _check_bytes(case, artifact)
    _check_sources(case, row, artifact)
    emit(
        case,
        row,
        "artifact.published",
        ArtifactPublished(
            revision=row.item.revision + 1,
            state=row.item.state,
            work_item_id=row.item.work_item_id,
            artifact=artifact,
        ),
    )


def _check_identity(case: Case, row: WorkItemRow, owner: Owner, artifact: Artifact) -> None:
    case.unused(ARTIFACTS, artifact.artifact_id, "Artifact")
    if (artifact.mission_id, artifact.group_id) != (row.item.mission_id, row.item.group_id):
        _misfit("the Artifact is about another Mission or Group", "artifact/missionId", "R-13.1-10")
    if artifact.producer.agent_id != owner.agent_id:
        refuse(ErrorCode.AUTH_FORBIDDEN, "only the producer publishes an Artifact", "R-13.1-08")
    agent = case.view.get(AGENTS, owner.agent_id)
    assert agent is not None, "an owner has an Agent Card"
    version = artifact.producer.agent_card_version
    upgraded = version == agent.card.card_version and covers(agent.card.capabilities, owner.capability_pins)
    if version != owner.agent_card_version and not upgraded:
        refuse(
            ErrorCode.REVISION_CONFLICT,
            f"the WorkItem was accepted under Agent Card version {owner.agent_card_version}, not {version}",
            "R-13.1-09",
            expected_revision=version,
            current_revision=owner.agent_card_version,
        )
    assigned = {(pin.id, pin.version) for pin in owner.capability_pins}
    if version != owner.agent_card_version:
        assigned |= {(held.id, held.version) for held in agent.card.capabilities}
    for used in artifact.producer.capabilities:
        if (used.id, used.version) not in assigned:
            _misfit(
                f"{used.id}@{used.version} is no capability that the WorkItem was accepted with",
                "artifact/producer/capabilities",
                "R-6.1-09",
            )
    if parse(artifact.created_at) > case.now.plus(case.policy.clock_skew):
        _misfit("createdAt lies in the future", "artifact/createdAt", "R-13.1-15")


def _check_bytes(case: Case, artifact: Artifact) -> None:
    """The bytes are here, as many as the manifest says, under the URI that their hash gives (decision B14)."""
    size = case.view.has_content(artifact.content_hash)
    if size is None:
        _misfit(
            f"no bytes of hash {artifact.content_hash} are stored; upload them", "artifact/contentHash", "R-13.1-05"
        )
    if size != artifact.size_bytes:
        _misfit(f"the stored bytes are {size}, not {artifact.size_bytes}", "artifact/sizeBytes", "R-13.1-17")
    expected = artifact_uri(artifact.content_hash)
    if artifact.uri != expected:
        _misfit(f"the URI of these bytes is {expected}", "artifact/uri", "R-13.1-18")


def _check_sources(case: Case, row: WorkItemRow, artifact: Artifact) -> None:
    """Sources are known, readable in this lineage, and no more closed than what is made of them (R-13.1-19)."""
    for content_hash in artifact.source_artifact_hashes:
        if content_hash == artifact.content_hash:
            _misfit("an Artifact is no source of itself", "artifact/sourceArtifactHashes", "R-13.1-19")
        content = case.view.get(CONTENTS, content_hash)
        # Inputs of the contract may be bytes that nobody published, or that another Mission happens to have as well.
        is_input = content_hash in row.item.contract.input_artifacts
        if content is None:
            if not is_input:
                _misfit(f"no source {content_hash} is known", "artifact/sourceArtifactHashes", "R-13.1-19")
            continue
        if not is_input and not may_use(case.view, content, row.item.mission_id):
            refuse(
                ErrorCode.AUTH_FORBIDDEN,
                f"the source {content_hash} belongs to another Mission; have it forwarded first",
                "R-13.3-14",
                details={"path": "/payload/artifact/sourceArtifactHashes"},
            )
        closed = classification_of(case.view, content)
        if CLASSIFICATIONS.index(artifact.classification) < CLASSIFICATIONS.index(closed):
            _misfit(f"a source is {closed}: the Artifact is no more open", "artifact/classification", "R-13.1-16")


def classification_of(view: View, content: ContentRow) -> Classification:
    """How closed some bytes are: the strictest manifest counts, unless they are knowledge of the Organization."""
    if content.knowledge is not None:
        return most_closed(name for name in CLASSIFICATIONS if name == content.knowledge)
    manifests = (view.get(ARTIFACTS, artifact_id) for artifact_id in content.artifact_ids)
    return most_closed(row.artifact.classification for row in manifests if row is not None)


def may_use(view: View, content: ContentRow, mission_id: str) -> bool:
    """Whether a Mission may build on some bytes: its own, an ancestor's or descendant's, forwarded, or knowledge."""
    if content.knowledge is not None:
        return True
    mission_row = view.get(MISSIONS, mission_id)
    assert mission_row is not None
    above = {mission_id, *_ancestors(view, mission_row)}
    for group_id in content.group_ids:
        group = view.get(GROUPS, group_id)
        holder = None if group is None else view.get(MISSIONS, group.group.mission_id)
        if holder is not None and (holder.mission.mission_id in above or mission_id in _ancestors(view, holder)):
            return True
    return False


def _ancestors(view: View, mission_row: MissionRow) -> list[str]:
    found: list[str] = []
    parent = mission_row.mission.parent
    while parent is not UNSET:
        found.append(parent.mission_id)
        above = view.get(MISSIONS, parent.mission_id)
        parent = UNSET if above is None else above.mission.parent
    return found


def _fold_published(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, ArtifactPublished)
    assert fact.sequence is not None
    artifact = payload.artifact
    view.put(ARTIFACTS, ArtifactRow(artifact, fact.sequence))
    content = view.get(CONTENTS, artifact.content_hash) or ContentRow(artifact.content_hash)
    content = structs.replace(content, artifact_ids=(*content.artifact_ids, artifact.artifact_id))
    view.put(CONTENTS, readable_in(content, artifact.group_id))
    row = find(view, payload.work_item_id)
    fold(view, fact, row, artifacts=(*row.artifacts, (artifact.artifact_id, artifact.content_hash)))


def readable_in(content: ContentRow, group_id: str, sequence: int | None = None) -> ContentRow:
    """The content, readable in one Group more; ``sequence`` is the Event there that brought it without a manifest."""
    if group_id in content.group_ids:
        return content
    arrivals = content.arrivals if sequence is None else (*content.arrivals, (group_id, sequence))
    return structs.replace(content, group_ids=(*content.group_ids, group_id), arrivals=arrivals)


# --- ext.mwnode.core.artifact_forward ---------------------------------------------------------------------------------


def forward(case: Case) -> None:
    """Make an Artifact readable in another Group; both logs say so (R-13.3-14)."""
    payload = case.payload(ArtifactForward)
    mission = case.mission().mission
    admit_mission(mission.state, case.command.kind)
    content = _published_here(case, payload.artifact_hash)
    target = case.view.get(GROUPS, payload.to_group_id)
    if target is None or not _may_forward_to(case, payload.to_group_id):
        refuse(ErrorCode.GROUP_NOT_FOUND, "no such Group, or no right to forward to it", "R-13.3-14")
    if target.group.state == "archived":
        refuse(ErrorCode.INVALID_STATE_TRANSITION, "the other Group is archived", "R-7.4-01")
    if payload.to_group_id in content.group_ids:
        refuse(ErrorCode.INVALID_STATE_TRANSITION, "the other Group has that Artifact already", "R-13.3-14")
    case.expect_revision(mission.revision)
    other = case.mission(payload.to_group_id).mission
    classification = classification_of(case.view, content)

    def event(revision: int, state: str) -> ArtifactForwarded:
        return ArtifactForwarded(
            revision=revision,
            state=state,
            artifact_hash=payload.artifact_hash,
            from_group_id=mission.group_id,
            to_group_id=payload.to_group_id,
            reason=payload.reason,
            classification=classification,
        )

    kind = f"{CORE}.artifact_forwarded"
    fact = case.emit(kind, event(mission.revision, mission.state))
    case.emit(
        kind,
        event(other.revision, other.state),
        group_id=payload.to_group_id,
        cause=Cause(type="event", id=fact.event_id),
    )
    details = {"artifactHash": payload.artifact_hash, "toGroupId": payload.to_group_id, "reason": payload.reason}
    case.note_policy("artifact forwarded", details, group_id=case.group_id)


def _published_here(case: Case, content_hash: str) -> ContentRow:
    """Bytes with a manifest that this Group may read: INVALID_COMMAND otherwise."""
    content = case.view.get(CONTENTS, content_hash)
    if content is None or case.group_id not in content.group_ids:
        _misfit(f"no Artifact with the hash {content_hash} is published in this Group", "artifactHash", "R-13.3-13")
    return content


def _may_forward_to(case: Case, group_id: str) -> bool:
    """The actor has the right in the other Group too: as its Coordinator or its MissionOwner."""
    member = case.view.get(MEMBERSHIPS, membership_key(group_id, case.command.actor))
    if member is None or member.membership.state != "active":
        return False
    scopes = member.membership.scopes
    return "mission.coordinate" in scopes or "mission.direct" in scopes


def _fold_forwarded(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, ArtifactForwarded)
    if fact.group_id != payload.to_group_id:
        return  # the Group that it comes from has it already
    content = view.get(CONTENTS, payload.artifact_hash)
    assert content is not None, "only what was published is forwarded"
    view.put(CONTENTS, readable_in(content, payload.to_group_id, fact.sequence))


# --- ext.mwnode.core.knowledge_publish --------------------------------------------------------------------------------


def publish_knowledge(case: Case) -> None:
    """Open an Artifact to the whole Organization, classified and with its provenance (R-13.3-13)."""
    payload = case.payload(KnowledgePublish)
    mission = case.mission().mission
    admit_mission(mission.state, case.command.kind)
    content = _published_here(case, payload.artifact_hash)
    closed = classification_of(case.view, content)
    if CLASSIFICATIONS.index(payload.classification) < CLASSIFICATIONS.index(closed):
        _misfit(f"the Artifact is {closed}: it is not published as {payload.classification}", "classification")
    if payload.classification == "restricted":
        _misfit("restricted material is not published to the Organization", "classification")
    case.expect_revision(mission.revision)
    case.emit(
        f"{CORE}.knowledge_published",
        KnowledgePublished(
            revision=mission.revision,
            state=mission.state,
            artifact_hash=payload.artifact_hash,
            classification=payload.classification,
            reason=payload.reason,
        ),
    )
    details = {
        "artifactHash": payload.artifact_hash,
        "classification": payload.classification,
        "reason": payload.reason,
    }
    case.note_policy("knowledge published", details, group_id=case.group_id)


def _fold_knowledge(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, KnowledgePublished)
    content = view.get(CONTENTS, payload.artifact_hash)
    assert content is not None, "only what was published becomes knowledge"
    view.put(CONTENTS, structs.replace(content, knowledge=payload.classification))


def _misfit(message: str, member: str, rule: str = "R-13.3-13") -> NoReturn:
    refuse(ErrorCode.INVALID_COMMAND, message, rule, details={"path": f"/payload/{member}"})


DECIDERS: dict[str, Callable[[Case], None]] = {
    "artifact.publish": publish,
    f"{CORE}.artifact_forward": forward,
    f"{CORE}.knowledge_publish": publish_knowledge,
}
EVOLVERS: dict[str, Callable[[Overlay, EventFact], None]] = {
    "artifact.published": _fold_published,
    f"{CORE}.artifact_forwarded": _fold_forwarded,
    f"{CORE}.knowledge_published": _fold_knowledge,
}
