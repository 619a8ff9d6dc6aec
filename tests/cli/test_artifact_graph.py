"""`mwnode artifact show`, `sources` and `derived`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.finished import harness
from tests.cli.support import cli


@pytest.mark.req("R-13.1-19", "R-13.1-16")
def test_what_an_artifact_was_made_of_and_what_was_made_of_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    node = harness(home)
    work = node.mission().work("active")
    source = work.publish(b"source", classification="public")
    middle = work.publish(b"middle", sourceArtifactHashes=[source])
    made = work.publish(b"made", sourceArtifactHashes=[middle, source], classification="confidential")
    node.close()

    def asked(*words: str) -> Any:
        return cli("artifact", *words, "--home", home, "--json").json

    found = asked("sources", made[:20], "--depth", "3")
    steps = [(step["depth"], step["contentHash"], step["sourceHash"]) for step in found["derivations"]]
    assert steps == [(1, made, middle), (1, made, source), (2, middle, source)]
    assert [content["classification"] for content in found["contents"]] == ["confidential", "internal", "public"]
    assert not found["more"]
    back = asked("derived", source)
    assert {step["contentHash"] for step in back["derivations"]} == {middle, made}
    cut = asked("derived", source, "--depth", "9", "--limit", "1")
    assert (len(cut["derivations"]), cut["more"]) == (1, True)
    shown = asked("show", middle)
    assert (shown["classification"], shown["sizeBytes"]) == ("internal", 6)
    assert shown["manifests"][0]["sourceArtifactHashes"] == [source]
    text = cli("artifact", "sources", made, "--home", home).out
    assert middle in text
    assert "public" in text
    assert "raise --limit" in cli("artifact", "derived", source, "--limit", "1", "--home", home).out
    assert "confidential" in cli("artifact", "show", made, "--home", home).out
    for command in ("show", "sources", "derived"):
        missing = cli("artifact", command, "0" * 64, "--home", home)
        assert missing.status == 1
        assert "mwnode artifact list" in missing.err
    assert cli("artifact", "sources", made, "--depth", "0", "--home", home).status == 2
