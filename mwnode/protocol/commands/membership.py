"""Payloads of the Commands about Memberships and Delegation Grants."""

from __future__ import annotations

from mwnode.protocol.commands.base import Payload
from mwnode.protocol.documents import Actor, Budget, CapabilityRef, ContextPackage, Role, require_some, require_unique
from mwnode.protocol.scalars import Id, SafeInteger, Scope, Text4000, Timestamp


class MembershipChange(Payload):
    principal: Actor
    role: Role | None = None
    roles: tuple[Role, ...] | None = None
    scopes: tuple[Scope, ...] | None = None
    provisional: bool = False
    provisional_expires_at: Timestamp | None = None
    context_package: ContextPackage | None = None
    visibility_start_sequence: SafeInteger | None = None
    expected_membership_epoch: SafeInteger | None = None

    def __post_init__(self) -> None:
        if (self.role is None) == (self.roles is None):
            raise ValueError("exactly one of role and roles is given")
        if self.roles is not None and len(self.roles) != 1:
            raise ValueError("roles names exactly one role")
        if self.scopes is not None:
            require_some("scopes", self.scopes)
            require_unique("scopes", self.scopes)

    @property
    def granted_role(self) -> Role:
        """The one role of the Membership."""
        return self.role if self.role is not None else (self.roles or ("observer",))[0]


class MembershipEnd(Payload):
    principal: Actor
    reason: Text4000 | None = None
    expected_membership_epoch: SafeInteger | None = None


class MembershipGrantDelegation(Payload):
    grant_id: Id
    grantee_agent_id: Id
    target_work_item_id: Id
    allowed_capabilities: tuple[CapabilityRef, ...]
    budget: Budget
    max_descendant_depth: SafeInteger
    expires_at: Timestamp

    def __post_init__(self) -> None:
        require_some("allowedCapabilities", self.allowed_capabilities)
        require_unique("allowedCapabilities", self.allowed_capabilities)
