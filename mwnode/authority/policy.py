"""The Organization's policy: the ``[policy]`` table of ``mwnode.toml``, with its defaults."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]


class Policy(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits that the authority applies. Times are whole seconds, rates are per minute."""

    freshness_window: Positive = 300
    clock_skew: Count = 60
    session_token_lifetime: Positive = 900
    coordinator_lease_max: Positive = 3600
    execution_lease_max: Positive = 3600
    ownership_lease_max: Positive = 86_400
    blocked_lease_max: Positive = 86_400
    offer_lifetime_max: Positive = 604_800
    offer_candidates_max: Positive = 64
    provisional_membership_max: Positive = 86_400
    membership_idle_end: Count = 86_400
    """0 = never."""
    message_rate: Positive = 120
    proposal_rate: Positive = 30
    delegation_depth: Count = 3
    auto_approve_risk: tuple[str, ...] = ("none", "reversible")
    queued_work_items: Positive = 100
    active_work_items: Positive = 4
    clarification_rounds: Positive = 5
    group_event_warning: Positive = 100_000
    offline_grace: Count = 900
    approval_gates: tuple[str, ...] = ("production.", "payment.", "external.", "destructive.")
    capability_token_lifetime: Positive = 300
    reconcile_required: bool = True
    reviewer_must_differ: bool = True
    mission_owners: tuple[str, ...] = ()
    """Empty = any registered human."""
    trim_archived_after: Count | None = None
    audit_retention: Count | None = None
    root_approval_of_children: bool = False
    version: str = "1.0.0"
    """Version of these limits; a change of any other member makes a new one."""
