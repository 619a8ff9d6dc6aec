"""The plan file: what it becomes, and how its faults are told."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from mwnode.coordinator.plan import PlanError, load_plan, parse_plan
from mwnode.coordinator.plan_format import capability
from mwnode.coordinator.plan_text import line_of, path_of, positions
from mwnode.protocol.commands import MissionCreate
from mwnode.protocol.documents import CapabilityRef
from mwnode.protocol.identifiers import CORE_EXTENSION
from mwnode.protocol.instants import parse

NOW = parse("2030-01-01T00:00:00Z")
SOURCE = Path("plan.toml")
PLAN = """\
[mission]
title = "Release 1.4"
objective = "Build, check and publish the archive"
deadline = "P2D"
budget = { wallClockSecondsLimit = 7200, currency = "EUR", financialLimit = 20 }
permissions = [ { resource = "urn:example:repo", operations = ["read", "write.branch"] } ]

[[mission.definitionOfDone]]
criterionId = "archive"
description = "The archive exists"
evidenceRequired = ["deterministic_test"]

[[work]]
id = "lint"
goal = "Lint"
deliverables = [ { id = "findings" } ]
criteria = [ { id = "clean", description = "no finding" } ]

[[work]]
id = "test"
goal = "Run the unit tests"
after = ["lint"]
capability = ["acme.python.test@1.0.0"]
run = "python -m pytest -q"
deliverables = [ { id = "report", path = "out/report.xml", mediaType = "application/xml" } ]
criteria = [ { id = "green", description = "all pass", evidence = ["deterministic_test"], check = "exit 0" } ]
budget = { wallClockSecondsLimit = 600, financialLimit = 2.5 }
urgency = "high"
retry = { maxAttempts = 2, backoff = "fixed", maxDelay = "PT5S" }
"""


def test_mission_payload_is_a_mission_create_payload() -> None:
    parsed = parse_plan(PLAN.encode(), SOURCE)
    payload = parsed.mission_payload("urn:m:1", "urn:g:1", "urn:a:1", NOW)
    typed = msgspec.convert(payload, MissionCreate)
    assert typed.deadline == "2030-01-03T00:00:00Z"
    assert typed.coordinator == "urn:a:1"
    assert payload["permissions"] == [{"resource": "urn:example:repo", "operations": ["read", "write.branch"]}]
    assert typed.approval_policy.final_human_approval


def test_a_plan_is_known_by_the_hash_of_its_bytes() -> None:
    parsed = parse_plan(PLAN.encode(), SOURCE)
    expected = f"sha256:{hashlib.sha256(PLAN.encode()).hexdigest()}"
    assert parsed.plan_hash == expected
    assert parsed.extensions == {
        CORE_EXTENSION: {"version": "1.0.0", "critical": False, "data": {"planHash": expected}}
    }


def test_contract_takes_its_defaults_from_the_mission() -> None:
    parsed = parse_plan(PLAN.encode(), SOURCE)
    contract = parsed.contract(parsed.by_id["lint"], {}, NOW, {})
    assert contract.business_impact == "Build, check and publish the archive"
    assert contract.deadline == "2030-01-03T00:00:00Z"
    assert contract.allowed_resources == parsed.mission.permissions
    assert contract.required_capabilities == (CapabilityRef(id="mwnode.generic", version="1.0.0"),)
    assert contract.required_deliverables[0].schema == "urn:mwnode:schema:any"
    assert contract.retry_policy.retryable_failures == ("EXECUTOR_FAILED",)
    assert contract.execution_approval == "not_required"
    # One item has 600 of the Mission's 7200 seconds; the other gets half of the rest, at most an hour.
    assert contract.budget.wall_clock_seconds_limit == 3300


def test_contract_says_where_files_are_and_what_proves_a_criterion() -> None:
    parsed = parse_plan(PLAN.encode(), SOURCE)
    digest = "sha256:" + "ab" * 32
    contract = parsed.contract(parsed.by_id["test"], {"lint": "urn:w:lint"}, NOW, {"src/b": digest, "src/a": digest})
    assert contract.dependency_work_item_ids == ("urn:w:lint",)
    assert contract.input_artifacts == (digest,)
    assert contract.budget.currency == "EUR"
    assert contract.constraints == {
        "localId": "test",
        "run": "python -m pytest -q",
        "deliverables": {"report": {"path": "out/report.xml"}},
        "checks": {"green": "exit 0"},
        "inputs": [{"path": "src/a", "contentHash": digest}, {"path": "src/b", "contentHash": digest}],
    }


def test_a_works_deadline_never_passes_the_missions() -> None:
    parsed = parse_plan(PLAN.replace('urgency = "high"', 'deadline = "P9D"').encode(), SOURCE)
    contract = parsed.contract(parsed.by_id["test"], {}, NOW, {}, mission_deadline="2030-01-02T00:00:00Z")
    assert contract.deadline == "2030-01-02T00:00:00Z"


def test_toml_timestamps_are_taken_with_an_offset() -> None:
    text = PLAN.replace('"P2D"', "2030-05-01T12:00:00+02:00")
    parsed = parse_plan(text.encode(), SOURCE)
    assert parsed.mission_payload("urn:m:1", "urn:g:1", "urn:a:1", NOW)["deadline"] == "2030-05-01T12:00:00+02:00"
    with pytest.raises(PlanError, match=r"plan.toml:4: mission.deadline: .* such as 2030"):
        parse_plan(PLAN.replace('"P2D"', "2030-05-01T12:00:00").encode(), SOURCE)


def test_order_puts_dependencies_first() -> None:
    head, lint, test = PLAN.split("[[work]]")
    parsed = parse_plan(f"{head}[[work]]{test}[[work]]{lint}".encode(), SOURCE)
    assert [work.id for work in parsed.order()] == ["lint", "test"]


FAULTS = {
    "unknown key": ("urgency", "urgncy", "plan.toml:28: work[1].urgncy: unknown key"),
    "unknown key in an inline table": ("mediaType", "media", "plan.toml:25: work[1].deliverables[0].media: unknown"),
    "missing member": ('goal = "Lint"\n', "", "plan.toml:13: work[0].goal: is missing"),
    "wrong value": (
        '"fixed"',
        '"often"',
        "plan.toml:29: work[1].retry.backoff: 'often' is unknown; it is one of none, fixed, exponential",
    ),
    "unknown name": ('["lint"]', '["lynt"]', "plan.toml:22: work[1].after[0]: no work is called 'lynt'"),
    "no criteria": (
        'criteria = [ { id = "clean", description = "no finding" } ]',
        "criteria = []",
        "plan.toml:17: work[0].criteria: 'lint' has no criteria",
    ),
    "cycle": (
        'goal = "Lint"',
        'goal = "Lint"\nafter = ["test"]',
        "plan.toml:16: work[0].after: work waits for itself: lint -> test -> lint",
    ),
    "waiting for oneself": ('["lint"]', '["test"]', "work waits for itself: test -> test"),
    "twice the same name": ('id = "test"', 'id = "lint"', "plan.toml:20: work[1].id: 'lint' is already the id"),
    "bad duration": ("PT5S", "5s", "plan.toml:29: work[1].retry.maxDelay"),
    "bad deadline": ("P2D", "soon", "plan.toml:4: mission.deadline: 'soon' is neither a duration"),
    "bad capability": ("@1.0.0", "", "plan.toml:23: work[1].capability[0]: 'acme.python.test' is not ID@VERSION"),
    "output outside": ("out/report", "../report", "deliverables[0].path: is a relative path under outputs/"),
    "not TOML": ("[mission]", "[mission", "plan.toml:1: is not TOML"),
    "brackets without end": ("[mission]", "x = " + "[" * 100_000, "is no plan: it cannot be read to its end"),
    "dangerous work without a human": (
        'urgency = "high"',
        'risk = "destructive"\napproval = "not_required"',
        "work[1].approval: risk 'destructive' requires 'human_required'",
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_told_with_file_line_and_key(fault: tuple[str, str, str]) -> None:
    sound, broken, told = fault
    assert PLAN.count(sound) == 1
    with pytest.raises(PlanError) as raised:
        parse_plan(PLAN.replace(sound, broken).encode(), SOURCE)
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.req("R-12-21")
@pytest.mark.parametrize(
    "sound, broken, key",
    [
        ("wallClockSecondsLimit = 600", "wallClockSecondsLimit = 7201", "wallClockSecondsLimit"),
        ("financialLimit = 2.5", "financialLimit = 20.5", "financialLimit"),
        ("wallClockSecondsLimit = 600", "wallClockSecondsLimit = 7200", "wallClockSecondsLimit"),
    ],
)
def test_allocations_beyond_the_missions_limits_are_refused(sound: str, broken: str, key: str) -> None:
    with pytest.raises(PlanError) as raised:
        parse_plan(PLAN.replace(sound, broken).encode(), SOURCE)
    assert raised.value.key == f"mission.budget.{key}"


def test_dangerous_work_waits_for_a_human_by_default() -> None:
    parsed = parse_plan(PLAN.replace('urgency = "high"', 'risk = "high_risk"').encode(), SOURCE)
    assert parsed.contract(parsed.by_id["test"], {}, NOW, {}).execution_approval == "human_required"


def test_input_files_must_exist_beside_the_plan(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.replace('goal = "Lint"', 'goal = "Lint"\ninputs = ["src/"]'))
    assert load_plan(path).by_id["lint"].inputs == ("src/",)
    (tmp_path / "src").rmdir()
    with pytest.raises(PlanError) as raised:
        load_plan(path)
    assert (raised.value.key, raised.value.line) == ("work[0].inputs[0]", 16)


def test_an_unreadable_plan_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"nowhere.toml: cannot be read: No such file"):
        load_plan(tmp_path / "nowhere.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(PlanError, match="is not UTF-8"):
        load_plan(tmp_path / "binary.toml")


def test_positions_of_nested_tables() -> None:
    text = '[a]\nx = 1\n[[a.b]]\n"q r" = 2\n[[a.b]]\n[a.b.c]\nd.e = 3\n'
    assert positions(text)["a", "b", 1, "c", "d", "e"] == 7
    assert line_of(text, ("a", "b", 0, "q r")) == 4
    assert line_of(text, ("a", "b", 1, "nothing")) == 5
    assert line_of(text, ("z",)) is None
    assert path_of("$.work[1].budget[...].x") == ("work", 1, "budget")


def test_every_mistake_is_reported_at_once() -> None:
    broken = PLAN.replace('"fixed"', '"often"').replace("objective", "objectve", 1)
    with pytest.raises(PlanError) as raised:
        parse_plan(broken.encode(), SOURCE)
    told = [str(error) for error in raised.value.all]
    assert told[0] == str(raised.value)
    assert any(line.endswith("mission.objectve: unknown key; did you mean objective?") for line in told)
    assert any(line.endswith("mission.objective: is missing") for line in told)
    assert any("'often' is unknown; it is one of none, fixed, exponential" in line for line in told)


def test_unknown_evidence_is_told_with_what_is_known() -> None:
    broken = PLAN.replace('"deterministic_test"', '"lucky_guess"', 1)
    with pytest.raises(PlanError, match=r"'lucky_guess' is unknown; it is one of .*reviewer_assessment"):
        parse_plan(broken.encode(), SOURCE)


def test_mistakes_of_meaning_in_several_works_come_together() -> None:
    plan = (
        PLAN
        + """
