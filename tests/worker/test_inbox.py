"""The inbox of one Group: order, duplicates, gaps."""

from __future__ import annotations

import random

import pytest

from mwnode.protocol.documents import Actor, Cause, Event
from mwnode.trust.keys import UNSIGNED
from mwnode.worker.inbox import Inbox

GROUP = "urn:example:group:a"


def event(sequence: int, *, group_id: str = GROUP, event_id: str | None = None) -> Event:
    service = Actor(type="service", id="urn:example:authority")
    return Event(
        protocol_version="0.1",
        event_id=event_id or f"{group_id}:event:{sequence}",
        kind="mission.cancelled",
        actor=service,
        cause=Cause(type="timer", id="urn:example:timer"),
        correlation_id="urn:example:correlation",
        occurred_at="2030-01-01T00:00:00Z",
        payload={},
        accepted_by=service,
        signature=UNSIGNED,
        group_id=group_id,
        sequence=sequence,
        aggregate_revision=1,
    )


def feed(inbox: Inbox, *sequences: int) -> list[int]:
    return [due.sequence for sequence in sequences for due in inbox.receive(event(sequence)) if due.sequence]


@pytest.mark.req("R-16-03", "R-16-53", "R-16-54")
def test_an_early_event_waits_for_its_place() -> None:
    inbox, other = Inbox(GROUP), Inbox("urn:example:group:b")
    assert feed(inbox, 1, 3) == [1]
    assert inbox.gap == (2, 2)
    assert [due.sequence for due in other.receive(event(1, group_id="urn:example:group:b"))] == [1]
    assert feed(inbox, 2) == [2, 3]
    assert inbox.gap is None


@pytest.mark.req("R-16-02", "R-16-52")
def test_a_repeated_event_has_no_second_effect() -> None:
    inbox = Inbox(GROUP)
    assert feed(inbox, 1, 1, 1, 2, 2, 1) == [1, 2]
    # The same Event under another sequence is still the same Event.
    assert inbox.receive(event(3, event_id=f"{GROUP}:event:1")) == []
    assert inbox.cursor == 2


@pytest.mark.req("R-16-04", "R-16-55")
def test_the_cursor_never_passes_a_gap() -> None:
    inbox = Inbox(GROUP, cursor=4)
    assert feed(inbox, 6, 7, 9) == []
    assert inbox.cursor == 4
    restarted = Inbox(GROUP, cursor=inbox.cursor)
    assert feed(restarted, 6) == []
    assert restarted.cursor == 4
    assert feed(restarted, 5) == [5, 6]
    assert restarted.cursor == 6


def test_what_was_withheld_is_passed_once_that_is_proven() -> None:
    inbox = Inbox(GROUP)
    assert feed(inbox, 1, 5) == [1]
    assert [due.sequence for due in inbox.prove(4)] == [5]
    assert inbox.cursor == 5
    assert inbox.prove(9) == []
    assert inbox.cursor == 9
    assert feed(inbox, 8) == []


@pytest.mark.req("R-17.2-04")
def test_groups_are_told_apart_before_sequences_are() -> None:
    boxes = {name: Inbox(name) for name in ("urn:example:group:a", "urn:example:group:b")}
    for sequence in (1, 2):
        for name, inbox in boxes.items():
            assert [due.sequence for due in inbox.receive(event(sequence, group_id=name))] == [sequence]
    assert [inbox.gap for inbox in boxes.values()] == [None, None]
    assert boxes["urn:example:group:a"].receive(event(3, group_id="urn:example:group:b")) == []
    assert boxes["urn:example:group:a"].cursor == 2


@pytest.mark.req("R-16-03", "R-16-52")
@pytest.mark.parametrize("seed", range(20))
def test_any_order_with_any_repetition_is_processed_once_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    arriving = [chance.randint(1, 40) for _ in range(200)] + list(range(1, 41))
    chance.shuffle(arriving)
    inbox = Inbox(GROUP)
    assert feed(inbox, *arriving) == list(range(1, 41))


def test_the_buffer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mwnode.worker.inbox.BUFFER_MAX", 3)
    inbox = Inbox(GROUP)
    feed(inbox, 5, 4, 3, 2)
    assert sorted(inbox.early) == [2, 3, 4]
    assert feed(inbox, 1) == [1, 2, 3, 4]
