"""The README's examples are run as they stand there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from mwnode.authority.table import MISSION_STATES
from mwnode.cli.mission import mission
from mwnode.cli.possible import KIND_OF_VERB, possible_in
from mwnode.client.http import HttpClient
from mwnode.coordinator.plan import parse_plan
from mwnode.coordinator.plan_format import (
    GENERIC_CAPABILITY,
    PlanBudget,
    PlanCriterion,
    PlanDeliverable,
    PlanMission,
    PlanRetry,
    PlanWork,
)
from mwnode.home import load_key
from mwnode.protocol.documents import Progress
from mwnode.protocol.documents.common import EvidenceType
from mwnode.protocol.errors import MissionWeaveError
from mwnode.testing import Harness
from mwnode.worker.steps import USAGE_LINE
from tests.cli.support import CHECKOUT, ServedHome, cli, environment

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")


def example(name: str) -> str:
    """The code block after a marker comment."""
    found = re.search(rf"<!-- test: {name} -->\n```[a-z]+\n(.*?)```", README, re.DOTALL)
    assert found is not None, name
    return found[1]


def table(head: str) -> dict[str, str]:
    """The rows of the table of that head: key cell to the rest."""
    lines = README[README.index(f"| key of `{head}`") :].split("\n\n")[0].splitlines()[2:]
    return {line.split("|")[1].strip(): line for line in lines}


def names(kind: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind)}


def test_the_minimal_plan_is_one(tmp_path: Path) -> None:
    text = example("plan")
    plan = parse_plan(text.encode(), tmp_path / "plan.toml")
    assert [work.id for work in plan.work] == ["sort"]
    assert len([line for line in text.splitlines() if line.strip()]) <= 12


@pytest.mark.parametrize("head, kind", [("[mission]", PlanMission), ("[[work]]", PlanWork)])
def test_the_table_of_keys_is_complete_and_right_about_what_is_required(head: str, kind: type[msgspec.Struct]) -> None:
    rows = table(head)
    told = {name for cell in rows for name in re.findall(r"`(\w+)`", cell.partition(" of ")[0])}
    of_criteria = {"evidence", "check"} if kind is PlanWork else set()
    assert told - of_criteria == names(kind)
    required = {field.encode_name for field in msgspec.structs.fields(kind) if field.required}
    assert required == {
        name for cell, line in rows.items() if "| required |" in line for name in re.findall(r"`(\w+)`", cell)
    }


def test_the_tables_name_every_allowed_value_and_member() -> None:
    text = " ".join((*table("[mission]").values(), *table("[[work]]").values()))
    members = {*names(PlanBudget), *names(PlanCriterion), *names(PlanDeliverable), *names(PlanRetry)}
    values = {
        value
        for kind in (PlanWork, PlanRetry, PlanCriterion)
        for value in re.findall(r"values=\(([^)]*)\)", str(msgspec.inspect.type_info(kind)))
        for value in re.findall(r"'(\w+)'", value)
    }
    assert len(values) > 20
    assert {word for word in members | values if f"`{word}`" not in text} == set()
    assert GENERIC_CAPABILITY in text


def test_the_example_over_http_prints_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MWNODE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    assert cli("init").status == 0
    assert cli("agent", "add", "coordinator").status == 0
    (tmp_path / "plan.toml").write_text(example("plan"))
    made = cli("mission", "create", "plan.toml", "--json").json
    served = ServedHome(tmp_path / "mwnode-home")
    try:
        code = example("http").replace("https://127.0.0.1:8765", served.listening["http"])
        exec(compile(code, "README.md", "exec"), {})
    finally:
        served.stop()
    told = capsys.readouterr().out
    assert f"{made['missionId']} active" in told
    assert "1 mission.created" in told


def test_the_example_of_the_fixture_passes(mwnode: Harness) -> None:
    scope: dict[str, Any] = {}
    exec(compile(textwrap.dedent(example("pytest")), "README.md", "exec"), scope)
    (test,) = [value for name, value in scope.items() if name.startswith("test_")]
    test(mwnode)


def test_the_members_of_progress_and_usage_lines_are_told() -> None:
    assert all(f"`{name}`" in line_of("progress") for name in names(Progress))
    assert all(f"`{name}`" in line_of("usage") for name in USAGE_LINE)


def line_of(member: str) -> str:
    """The README's row about one kind of line in the progress file."""
    return next(line for line in README.splitlines() if line.startswith(f'| `{{"{member}"'))


