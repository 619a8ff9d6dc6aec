"""Where a key path of a TOML text stands, for error messages that name the line."""

from __future__ import annotations

import re
from collections.abc import Sequence

KeyPath = tuple[str | int, ...]

_HEADER = re.compile(r"^\s*(\[{1,2})\s*([^\[\]]+?)\s*\]{1,2}\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")
_STEP = re.compile(r"\.([A-Za-z0-9_-]+)|\[(\d+|\.\.\.)\]")


def _names(text: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(text)]


def path_of(expression: str) -> KeyPath:
    """The key path of an expression such as ``$.work[1].budget``; a wildcard step ends it."""
    steps: list[str | int] = []
    for name, index in _STEP.findall(expression):
        if index == "...":
            break
        steps.append(name or int(index))
    return tuple(steps)


def spell(path: Sequence[str | int]) -> str:
    """A key path for people: ``work[1].budget`` (counting from 0, as TOML arrays do)."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def positions(text: str) -> dict[KeyPath, int]:
    """Line, from 1, of every table header and of every key that begins a line."""
    found: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()

    def place(names: Sequence[str]) -> KeyPath:
        # A dotted header below an array of tables belongs to that array's newest entry.
        path: KeyPath = ()
        for name in names:
            path = (*path, name)
            if path in counts:
                path = (*path, counts[path] - 1)
        return path

    for number, line in enumerate(text.splitlines(), start=1):
        header = _HEADER.match(line)
        if header is not None:
            names = _names(header[2])
            if header[1] == "[[":
                array = (*place(names[:-1]), names[-1])
                counts[array] = counts.get(array, 0) + 1
                found.setdefault(array, number)
                table = (*array, counts[array] - 1)
            else:
                table = place(names)
            found.setdefault(table, number)
            continue
        key = _KEY.match(line)
        if key is not None:
            path = table
            for name in _names(key[1]):
                path = (*path, name)
                found.setdefault(path, number)
    return found


def line_of(text: str, path: KeyPath) -> int | None:
    """Line, from 1, of a key path, or of its nearest parent that has a line of its own."""
    found = positions(text)
    for length in range(len(path), 0, -1):
        line = found.get(path[:length])
        if line is not None:
            return line
    return None
