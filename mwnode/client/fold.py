"""What a follower of a Group knows about its WorkItems: the fold of the Events it may see.

The authority's own fold needs the whole log; a Worker that joins late sees an item first in the offer that names it. So
this fold begins wherever an Event carries the whole WorkItem, and it never refuses: the Event already happened.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Struct

from mwnode.protocol import terms
from mwnode.protocol.commands import Checkpoint, Payload, Usage
from mwnode.protocol.documents import Artifact, Event, Evidence, Lease, ResourceGrant, WorkItem
from mwnode.protocol.events import (
    EVENT_PAYLOADS,
    ArtifactPublished,
    ContractRevised,
    ExecutionApproved,
    LeaseExpired,
    MissionChildCreated,
    OfferAccepted,
    OfferCreated,
    OfferDeclined,
    ResourceUsageRecorded,
    ResultAccepted,
    WorkAuthorized,
    WorkBlocked,
    WorkCheckpointed,
    WorkFact,
    WorkFailed,
    WorkProgressed,
    WorkSubmitted,
)

ANY_RESOURCE = "urn:mwnode:resource:any"
_LEASES = ("ownership_lease", "execution_lease", "blocked_lease")
_WORK_ITEM_MEMBERS = {field.encode_name: field.name for field in msgspec.structs.fields(WorkItem)}


class WorkView(Struct):
    """One WorkItem as its follower knows it; the document and what the document has no place for."""

    item: WorkItem
    ownership_epoch: int = 0
    ownership_lease: Lease | None = None
    execution_lease: Lease | None = None
    blocked_lease: Lease | None = None
    checkpoint: Checkpoint | None = None
    block_reason: str | None = None
    required_resolution: str | None = None
    attempts: int = 0
    """Executions that failed."""
    failure: WorkFailed | None = None
    artifacts: dict[str, Artifact] = {}
    """Manifests by content hash, of the present Ownership Epoch."""
    evidence: dict[str, Evidence] = {}
    """Evidence by ID, of submission, review and failure."""
    approved_epochs: tuple[int, ...] = ()
    """Ownership Epochs for which an Execution Approval was granted."""
    approved: dict[int, tuple[ResourceGrant, ...]] = {}
    """What the newest Execution Approval of each Ownership Epoch covers; of a resource that it does not name, any."""
    used: Usage | None = None

    @property
    def work_item_id(self) -> str:
        return self.item.work_item_id

    @property
    def state(self) -> str:
        return self.item.state

    @property
    def owner_id(self) -> str | None:
        return None if self.item.owner is UNSET else self.item.owner.agent_id


def decode_payload(event: Event) -> Payload | None:
    """The typed payload of an Event, or ``None`` for a kind or shape that is unknown here."""
    kind = EVENT_PAYLOADS.get(event.kind)
    if kind is None:
        return None
    try:
        return msgspec.convert(event.payload, kind)
    except msgspec.ValidationError:
        return None


def fold(views: dict[str, WorkView], payload: Payload) -> WorkView | None:
    """Apply one Event's payload; the WorkItem that it is about, or ``None``."""
    if isinstance(payload, WorkAuthorized):
        created = WorkView(item=payload.work_item, attempts=_attempts(payload.work_item))
        return views.setdefault(created.work_item_id, created)
    if isinstance(payload, OfferCreated):
        return _offered(views, payload)
    work_item_id = getattr(payload, "work_item_id", UNSET)
    view = views.get(work_item_id) if isinstance(work_item_id, str) else None
    if view is None:
        return None
    if isinstance(payload, ExecutionApproved):
        view.approved_epochs = (*view.approved_epochs, payload.ownership_epoch)
        covered = payload.resources or (ResourceGrant(resource=ANY_RESOURCE, operations=payload.operations),)
        view.approved = {**view.approved, payload.ownership_epoch: covered}
    elif isinstance(payload, ResourceUsageRecorded):
        view.used = payload.cumulative_usage
    elif isinstance(payload, LeaseExpired):
        _take_leases(view, payload)
    elif isinstance(payload, MissionChildCreated):
        _promoted(view, payload)
    elif isinstance(payload, WorkFact) and payload.revision > view.item.revision:
        # A receipt may have been applied ahead of its place: what comes again, or came before it, changes nothing.
        _changed(view, payload)
    return view


