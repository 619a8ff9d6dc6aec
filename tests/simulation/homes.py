"""The Organization that every run begins with: made once, copied for each. And the plans of a seed."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from mwnode.enrolment import Capability
from mwnode.home import Home, open_home
from mwnode.testing import Harness
from mwnode.trust.keys import SigningKey
from tests.simulation.shape import AGENTS, CHILD_COORDINATORS, REVIEWERS, Shape, shape_of

SETTINGS = {
    "[policy]\n": "[policy]\nmessage_rate = 100000\nproposal_rate = 100000\n",
    "[limits]\n": "[limits]\nping_interval = 5\ndead_after = 15\nhandshake_timeout = 5\n",
}
ROOTED = {"[policy]\n": "[policy]\nroot_approval_of_children = true\n"}
HEAD = """\
[mission]
title = "Simulation {name}"
objective = "Get it all done, whatever goes wrong"
deadline = "P2D"
budget = {{ wallClockSecondsLimit = {seconds}, toolCallLimit = {calls} }}
coordinatorLeaseSeconds = 300
permissions = [ {{ resource = "urn:example:repository", operations = ["read", "write.branch"] }} ]
{coordinator}
[[mission.definitionOfDone]]
criterionId = "done"
description = "Everything is done"
evidenceRequired = ["deterministic_test"]
"""
WORK = """
[[work]]
id = "w{number}"
goal = "Piece {number}"
after = [{after}]
risk = "{risk}"
urgency = "{urgency}"
deliverables = [ {{ id = "result", path = "result.txt", mediaType = "text/plain" }} ]
criteria = [ {{ id = "ok", description = "done", check = "exit 0" }}{criteria} ]
"""
OWN = """\
retry = {{ maxAttempts = {attempts}, backoff = "fixed", maxDelay = "PT2S" }}
budget = {{ wallClockSecondsLimit = 2000, toolCallLimit = 400 }}
"""
REVIEWED = ', { id = "clear", description = "reads well", evidence = ["reviewer_assessment"] }'
JUDGED = ', { id = "fine", description = "pleases", evidence = ["human_review"] }'


def write_plans(seed: int, directory: Path) -> Path:
    """Write the plans of a seed, that of its owner's Missions and those below it; the first one's path."""
    shape, chance = shape_of(seed), random.Random(f"{seed} plan")
    for generation in range(shape.generations + 1):
        (directory / _file(generation)).write_text(_plan(seed, shape, generation, chance))
    return directory / _file(0)


def _file(generation: int) -> str:
    return "plan.toml" if generation == 0 else f"child-{generation}.toml"


def _plan(seed: int, shape: Shape, generation: int, chance: random.Random) -> str:
    works = shape.works if generation == 0 else chance.randrange(1, 4)
    promoted = chance.randrange(works) if generation < shape.generations else None
    named = f'coordinator = "{CHILD_COORDINATORS[generation - 1]}"\n' if generation else ""
    share = 4**generation
    pieces = [
        HEAD.format(name=f"{seed}.{generation}", seconds=300_000 // share, calls=30_000 // share, coordinator=named)
    ]
    for number in range(works):
        after = [f'"w{one}"' for one in range(number) if chance.random() < 0.35]
        plain = number != promoted
        criteria = REVIEWED if plain and shape.reviewed and chance.random() < 0.6 else ""
        criteria += JUDGED if plain and shape.judged and chance.random() < 0.4 else ""
        pieces.append(
            WORK.format(
                number=number,
                after=", ".join(after),
                risk=chance.choice(("none", "reversible", "reversible", "external")),
                urgency=chance.choice(("routine", "normal", "high", "critical")),
                criteria=criteria,
            )
        )
        if plain:
            pieces.append(OWN.format(attempts=chance.choice((3, 20, 20, 20))))
            if shape.gated and chance.random() < 0.5:
                pieces.append('approval = "human_required"\n')
        else:
            pieces.append(f'mission = "{_file(generation + 1)}"\n')
    return "".join(pieces)


class Template:
    """A HOME with its Agents, and everybody's keys."""

    def __init__(self, path: Path) -> None:
        self.path = path / "home"
        harness = Harness(self.path, seed=1, workers=0)
        self.keys: dict[str, SigningKey] = {"owner": harness.owner.key}
        for name in (*AGENTS, *CHILD_COORDINATORS, *REVIEWERS):
            can = Capability()
            if name.startswith("coordinator"):
                can = Capability(id="example.coordination")
            elif name.startswith("reviewer"):
                can = Capability(id="mwnode.review")
            self.keys[name] = harness.agent(name, [can]).key
        harness.close()
        _change(self.path, SETTINGS)
        home: Home = open_home(self.path)
        for name in ("organization", "authority"):
            self.keys[name] = home.key(name)
        self.keys["operator"] = self.keys["organization"]
        self.seeds = {key.key_id: bytes(key._seed) for key in self.keys.values()}
        shutil.rmtree(self.path / "tls", ignore_errors=True)

    def copy(self, home: Path, shape: Shape) -> None:
        """Make the HOME of one run."""
        shutil.copytree(self.path, home)
        if shape.rooted:
            _change(home, ROOTED)


def _change(home: Path, changes: dict[str, str]) -> None:
    settings = home / "mwnode.toml"
    text = settings.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    settings.write_text(text)
