"""The tool that puts faults into the core knows what a fault is and puts it in the right place."""

from __future__ import annotations

import ast

import pytest

from tests.mutations.faults import Mutant, Place, mutants, mutated
from tests.mutations.trial import Map, Order, find_code

SOURCE = '''"""A module."""
from __future__ import annotations
LIMITS = (1, True)


def plain(value: int = 3) -> bool:
    """What it does."""
    assert value > 0
    if value < 10 and not value == 7:
        print(value + 1)
    return value in LIMITS


class Shape:
    SIDES = 4

    def area(self) -> int:
        return self.SIDES * 2
'''


def found() -> list[Mutant]:
    return list(mutants("leases", SOURCE))


def test_every_simple_fault_is_found_and_what_does_nothing_is_left_alone() -> None:
    assert sorted((mutant.line, mutant.fault, mutant.text) for mutant in found()) == [
        (3, "number", "1"),
        (3, "shorter", "(1, True)"),
        (3, "truth", "True"),
        (6, "number", "3"),
        (9, "always", "if value < 10 and (not value == 7):"),
        (9, "compare 0", "value < 10"),
        (9, "compare 0", "value == 7"),
        (9, "never", "if value < 10 and (not value == 7):"),
        (9, "not", "not value == 7"),
        (9, "number", "10"),
        (9, "number", "7"),
        (9, "operator", "value < 10 and (not value == 7)"),
        (10, "call", "print(value + 1)"),
        (10, "number", "1"),
        (10, "operator", "value + 1"),
        (11, "compare 0", "value in LIMITS"),
        (11, "return", "return value in LIMITS"),
        (15, "number", "4"),
        (18, "number", "2"),
        (18, "operator", "self.SIDES * 2"),
        (18, "return", "return self.SIDES * 2"),
    ]


def test_a_fault_knows_the_function_that_it_is_in() -> None:
    places = {mutant.line: mutant.place for mutant in found()}
    assert places[9] == places[10] == Place("plain", 6)
    assert places[18] == Place("Shape.area", 17)
    # Values of the module, of a class and of a default are made when the module is loaded.
    assert places[3] is places[15] is places[6] is None


@pytest.mark.parametrize("mutant", found(), ids=str)
def test_a_mutant_differs_from_the_module_and_can_be_loaded(mutant: Mutant) -> None:
    tree = mutated(mutant, SOURCE)
    assert ast.unparse(tree) != ast.unparse(ast.parse(SOURCE))
    code = compile(tree, "leases.py", "exec")
    if mutant.place is not None:
        changed = find_code(code, mutant.place.name, mutant.place.line)
        whole = find_code(compile(SOURCE, "leases.py", "exec"), mutant.place.name, mutant.place.line)
        assert changed is not None
        assert whole is not None
        assert (changed.co_code, changed.co_consts, changed.co_names) != (
            whole.co_code,
            whole.co_consts,
            whole.co_names,
        )


def test_only_tests_that_run_the_statement_are_asked_and_first_those_that_noticed_a_neighbour() -> None:
    known = Map(seconds={"a.py::slow": 3.0, "a.py::quick": 1.0, "b_leases.py::own": 2.0, "c.py::other": 1.0})
    for name in ("a.py::slow", "a.py::quick", "b_leases.py::own"):
        known.runs["leases", 10].add(name)
    call = next(mutant for mutant in found() if mutant.fault == "call")
    loading = next(mutant for mutant in found() if mutant.place is None)
    order = Order(known)
    assert list(order.of(call)) == ["b_leases.py::own", "a.py::quick", "a.py::slow"]
    assert set(order.of(loading)) == set(known.seconds)
    order.learn(call, "a.py::slow")
    assert next(iter(order.of(call))) == "a.py::slow"
