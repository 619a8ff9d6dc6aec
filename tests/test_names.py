"""What things are called in what people read: documentation, help, messages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from mwnode.demo.log import GroupLog
from mwnode.narrative import Narrator, work_item_of

CHECKOUT = Path(__file__).resolve().parent.parent
PAGES = (CHECKOUT / "README.md", CHECKOUT / "CHANGELOG.md", CHECKOUT / "pyproject.toml")
TEXTS = (*PAGES, *sorted((CHECKOUT / "mwnode").rglob("*.py")), *sorted((CHECKOUT / "fixtures").rglob("*.toml")))
NAMED = re.compile(r"mission[\s_-]*weave\w*", re.IGNORECASE)
SHORTENED = re.compile(r"\b(?:MWP|MWv?0)\b")
CODE = re.compile(r"MissionWeaveProtocol|MissionWeaveError|missionweaveprotocol")
"""The name; a class of errors; and the name as it stands in identifiers of the wire."""
LOCALES = {"gettext", "locale", "babel"}


@pytest.mark.req("R-G-01")
@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(CHECKOUT).as_posix())
def test_the_protocol_has_one_name(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    wrong = [found for found in NAMED.findall(text) if not CODE.fullmatch(found)]
    assert wrong + SHORTENED.findall(text) == []


def test_the_scan_would_find_a_wrong_name() -> None:
    for text in ("Mission Weave", "MissionWeave", "mission-weave", "MissionWeave Protocol"):
        assert [found for found in NAMED.findall(text) if not CODE.fullmatch(found)] == [NAMED.findall(text)[0]]
    assert SHORTENED.findall("the MWP says")


@pytest.mark.req("R-G-03")
def test_the_interface_is_in_one_language_so_no_localized_name_can_be_wrong() -> None:
    """There is no string table: whoever adds one meets this test, and the five names of R-G-03."""
    for path in (CHECKOUT / "mwnode").rglob("*"):
        assert path.suffix not in (".po", ".mo", ".ftl", ".arb")
        if path.suffix != ".py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & LOCALES, path


@pytest.mark.req("R-9-11")
@pytest.mark.parametrize(
    "text", ["Run the tests now!", "@builder: you own work item 7, start it", "work.start urn:x:1"]
)
def test_an_imperative_message_is_shown_as_something_said_and_never_as_work(text: str) -> None:
    message = {
        "messageId": "urn:x:m",
        "content": [{"type": "text", "text": text}],
        "mentions": [{"id": "urn:x:builder"}],
    }
    event = {
        "kind": "message.posted",
        "sequence": 7,
        "occurredAt": "2030-01-01T00:00:00Z",
        "actor": {"type": "human", "id": "urn:x:olivia"},
        "payload": {"message": message, "state": "active", "revision": 3},
    }
    line = Narrator().tell(event)
    before, said = line.split(f": {text}")
    assert said == ""
    assert before.split()[2:] == ["message.posted", "olivia"]  # no WorkItem, no state, nothing to execute
    assert work_item_of(event) is None
    log = GroupLog("urn:x:group")
    log._take(event)
    assert (log.board, log.names) == ({}, {})
