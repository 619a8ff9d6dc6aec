"""A founded HOME, kept in memory: what every test begins with is made once in a process, and then only copied.

Making keys and certificates, and registering people, costs many times what opening a store does. The seed decides all
of it, so a copy is exactly what would have been made anew. Nothing is shared between processes: pytest-xdist is safe.
"""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from mwnode.trust.keys import SigningKey

_NOT_COPIED = frozenset({"node.mdb-lock", "node.mdb.owner", "served.json"})
"""Locks, which belong to the process that has the file open."""


class Person(Struct, frozen=True):
    """One Participant of the template; ``session_epoch`` is ``None`` for those who need no Session."""

    name: str
    key: SigningKey
    session_epoch: int | None


class Template(Struct, frozen=True):
    """The files of a HOME with their modes, by path inside it, its people, and how much chance they have used."""

    files: dict[str, tuple[int, bytes]]
    people: tuple[Person, ...]
    drawn: int

    def copy_to(self, home: Path) -> None:
        """Write the HOME; FileExistsError where there is something already."""
        home.mkdir(mode=0o700, parents=True)
        made = {""}
        for name, (mode, data) in self.files.items():
            folder = os.path.dirname(name)
            if folder not in made:
                (home / folder).mkdir(mode=0o700)
                made.add(folder)
            descriptor = os.open(home / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            try:
                os.write(descriptor, data)
            finally:
                os.close(descriptor)


def files_of(home: Path) -> dict[str, tuple[int, bytes]]:
    """What ``copy_to`` writes again."""
    return {
        path.relative_to(home).as_posix(): (path.stat().st_mode & 0o777, path.read_bytes())
        for path in sorted(home.rglob("*"))
        if path.is_file() and path.name not in _NOT_COPIED
    }
