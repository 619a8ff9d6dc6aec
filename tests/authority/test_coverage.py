"""What the core's tests have tried is counted, Event kinds are held to their payloads, and histories repeat themselves.

That no kind and no row is left untried is checked when the whole directory has run, by ``tests.authority.coverage``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from mwnode.authority.aggregates import DECIDERS
from mwnode.authority.table import MISSION, WORK_ITEM
from mwnode.protocol.events import EVENT_PAYLOADS
from mwnode.protocol.jcs import canonical
from tests.authority import coverage
from tests.authority.coverage import Notes, Plugin, claim, complements, gaps, render
from tests.authority.stories import events
from tests.conftest import CHECKOUT
from tests.patience import PATIENCE_SECONDS

# --- the count itself -------------------------------------------------------------------------------------------------


def full() -> Notes:
    """Notes of tests that have tried everything once."""
    notes = Notes()
    for kind in DECIDERS:
        notes.add("command", kind, coverage.ACCEPTED)
        notes.add("command", kind, "AUTH_FORBIDDEN")
    for kind in EVENT_PAYLOADS:
        notes.add("event", kind)
        notes.add("fault", kind)
    for row in (*WORK_ITEM, *MISSION):
        notes.add("move", row.state, row.event, row.next)
    for kind, state in complements():
        notes.add("barred", kind, state)
    return notes


def test_a_claim_is_full_when_everything_was_tried() -> None:
    assert gaps(full()) == []
    assert claim(full()).startswith("full: 32 core Command kinds, 36 core Event kinds")
    assert "MISSING" not in render(full())


@pytest.mark.req("R-22-10")
@pytest.mark.parametrize(
    "note, kind",
    [
        (("command", "work.start", coverage.ACCEPTED), "work.start"),
        (("command", "work.start", "AUTH_FORBIDDEN"), "work.start"),
        (("event", "group.archived"), "group.archived"),
        (("fault", "group.archived"), "group.archived"),
        (("move", "queued", "work.started", "active"), "work.started"),
        (("move", "active", "mission.cancelled", "cancelled"), "mission.cancelled"),
        (("barred", "work.start", "open"), "work.start"),
        (("barred", "mission.approve", "active"), "mission.approve"),
    ],
)
def test_without_one_case_the_claim_falls_back_to_a_subset(note: tuple[str, ...], kind: str) -> None:
    notes = full()
    first, second, third, fourth = (*note, "", "", "")[:4]
    del notes.counts[first, second, third, fourth]
    assert len(gaps(notes)) == 1
    assert claim(notes).startswith("subset: ")
    assert claim(notes).endswith(f"missing: {kind}")
    assert f"MISSING {gaps(notes)[0]}" in render(notes)


@pytest.mark.req("R-22-10")
@pytest.mark.parametrize(
    "whole, lacking, fails", [(True, False, False), (True, True, True), (False, True, False), (False, False, False)]
)
def test_a_whole_run_that_lacks_something_fails(
    pytestconfig: pytest.Config, whole: bool, lacking: bool, fails: bool
) -> None:
    plugin = Plugin(pytestconfig)
    plugin.chosen = False
    plugin.notes = full()
    plugin.files = {file.name for file in coverage.HERE.glob("test_*.py")}
    if lacking:
        del plugin.notes.counts["event", "group.archived", "", ""]
    if not whole:
        plugin.files.pop()
    session = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    plugin.pytest_sessionfinish(session)  # type: ignore[arg-type]  # all that it looks at is the exit status
    assert session.exitstatus == (pytest.ExitCode.TESTS_FAILED if fails else pytest.ExitCode.OK)


def test_complements_are_all_pairs_outside_the_tables() -> None:
    pairs = complements()
    assert len(pairs) == len(set(pairs))
    assert ("work.start", "open") in pairs
    assert ("work.start", "queued") not in pairs
    assert ("mission.approve", "approved") in pairs
    assert ("mission.approve", "awaiting_approval") not in pairs


# --- Events -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def samples() -> dict[str, dict[str, Any]]:
    """A payload of every Event kind, as a peer sees it."""
    return {event.kind: event.payload for event in events()}


@pytest.mark.parametrize("kind", sorted(EVENT_PAYLOADS))
def test_a_payload_with_a_fault_is_no_event_of_its_kind(kind: str, samples: dict[str, dict[str, Any]]) -> None:
    payload, expected = samples[kind], EVENT_PAYLOADS[kind]
    assert canonical(msgspec.convert(payload, expected)) == canonical(payload)
    needed = [field.encode_name for field in msgspec.structs.fields(expected) if field.required]
    faults: list[dict[str, Any]] = [{**payload, "unheardOf": 1}]
    faults += [{name: value for name, value in payload.items() if name != left_out} for left_out in needed]
    faults += [{**payload, name: None} for name in payload]
    assert needed
    for fault in faults:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(fault, expected)
    coverage.CURRENT.add("fault", kind)


# --- nothing depends on chance ----------------------------------------------------------------------------------------


def test_histories_are_the_same_bytes_whatever_the_hash_seed() -> None:
    """Nothing that is written depends on the order of a set or a dictionary of another process."""
    runs = [
        subprocess.run(
            [sys.executable, "-m", "tests.authority.stories"],
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=PATIENCE_SECONDS,
        ).stdout
        for seed in ("0", "4242")
    ]
    assert runs[0].count(b"\n") > 100
    assert runs[0] == runs[1]
