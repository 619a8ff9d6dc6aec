"""The list of faults is whole, and what it names is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.faults.catalogue import FAULTS
from tests.faults.marks import faults_shown_by

TESTS = Path(__file__).resolve().parent.parent


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_number_is_there_once_and_in_order() -> None:
    assert [fault.number for fault in FAULTS] == list(range(1, 107))


def test_every_fault_has_tests_or_says_why_not() -> None:
    assert [fault.number for fault in FAULTS if bool(fault.tests) == bool(fault.reason)] == []
    assert len({fault.what for fault in FAULTS}) == len(FAULTS)


def test_every_test_that_is_named_exists() -> None:
    known: dict[str, set[str]] = {}
    absent = []
    for name in sorted({name for fault in FAULTS for name in fault.tests}):
        file, _, function = name.partition("::")
        if file not in known:
            known[file] = functions(TESTS / file) if (TESTS / file).exists() else set()
        if function not in known[file]:
            absent.append(name)
    assert absent == []


def test_every_test_written_for_a_fault_is_named() -> None:
    named = {name for fault in FAULTS for name in fault.tests}
    written = {
        f"faults/{path.name}::{function}"
        for path in sorted((TESTS / "faults").glob("test_*.py"))
        if path.name != "test_catalogue.py"
        for function in functions(path)
        if function.startswith("test_")
    }
    assert sorted(written - named) == []


def test_the_mark_is_put_on_what_is_collected(request: pytest.FixtureRequest) -> None:
    marked = {
        mark.args[0]: item
        for item in request.session.items
        for mark in item.iter_markers("reference_fault")
        if item.path.name == "test_cost.py"
    }
    if any(item.path.name == "test_cost.py" for item in request.session.items):
        assert set(marked) >= {99, 100, 101, 102, 103, 104}
    assert faults_shown_by("faults/test_cost.py::test_usage_costs_the_same_with_many_accounts") == [103]
    assert faults_shown_by("faults/test_catalogue.py::test_of_nothing") == []
