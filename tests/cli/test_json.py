"""With --json standard output is one JSON document, or one a line where it is a stream, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.support import ServedHome, cli
from tests.cli.test_mistakes import ALL, MISSION, homes

__all__ = ["homes"]

DOCUMENTS: dict[str, set[str]] = {
    "agent list": {"agents"},
    "agent show lead": {"agentId", "cardVersion", "signature"},
    "agent performance lead": {"agentId", "performance"},
    "agent add lead --slots 3": {"agentId", "keyId", "keyFile", "cardVersion"},
    "human add person-NEW": {"humanId", "keyId", "keyFile"},
    "key list": {"keys"},
    "key add key-NEW --principal agent:urn:mwnode:agent:lead": {"keyId", "principal", "keyFile"},
    "mission list": {"missions"},
    "mission show MISSION": {"mission", "workItems", "progress", "headSequence"},
    "mission direct MISSION hello": {"messageId"},
    "mission priority MISSION low": {"missionId", "eventId", "state", "revision"},
    "mission budget MISSION toolCallLimit=9000": {"missionId", "eventId", "state", "revision"},
    "artifact put @bytes": {"contentHash", "sizeBytes", "uri"},
    "artifact list": {"artifacts"},
    "artifact uploads": {"uploads"},
    "command draft message.post --mission MISSION": {"protocolVersion", "actionId", "kind", "payload"},
    "verify": {"ok", "groups", "events", "artifacts", "findings"},
    "doctor": {"ok", "findings"},
}
"""Commands that print one object, and members that scripts rely on."""
LISTS = ("waiting", "waiting --mine", "why MISSION")
STREAMS = ("events MISSION", "mission watch MISSION --until active")


@pytest.fixture(scope="module", params=["at rest", "served"])
def home(request: pytest.FixtureRequest, homes: Path) -> Iterator[Path]:
    """A HOME that nobody serves, then the same one behind a node."""
    if request.param == "at rest":
        yield homes / "home"
        return
    served = ServedHome(homes / "home")
    yield homes / "home"
    served.stop()


def words(text: str, home: Path) -> list[str]:
    """A command's words: MISSION is the one of HOME, a word after @ a file beside it, NEW what is there not yet."""
    new = "served" if (home / "served.json").exists() else "resting"
    named = [MISSION if word == "MISSION" else word.replace("NEW", new) for word in text.split()]
    return [f"{home.parent}/{word[1:]}" if word.startswith("@") else word for word in named]


@pytest.mark.parametrize("text", DOCUMENTS)
def test_a_result_is_one_object_with_the_members_that_scripts_rely_on(text: str, home: Path) -> None:
    done = cli(*words(text, home), "--home", home, "--json")
    assert done.status == 0, done.err
    assert done.err == ""
    assert DOCUMENTS[text] <= set(json.loads(done.out))


@pytest.mark.parametrize("text", LISTS)
def test_what_waits_and_why_are_one_list(text: str, home: Path) -> None:
    found = cli(*words(text, home), "--home", home, "--json")
    assert isinstance(found.json, list)
    assert found.err == ""


@pytest.mark.parametrize("text", STREAMS)
def test_events_are_one_document_a_line_as_they_were_signed(text: str, home: Path) -> None:
    lines = cli(*words(text, home), "--home", home, "--json").lines
    assert lines[0]["kind"] == "mission.created"
    assert all("signature" in event for event in lines)


@pytest.mark.parametrize("text", ["mission show nobody", "artifact get 00", "key revoke nobody", "why nobody"])
def test_a_refusal_leaves_standard_output_empty(text: str, home: Path) -> None:
    refused = cli(*words(text, home), "--home", home, "--json")
    assert (refused.status, refused.out) == (1, "")
    assert len(refused.err.splitlines()) == 1


def test_every_command_takes_a_home() -> None:
    for path, command in ALL.items():
        options = {name for parameter in command.params for name in parameter.opts}
        assert {"--home", "--json"} <= options, path
        assert len({"--url", "--ca"} & options) in (0, 2), path
