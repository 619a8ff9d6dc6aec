"""Every command that we tell somebody to run exists, and every refusal has a hint that fits a command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mwnode.cli import mwnode
from mwnode.cli.explain import HINTS, explain, refused
from mwnode.protocol.errors import BY_CODE, ErrorCode
from tests.cli.support import CHECKOUT

HINT = re.compile(r"[`']mwnode ([^`']+)[`']")
SHELL = re.compile(r"^(?:\S*/)?mwnode (.*)$", re.MULTILINE)
_SOURCES = (*sorted((CHECKOUT / "mwnode").rglob("*.py")), CHECKOUT / "README.md", CHECKOUT / "CHANGELOG.md")


def _hints() -> Iterator[tuple[str, str]]:
    for path in _SOURCES:
        text = path.read_text(encoding="utf-8")
        found = HINT.findall(text)
        if path.name == "README.md":
            found += [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in _shell(block)]
        for hint in found:
            yield str(path.relative_to(CHECKOUT)), " ".join(hint.split())


def _shell(block: str) -> list[str]:
    joined = block.replace("\\\n", " ")
    return [line.partition("#")[0].strip() for line in SHELL.findall(joined)]


def _check(hint: str) -> str:
    """What is wrong with a hint; empty when its command and options exist."""
    words = hint.split()
    command: click.Command = mwnode
    context = click.Context(mwnode)
    while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        found = command.get_command(context, words[0])
        if found is None:
            return f"no command {words[0]}"
        command, words = found, words[1:]
    if isinstance(command, click.Group) and words and not words[0].startswith(("{", "-", "[")):
        return f"no command {words[0]}"
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    unknown = [word for word in words if re.fullmatch(r"--[a-z][a-z-]*", word) and word not in {*options, "--help"}]
    return f"no option {unknown}" if unknown else ""


def test_hints_name_commands_that_exist() -> None:
    found = list(_hints())
    assert len(found) > 50
    wrong = {(where, hint): _check(hint) for where, hint in found if _check(hint) and not hint.startswith("{")}
    assert wrong == {}


def test_the_check_of_hints_notices() -> None:
    assert _check("frobnicate") == "no command frobnicate"
    assert _check("mission frobnicate ID") == "no command frobnicate"
    assert _check("mission approve ID --now") == "no option ['--now']"
    assert _check("mission approve ID --yes") == ""


@pytest.mark.parametrize("code", ErrorCode)
def test_a_refusal_says_what_to_do_next(code: ErrorCode) -> None:
    told = refused(BY_CODE[code]("because", details={"path": "/payload/x"}))
    assert told.startswith(f"{code}: because (at /payload/x); ")
    if code in HINTS:
        assert "actionId" not in told
        assert "details.path" not in told
        assert "the same bytes" not in told


def test_what_the_message_says_already_is_not_said_twice() -> None:
    error = BY_CODE[ErrorCode.INVALID_COMMAND]("Expected a URI at /payload/x", details={"path": "/payload/x"})
    assert (explain(error) or "").count("/payload/x") == 1
    assert "actionId" in refused(error, by_hand=True)


def test_sources_are_where_they_are_looked_for() -> None:
    assert all(isinstance(path, Path) and path.is_file() for path in _SOURCES)
