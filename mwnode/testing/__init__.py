"""Test against a real node, in process, with a clock that you control.

Installing mwnode gives pytest the fixture ``mwnode``: a node on a temporary file, without fsync, with a MissionOwner, a
Coordinator and two Workers. It has nothing of its own outside ``tmp_path``, so tests run side by side (pytest-xdist).
Without pytest, make a ``Harness(path)`` and close it::

    def test_release(mwnode):
        work = mwnode.work("submitted")        # a WorkItem in any state of its lifecycle, in a new Mission
        work.review()
        assert_state(work, "verified")         # says what happened instead, when it fails

``mwnode.mission("awaiting_approval")``, ``mission.work("blocked")`` and ``work.to("active")`` bring Missions and
WorkItems into any state, by the ordinary Commands of those who may send them. Whatever else a Principal signs goes by
``send``; ``assert_refused`` takes what must not pass::

    def test_only_the_owner_approves(mwnode):
        mission = mwnode.mission("awaiting_approval")
        approve = {"kind": "mission.approve", "payload": {"approval": mission.approval()}}
        assert_refused("AUTH_FORBIDDEN", lambda: mwnode.coordinator.send(**approve, group_id=mission.group_id))

Time passes when you say so, and what is due then happens at once::

    def test_a_lease_runs_out(mwnode):
        work = mwnode.work("active")
        mwnode.advance(301)
        assert_refused("WORK_LEASE_EXPIRED", work.checkpoint)

``mwnode.faults`` cuts links, delays and doubles what is sent, sets clocks apart, fills the disk and kills the node::

    def test_nothing_is_done_twice(mwnode):
        mission = mwnode.mission()
        with mwnode.faults.cut(mwnode.owner, arriving=True):
            with pytest.raises(ConnectionLost):
                mission.post(mwnode.owner, "said once")
        mwnode.faults.kill()
        mwnode.restart()
        mwnode.owner.resend()
        assert len(mission.events()) == 2

Clients connect in process, without a socket (``mwnode.connections``), or over the loopback interface at a free port, by
TLS 1.3 or in plain text (``mwnode.serving``), in synchronous and asynchronous tests alike::

    async def test_a_client(mwnode):
        async with mwnode.connections() as node:
            client = await node.connect(mwnode.workers[0])
            assert client.session_epoch == 2

    def test_over_tls(mwnode):
        with mwnode.serving() as served:
            assert served.client(mwnode.owner).get("/v0.1/missions") == {"missions": []}
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mwnode.testing.plugin import mwnode

if TYPE_CHECKING:
    from mwnode.client.errors import ConnectionLost
    from mwnode.testing.assertions import assert_events, assert_refused, assert_sound, assert_state, assert_unchanged
    from mwnode.testing.clock import START, ManualClock, RunningClock, SeededEntropy
    from mwnode.testing.content import content_hash, flip_base64url
    from mwnode.testing.faults import Faults
    from mwnode.testing.harness import RESOURCE, Harness
    from mwnode.testing.mission import MissionHandle
    from mwnode.testing.people import Participant
    from mwnode.testing.pipe import Switchboard
    from mwnode.testing.serving import Served
    from mwnode.testing.work import WorkHandle

__all__ = [
    "RESOURCE",
    "START",
    "ConnectionLost",
    "Faults",
    "Harness",
    "ManualClock",
    "MissionHandle",
    "Participant",
    "RunningClock",
    "SeededEntropy",
    "Served",
    "Switchboard",
    "WorkHandle",
    "assert_events",
    "assert_refused",
    "assert_sound",
    "assert_state",
    "assert_unchanged",
    "content_hash",
    "flip_base64url",
    "mwnode",
]

_MODULES = {
    "ConnectionLost": "mwnode.client.errors",
    "Faults": "mwnode.testing.faults",
    "Harness": "mwnode.testing.harness",
    "ManualClock": "mwnode.testing.clock",
    "MissionHandle": "mwnode.testing.mission",
    "Participant": "mwnode.testing.people",
    "RESOURCE": "mwnode.testing.harness",
    "RunningClock": "mwnode.testing.clock",
    "START": "mwnode.testing.clock",
    "SeededEntropy": "mwnode.testing.clock",
    "Served": "mwnode.testing.serving",
    "Switchboard": "mwnode.testing.pipe",
    "WorkHandle": "mwnode.testing.work",
    "assert_events": "mwnode.testing.assertions",
    "assert_refused": "mwnode.testing.assertions",
    "assert_sound": "mwnode.testing.assertions",
    "assert_state": "mwnode.testing.assertions",
    "assert_unchanged": "mwnode.testing.assertions",
    "content_hash": "mwnode.testing.content",
    "flip_base64url": "mwnode.testing.content",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: every run of pytest loads this plugin, and most need nothing of it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
