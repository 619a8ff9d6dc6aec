"""Who may read what: visibility of Groups, Events, Context Packages and Artifacts (sections 8 and 9).

Pure over a view, for views, replay and live delivery alike. A Group that somebody may not see is answered like one that
does not exist (R-19-15).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from msgspec import UNSET, Struct

from mwnode.authority.state import (
    ARTIFACTS,
    CONTENTS,
    CONTEXTS,
    CONVERSATIONS,
    MEMBERSHIPS,
    WORK_ITEMS,
    ArtifactRow,
    ContentRow,
    ContextRow,
    MembershipRow,
    WorkItemRow,
    membership_key,
)
from mwnode.authority.view import View
from mwnode.protocol.documents import Actor, Conversation, Membership
from mwnode.protocol.errors import ErrorCode, Rejection
from mwnode.protocol.instants import Instant, parse


class Sight(Struct, frozen=True):
    """How much of one Group a Principal sees. ``whole`` is everything, restricted Conversations included (R-8-07);
    otherwise Events from ``start`` on (R-8-15)."""

    principal: Actor
    group_id: str
    whole: bool
    start: int
    membership: Membership | None
    """``None`` for services, which policy lets read everything (R-8-05)."""


def is_over(membership: Membership, now: Instant) -> bool:
    """Whether a Membership has ended, or was provisional and ran out (decision D43)."""
    if membership.state == "ended":
        return True
    expiry = membership.provisional_expires_at
    return membership.state == "provisional" and expiry is not UNSET and parse(expiry) <= now


def sight_of(view: View, principal: Actor, group_id: str, now: Instant) -> Sight | Rejection:
    """What a Principal sees of a Group.

    GROUP_NOT_FOUND for strangers, MEMBERSHIP_REQUIRED for former Members, AUTH_FORBIDDEN without a reading scope
    (reading 6, decisions C5, F39).
    """
    if principal.type == "service":
        if not view.head(group_id):
            return _not_found()
        return Sight(principal, group_id, True, 1, None)
    row = view.get(MEMBERSHIPS, membership_key(group_id, principal))
    if row is None:
        return _not_found()
    return sight_under(row, now)


def sight_under(row: MembershipRow, now: Instant) -> Sight | Rejection:
    """As ``sight_of``, for a Membership that is at hand."""
    membership = row.membership
    if is_over(membership, now):
        return Rejection(ErrorCode.MEMBERSHIP_REQUIRED, "the Membership in this Group has ended", "R-19-16")
    whole = "mission.inspect" in membership.scopes
    if not whole and "message.read" not in membership.scopes:
        return Rejection(ErrorCode.AUTH_FORBIDDEN, "the Membership has no scope for reading", "R-19-14")
    start = 1 if whole else membership.visibility_start_sequence
    return Sight(membership.member, membership.group_id, whole, start, membership)


def _not_found() -> Rejection:
    return Rejection(ErrorCode.GROUP_NOT_FOUND, "no such Group", "R-19-15")


def in_conversation(sight: Sight, conversation: Conversation) -> bool:
    """Whether a Conversation of the Group is open to the reader (R-9-02, R-9-04)."""
    access = conversation.access
    if sight.whole or access.mode == "group" or conversation.created_by == sight.principal:
        return True
    return access.members is not UNSET and sight.principal in access.members


def sees(view: View, sight: Sight, sequence: int, conversation_id: str | None) -> bool:
    """Whether one Event of the Group is the reader's to see (R-8-13, R-8-15, R-9-04)."""
    if sight.whole:
        return True
    if sequence < sight.start:
        return False
    if conversation_id is None:
        return True
    row = view.get(CONVERSATIONS, conversation_id)
    return row is None or in_conversation(sight, row.conversation)


def may_read(
    view: View, principal: Actor, group_id: str, sequence: int, conversation_id: str | None, now: Instant
) -> bool:
    """Whether a Principal may read one Event."""
    sight = sight_of(view, principal, group_id, now)
    return isinstance(sight, Sight) and sees(view, sight, sequence, conversation_id)


def may_fetch_cited(view: View, sight: Sight, event_id: str, conversation_id: str | None) -> bool:
    """Whether an Event before the reader's start may be fetched because a Context Package that it holds cites it
    (R-8-16, decision B10). A restricted Conversation stays closed to those who are not in it."""
    membership = sight.membership
    if membership is None:
        return True
    if conversation_id is not None:
        row = view.get(CONVERSATIONS, conversation_id)
        if row is not None and not in_conversation(sight, row.conversation):
            return False
    return any(
        _holds(sight, context) and event_id in _cited(context) for context in view.in_group(CONTEXTS, sight.group_id)
    )


def _cited(context: ContextRow) -> Iterable[str]:
    """What a package cites: the Events that its decisions rest on, or where it draws none, those it was made from;
    never one that whoever handed it out does not see (R-8-15)."""
    package = context.package
    source = package.source_event_range
    first = max(0, (context.citable_from or 1) - source.from_sequence)
    seen = source.event_ids[first:]
    if not package.decisions:
        return seen
    cited = chain.from_iterable(decision.source_event_ids for decision in package.decisions)
    return set(cited).intersection(seen)


def _holds(sight: Sight, context: ContextRow) -> bool:
    """Whether a Context Package was handed to the reader, or to the whole Group by an Event that it sees."""
    shown = context.published_at is not None and context.published_at >= sight.start
    return shown or sight.principal in context.recipients


def may_fetch_package(view: View, sight: Sight, context: ContextRow) -> bool:
    """Recipients, owner and Coordinator fetch a Context Package, and whoever sees its whole source range (decision
    A4)."""
    if context.package.group_id != sight.group_id:
        return False
    if sight.whole or _holds(sight, context):
        return True
    return context.package.source_event_range.from_sequence >= sight.start