def test_the_table_of_mission_states_says_what_the_authority_admits() -> None:
    lines = README[README.index("| a Mission that is |") :].split("\n\n")[0].splitlines()[2:]
    told = {}
    for row in lines:
        _, states, verbs, _ = row.split("|")
        told |= {state: re.findall(r"`([a-z-]+)`", verbs) for state in re.findall(r"`(\w+)`", states)}
    assert told == {state: possible_in(state) for state in MISSION_STATES}
    assert set(KIND_OF_VERB) <= set(mission.commands)


def test_the_example_of_progress_lines_has_members_that_are_read() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", README, re.DOTALL)
    lines = [json.loads(line) for line in block.splitlines()]
    usage, evidence = (next(line[name] for line in lines if name in line) for name in ("usage", "evidence"))
    assert set(usage) <= set(USAGE_LINE)
    assert {"criterionId", "type", "result"} <= set(evidence) <= {"criterionId", "type", "result", "method"}
    assert evidence["type"] in get_args(EvidenceType)


# --- keeping a node, and proving it elsewhere -------------------------------------------------------------------------


def shell(folder: Path, name: str, **words: str) -> None:
    """Type a block of the README in a folder that holds `mwnode-home`; its words in capitals stand for something."""
    text = example(name)
    for word, meaning in words.items():
        assert word.replace("_", "-") in text
        text = text.replace(word.replace("_", "-"), meaning)
    command = f'mwnode() {{ "{sys.executable}" -m mwnode "$@"; }}\nset -e\n{text}'
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def missions_by(served: ServedHome, name: str) -> list[str]:
    """The Missions that a node shows to the holder of a key."""
    key = load_key(served.home / "keys" / f"{name}.key")
    with HttpClient(served.listening["http"], key, served.listening["ca"]) as node:
        return [one["missionId"] for one in node.get("/v0.1/missions")["missions"]]


def test_a_node_is_backed_up_its_keys_rotated_moved_restored_and_proven_elsewhere(tmp_path: Path) -> None:
    home = tmp_path / "mwnode-home"
    assert cli("init", home).status == 0
    old = cli("agent", "add", "builder", "--home", home, "--json").json["keyId"]
    assert cli("agent", "add", "coordinator", "--home", home).status == 0
    plan = tmp_path / "plan.toml"
    plan.write_text(example("plan"))
    created = cli("mission", "create", plan, "--home", home, "--json").json
    shell(tmp_path, "keep", OLD_KEY_ID=old)
    served = ServedHome(tmp_path / "moved-home")
    try:
        # The node that moved knows the Mission, takes the new key, and the old one no more.
        assert missions_by(served, "owner") == [created["missionId"]]
        assert missions_by(served, "builder-2") == []
        with pytest.raises(MissionWeaveError):
            missions_by(served, "builder")
    finally:
        assert served.stop()[0] == 0
    shell(tmp_path, "restore")
    kept = cli("mission", "list", "--home", home, "--json").json["missions"]
    assert [one["missionId"] for one in kept] == [created["missionId"]]
    root = cli("export", tmp_path / "other.mwx", "--home", home, "--json").json["rootKey"]
    shell(tmp_path, "audit", ROOT_KEY=root)
    proven = cli("verify", "--home", tmp_path / "audit-home", "--json").json
    assert (proven["ok"], proven["groups"]) == (True, 1)
