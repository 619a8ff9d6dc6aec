"""Every act in the order in which the whole demonstration plays them."""

from __future__ import annotations

from mwnode.demo.acts import Act, afterwards, commands, lineage, links, missions, ownership, recovery, scheduling

ACTS: tuple[Act, ...] = (
    missions.ACTS[0],
    *lineage.ACTS,
    *scheduling.ACTS,
    *commands.ACTS,
    *ownership.ACTS,
    *links.ACTS,
    *recovery.ACTS,
    *afterwards.ACTS,
)
FAULTS: dict[str, Act] = {act.name: act for act in (*missions.ACTS, *ACTS) if act.fault}
"""What ``--fault`` may name."""
