"""Test against a real node, in process, with a clock that you control.

The pytest fixture ``mwnode`` opens a node on a temporary file, without sockets and without fsync, and makes a
MissionOwner, a Coordinator and two Workers::

    def test_release(mwnode):
        mission = mwnode.mission()
        work = mission.authorize(goal="Run the tests")
        work.run()
        assert work.state == "verified"
"""

from mwnode.testing.clock import START, ManualClock, RunningClock, SeededEntropy
from mwnode.testing.content import content_hash, flip_base64url
from mwnode.testing.harness import RESOURCE, Harness
from mwnode.testing.mission import MissionHandle
from mwnode.testing.people import Participant
from mwnode.testing.plugin import mwnode
from mwnode.testing.work import WorkHandle

__all__ = [
    "RESOURCE",
    "START",
    "Harness",
    "ManualClock",
    "MissionHandle",
    "Participant",
    "RunningClock",
    "SeededEntropy",
    "WorkHandle",
    "content_hash",
    "flip_base64url",
    "mwnode",
]
