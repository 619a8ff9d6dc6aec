"""Which faults can be put into a module, and how one is put there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parent.parent.parent
CORE = Path("mwnode/authority")

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


class Place(NamedTuple):
    """The outermost function whose body a fault is in: what may be exchanged while the module stays loaded."""

    name: str
    """Qualified name."""
    line: int
    """Where the function begins, decorators included."""


class Mutant(NamedTuple):
    """One fault: where it is, and what is done to which text."""

    module: str
    """Name of the module within the core."""
    node: int
    """Which node of ``ast.walk``."""
    fault: str
    text: str
    """The first line of the node, as it is without the fault."""
    line: int
    lines: tuple[int, int]
    """First and last line of the statement, or of the head of a compound one."""
    place: Place | None
    """``None``: the fault is in what runs when the module is loaded."""

    @property
    def path(self) -> Path:
        """The module's file, within the checkout."""
        return CORE / f"{self.module}.py"

    def __str__(self) -> str:
        where = f" in {self.place.name}" if self.place is not None else ""
        return f"{self.module}.py:{self.line}{where} {self.fault}: {self.text}"


def mutants(module: str, source: str) -> Iterator[Mutant]:
    """Every simple fault of one module: comparisons and operators swapped, numbers moved, conditions and calls cut,
    returns emptied, tuples shortened.

    Annotations, docstrings, imports and assertions stay as they are: the first three do nothing, and what an assertion
    says always holds.
    """
    tree = ast.parse(source)
    places, statements = _places(tree), _statements(tree)
    left = {id(part) for root in _left_alone(tree) for part in ast.walk(root)}
    for index, node in enumerate(ast.walk(tree)):
        for fault in () if id(node) in left else _faults(node):
            text = ast.unparse(node).splitlines()[0][:90]
            lines = statements[id(node)]
            yield Mutant(module, index, fault, text, getattr(node, "lineno", 0), lines, places.get(id(node)))


def mutated(mutant: Mutant, source: str) -> ast.Module:
    """The module with the fault in it; every line keeps its number."""
    tree = ast.parse(source)
    _apply(next(node for at, node in enumerate(ast.walk(tree)) if at == mutant.node), mutant.fault)
    return ast.fix_missing_locations(tree)


def _left_alone(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom):
            yield node
        for name in ("annotation", "returns"):
            hint = getattr(node, name, None)
            if isinstance(hint, ast.AST):
                yield hint


def _places(tree: ast.Module) -> dict[int, Place]:
    """Each node in the body of a function, by its identity; decorators and defaults run when the module is loaded."""
    found: dict[int, Place] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                begin = min([child.lineno, *(part.lineno for part in child.decorator_list)])
                place = Place(f"{prefix}{child.name}", begin)
                for statement in child.body:
                    found.update((id(part), place) for part in ast.walk(statement))
            else:
                visit(child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)

    visit(tree, "")
    return found


def _statements(tree: ast.Module) -> dict[int, tuple[int, int]]:
    """The lines of the innermost statement around each node; of a compound statement only its head."""
    found: dict[int, tuple[int, int]] = {}

    def visit(node: ast.AST, lines: tuple[int, int]) -> None:
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            lines = (node.lineno, max(last, node.lineno))
        found[id(node)] = lines
        for child in ast.iter_child_nodes(node):
            visit(child, lines)

    visit(tree, (0, 0))
    return found


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
