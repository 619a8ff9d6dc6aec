"""The Organization's policy: the ``[policy]`` table of ``mwnode.toml``, with its defaults."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

COUNT_MAX = 1_000_000_000
"""Far beyond any use, and far below what arithmetic on times or stored integers could trip over."""
SECONDS_MAX = 10 * 366 * 86_400
"""Ten years."""

Positive = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Seconds = Annotated[int, Meta(ge=1, le=SECONDS_MAX)]
SecondsOrZero = Annotated[int, Meta(ge=0, le=SECONDS_MAX)]


class Policy(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits that the authority applies. Times are whole seconds, rates are per minute."""

    freshness_window: Seconds = 300
    clock_skew: SecondsOrZero = 60
    session_token_lifetime: Seconds = 900
    coordinator_lease_max: Seconds = 3600
    execution_lease_max: Seconds = 3600
    ownership_lease_max: Seconds = 86_400
    blocked_lease_max: Seconds = 86_400
    offer_lifetime_max: Seconds = 604_800
    offer_candidates_max: Positive = 64
    provisional_membership_max: Seconds = 86_400
    membership_idle_end: SecondsOrZero = 86_400
    """0 = never."""
    message_rate: Positive = 120
    proposal_rate: Positive = 30
    delegation_depth: Count = 3
    auto_approve_risk: tuple[str, ...] = ("none", "reversible")
    queued_work_items: Positive = 100
    active_work_items: Positive = 4
    clarification_rounds: Positive = 5
    group_event_warning: Positive = 100_000
    offline_grace: SecondsOrZero = 900
    approval_gates: tuple[str, ...] = ("production.", "payment.", "external.", "destructive.")
    capability_token_lifetime: Seconds = 300
    reconcile_required: bool = True
    reviewer_must_differ: bool = True
    mission_owners: tuple[str, ...] = ()
    """Empty = any registered human."""
    trim_archived_after: SecondsOrZero | None = None
    audit_retention: SecondsOrZero | None = None
    upload_retention: SecondsOrZero = 2_592_000
    """How long bytes stay that were uploaded and that nothing names; 0 = for good."""
    root_approval_of_children: bool = False
    version: str = "1.0.0"
    """Version of these limits; a change of any other member makes a new one."""
