"""What the Missions of a seed are like: how much work, and which of the protocol's ways it takes."""

from __future__ import annotations

import random
from typing import Final

from msgspec import Struct

AGENTS: Final = ("coordinator-1", "coordinator-2", "worker-1", "worker-2", "worker-3")
CHILD_COORDINATORS: Final = ("coordinator-3", "coordinator-4")
"""Of a child Mission, and of that child's own child."""
REVIEWERS: Final = ("reviewer-1", "reviewer-2")


class Shape(Struct, frozen=True):
    """Drawn from the seed."""

    works: int
    generations: int
    """How many Missions stand one in the other below the owner's."""
    reviewed: bool
    """Reviewer Agents assess some of the work."""
    judged: bool
    """The human assesses some of the work."""
    gated: bool
    """Some of the work waits for a human's approval of its execution."""
    rooted: bool
    """The human at the root decides about child Missions too."""
    archived: bool
    """Groups of ended Missions are archived while others go on."""
    trimmed: bool
    """And their Events removed."""
    rebuilt: bool
    """At the end every Agent loses its memory and comes again."""

    @property
    def agents(self) -> tuple[str, ...]:
        """Whose machines there are."""
        return (*AGENTS, *CHILD_COORDINATORS[: self.generations], *(REVIEWERS if self.reviewed else ()))

    @property
    def machines(self) -> tuple[str, ...]:
        """All of them but the node's."""
        return (*self.agents, "owner", *(("operator",) if self.archived else ()))


def shape_of(seed: int) -> Shape:
    """The same for the same seed."""
    chance = random.Random(f"{seed} shape")
    archived = chance.random() < 0.5
    return Shape(
        works=chance.randrange(1, 6),
        generations=chance.choice((0, 0, 0, 1, 1, 2)),
        reviewed=chance.random() < 0.3,
        judged=chance.random() < 0.15,
        gated=chance.random() < 0.35,
        rooted=chance.random() < 0.3,
        archived=archived,
        trimmed=archived and chance.random() < 0.7,
        rebuilt=chance.random() < 0.4,
    )
