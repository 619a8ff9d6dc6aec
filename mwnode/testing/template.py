"""A founded HOME, kept in memory: what every test begins with is made once in a process, and then only copied.

Making keys and certificates, and registering people, costs many times what opening a store does. The seed decides all
of it, so a copy is exactly what would have been made anew. Nothing is shared between processes: pytest-xdist is safe.
"""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from mwnode.home import Home, load_key
from mwnode.settings import Settings
from mwnode.trust.ed25519 import decode_base64url
from mwnode.trust.keys import SigningKey

_NOT_COPIED = frozenset({"node.mdb-lock", "node.mdb.owner", "served.json"})
"""Locks, which belong to the process that has the file open."""


class Person(Struct, frozen=True):
    """One Participant of the template; ``session_epoch`` is ``None`` for those who need no Session."""

    name: str
    key: SigningKey
    session_epoch: int | None


class CopiedHome(Home, frozen=True):
    """A HOME that was just copied: what its settings and keys say is known from the one that it is a copy of."""

    known: dict[str, SigningKey]

    def key(self, name: str, passphrase: bytes | None = None) -> SigningKey:
        found = self.known.get(name)
        return super().key(name, passphrase) if found is None else found

    def public_key(self, name: str) -> bytes | None:
        found = self.known.get(name)
        return super().public_key(name) if found is None else decode_base64url(found.public_key)


class Template(Struct, frozen=True):
    """The files of a HOME with their modes, by path inside it, its people, and how much chance they have used."""

    files: dict[str, tuple[int, bytes]]
    people: tuple[Person, ...]
    drawn: int
    settings: Settings
    keys: dict[str, SigningKey]
    """Of HOME itself, by name."""

    def copy_to(self, home: Path) -> CopiedHome:
        """Write the HOME; FileExistsError where there is something already."""
        home.mkdir(mode=0o700, parents=True)
        # By plain text: every test makes one, and paths cost as much as the files do.
        root, made = f"{home}{os.sep}", {""}
        for name, (mode, data) in self.files.items():
            folder = name.rpartition("/")[0]
            if folder not in made:
                os.mkdir(root + folder, 0o700)
                made.add(folder)
            descriptor = os.open(root + name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            try:
                os.write(descriptor, data)
            finally:
                os.close(descriptor)
        return CopiedHome(home.absolute(), self.settings, self.keys)


def keys_of(home: Path) -> dict[str, SigningKey]:
    """The keys that lie in a HOME, by name."""
    return {path.stem: load_key(path) for path in sorted((home / "keys").glob("*.key"))}


def files_of(home: Path) -> dict[str, tuple[int, bytes]]:
    """What ``copy_to`` writes again."""
    return {
        path.relative_to(home).as_posix(): (path.stat().st_mode & 0o777, path.read_bytes())
        for path in sorted(home.rglob("*"))
        if path.is_file() and path.name not in _NOT_COPIED
    }
