"""The plan file: one TOML file is a Mission, typed, checked and turned into protocol objects.

Faults are a :class:`PlanError` with file, line and key path. Defaults: the contract's `businessImpact` is the Mission's
objective, its deadline the Mission's, its resources the Mission's permissions; capability `mwnode.generic@1.0.0`.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from mwnode.coordinator.plan_checks import Checks, PlanError
from mwnode.coordinator.plan_faults import faults_of
from mwnode.coordinator.plan_format import (
    DEFAULT_SECONDS,
    FROM_PARENT,
    GENERIC_CAPABILITY,
    PlanFile,
    PlanMission,
    PlanWork,
    budget_of,
    capability,
    deadline_text,
    is_content_hash,
    needs_human,
    total,
)
from mwnode.coordinator.plan_text import KeyPath, line_of
from mwnode.coordinator.plan_within import beyond
from mwnode.protocol.assessments import BY_REVIEWER
from mwnode.protocol.capabilities import covers
from mwnode.protocol.documents import (
    AcceptanceCriterion,
    ApprovalPolicy,
    Budget,
    CapabilityRef,
    Deliverable,
    Extension,
    JsonObject,
    RetryPolicy,
    WorkContract,
)
from mwnode.protocol.identifiers import CORE_EXTENSION
from mwnode.protocol.instants import Instant, parse

__all__ = ["Plan", "PlanError", "load_plan", "parse_plan"]


class Plan:
    """A checked plan. ``plan_hash`` is the SHA-256 of the file's bytes, by which a Mission names its plan."""

    def __init__(self, source: Path, raw: bytes, mission: PlanMission, work: tuple[PlanWork, ...]) -> None:
        self.source = source
        self.plan_hash = f"sha256:{hashlib.sha256(raw).hexdigest()}"
        self.mission = mission
        self.work = work
        self.by_id = {item.id: item for item in work}
        self.children: dict[str, Plan] = {}
        """Plans of the works that become Missions of their own, by local name."""

    @property
    def coordinator(self) -> str | None:
        return self.mission.coordinator

    @property
    def extensions(self) -> dict[str, JsonObject]:
        """What the `mission.create` Command carries in its envelope, so that Coordinators find the Mission."""
        data: JsonObject = {"planHash": self.plan_hash}
        if self.mission.priority is not None:
            data["priority"] = self.mission.priority
        return {CORE_EXTENSION: _plain(Extension(version="1.0.0", critical=False, data=data))}

    def every(self) -> list[Plan]:
        """This plan and all that it contains."""
        return [self, *(one for child in self.children.values() for one in child.every())]

    def mission_payload(
        self, mission_id: str, group_id: str, coordinator_agent_id: str, now: Instant, *, child: bool = False
    ) -> JsonObject:
        """The payload of `mission.create`, or what it shares with that of `mission.create_child`: there the Parent
        Coordinator approves, unless the plan wants a human too. A deadline given as a duration counts from ``now``.
        """
        mission = self.mission
        policy = mission.approval_policy or ApprovalPolicy(
            final_human_approval=not child, high_risk_execution_approval=True
        )
        payload: JsonObject = {
            "missionId": mission_id,
            "groupId": group_id,
            "coordinatorAgentId": coordinator_agent_id,
            "objective": mission.objective,
            "definitionOfDone": _plain(mission.definition_of_done),
            "budget": _plain(budget_of(mission.budget, None)),
            "deadline": deadline_text(mission.deadline, now),
            "approvalPolicy": _plain(policy),
            "permissions": _plain(mission.permissions),
            "coordinatorLeaseSeconds": mission.coordinator_lease_seconds,
        }
        if mission.title is not None:
            payload["title"] = mission.title
        if mission.pinned_profiles is not None:
            payload["pinnedProfiles"] = _plain(mission.pinned_profiles)
        return payload

    def contract(
        self,
        work: PlanWork,
        ids: Mapping[str, str],
        now: Instant,
        input_hashes: Mapping[str, str],
        *,
        mission_deadline: str | None = None,
        contract_version: int = 1,
    ) -> WorkContract:
        """The Work Contract of one `[[work]]`.

        ``ids`` gives the WorkItem of each local name, ``input_hashes`` the content hash of each file that the executor
        finds under `inputs/`, by relative path. Deadlines given as durations count from ``now``.
        """
        deadline = mission_deadline or deadline_text(self.mission.deadline, now)
        if work.deadline is not None:
            deadline = min(deadline, deadline_text(work.deadline, now), key=parse)
        constraints: JsonObject = {
            "localId": work.id,
            "deliverables": {item.id: {"path": item.file} for item in work.deliverables},
            "checks": {item.id: item.check for item in work.criteria if item.check is not None},
            "inputs": [{"path": path, "contentHash": input_hashes[path]} for path in sorted(input_hashes)],
        }
        if work.run is not None:
            constraints["run"] = work.run
        if work.cleanup is not None:
            cleanup = self.by_id[work.cleanup]
            constraints["cleanup"] = _plain(self.contract(cleanup, {}, now, input_hashes, mission_deadline=deadline))
        return WorkContract(
            contract_version=contract_version,
            goal=work.goal,
            required_deliverables=tuple(
                Deliverable(
                    deliverable_id=item.id,
                    description=item.description or item.file,
                    media_type=item.media_type,
                    schema=item.schema,
                )
                for item in work.deliverables
            ),
            acceptance_criteria=tuple(
                AcceptanceCriterion(criterion_id=item.id, description=item.description, evidence_required=item.evidence)
                for item in work.criteria
            ),
            input_artifacts=tuple(sorted(set(input_hashes.values()))),
            dependency_work_item_ids=tuple(ids[name] for name in work.after if name in ids),
            allowed_resources=self.mission.permissions if work.resources is None else work.resources,
            required_capabilities=self.capabilities(work),
            deadline=deadline,
            requested_urgency=work.urgency,
            business_impact=work.business_impact or self.mission.objective[:4000],
            retry_policy=RetryPolicy(
                max_attempts=work.retry.max_attempts,
                backoff=work.retry.backoff,
                max_delay=work.retry.max_delay,
                retryable_failures=work.retry.retryable_failures,
            ),
            budget=self.work_budget(work),
            side_effect_risk=work.risk,
            execution_approval=work.approval or ("human_required" if needs_human(work) else "not_required"),
            constraints=constraints,
        )

    def capabilities(self, work: PlanWork) -> tuple[CapabilityRef, ...]:
        """What a work requires: as stated, else for a Mission of its own all that its works require (R-14-07)."""
        child = self.children.get(work.id)
        if child is None or work.capability != (GENERIC_CAPABILITY,):
            return tuple(capability(text) for text in work.capability)
        return tuple(dict.fromkeys(child.all_capabilities()))

    def all_capabilities(self) -> Iterator[CapabilityRef]:
        """What the works of the plan require of those who do them and of those who assess them: as a Mission of its
        own it may authorize no other work (R-14-07)."""
        for work in self.work:
            yield from self.capabilities(work)
            if any(BY_REVIEWER in criterion.evidence for criterion in work.criteria):
                yield from (capability(text) for text in work.reviewer)

    def work_budget(self, work: PlanWork) -> Budget:
        """The work's own budget, or an equal share of half the wall clock that the others leave (one hour at most).

        The other half is left for what comes up: corrections and discoveries.
        """
        if work.budget is not None:
            return budget_of(work.budget, self.mission.budget.currency)
        if work.id in self.children:
            return budget_of(self.children[work.id].mission.budget, self.mission.budget.currency)
        limit = self.mission.budget.wall_clock_seconds_limit
        share = DEFAULT_SECONDS
        if limit is not UNSET:
            open_items = sum(1 for item in self.work if item.budget is None)
            left = int(limit - total(self.work, "wall_clock_seconds_limit"))
            share = max(1, min(share, left // (2 * open_items)))
        return Budget(wall_clock_seconds_limit=share)

    def order(self) -> tuple[PlanWork, ...]:
        """All work, dependencies first."""
        done: dict[str, PlanWork] = {}

        def visit(work: PlanWork) -> None:
            if work.id not in done:
                for name in work.after:
                    visit(self.by_id[name])
                done[work.id] = work

        for item in self.work:
            visit(item)
        return tuple(done.values())


def load_plan(path: Path | str) -> Plan:
    """Read and check a plan file. Raises :class:`PlanError`; files named as inputs must exist beside it."""
    source = Path(path)
    try:
        raw = source.read_bytes()
    except OSError as error:
        raise PlanError(source, f"cannot be read: {error.strerror or error}") from None
    return _load(raw, source, (source.resolve(),))


def _load(raw: bytes, source: Path, above: tuple[Path, ...]) -> Plan:
    plan, missing = _checked(raw, source)
    sound = not missing
    for index, work in enumerate(plan.work):
        if work.mission is not None and sound:
            missing += _load_child(plan, index, work, raw, above)
        for position, name in enumerate(work.inputs):
            elsewhere = is_content_hash(name) or name.startswith((FROM_PARENT, "/")) or not name
            if not elsewhere and not (source.parent / name).exists():
                where: KeyPath = ("work", index, "inputs", position)
                line = line_of(raw.decode("utf-8"), where)
                missing.append(PlanError(source, f"no file or folder {name!r} beside the plan", where, line))
    if missing:
        raise PlanError.of(missing)
    return plan


def _load_child(plan: Plan, index: int, work: PlanWork, raw: bytes, above: tuple[Path, ...]) -> list[PlanError]:
    """Read the plan of a work that becomes a child Mission; what is wrong with it, or with its place here."""
    assert work.mission is not None, "callers have checked"
    path, where = plan.source.parent / work.mission, ("work", index, "mission")

    def fault(message: str) -> list[PlanError]:
        return [PlanError(plan.source, message, where, line_of(raw.decode("utf-8"), where))]

    if path.resolve() in above:
        return fault("the plan contains itself")
    if not path.is_file():
        return fault(f"no plan {work.mission!r} beside this one")
    try:
        child = _load(path.read_bytes(), path, (*above, path.resolve()))
    except PlanError as error:
        return list(error.all)
    plan.children[work.id] = child
    if child.coordinator is None:
        return fault(f"{work.mission} names no coordinator, and a Mission of its own needs another one than this")
    if child.coordinator == plan.coordinator:
        return fault(f"{work.mission} has the same coordinator: owner and Coordinator of a Mission are two Agents")
    needed = tuple(dict.fromkeys(child.all_capabilities()))
    lacking = [f"{one.id}@{one.version}" for one in needed if not covers(plan.capabilities(work), (one,))]
    found = fault(f"its works need {', '.join(lacking)}: name that in `capability`") if lacking else []
    for message in beyond(plan.mission, work, child.mission):
        found += fault(f"{work.mission}: {message}")
    return found


def parse_plan(raw: bytes, source: Path) -> Plan:
    """Check the bytes of a plan file; pure. Raises :class:`PlanError`."""
    plan, found = _checked(raw, source)
    if found:
        raise PlanError.of(found)
    return plan


def _checked(raw: bytes, source: Path) -> tuple[Plan, list[PlanError]]:
    """A plan whose form is right, and what else is wrong with it. Raises :class:`PlanError` for faults of form."""
    try:
        text = raw.decode("utf-8")
        tree = tomllib.loads(text)
    except UnicodeDecodeError:
        raise PlanError(source, "is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+)", str(error))
        raise PlanError(source, f"is not TOML: {error}", (), int(at[1]) if at else None) from None
    except (RecursionError, ValueError):
        # Brackets without end, and integers of thousands of digits.
        raise PlanError(source, "is no plan: it cannot be read to its end") from None
    values = _timestamps_as_text(tree)
    faults = faults_of(values, PlanFile)
    if faults:
        raise PlanError.of([PlanError(source, message, path, line_of(text, path)) for path, message in faults])
    file = msgspec.convert(values, PlanFile)
    return Plan(source, raw, file.mission, file.work), Checks(source, text, file).run()


def _timestamps_as_text(value: Any) -> Any:
    """TOML has a timestamp type of its own; here one spelling is enough."""
    if isinstance(value, dict):
        return {name: _timestamps_as_text(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_timestamps_as_text(member) for member in value]
    return value.isoformat() if isinstance(value, datetime) else value


def _plain(value: Any) -> Any:
    """Structs as JSON values; arrays as lists."""
    return msgspec.json.decode(msgspec.json.encode(value))
