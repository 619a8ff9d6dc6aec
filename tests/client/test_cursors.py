"""Cursors in a file: an Agent that starts again goes on where it was."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from mwnode.client import ClientError
from mwnode.client.cursors import CursorFile
from tests.gateway.conftest import Served
from tests.patience import PATIENCE_SECONDS


def test_what_was_kept_is_there_for_the_next_one_and_never_goes_back(tmp_path: Path) -> None:
    path = tmp_path / "cursors.json"
    first = CursorFile(path)
    assert first.positions(["urn:a", "urn:b"]) == {"urn:a": 0, "urn:b": 0}
    assert first.keep("urn:a", 7)
    assert not first.keep("urn:a", 7)
    assert not first.keep("urn:a", 3)
    assert first.keep("urn:b", 1)
    assert CursorFile(path).positions(["urn:a", "urn:b", "urn:c"]) == {"urn:a": 7, "urn:b": 1, "urn:c": 0}


def test_a_change_that_the_disk_does_not_take_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cursors.json"
    cursors = CursorFile(path)
    cursors.keep("urn:a", 7)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        cursors.keep("urn:a", 8)
    assert cursors.position("urn:a") == CursorFile(path).position("urn:a") == 7


@pytest.mark.parametrize("text", [b"", b"[]", b'{"urn:a":"seven"}', b"\xff"])
def test_another_file_is_not_taken_for_cursors(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "cursors.json"
    path.write_bytes(text)
    with pytest.raises(ClientError, match="does not tell any Cursors"):
        CursorFile(path)
    assert path.read_bytes() == text


@pytest.mark.req("R-16-04", "R-16-06", "R-16-51")
async def test_a_client_that_starts_again_misses_nothing_and_does_nothing_twice(served: Served, tmp_path: Path) -> None:
    harness, path = served.harness, tmp_path / "cursors.json"
    mission = harness.mission()
    for number in range(5):
        mission.post(harness.owner, f"{number}")
    processed: list[int] = []
    for stop_after in (2, 3, 1):
        client = await served.client(harness.coordinator, cursors=path)
        await client.follow(mission.group_id)
        async for event in client.events():
            assert isinstance(event.sequence, int)
            processed.append(event.sequence)
            client.done(event)
            stop_after -= 1
            if not stop_after:
                break
        await client.close()
        assert CursorFile(path).position(mission.group_id) == processed[-1]
    assert processed == [1, 2, 3, 4, 5, 6]
    client = await served.client(harness.coordinator, cursors=path)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await client.follow(mission.group_id, caught_up=True)
    assert client._events.empty()


async def test_without_a_file_that_is_said(served: Served) -> None:
    client = await served.client(served.harness.coordinator)
    with pytest.raises(ClientError, match="cursors=PATH"):
        await client.follow("urn:x:1")
