"""Assertions that say, when they fail, what happened instead and where to look.

Plain functions that raise AssertionError, for any test framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from mwnode.protocol.errors import MissionWeaveError
from mwnode.store.verify import verify
from mwnode.testing.harness import Harness
from mwnode.testing.mission import MissionHandle
from mwnode.testing.work import WorkHandle

LAST_EVENTS = 12
"""How many of the newest Events a message shows."""


def assert_state(handle: MissionHandle | WorkHandle, *states: str) -> None:
    """A Mission or WorkItem is in one of these states; else the Events that led to where it is are shown."""
    actual = handle.state
    if actual in states:
        return
    mission = handle.mission if isinstance(handle, WorkHandle) else handle
    what = "the WorkItem" if isinstance(handle, WorkHandle) else "the Mission"
    raise AssertionError(f"{what} is {actual}, not {' or '.join(states)}. {_story(mission.events())}")


def assert_events(handle: MissionHandle, *kinds: str) -> None:
    """Events of these kinds are in the Mission's log, in this order; others may stand between them."""
    log = handle.events()
    at = 0
    for event in log:
        if at < len(kinds) and event["kind"] == kinds[at]:
            at += 1
    if at < len(kinds):
        found = f" after {kinds[at - 1]}" if at else ""
        raise AssertionError(f"no {kinds[at]}{found}. {_story(log)}")


def assert_refused(code: str, command: Callable[[], object]) -> MissionWeaveError:
    """Calling ``command`` is refused with that code; the error: ``assert_refused("APPROVAL_REQUIRED", work.start)``."""
    try:
        answer = command()
    except MissionWeaveError as error:
        if error.code.value == code:
            return error
        details = error.rejection.details
        told = f" ({', '.join(f'{name}: {value}' for name, value in details.items())})" if details else ""
        raise AssertionError(f"refused with {error.code.value}, not {code}: {error}{told}") from error
    raise AssertionError(f"accepted, and not refused with {code}: {answer}")


def assert_unchanged(handle: MissionHandle, action: Callable[[], object]) -> None:
    """Calling ``action``, which may be refused, leaves the Mission's log as it is."""
    before = len(handle.events())
    with suppress(MissionWeaveError):
        action()
    added = handle.events()[before:]
    if added:
        raise AssertionError(f"the log grew by {len(added)} Events. {_story(added)}")


def assert_sound(harness: Harness) -> None:
    """Every signature, hash, sequence and row of the node's file holds; closes the node for it and opens it again."""
    harness.node.close()
    try:
        report = verify(harness.node.home.store_path)
    finally:
        harness.restart()
    if not report.ok:
        lines = [f"{finding.where}: {finding.detail}" for finding in report.findings]
        raise AssertionError("the file is not sound: " + "; ".join(lines))


def _story(events: Iterable[dict[str, Any]]) -> str:
    shown = list(events)[-LAST_EVENTS:]
    if not shown:
        return "The log is empty."
    return "Its last Events:\n" + "\n".join(f"  {_line(event)}" for event in shown)


def _line(event: dict[str, Any]) -> str:
    payload = event["payload"]
    extra = [str(payload[name]) for name in ("state", "reason") if isinstance(payload.get(name), str)]
    actor = event.get("actor") or {}
    return f"{event['sequence']} {event['kind']} by {actor.get('id', '?')}" + (f": {', '.join(extra)}" if extra else "")
