"""The measurements in process send what they say, whatever the window."""

from __future__ import annotations

from pathlib import Path

import pytest

from mwnode.bench.embedded import pipeline
from mwnode.bench.traffic import Speaker, open_node


def test_every_command_of_a_pipeline_is_answered(tmp_path: Path) -> None:
    with open_node(tmp_path, durable=False) as node:
        speaker = Speaker(node)
        group = speaker.new_group()
        with node.read() as view:
            before = view.head(group)
        for count, window in ((1, 256), (5, 1), (50, 3), (100, 64), (300, 256)):
            assert pipeline(node, speaker.messages([group], count), window) > 0
        with node.read() as view:
            assert view.head(group) == before + 456
        with pytest.raises(RuntimeError, match="refused"):
            pipeline(node, [b"{}"] * 10, 4)
