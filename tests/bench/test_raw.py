"""The raw client of the measurements: what it counts is what was sent, however the stream is cut."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from mwnode.bench import sockets
from mwnode.bench.raw import RawSocket
from mwnode.gateway.flow import parcel
from mwnode.gateway.replies import Replies
from mwnode.gateway.server import _join
from mwnode.system import OsEntropy, SystemClock

EVENTS = [b'{"payload":{"text":"\\"frameType\\":\\"EVENT\\" and %d"}}' % number for number in range(20)]


@pytest.fixture
def ends() -> tuple[RawSocket, socket.socket]:
    here, there = socket.socketpair()
    raw = RawSocket.__new__(RawSocket)
    raw.socket, raw._rest = here, b""
    return raw, there


@pytest.mark.parametrize("size", [1, 7, 19, 20, 21, 300, 100_000])
def test_each_event_is_counted_once_wherever_the_stream_is_cut(
    ends: tuple[RawSocket, socket.socket], size: int
) -> None:
    raw, there = ends
    replies = Replies(SystemClock(), OsEntropy())
    stream = _join(parcel([replies.event(event) for event in EVENTS] + [replies.ping()]))
    found = 0
    with raw.socket, there:
        for start in range(0, len(stream), size):
            there.sendall(stream[start : start + size])
            found += raw.events()
    assert found == len(EVENTS)


def test_an_error_and_a_closed_connection_end_the_measurement(ends: tuple[RawSocket, socket.socket]) -> None:
    raw, there = ends
    with raw.socket, there:
        there.sendall(b'{"error":{},"frameType":"ERROR"}')
        with pytest.raises(RuntimeError, match="refused"):
            raw.events()
        there.close()
        with pytest.raises(RuntimeError, match="closed"):
            raw.events()


def test_a_few_commands_are_measured_over_a_socket(tmp_path: Path) -> None:
    results = sockets.append(tmp_path, 100)
    assert [each.unit for each in results] == ["1/s", "us", "us"]
    assert all(each.value > 0 and each.floor and each.ratio for each in results)
