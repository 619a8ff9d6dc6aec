"""The outbox: bounded, in order within a Group, fair between Groups (sections 8, 17.3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mwnode.gateway.flow import PARCEL_BYTES, QUANTUM_BYTES, Mark, Outbox, Parcel, parcel, parcels


def drain(outbox: Outbox, room: int = 1 << 30) -> list[bytes]:
    return [frame for taken in outbox.take(room) for frame in taken.frames]


def test_frames_of_no_group_go_first() -> None:
    outbox = Outbox(100, 10_000)
    outbox.put("a", parcel((b"event",)))
    outbox.put_first(b"error")
    assert drain(outbox) == [b"error", b"event"]
    assert not outbox
    assert (outbox.frames, outbox.bytes) == (0, 0)


@pytest.mark.req("R-8-23", "R-8-24", "R-17.3-02")
def test_a_noisy_group_delays_a_quiet_one_by_one_turn_at_most() -> None:
    outbox = Outbox(1_000_000, 1 << 30)
    frame = b"x" * 1000
    for _ in range(5000):
        outbox.put("noisy", parcel((frame,)))
    outbox.put("quiet", parcel((b"quiet",)))
    sent = drain(outbox, 4 * QUANTUM_BYTES)
    assert sum(map(len, sent[: sent.index(b"quiet")])) <= QUANTUM_BYTES + len(frame)


@pytest.mark.req("R-17.3-01")
def test_a_group_is_over_its_quarter_by_frames_or_by_bytes() -> None:
    by_frames = Outbox(8, 1 << 20)
    for _ in range(2):
        by_frames.put("a", parcel((b"x",)))
    assert not by_frames.over("a")
    by_frames.put("a", parcel((b"x",)))
    assert by_frames.over("a")
    assert not by_frames.over("b")
    by_bytes = Outbox(1000, 400)
    by_bytes.put("a", parcel((b"x" * 101,)))
    assert by_bytes.over("a")
    by_bytes.drop()
    assert not by_bytes.over("a")
    assert not by_bytes


def test_a_mark_follows_the_last_parcel_of_all_its_groups() -> None:
    outbox = Outbox(100, 10_000)
    mark = Mark(b"mark", 2)
    outbox.put("a", parcel((b"a1",)))
    outbox.put("a", Parcel((), 0, mark))
    outbox.put("b", parcel((b"b1", b"b2")))
    outbox.put("b", Parcel((), 0, mark))
    outbox.put("a", parcel((b"a2",)))
    sent = drain(outbox)
    assert sent.index(b"mark") > max(sent.index(b"a1"), sent.index(b"b2"))
    assert sent.count(b"mark") == 1


def test_long_runs_are_cut_into_bounded_parcels() -> None:
    frames = [b"x" * 50_000 for _ in range(10)] + [b"y" * (2 * PARCEL_BYTES)]
    made = parcels(frames)
    assert [frame for each in made for frame in each.frames] == frames
    assert all(each.size <= PARCEL_BYTES or len(each.frames) == 1 for each in made)
    assert parcels([]) == []


@pytest.mark.req("R-16-03")
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 3 * QUANTUM_BYTES)), max_size=60),
    st.lists(st.integers(1, 100_000), min_size=1, max_size=30),
)
def test_whatever_is_taken_when_each_group_keeps_its_order(puts: list[tuple[str, int]], rooms: list[int]) -> None:
    outbox = Outbox(1_000_000, 1 << 40)
    waiting = list(puts)
    sent: list[bytes] = []
    expected: dict[str, list[bytes]] = {}
    for number, room in enumerate(rooms * 50):
        if waiting:
            group, size = waiting.pop(0)
            frame = f"{group}{number}".encode().ljust(size, b".")
            expected.setdefault(group, []).append(frame)
            outbox.put(group, parcel((frame,)))
        sent += drain(outbox, room)
    sent += drain(outbox)
    while outbox:
        sent += drain(outbox)
    for group, frames in expected.items():
        assert [frame for frame in sent if frame.startswith(group.encode())] == frames
    assert (outbox.frames, outbox.bytes) == (0, 0)
