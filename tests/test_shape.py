"""The shape of the project, kept by tests: what no reviewer should have to look for."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mwnode.cli import FAMILIES, mwnode
from tests.requirements import REQUIREMENTS, load_rows

CHECKOUT = Path(__file__).resolve().parent.parent
PACKAGE = CHECKOUT / "mwnode"
MODULES = sorted(PACKAGE.rglob("*.py"))
RULE = re.compile(r"\bR-(?:G|\d+(?:\.\d+)?)-\d+\b")
LINES_MAX = 550
"""The ceiling; what a module should aim at is well under 400."""
LONG_BY_NATURE = {
    "protocol/documents.py": "one struct per normative schema: a list, not an idea that could be split",
    "protocol/commands.py": "one struct per Command kind",
    "protocol/events.py": "one struct per Event kind",
}
WORLD = {
    # What reads the outside world, and the only places that may.
    "time.time": {"system.py"},
    "time.time_ns": {"system.py"},
    "os.urandom": {"system.py"},
    "uuid.uuid4": set(),
    "datetime.now": set(),
    "random.random": set(),
}


def name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every leaf command with its path."""
    if not isinstance(group, click.Group):
        yield path, group
        return
    context = click.Context(group)
    for child_name in group.list_commands(context):
        child = group.get_command(context, child_name)
        assert child is not None
        yield from commands(child, (*path, child_name))


LEAVES = dict(commands(mwnode))


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_says_what_it_is_for_and_fits_on_a_few_screens(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if not text:
        return
    assert ast.get_docstring(ast.parse(text)), f"{name(path)} has no docstring"
    if name(path) not in LONG_BY_NATURE:
        assert len(text.splitlines()) <= LINES_MAX, f"{name(path)}: look for the second idea in it"


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_only_the_named_places_read_clock_and_chance(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used = f"{node.value.id}.{node.attr}"
            assert used not in WORLD or name(path) in WORLD[used], f"{name(path)}:{node.lineno} uses {used}"


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_no_error_is_swallowed_and_nothing_is_left_for_later(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            broad = node.type is None or (isinstance(node.type, ast.Name) and node.type.id == "Exception")
            silent = all(isinstance(statement, ast.Pass) for statement in node.body)
            assert not (broad and silent), f"{name(path)}:{node.lineno} swallows every error"
        if isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            assert not (isinstance(raised, ast.Name) and raised.id == "NotImplementedError"), (
                f"{name(path)}:{node.lineno}"
            )


def test_every_rule_that_the_code_names_is_a_row_of_the_table() -> None:
    known = {row.id for row in load_rows(REQUIREMENTS)}
    named = {
        (path.relative_to(CHECKOUT).as_posix(), rule)
        for folder in ("mwnode", "tests")
        for path in (CHECKOUT / folder).rglob("*.py")
        for rule in RULE.findall(path.read_text(encoding="utf-8"))
    }
    assert sorted((where, rule) for where, rule in named if rule not in known) == []
    assert named


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_prints_json_knows_home_and_explains_itself(path: tuple[str, ...]) -> None:
    command = LEAVES[path]
    options = {option for parameter in command.params for option in parameter.opts}
    assert {"--json", "--home"} <= options
    assert command.help
    assert command.help.strip().splitlines()[0].endswith((".", ":"))


def test_the_readme_shows_every_command() -> None:
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    absent = [" ".join(path) for path in LEAVES if not re.search(rf"mwnode {' '.join(path)}\b", readme)]
    assert absent == []


def test_families_are_listed_with_help_that_ends_in_a_full_stop() -> None:
    assert all(text.endswith(".") for _, text in FAMILIES.values())


def test_help_starts_without_loading_servers_stores_or_cryptography() -> None:
    program = (
        "import sys; import mwnode.cli; mwnode.cli.mwnode.main(['--help'], standalone_mode=False);"
        "print(sorted({name.partition('.')[0] for name in sys.modules}"
        " & {'aiohttp', 'lmdb', 'cryptography', 'nacl', 'rich', 'asyncio'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_layers_hold() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
        ],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