# --- WorkItems and Artifacts ------------------------------------------------------------------------------------------


def concerns(sight: Sight, row: WorkItemRow) -> bool:
    """Whether a WorkItem is the reader's: it owns it, or was ever offered it."""
    agent_id = sight.principal.id if sight.principal.type == "agent" else None
    item = row.item
    if item.owner is not UNSET and item.owner.agent_id == agent_id:
        return True
    return item.offers is not UNSET and any(offer.agent_id == agent_id for offer in item.offers)


def visible_items(view: View, sight: Sight) -> list[WorkItemRow]:
    """The WorkItems of the Group that the reader sees: all, or those that moved since its start, its own, and what its
    own depend on (R-8-14)."""
    rows = view.in_group(WORK_ITEMS, sight.group_id)
    if sight.whole:
        return rows
    needed = {
        dependency for row in rows if concerns(sight, row) for dependency in row.item.contract.dependency_work_item_ids
    }
    return [
        row
        for row in rows
        if row.last_sequence >= sight.start or concerns(sight, row) or row.item.work_item_id in needed
    ]


class ArtifactReader:
    """What one Principal may read of Artifacts, in one state of the store; each Group is asked for once."""

    def __init__(self, view: View, principal: Actor, now: Instant) -> None:
        self.view = view
        self.principal = principal
        self._now = now
        self._sights: dict[str, Sight | None] = {}
        self._given: dict[str, set[str]] = {}

    def sight(self, group_id: str) -> Sight | None:
        """What the Principal sees of a Group; ``None`` for nothing, whatever the reason."""
        if group_id not in self._sights:
            found = sight_of(self.view, self.principal, group_id, self._now)
            self._sights[group_id] = found if isinstance(found, Sight) else None
        return self._sights[group_id]

    def reads(self, content_hash: str) -> bool:
        """Whether published bytes are the Principal's to read: services, everybody once they are knowledge, and Members
        of a Group that has them as far as they see it (decision B16)."""
        row = self.view.get(CONTENTS, content_hash)
        if row is None:
            return False
        if self.principal.type == "service" or row.knowledge is not None:
            return True
        return any(self._sees_content(sight, row) for sight in map(self.sight, row.group_ids) if sight is not None)

    def sees_manifest(self, row: ArtifactRow, content: ContentRow | None) -> bool:
        """Whether a manifest is the Principal's to see: with its Event, or with knowledge of the Organization, which
        is published with its provenance (R-8-15, R-13.3-13)."""
        if self.principal.type == "service" or (content is not None and content.knowledge is not None):
            return True
        sight = self.sight(row.artifact.group_id)
        return sight is not None and (sight.whole or row.sequence >= sight.start)

    def sees_input(self, work_item_id: str, content_hash: str) -> bool:
        """Whether bytes that nobody published are the Principal's to read because one WorkItem takes them in."""
        row = self.view.get(WORK_ITEMS, work_item_id)
        if row is None or content_hash not in row.item.contract.input_artifacts:
            return False
        sight = self.sight(row.item.group_id)
        return sight is not None and (sight.whole or content_hash in self._work(sight))

    def _sees_content(self, sight: Sight, row: ContentRow) -> bool:
        if sight.whole:
            return True
        if any(group_id == sight.group_id and sequence >= sight.start for group_id, sequence in row.arrivals):
            return True
        for artifact_id in row.artifact_ids:
            manifest = self.view.get(ARTIFACTS, artifact_id)
            if manifest is None or manifest.artifact.group_id != sight.group_id:
                continue
            if manifest.sequence >= sight.start:
                return True
        if any(
            row.content_hash in context.package.artifact_hashes
            for context in self.view.in_group(CONTEXTS, sight.group_id)
            if _holds(sight, context)
        ):
            return True
        return row.content_hash in self._work(sight)

    def _work(self, sight: Sight) -> set[str]:
        if sight.group_id not in self._given:
            self._given[sight.group_id] = _work_content(self.view, sight)
        return self._given[sight.group_id]


def may_read_artifact(view: View, principal: Actor, content_hash: str, now: Instant) -> bool:
    """Whether published bytes are a Principal's to read; see ``ArtifactReader.reads``."""
    return ArtifactReader(view, principal, now).reads(content_hash)


def _work_content(view: View, sight: Sight) -> set[str]:
    """What the reader's own WorkItems take in: stated inputs, and the results of what they depend on (R-8-14)."""
    found: set[str] = set()
    for row in view.in_group(WORK_ITEMS, sight.group_id):
        if not concerns(sight, row):
            continue
        contract = row.item.contract
        found.update(contract.input_artifacts)
        for dependency_id in contract.dependency_work_item_ids:
            dependency = view.get(WORK_ITEMS, dependency_id)
            if dependency is not None and dependency.item.submission is not UNSET:
                found.update(dependency.item.submission.artifact_hashes)
    return found


def may_read_input(view: View, principal: Actor, content_hash: str, now: Instant) -> bool:
    """Whether bytes that were only uploaded, never published, are an input of work that a Principal takes part in."""
    for row in view.all(MEMBERSHIPS):
        if row.membership.member != principal:
            continue
        sight = sight_under(row, now)
        if not isinstance(sight, Sight):
            continue
        if content_hash in _work_content(view, sight):
            return True
        if sight.whole and any(
            content_hash in item.item.contract.input_artifacts for item in view.in_group(WORK_ITEMS, sight.group_id)
        ):
            return True
    return False
