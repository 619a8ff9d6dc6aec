"""A file is there whole, or as it was before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mwnode.files import write_whole


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_written_whole_and_for_its_user_alone(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "kept"
    write_whole(path, b"one", durable=durable)
    write_whole(path, b"two", durable=durable)
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]


def test_what_cannot_be_finished_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kept"
    write_whole(path, b"one")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"two")
    assert path.read_bytes() == b"one"
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]
