"""Payloads of the Events about Memberships, Messages and Context Packages."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from mwnode.protocol.documents import Actor, ContextPackage, Conversation, DelegationGrant, Membership, Message
from mwnode.protocol.events.base import Fact
from mwnode.protocol.scalars import Id, SafeInteger, Sha256, Text4000


class MembershipChanged(Fact):
    membership: Membership
    context_package_id: Id | UnsetType = UNSET
    context_package_hash: Sha256 | UnsetType = UNSET
    mission_revision: SafeInteger | UnsetType = UNSET


class MembershipEnded(Fact):
    membership: Membership
    reason: Text4000 | UnsetType = UNSET


class DelegationGranted(Fact):
    delegation_grant: DelegationGrant
    membership: Membership


class MessageCommitted(Fact):
    """``message.posted`` and its three amendments; ``revision`` and ``state`` are the Conversation's."""

    message: Message
    announcement: bool | UnsetType = UNSET


class ConversationOpened(Fact):
    conversation: Conversation


class ContextPackagePublished(Fact):
    context_package: ContextPackage
    recipient: Actor | UnsetType = UNSET