def _attempts(item: WorkItem) -> int:
    attempt = terms.core_data(item.extensions).get("attempt")
    return attempt if isinstance(attempt, int) else 0


def _offered(views: dict[str, WorkView], payload: OfferCreated) -> WorkView:
    item = payload.work_item
    view = views.setdefault(item.work_item_id, WorkView(item=item, attempts=_attempts(item)))
    if item.revision >= view.item.revision:
        view.item = item
        view.attempts = max(view.attempts, _attempts(item))
        _take_leases(view, payload)
    return view


def _take_leases(view: WorkView, payload: Payload) -> None:
    for name in _LEASES:
        lease = getattr(payload, name, UNSET)
        if lease is not UNSET:
            setattr(view, name, lease)


def _promoted(view: WorkView, payload: MissionChildCreated) -> None:
    """The item became a child Mission: whoever had it is fenced, its Parent Coordinator answers for it."""
    if payload.work_item_revision is UNSET or payload.work_item_revision <= view.item.revision:
        return
    _take_leases(view, payload)
    changes: dict[str, Any] = {"revision": payload.work_item_revision, "state": payload.work_item_state}
    for name in ("owner", "selection_basis", "offers"):
        if getattr(payload, name) is not UNSET:
            changes[name] = getattr(payload, name)
    view.ownership_epoch = payload.ownership_epoch
    view.item = msgspec.structs.replace(view.item, **changes)


def _changed(view: WorkView, payload: WorkFact) -> None:
    changes: dict[str, Any] = {"revision": payload.revision, "state": payload.state}
    for name in () if payload.cleared is UNSET else payload.cleared:
        if name in _WORK_ITEM_MEMBERS:
            changes[_WORK_ITEM_MEMBERS[name]] = UNSET
    _take_leases(view, payload)
    match payload:
        case OfferAccepted():
            changes |= {"owner": payload.owner, "offers": payload.offers}
            if payload.schedule_estimate is not UNSET:
                changes["schedule_estimate"] = payload.schedule_estimate
            view.ownership_epoch = payload.owner.ownership_epoch
            view.artifacts = {}
        case OfferDeclined():
            changes["offers"] = payload.offers
        case ContractRevised():
            changes["contract"] = payload.contract
        case WorkProgressed() | WorkCheckpointed():
            if payload.progress is not UNSET:
                changes["progress"] = payload.progress
            if isinstance(payload, WorkCheckpointed):
                view.checkpoint = payload.checkpoint
            elif payload.schedule_estimate is not UNSET:
                changes["schedule_estimate"] = payload.schedule_estimate
        case WorkBlocked():
            view.block_reason = payload.reason
            view.required_resolution = None if payload.required_resolution is UNSET else payload.required_resolution
            if payload.checkpoint is not UNSET:
                view.checkpoint = payload.checkpoint
        case ArtifactPublished():
            view.artifacts = {**view.artifacts, payload.artifact.content_hash: payload.artifact}
        case WorkSubmitted():
            changes["submission"] = payload.submission
            view.evidence = {document.evidence_id: document for document in payload.evidence}
        case ResultAccepted():
            if payload.evidence is not UNSET:
                view.evidence = view.evidence | {document.evidence_id: document for document in payload.evidence}
            for name in ("submission", "owner"):
                if getattr(payload, name) is not UNSET:
                    changes[name] = getattr(payload, name)
        case WorkFailed():
            view.attempts = payload.attempt
            view.failure = payload
            view.evidence = view.evidence | {document.evidence_id: document for document in payload.evidence}
    if payload.state != "blocked":
        view.block_reason = view.required_resolution = None
    view.item = msgspec.structs.replace(view.item, **changes)
