"""What the types of a plan cannot say: names that exist, no cycles, allocations within the Mission's limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import UNSET, UnsetType

from mwnode.coordinator.plan_format import (
    GENERIC_CAPABILITY,
    LIMITS,
    PlanBudget,
    PlanCriterion,
    PlanDeliverable,
    PlanFile,
    PlanWork,
    budget_of,
    capability,
    needs_human,
    total,
)
from mwnode.coordinator.plan_text import KeyPath, line_of, spell
from mwnode.protocol.documents import Budget
from mwnode.protocol.instants import parse, parse_duration


class PlanError(ValueError):
    """A plan that cannot be used. ``str()`` is one line: file, line, key path, what is wrong and what to do.

    ``all`` holds every mistake that was found with this one, itself first; they are reported together.
    """

    def __init__(self, source: Path, message: str, path: KeyPath = (), line: int | None = None) -> None:
        self.source = source
        self.key = spell(path)
        self.line = line
        self.message = message
        self.all: tuple[PlanError, ...] = (self,)
        where = f"{source}:{line}" if line else str(source)
        super().__init__(f"{where}: {self.key}: {message}" if self.key else f"{where}: {message}")

    @staticmethod
    def of(found: Sequence[PlanError]) -> PlanError:
        """The first of some mistakes, which knows them all."""
        first = found[0]
        first.all = tuple(found)
        return first


class Checks:
    """What types cannot say about a plan."""

    def __init__(self, source: Path, text: str, file: PlanFile) -> None:
        self.source = source
        self.text = text
        self.mission = file.mission
        self.work = file.work
        self.found: list[PlanError] = []

    def fail(self, message: str, *path: str | int) -> None:
        self.found.append(PlanError(self.source, message, path, line_of(self.text, path)))

    def run(self) -> list[PlanError]:
        """Every mistake that can be told, in the order of the checks."""
        seen: dict[str, int] = {}
        self._mission()
        for index, work in enumerate(self.work):
            self._named(index, work, seen)
        for index, work in enumerate(self.work):
            self._work(index, work, seen)
        self._cycle(seen)
        self._sums()
        return self.found

    def _mission(self) -> None:
        if not self.mission.definition_of_done:
            self.fail("has at least one criterion", "mission", "definitionOfDone")
        if not self.work:
            self.fail("a plan has at least one [[work]]", "work")
        self._time(self.mission.deadline, "mission", "deadline")
        self._limits(self.mission.budget, None, "mission", "budget")

    def _time(self, value: str, *path: str | int) -> None:
        try:
            parse_duration(value) if value.startswith("P") else parse(value)
        except ValueError:
            self.fail(
                f"{value!r} is neither a duration such as P2D or PT30M nor a timestamp such as 2030-01-31T12:00:00Z",
                *path,
            )

    def _limits(self, budget: PlanBudget, currency: str | UnsetType | None, *path: str | int) -> None:
        try:
            budget_of(budget, currency)
        except ValueError as error:
            self.fail(str(error), *path)

    def _named(self, index: int, work: PlanWork, seen: dict[str, int]) -> None:
        first = seen.setdefault(work.id, index)
        if first != index:
            self.fail(f"{work.id!r} is already the id of work[{first}]", "work", index, "id")

    def _work(self, index: int, work: PlanWork, seen: Mapping[str, int]) -> None:
        here = ("work", index)
        for name in ("criteria", "deliverables"):
            entries: tuple[PlanCriterion | PlanDeliverable, ...] = getattr(work, name)
            if not entries:
                self.fail(f"{work.id!r} has no {name}; give at least one", *here, name)
            for position, entry in enumerate(entries):
                if entry.id in [other.id for other in entries[:position]]:
                    self.fail(f"{entry.id!r} stands twice", *here, name, position, "id")
        for position, item in enumerate(work.criteria):
            if not item.evidence or len(set(item.evidence)) < len(item.evidence):
                self.fail("names at least one kind of Evidence, each once", *here, "criteria", position, "evidence")
        for position, deliverable in enumerate(work.deliverables):
            parts = deliverable.file.split("/")
            if deliverable.file.startswith("/") or any(part in ("", ".", "..") for part in parts):
                self.fail("is a relative path under outputs/ without '..'", *here, "deliverables", position, "path")
        for position, text in enumerate(work.inputs):
            if not text or text.startswith("/"):
                self.fail("is a path relative to the plan, or sha256:...", *here, "inputs", position)
        if not work.capability:
            self.fail(f"names at least one; leave it out for {GENERIC_CAPABILITY}", *here, "capability")
        for name, texts in (("capability", work.capability), ("reviewer", work.reviewer)):
            for position, text in enumerate(texts):
                try:
                    capability(text)
                except ValueError as error:
                    self.fail(str(error), *here, name, position)
        if not work.reviewer:
            self.fail("names at least one capability of a reviewer, or is left out", *here, "reviewer")
        for position, name in enumerate(work.after):
            if name not in seen:
                self.fail(f"no work is called {name!r}; known: {', '.join(sorted(seen))}", *here, "after", position)
        if work.cleanup is not None and work.cleanup not in seen:
            self.fail(f"no work is called {work.cleanup!r}", *here, "cleanup")
        if work.budget is not None:
            self._limits(work.budget, self.mission.budget.currency, *here, "budget")
        if work.mission is not None and (work.run is not None or work.inputs):
            self.fail("a work that is a Mission of its own has no `run` and no `inputs`", *here, "mission")
        if work.deadline is not None:
            self._time(work.deadline, *here, "deadline")
        if needs_human(work) and work.approval not in (None, "human_required"):
            self.fail(f"risk {work.risk!r} requires 'human_required'", *here, "approval")
        resources = self.mission.permissions if work.resources is None else work.resources
        if (needs_human(work) or work.approval == "human_required") and not any(one.operations for one in resources):
            # An Execution Approval names operations; without any, nobody could ever let it run (R-12-17).
            self.fail(
                "waits for a human to permit operations: name them in `resources`, or in [mission] permissions", *here
            )

    def _cycle(self, seen: Mapping[str, int]) -> None:
        """Refuse dependencies that wait for each other."""
        settled: set[str] = set()

        def visit(name: str, trail: tuple[str, ...]) -> None:
            if name in trail:
                ring = " -> ".join((*trail[trail.index(name) :], name))
                self.fail(f"work waits for itself: {ring}", "work", seen[name], "after")
                return
            if name not in settled:
                for other in self.work[seen[name]].after:
                    if other in seen:  # else it is told already
                        visit(other, (*trail, name))
                settled.add(name)

        for name in seen:
            visit(name, ())

    def _sums(self) -> None:
        """Refuse allocations beyond the Mission's limits (R-12-21)."""
        for limit in LIMITS:
            ceiling = getattr(self.mission.budget, limit)
            if ceiling is UNSET:
                continue
            given = total(self.work, limit)
            name = msgspec.structs.fields(Budget)[Budget.__struct_fields__.index(limit)].encode_name
            if given > ceiling:
                self.fail(f"the work together is given {given:g}, the Mission {ceiling:g}", "mission", "budget", name)
            open_items = sum(1 for item in self.work if item.budget is None)
            if limit == "wall_clock_seconds_limit" and open_items and (ceiling - given) // open_items < 1:
                self.fail("leaves nothing for work without a budget of its own", "mission", "budget", name)
