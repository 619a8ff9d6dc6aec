"""Whole Missions under seeded faults; ``python -m tests.simulation`` runs as many seeds as one likes."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.simulation.faults import Fault, schedule
from tests.simulation.homes import Template
from tests.simulation.mutations import MUTATIONS
from tests.simulation.shrink import numbers_of, shrink
from tests.simulation.world import World, scratch, simulate

CHECKOUT = Path(__file__).resolve().parent.parent.parent
SAMPLE = (2, 4, 12, 17, 23, 27, 29, 36)
"""A few seeds that are quick and in which much goes wrong."""


HAPPENS = (
    "child Missions",
    "clocks jumped back",
    "connections cut",
    "coordinator killed, its disk lost",
    "delayed",
    "gated work started",
    "Groups archived",
    "Groups read from their snapshot",
    "Groups trimmed",
    "held by a partition",
    "live backups",
    "node killed",
    "side effects done",
    "side effects refused: no standing token",
)
"""What these few seeds are to hold; a thousand hold all of it."""


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    with scratch() as place:
        yield Template(place)


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
@pytest.mark.req("R-15.1-15", "R-16-56", "R-16-62", "R-19-04", "R-22-05")
def test_nothing_is_violated_whatever_goes_wrong(template: Template, scale: Callable[[int, int], int]) -> None:
    seeds = (*SAMPLE, *range(scale(0, 1000)))
    found = [simulate(seed, template) for seed in seeds]
    assert [(one.seed, one.violation) for one in found if one.violation is not None] == []
    assert sum(one.events for one in found) > 20 * len(seeds) / 2
    happened: Counter[str] = Counter()
    for one in found:
        happened.update(one.injected)
    assert [what for what in HAPPENS if not happened[what]] == [], "what is to go wrong goes wrong"


def test_a_seed_is_the_same_run_every_time(template: Template) -> None:
    """Also in another process, where strings have other hashes."""
    seed = SAMPLE[0]
    runs = [
        subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seed", str(seed), "--quiet"],
            capture_output=True,
            text=True,
            check=True,
            cwd=CHECKOUT,
            env={"PYTHONHASHSEED": str(number), "PATH": "/usr/bin:/bin"},
        ).stdout
        for number in (1, 2)
    ]
    assert runs[0] == runs[1]
    assert simulate(seed, template).trace_hash in runs[0]


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_what_is_broken_on_purpose_is_found(template: Template, name: str) -> None:
    mutation, seeds, words = MUTATIONS[name]
    found = (simulate(seed, template, mutation=mutation).violation for seed in seeds)
    violation = next((one for one in found if one is not None), None)
    assert violation is not None, f"{name} is not found within {len(seeds)} seeds"
    assert words in violation


def test_a_failing_seed_is_shortened(template: Template) -> None:
    seed = 0
    culprit = schedule(seed)[3]

    def mutation(world: World) -> None:
        """This one fault is what the node cannot stand."""
        apply = world._apply

        def applied(fault: Fault) -> None:
            apply(fault)
            if fault == culprit:
                world.checker.fail("it broke")

        world._apply = applied  # type: ignore[method-assign]

    outcome = simulate(seed, template, mutation=mutation)
    kept = shrink(outcome, template, mutation)
    assert kept.violation == "it broke"
    assert kept.faults == [culprit]
    assert numbers_of(kept) == "3"
