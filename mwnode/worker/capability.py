"""Capability Tokens of runs: what a tool may be asked to do, kept in the slot of the run that it was issued for.

A token lies in a file of its own in the slot, readable by the Worker's user, and goes away with the right that it
stands for: when the lease or the token is over, also while nobody can be asked (R-11.5-07). It stands in no log, no
Evidence and no kept directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from mwnode.client.fold import ANY_RESOURCE
from mwnode.protocol.documents import ResourceGrant, WorkContract
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.instants import Instant, parse
from mwnode.worker.effects import FetchToken, Revoke
from mwnode.worker.jobs import Grant, Job
from mwnode.worker.whole import Whole

RETRY_SECONDS = 5.0
REFUSED_SECONDS = 30.0
"""After a refusal that time alone does not mend."""
_LASTING = frozenset({ErrorCode.AUTH_FORBIDDEN, ErrorCode.APPROVAL_REQUIRED, ErrorCode.BUDGET_EXCEEDED})


class NotCapable(Exception):
    """No valid token covers what a tool is about to do: it must not be done. One line that says why."""


class Token(Struct, frozen=True, rename="camel"):
    """What lies in a slot's capability file."""

    token: str
    operations: tuple[str, ...]
    resources: tuple[ResourceGrant, ...]
    expires_at: str


def usable(raw: bytes | None, now: Instant, operation: str, resource: str | None) -> str:
    """The token for an operation, on a resource where one is named, out of a slot's file. Raises NotCapable."""
    if raw is None:
        raise NotCapable("there is no valid Capability Token: its lease or the token itself is over")
    found = msgspec.json.decode(raw, type=Token)
    if parse(found.expires_at) <= now:
        raise NotCapable(f"the Capability Token ended at {found.expires_at}")
    if operation not in found.operations:
        raise NotCapable(f"the Capability Token does not cover {operation}")
    if resource is not None and not any(
        grant.resource == resource and operation in grant.operations for grant in found.resources
    ):
        raise NotCapable(f"the Capability Token does not cover {operation} on {resource}")
    return found.token


def asked_for(
    contract: WorkContract, work_item_id: str, lease_id: str, approved: tuple[ResourceGrant, ...] | None = None
) -> dict[str, Any] | None:
    """The request for everything that a contract allows; ``None`` where it allows nothing.

    Where a human approved a part of it, for that part: what was not approved is not had by asking for all (R-12-17).
    """
    allowed = contract.allowed_resources if approved is None else _within(contract.allowed_resources, approved)
    operations = _unique(operation for grant in allowed for operation in grant.operations)
    if not operations:
        return None
    return {
        "workItemId": work_item_id,
        "executionLeaseId": lease_id,
        "operations": operations,
        "resources": msgspec.to_builtins(allowed),
    }


def _within(wanted: Iterable[ResourceGrant], approved: tuple[ResourceGrant, ...]) -> tuple[ResourceGrant, ...]:
    """What of the grants is covered by those approved."""
    found = []
    for grant in wanted:
        covered = {
            one for held in approved if held.resource in (grant.resource, ANY_RESOURCE) for one in held.operations
        }
        kept = tuple(one for one in grant.operations if one in covered)
        if kept:
            found.append(msgspec.structs.replace(grant, operations=kept))
    return tuple(found)


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


class Capabilities:
    """Fetches, renews and takes away the tokens of all runs. Part of the engine."""

    def __init__(self, engine: Whole) -> None:
        self.engine = engine

    def request(self, job: Job) -> dict[str, Any] | None:
        """What is asked for now; ``None`` without a lease, or where the contract allows no operation."""
        if job.hold is None or not self.engine.online:
            return None
        view = self.engine.view(job)
        return asked_for(view.item.contract, job.work_item_id, job.hold.lease_id, view.approved.get(job.epoch))

    def watch(self, job: Job, now: float) -> None:
        """Renew a token at half of its life, and take it away when it or the lease is over."""
        if job.grant is not None and not self.holds(job, now):
            job.grant = None
            self.engine.emit(Revoke(job.run_id or ""))
        fresh = job.grant is not None and now < job.grant.renew_at
        if not job.alive or fresh or now < job.token_at:
            return
        request = self.request(job)
        if request is not None:
            job.token_at = now + RETRY_SECONDS
            self.engine.emit(FetchToken(job.run_id or "", request))

    def holds(self, job: Job, now: float) -> bool:
        """Whether lease and token are both still valid, by our own monotonic clock (R-11.5-07)."""
        grant, hold = job.grant, job.hold
        if not job.alive or grant is None or hold is None or grant.lease_id != hold.lease_id:
            return False
        return now < min(grant.ends_at, hold.ends_at - self.engine.settings.lease_margin_seconds)

    def granted(self, run_id: str, lease_id: str, claims: Mapping[str, Any], asked_at: float) -> bool:
        """A token came; whether the run may still have it. Its life counts from when it was asked for."""
        job = self.engine.runs.of_run(run_id)
        if job is None or job.hold is None or job.hold.lease_id != lease_id or not job.alive:
            return False
        begun, ends = parse(claims["issuedAt"]), parse(claims["expiresAt"])
        life = (ends.whole_microseconds() - begun.whole_microseconds()) / 1_000_000
        job.grant = Grant(lease_id, asked_at + life / 2, asked_at + life)
        job.token_at = 0.0
        return self.holds(job, self.engine.clock.monotonic())

    def refused(self, run_id: str, code: ErrorCode | None, why: str) -> None:
        """No token: it is asked for again later, and the run goes on with what needs none."""
        job = self.engine.runs.of_run(run_id)
        if job is not None:
            job.token_at = self.engine.clock.monotonic() + (REFUSED_SECONDS if code in _LASTING else RETRY_SECONDS)
            self.engine.note("no_capability", workItemId=job.work_item_id, because=why)
