"""`python -m tests.mutations --module table --seed 1 --count 50`: small faults put into the core, one at a time.

For each mutant a scratch copy of the checkout is changed in one place and a fast subset of the tests is run there; a
mutant that no test notices has survived. Run by hand: it is no part of the suite. The checkout itself is never changed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parent.parent
CORE = Path("mwnode/authority")
SLOW = ("test_random_histories_agree_with_the_model", "test_two_runs_of_one_history", "hash_seed", "a_slow_one")
"""Tests that take seconds each and repeat what others see too."""
SUBSETS: dict[str, tuple[str, ...]] = {
    "table": ("test_table", "test_matrix", "test_results", "test_mission_endings", "test_mission_coordination"),
    "leases": ("test_leases", "test_execution", "test_offers", "test_mission_coordination", "test_decisions"),
    "budget": ("test_budget", "test_execution", "test_work_item", "test_lineage", "test_mission_result", "test_tokens"),
    "membership": ("test_membership", "test_offers", "test_mission_coordination", "test_organization_archival"),
}
"""Test files that are tried first for a module; what survives them meets all of the core's tests."""

_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


class Mutant(NamedTuple):
    """One fault: in which module, at which line, and what was done to which text."""

    path: Path
    line: int
    fault: str
    source: str
    """The whole module with the fault in it."""


def mutants(path: Path, text: str) -> Iterator[Mutant]:
    """Every simple fault of one module: comparisons and operators swapped, numbers moved, conditions and calls cut,
    returns emptied."""
    tree = ast.parse(text)
    said = {id(part) for hint in _hints(tree) for part in ast.walk(hint)}
    for index, node in enumerate(ast.walk(tree)):
        for fault in () if id(node) in said else _faults(node):
            changed = copy.deepcopy(tree)
            target = next(found for at, found in enumerate(ast.walk(changed)) if at == index)
            before = ast.unparse(target).splitlines()[0]
            _apply(target, fault)
            source = ast.unparse(ast.fix_missing_locations(changed))
            yield Mutant(path, getattr(node, "lineno", 0), f"{fault}: {before[:90]}", source)


def _hints(tree: ast.AST) -> Iterator[ast.AST]:
    """Annotations: nothing runs there."""
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            hint = getattr(node, name, None)
            if isinstance(hint, ast.AST):
                yield hint


def _faults(node: ast.AST) -> list[str]:
    found = []
    if isinstance(node, ast.Compare):
        found += [f"compare {at}" for at, operator in enumerate(node.ops) if type(operator) in _SWAPS]
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _SWAPS:
        found.append("operator")
    if isinstance(node, ast.AugAssign) and type(node.op) in _SWAPS:
        found.append("operator")
    if isinstance(node, ast.Constant) and type(node.value) is int:
        found.append("number")
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        found.append("truth")
    if isinstance(node, ast.If | ast.IfExp):
        found += ["always", "never"]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        found.append("not")
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        found.append("call")
    if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        found.append("return")
    if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load) and len(node.elts) > 1:
        found.append("shorter")
    return found


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _apply(node: ast.AST, fault: str) -> None:
    """Put a fault into a node of a copied tree."""
    if isinstance(node, ast.Compare):
        at = int(fault.split()[1])
        node.ops[at] = _SWAPS[type(node.ops[at])]()  # type: ignore[call-overload]  # the swap of an operator is one
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign):
        node.op = _SWAPS[type(node.op)]()  # type: ignore[assignment]  # as above
    elif isinstance(node, ast.Constant):
        node.value = not node.value if fault == "truth" else int(str(node.value)) + 1
    elif isinstance(node, ast.If | ast.IfExp):
        node.test = ast.Constant(fault == "always")
    elif isinstance(node, ast.UnaryOp):
        node.operand = ast.UnaryOp(ast.Not(), node.operand)
    elif isinstance(node, ast.Expr | ast.Return):
        node.value = ast.Constant(None)
    elif isinstance(node, ast.Tuple):
        node.elts = node.elts[:-1]


def choose(names: Sequence[str], seed: int, count: int | None) -> list[Mutant]:
    """A seeded sample of the mutants of some modules, or all of them. Docstrings and assertions are left as they are:
    what an assertion says never happens."""
    found: list[Mutant] = []
    for name in names:
        path = CORE / f"{name}.py"
        text = (CHECKOUT / path).read_text(encoding="utf-8")
        kept = _kept_lines(ast.parse(text))
        whole = ast.unparse(ast.parse(text))
        found += [one for one in mutants(path, text) if one.line not in kept and one.source != whole]
    random.Random(seed).shuffle(found)
    return found if count is None else found[:count]


def _kept_lines(tree: ast.AST) -> set[int]:
    kept: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom):
            kept.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return kept


class Workshop:
    """A scratch copy of the checkout in which mutants are tried."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("mwnode", "tests", "fixtures"):
            shutil.copytree(CHECKOUT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", ".mypy_cache"))
        shutil.copy(CHECKOUT / "pyproject.toml", root)

    def passes(self, files: Sequence[str], seconds: float) -> bool:
        """Whether the tests pass in the copy; a run that takes too long does not."""
        skip = " and ".join(f"not {name}" for name in SLOW)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", skip, *files]
        try:
            return subprocess.run(command, cwd=self.root, capture_output=True, timeout=seconds).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def survives(self, mutant: Mutant, seconds: float) -> bool:
        """Whether no test notices the mutant."""
        file = self.root / mutant.path
        whole = file.read_text(encoding="utf-8")
        file.write_text(mutant.source, encoding="utf-8")
        try:
            first = [f"tests/authority/{name}.py" for name in SUBSETS.get(mutant.path.stem, ())]
            return (not first or self.passes(first, seconds)) and self.passes(["tests/authority"], seconds)
        finally:
            file.write_text(whole, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Try mutants and print the survivors and the rate of those killed; exit 0 when it is at least 85 %."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=main.__doc__)
    parser.add_argument("--module", action="append", required=True, help="module of mwnode/authority (repeatable)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, help="how many mutants; all of them by default")
    parser.add_argument("--list", action="store_true", help="only say how many there are")
    options = parser.parse_args(arguments)
    chosen = choose(options.module, options.seed, options.count)
    if options.list:
        print(len(chosen))
        return 0
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="mwnode-mutants-") as scratch:
        workshop = Workshop(Path(scratch))
        started = time.monotonic()
        if not workshop.passes(["tests/authority"], 900):
            print("the tests fail without any mutant", file=sys.stderr)
            return 2
        limit = 60 + 5 * (time.monotonic() - started)
        for mutant in chosen:
            if workshop.survives(mutant, limit):
                survivors += 1
                print(f"survived {mutant.path.name}:{mutant.line} {mutant.fault}", flush=True)
    killed = len(chosen) - survivors
    share = killed / len(chosen) if chosen else 1.0
    print(f"killed {killed} of {len(chosen)} ({share:.1%}), seed {options.seed}")
    return 0 if share >= 0.85 else 1


if __name__ == "__main__":
    sys.exit(main())
