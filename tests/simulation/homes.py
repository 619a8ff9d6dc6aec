"""The Organization that every run begins with: made once, copied for each."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from mwnode.enrolment import Capability
from mwnode.home import Home, open_home
from mwnode.testing import Harness
from mwnode.trust.keys import SigningKey
from tests.simulation.faults import AGENTS

SETTINGS = {
    "[policy]\n": "[policy]\nmessage_rate = 100000\nproposal_rate = 100000\n",
    "[limits]\n": "[limits]\nping_interval = 5\ndead_after = 15\nhandshake_timeout = 5\n",
}
HEAD = """\
[mission]
title = "Simulation {seed}"
objective = "Get it all done, whatever goes wrong"
deadline = "P2D"
budget = {{ wallClockSecondsLimit = 100000, toolCallLimit = 10000 }}
coordinatorLeaseSeconds = 300
permissions = [ {{ resource = "urn:example:repository", operations = ["read", "write.branch"] }} ]

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
criteria = [ {{ id = "ok", description = "done", check = "exit 0" }} ]
retry = {{ maxAttempts = 20, backoff = "fixed", maxDelay = "PT2S" }}
budget = {{ wallClockSecondsLimit = 2000, toolCallLimit = 500 }}
"""


def PLAN(seed: int) -> str:  # noqa: N802
    """The plan of a seed: a graph of a few WorkItems."""
    chance = random.Random(f"{seed} plan")
    pieces = [HEAD.format(seed=seed)]
    for number in range(chance.randrange(1, 6)):
        after = [f'"w{one}"' for one in range(number) if chance.random() < 0.35]
        pieces.append(
            WORK.format(
                number=number,
                after=", ".join(after),
                risk=chance.choice(("none", "reversible", "reversible", "external")),
                urgency=chance.choice(("routine", "normal", "high", "critical")),
            )
        )
    return "".join(pieces)


class Template:
    """A HOME with its Agents, and everybody's keys."""

    def __init__(self, path: Path) -> None:
        self.path = path / "home"
        harness = Harness(self.path, seed=1, workers=0)
        self.keys: dict[str, SigningKey] = {"owner": harness.owner.key}
        for name in AGENTS:
            can = Capability(id="example.coordination") if name.startswith("coordinator") else Capability()
            self.keys[name] = harness.agent(name, [can]).key
        harness.close()
        settings = self.path / "mwnode.toml"
        text = settings.read_text()
        for old, new in SETTINGS.items():
            assert old in text
            text = text.replace(old, new)
        settings.write_text(text)
        home: Home = open_home(self.path)
        for name in ("organization", "authority"):
            self.keys[name] = home.key(name)
        self.seeds = {key.key_id: bytes(key._seed) for key in self.keys.values()}
        shutil.rmtree(self.path / "tls", ignore_errors=True)
