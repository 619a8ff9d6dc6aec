"""Whether an offer can be credibly kept, decided before it is accepted (R-10.3-08, R-10.3-09). Pure.

The checks are a table: the first that fails names the structured reason of the decline (R-10.3-10).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import UNSET, Struct

from mwnode.client.fold import WorkView
from mwnode.protocol import terms
from mwnode.protocol.assessments import BY_OTHERS
from mwnode.protocol.capabilities import covers
from mwnode.protocol.documents import CapabilityRef, DeclineReason, WorkContract
from mwnode.protocol.identifiers import CORE_EXTENSION, OFFLINE_EXTENSION
from mwnode.protocol.instants import Instant, parse

KNOWN_EXTENSIONS = frozenset({CORE_EXTENSION, OFFLINE_EXTENSION})


class Situation(Struct, frozen=True, kw_only=True):
    """What a Worker knows when it considers an offer. Seconds are of wall time unless said otherwise."""

    now: Instant
    capabilities: tuple[CapabilityRef, ...]
    scopes: frozenset[str]
    """Scopes of the Worker's own Membership in the Group."""
    risks: frozenset[str]
    """Side-effect risks that this Worker takes on."""
    denied_operations: tuple[str, ...]
    """Prefixes of operations that this Worker never does."""
    slots: int
    committed: int
    """WorkItems that run here, wait here, or are being accepted."""
    queue_max: int
    """How many may wait while every slot is taken; 0 = accept only what starts at once."""
    backlog_seconds: float
    """Expected seconds of one slot that already wait or run here."""
    run_seconds: float
    """Expected seconds that this WorkItem runs."""
    draining: bool
    dependencies: Mapping[str, str]
    """State of each dependency that can be seen."""


class Decline(Struct, frozen=True):
    reason: DeclineReason
    detail: str


class Question(Struct, frozen=True):
    """An essential ambiguity: to be raised in the WorkItem's Conversation, and no acceptance before (R-10.1-19)."""

    text: str


def _capability(contract: WorkContract, here: Situation) -> str | None:
    for wanted in contract.required_capabilities:
        if not covers(here.capabilities, (wanted,)):
            return f"this Worker does not offer {wanted.id}@{wanted.version}"
    return None


def _authorization(contract: WorkContract, here: Situation) -> str | None:
    for scope in ("work.accept_offer", "work.execute"):
        if here.scopes and scope not in here.scopes:
            return f"the Membership lacks the scope {scope}"
    if contract.side_effect_risk not in here.risks:
        return f"this Worker takes no work of risk {contract.side_effect_risk}"
    for grant in contract.allowed_resources:
        for operation in grant.operations:
            if operation.startswith(here.denied_operations):
                return f"this Worker never does {operation}"
    return None


def _dependency(contract: WorkContract, here: Situation) -> str | None:
    for work_item_id in contract.dependency_work_item_ids:
        if here.dependencies.get(work_item_id) == "cancelled":
            return f"{work_item_id} is cancelled, so this can never start"
    return None


def _budget(contract: WorkContract, here: Situation) -> str | None:
    limit = contract.budget.wall_clock_seconds_limit
    if limit is not UNSET and limit < 1:
        return "wallClockSecondsLimit is 0, so nothing can run"
    return None


def _deadline(contract: WorkContract, here: Situation) -> str | None:
    wait = here.backlog_seconds / here.slots
    if here.now.plus(int(wait + here.run_seconds)) >= parse(contract.deadline):
        return f"cannot be done before {contract.deadline}"
    return None


def _capacity(contract: WorkContract, here: Situation) -> str | None:
    if here.draining:
        return "this Worker is shutting down"
    if here.committed >= here.slots + here.queue_max:
        return "every slot is taken and the queue is full"
    return None


Check = Callable[[WorkContract, Situation], str | None]
CHECKS: tuple[tuple[DeclineReason, Check], ...] = (
    ("capability", _capability),
    ("authorization", _authorization),
    ("dependency", _dependency),
    ("budget", _budget),
    ("deadline", _deadline),
    ("capacity", _capacity),
)


def consider(view: WorkView, here: Situation) -> Decline | Question | None:
    """``None`` to accept; why not, otherwise."""
    contract = view.item.contract
    critical = _unknown_critical(view)
    if critical is not None:
        # R-18-05: what must be understood and is not, is not begun.
        return Decline("other", f"the critical extension {critical} is not known here")
    for reason, check in CHECKS:
        detail = check(contract, here)
        if detail is not None:
            return Decline(reason, detail)
    return ambiguity(contract)


def _unknown_critical(view: WorkView) -> str | None:
    for extensions in (view.item.extensions, view.item.contract.extensions):
        for uri, extension in () if extensions is UNSET else extensions.items():
            if extension.critical and uri not in KNOWN_EXTENSIONS:
                return uri
    return None


def ambiguity(contract: WorkContract) -> Question | None:
    """What has to be settled by a corrected contract before anybody can start (R-10.1-20)."""
    named = terms.of(contract).get("deliverables", {})
    known = {item.deliverable_id for item in contract.required_deliverables}
    if not isinstance(named, Mapping):
        return Question("constraints.deliverables is not an object: under which files are the deliverables expected?")
    for deliverable_id in named:
        if deliverable_id not in known:
            return Question(
                f"constraints names the deliverable {deliverable_id!r}, which the contract does not require"
            )
    paths = [path for path in map(terms.path_in, named.values()) if path is not None]
    if len(set(paths)) < len(paths):
        return Question("two deliverables have the same path: which file is which?")
    if known and named and known - set(named):
        missing = ", ".join(sorted(known - set(named)))
        return Question(f"constraints.deliverables gives no path for: {missing}. Under which files are they expected?")
    return None


def needed_evidence(contract: WorkContract) -> list[tuple[str, str]]:
    """Criterion and kind of everything that the Worker's own Evidence must cover at submission (decision D16)."""
    return [
        (criterion.criterion_id, kind)
        for criterion in contract.acceptance_criteria
        for kind in criterion.evidence_required
        if kind not in BY_OTHERS
    ]
