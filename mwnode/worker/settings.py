"""How one Worker works: every limit in one place, with its unit."""

from __future__ import annotations

from msgspec import Struct

from mwnode.worker import scheduler


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """Rules of one Worker; seconds unless said otherwise."""

    scheduling: scheduler.Settings = scheduler.Settings()
    queue_max: int = 100
    """Accepted and not yet started WorkItems; beyond it offers are declined."""
    risks: frozenset[str] = frozenset({"none", "reversible", "external", "high_risk", "destructive"})
    """Side-effect risks that are taken on at all."""
    denied_operations: tuple[str, ...] = ()
    """Prefixes of operations that are never done."""
    execution_lease_seconds: int = 300
    ownership_lease_seconds: int = 900
    resume_within_seconds: int = 900
    blocked_lease_seconds: int = 3600
    offline_grace_seconds: float = 900.0
    """How long reversible work already running goes on without a connection (R-11.5-05)."""
    lease_margin_seconds: float = 2.0
    """The Worker stops itself so long before its lease ends."""
    stop_grace_seconds: float = 10.0
    """How long an executor may take to make its checkpoint after SIGTERM."""
    progress_seconds: float = 2.0
    """Shortest time between two progress reports of one WorkItem."""
    usage_seconds: float = 30.0
    """Usage is recorded at least so often while an executor runs."""
    retry_seconds: float = 0.5
    """Pause before a Command is tried again that failed for a passing reason."""
    keep_failed: bool = False
    """Whether the directory of a run that failed is kept aside, for somebody to look at."""
    run_seconds: float = 60.0
    """Expected run time of a WorkItem of which nothing else is known."""
