"""What goes wrong, and when: a list made from the seed, so that it can be shortened."""

from __future__ import annotations

import random
from typing import Final

from msgspec import Struct

from tests.simulation.shape import shape_of

QUIET_AFTER: Final = 90.0
"""From this second on nothing goes wrong any more."""


STORMS: Final = 8
"""One seed of so many has a storm besides."""


class Fault(Struct, frozen=True):
    """One thing that goes wrong; ``seconds`` is how long it lasts."""

    at: float
    kind: str
    on: str = ""
    seconds: float = 0.0
    how: float = 0.0

    def text(self) -> str:
        """One line for people."""
        parts = [f"{self.at:7.2f} s", self.kind, self.on]
        if self.seconds:
            parts.append(f"for {self.seconds:.1f} s")
        if self.how:
            parts.append(f"({self.how:g})")
        return " ".join(part for part in parts if part)


KINDS: Final = (
    # kind, weight, on whom: any machine, any Agent's, a Worker's, a clock, or nobody in particular
    ("cut", 4, "machine"),
    ("silence", 2, "agent"),
    ("deafen", 2, "agent"),
    ("part", 3, "machine"),
    ("part all", 1, ""),
    ("slow", 2, "machine"),
    ("double", 3, "machine"),
    ("reorder", 2, "agent"),
    ("lose answers", 2, "machine"),
    ("replay", 3, ""),
    ("crash", 5, "machine"),
    ("crash and lose the disk", 1, "worker"),
    ("crash node", 3, ""),
    ("crash node before commit", 2, ""),
    ("crash node after commit", 4, ""),
    ("lose node", 1, ""),
    ("clock", 3, "clock"),
    ("disk full", 2, ""),
    ("file full", 2, ""),
)


def schedule(seed: int) -> list[Fault]:
    """The faults of a seed, in order of time. Some seeds have none at all, some very many."""
    chance, shape = random.Random(f"{seed} faults"), shape_of(seed)
    on = {
        "": ("",),
        "machine": shape.machines,
        "agent": shape.agents,
        "worker": tuple(name for name in shape.agents if not name.startswith("coordinator")),
        "clock": ("node", *shape.machines),
    }
    count = chance.choice((0, 2, 4, 6, 8, 12, 16, 24))
    names = [kind for kind, weight, _ in KINDS for _ in range(weight)]
    among = {kind: on[whom] for kind, _, whom in KINDS}
    found = []
    for _ in range(count):
        kind = chance.choice(names)
        at = round(chance.uniform(0.5, QUIET_AFTER - 10), 2)
        seconds = round(min(chance.choice((0.5, 2.0, 5.0, 15.0, 40.0)) * chance.uniform(0.5, 1.5), QUIET_AFTER - at), 2)
        how = 0.0
        if kind == "clock":
            how = chance.choice((-3600.0, -600.0, -45.0, -2.0, 2.0, 45.0, 600.0, 3600.0))
        elif kind == "file full":
            how = float(chance.randrange(0, 12))
        found.append(Fault(at, kind, chance.choice(among[kind]), seconds, how))
    if seed % STORMS == STORMS - 3:
        found += _storm(random.Random(f"{seed} storm"), shape.agents)
    return sorted(found, key=lambda fault: fault.at)


def _storm(chance: random.Random, agents: tuple[str, ...]) -> list[Fault]:
    """Links that break every few moments, each time with what was sent by them just before."""
    return [
        Fault(round(chance.uniform(3, 60), 2), "lose", chance.choice(agents), round(chance.uniform(0.1, 1.0), 2))
        for _ in range(60)
    ]