[[work]]
id = "first"
goal = "Twice wrong"
deliverables = [ { id = "o", path = "../o" } ]
criteria = [ { id = "c", description = "d" } ]
[[work]]
id = "second"
goal = "Wrong too"
deliverables = [ { id = "o" } ]
criteria = []
"""
    )
    with pytest.raises(PlanError) as raised:
        parse_plan(plan.encode(), SOURCE)
    told = " ".join(str(error) for error in raised.value.all)
    assert "is a relative path under outputs/" in told
    assert "'second' has no criteria" in told


@pytest.mark.req("R-12-17")
def test_work_that_waits_for_a_human_names_what_is_to_be_permitted() -> None:
    bare = """
[mission]
objective = "Publish"
deadline = "P1D"
budget = { wallClockSecondsLimit = 600 }
definitionOfDone = [ { criterionId = "c", description = "d", evidenceRequired = ["deterministic_test"] } ]

[[work]]
id = "publish"
goal = "Publish"
risk = "high_risk"
deliverables = [ { id = "report" } ]
criteria = [ { id = "ok", description = "done", check = "exit 0" } ]
"""
    with pytest.raises(PlanError, match="waits for a human to permit operations"):
        parse_plan(bare.encode(), SOURCE)
    permitted = bare.replace(
        "[[work]]", 'permissions = [ { resource = "urn:x:site", operations = ["write"] } ]\n[[work]]'
    )
    parse_plan(permitted.encode(), SOURCE)


def test_mistakes_do_not_hide_each_other(tmp_path: Path) -> None:
    text = PLAN.replace('after = ["lint"]', 'after = ["lynt", "test"]\ncleanup = "nah"\ninputs = ["absent.txt"]')
    text = text.replace('"P2D"', '"tomorrow"').replace("out/report.xml", "../x").replace("acme.python.test@", "foo@")
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(PlanError) as caught:
        load_plan(tmp_path / "plan.toml")
    assert {error.key for error in caught.value.all} == {
        "mission.deadline",
        "work[1].after[0]",
        "work[1].after",
        "work[1].cleanup",
        "work[1].capability[0]",
        "work[1].inputs[0]",
        "work[1].deliverables[0].path",
    }


@pytest.mark.parametrize("version", ["1.0.0", "0.10.2", "1.0.0-rc.1", "1.0.0-0a", "1.0.0+build.007", "2.0.0-x-y.1+z"])
def test_versions_of_capabilities_are_semantic_ones(version: str) -> None:
    assert capability(f"acme.test@{version}").version == version


@pytest.mark.parametrize(
    "version",
    ["1.0", "1.0.0.0", "1.0.0beta", "01.0.0", "1.0.0-", "1.0.0+", "1.0.0-a..b", "1.0.0-01", "1.0.0+a+b", "1.0.0 ", ""],
)
def test_anything_else_behind_the_third_number_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match="is not ID@VERSION"):
        capability(f"acme.test@{version}")
