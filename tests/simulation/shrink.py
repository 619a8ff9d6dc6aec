"""Fewer faults that still make a seed fail."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.faults import Fault, schedule
from tests.simulation.homes import Template
from tests.simulation.world import Mutation, Outcome, simulate

RUNS_MAX = 80


def shrink(outcome: Outcome, template: Template, mutation: Mutation | None = None) -> Outcome:
    """Leave out halves, quarters and so on down to single faults, for as long as anything is still found."""
    best, runs, parts = outcome, 0, 2

    def fails(faults: Sequence[Fault]) -> Outcome | None:
        tried = simulate(outcome.seed, template, faults=faults, mutation=mutation)
        return tried if tried.violation is not None else None

    none = fails([])
    if none is not None:
        return none
    while len(best.faults) > 1 and runs < RUNS_MAX:
        size = -(-len(best.faults) // parts)
        for start in range(0, len(best.faults), size):
            runs += 1
            shorter = fails([*best.faults[:start], *best.faults[start + size :]])
            if shorter is not None:
                best, parts = shorter, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(best.faults))
    return best


def numbers_of(outcome: Outcome) -> str:
    """Which faults of the seed's own are left, as ``--only`` takes them."""
    left = list(schedule(outcome.seed))
    return ",".join(str(left.index(fault)) for fault in outcome.faults) or '""'
