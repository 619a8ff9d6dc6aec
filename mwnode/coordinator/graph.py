"""The plan's graph over a Mission's WorkItems: which item stands for which work, and what each one is given. Pure.

Identifiers are made from the Mission, the local name and the round of corrections, so that a Coordinator that starts
anew finds its own WorkItems in the log and authorizes nothing twice.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import UNSET, Struct

from mwnode.client.fold import WorkView
from mwnode.coordinator.board import Board, Change
from mwnode.coordinator.plan import Plan
from mwnode.coordinator.plan_format import FROM_PARENT, PlanWork
from mwnode.protocol import terms
from mwnode.protocol.documents import Artifact, WorkContract
from mwnode.protocol.instants import Instant


def work_item_id(mission_id: str, local: str, number: int = 0) -> str:
    """The WorkItem of a work in a round; the same in every run of every Coordinator."""
    digest = hashlib.sha256("\0".join((mission_id, local, str(number))).encode()).hexdigest()
    return f"urn:mwnode:work:{digest[:32]}"


class Instance(Struct, frozen=True):
    """The WorkItem that stands for a work of the plan now, or one that was added as the graph grew."""

    local: str
    """Name in the plan, or a name made for it."""
    work_item_id: str
    round: int = 0
    change: Change | None = None
    """The request for changes that it answers."""
    work: PlanWork | None = None
    given: WorkContract | None = None
    """Without a work of the plan: the contract that it is authorized with."""


class Graph:
    """One plan over one board."""

    def __init__(self, plan: Plan, board: Board) -> None:
        self.plan = plan
        self.board = board

    def instances(self) -> dict[str, Instance]:
        """The present WorkItem of every work, dependencies first.

        A request for changes makes new WorkItems for the works that its words name, or for the last ones of the graph
        when they name none, and for everything that depends on them (R-7.3-08).
        """
        assert self.board.mission is not None, "a Mission has a graph once it was created"
        rounds: dict[str, Change] = {}
        for change in self.board.changes:
            for local in self._affected(change.feedback):
                rounds[local] = change
        found = {}
        for work in self.plan.order():
            wanted = rounds.get(work.id)
            number = 0 if wanted is None else wanted.round
            identifier = work_item_id(self.board.mission.mission_id, work.id, number)
            found[work.id] = Instance(work.id, identifier, number, wanted, work)
        return found

    def former(self, instance: Instance) -> list[str]:
        """The WorkItems that stood for the same work in earlier rounds, newest first."""
        assert self.board.mission is not None, "callers have checked"
        mission_id = self.board.mission.mission_id
        return [work_item_id(mission_id, instance.local, number) for number in range(instance.round - 1, -1, -1)]

    def _affected(self, feedback: str) -> set[str]:
        words = set(re.findall(r"[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9]|[A-Za-z0-9]", feedback))
        named = {work.id for work in self.plan.work if work.id in words}
        if not named:
            waited_for = {name for work in self.plan.work for name in work.after}
            named = {work.id for work in self.plan.work if work.id not in waited_for}
        for work in self.plan.order():
            if named & set(work.after):
                named.add(work.id)
        return named

    def ancestors(self, local: str) -> list[str]:
        """Everything that a work depends on, directly or not, in the plan's order."""
        found: set[str] = set()

        def visit(name: str) -> None:
            for other in self.plan.by_id[name].after:
                if other not in found:
                    found.add(other)
                    visit(other)

        visit(local)
        return [work.id for work in self.plan.order() if work.id in found]

    def results(self, instance: Instance, instances: Mapping[str, Instance]) -> dict[str, str]:
        """Path under `inputs/` and content hash of every result of the works that this one depends on."""
        files: dict[str, str] = {}
        for local in self.ancestors(instance.local):
            view = self.board.views.get(instances[local].work_item_id)
            if view is None or view.item.submission is UNSET:
                continue
            for content_hash in view.item.submission.artifact_hashes:
                for path in result_paths(view, content_hash):
                    files[f"{local}/{path}"] = content_hash
        return files

    def handed(self, work: PlanWork) -> dict[str, str] | None:
        """Path under `inputs/` and content hash of what the Mission's owner handed in for a work; ``None`` while
        something that the plan names is not there."""
        files: dict[str, str] = {}
        for name in work.inputs:
            if not name.startswith(FROM_PARENT):
                continue
            wanted = name.removeprefix(FROM_PARENT).strip("/")
            found = {
                f"parent/{path}": content_hash
                for path, content_hash in self.board.handed.items()
                if not wanted or path == wanted or path.startswith(f"{wanted}/")
            }
            if not found:
                return None
            files.update(found)
        return files

    def contract(
        self,
        instance: Instance,
        instances: Mapping[str, Instance],
        inputs: Mapping[str, str],
        now: Instant,
        *,
        version: int = 1,
        rework: str | None = None,
    ) -> WorkContract:
        """The contract of an instance as it stands now: plan, results so far, words of the owner or of the review."""
        assert self.board.mission is not None, "callers have checked"
        if instance.work is None:
            assert instance.given is not None, "work outside of the plan brings its contract"
            contract = replace_contract(instance.given, contract_version=version)
        else:
            contract = self.plan.contract(
                instance.work,
                {local: other.work_item_id for local, other in instances.items()},
                now,
                {**inputs, **(self.handed(instance.work) or {}), **self.results(instance, instances)},
                mission_deadline=self.board.mission.deadline,
                contract_version=version,
            )
        constraints = dict(terms.of(contract))
        goal = contract.goal
        if instance.change is not None:
            constraints["correction"] = {"round": instance.round, "feedback": instance.change.feedback}
            goal = f"{goal}\nRequested change: {instance.change.feedback}"[:10_000]
        if rework is not None:
            constraints["rework"] = rework
        return replace_contract(contract, goal=goal, constraints=constraints)


def replace_contract(contract: WorkContract, **members: Any) -> WorkContract:
    """The same contract with other members."""
    fields = {name: getattr(contract, name) for name in contract.__struct_fields__}
    return WorkContract(**{**fields, **members})


def result_paths(view: WorkView, content_hash: str) -> Iterable[str]:
    """Under which names a submitted Artifact is known: as its producer says, else by its deliverable, else its hash."""
    manifest, contract, submission = view.artifacts.get(content_hash), view.item.contract, view.item.submission
    stated = () if manifest is None else _stated_paths(manifest)
    if stated:
        return stated
    # What was published below a child Mission comes without its manifest: alone, it can be no other deliverable.
    alone = submission is not UNSET and len(submission.artifact_hashes) == len(contract.required_deliverables) == 1
    for deliverable in contract.required_deliverables:
        kind = (deliverable.media_type, deliverable.schema)
        if alone if manifest is None else kind == (manifest.media_type, manifest.schema_uri):
            return (terms.deliverable_path(contract, deliverable.deliverable_id) or deliverable.deliverable_id,)
    return (content_hash.removeprefix("sha256:"),)


def _stated_paths(manifest: Artifact) -> tuple[str, ...]:
    paths = terms.paths_in(terms.core_data(manifest.extensions).get("deliverables"))
    return tuple(path for path in paths if not path.startswith("/") and ".." not in path.split("/"))
