"""What an interrupted check of a large file leaves, so that the next one goes on where it was.

A state says nothing about a file, only about bytes: that a batch of documents, exactly these bytes under exactly this
Registry, was found clean. So the next check reads everything again, and spares itself the signatures of what is there
unchanged. It belongs to the logs whose heads it names; where one of them is another, nothing of it counts.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from blake3 import blake3
from msgspec import Struct

from mwnode import __version__
from mwnode.files import write_whole
from mwnode.store.errors import StoreError
from mwnode.store.examining import CLEAN, Examined
from mwnode.store.layout import FORMAT

SAVE_SECONDS: Final = 5.0
HEADS_MAX: Final = 4096
"""Logs whose heads a state names."""
_CHECK: Final = 32
_DIGEST: Final = 16


class StateRefused(StoreError):
    """The file named for the state holds something else; nothing was changed."""


class State(Struct):
    """What the file holds. ``setting`` is a hash of what all answers depend on."""

    setting: bytes
    heads: dict[str, tuple[int, bytes]] = {}
    """Sequence and chain value of a log's newest Event, by Group."""
    batches: dict[bytes, list[Examined]] = {}
    """Answers by a hash of the questions; an empty list where all are clean and carry nothing."""
    artifacts: dict[bytes, bytes] = {}
    """A hash of the manifest, by SHA-256, of Artifacts whose bytes were read and are right."""


class Resuming:
    """The state of one check. ``changed`` is true when the state that was found belongs to other logs."""

    def __init__(
        self,
        path: Path,
        setting: bytes,
        heads: dict[str, tuple[int, bytes]],
        holds: Callable[[str, int, bytes], bool],
    ) -> None:
        """``holds`` tells whether a Group's log has that chain value at that sequence."""
        self._path = path
        self._saved_at = time.monotonic()
        ours = blake3(b"%d %s " % (FORMAT, __version__.encode()) + setting).digest()
        found = _read(path)
        self.changed = found is not None and not (
            found.setting == ours and all(holds(group_id, *head) for group_id, head in found.heads.items())
        )
        self._before = State(ours) if found is None or self.changed else found
        self._state = State(ours, dict(list(heads.items())[:HEADS_MAX]), dict(self._before.batches))
        self._state.artifacts.update(self._before.artifacts)
        self.taken_over = 0
        """Batches and Artifacts that the state spared."""

    def known(self, questions: bytes) -> list[Examined] | None:
        """The answers to a batch, if they were found before."""
        found = self._before.batches.get(_digest(questions))
        if found is None:
            return None
        self.taken_over += 1
        return found or [CLEAN] * _length(questions)

    def keep(self, questions: bytes, answers: list[Examined]) -> None:
        """Remember a batch in which nothing is wrong."""
        if all(answer.clean for answer in answers):
            self._state.batches[_digest(questions)] = answers if any(answer.carried for answer in answers) else []
            self._save_sometimes()

    def knows_artifact(self, sha256: bytes, manifest: bytes) -> bool:
        """Whether an Artifact of that very manifest was read to its end and found right."""
        known = self._before.artifacts.get(sha256) == _digest(manifest)
        self.taken_over += known
        return known

    def keep_artifact(self, sha256: bytes, manifest: bytes) -> None:
        """Remember an Artifact that is right."""
        self._state.artifacts[sha256] = _digest(manifest)
        self._save_sometimes()

    def _save_sometimes(self) -> None:
        if time.monotonic() - self._saved_at >= SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write the state; the one before stays until this one is whole."""
        encoded = msgspec.msgpack.encode(self._state)
        write_whole(self._path, blake3(encoded).digest() + encoded, durable=False)
        self._saved_at = time.monotonic()

    def finish(self) -> None:
        """The check came to its end: the next one begins anew."""
        self._path.unlink(missing_ok=True)


def _digest(content: bytes) -> bytes:
    return blake3(content).digest(_DIGEST)


def _length(questions: bytes) -> int:
    return len(msgspec.msgpack.decode(questions, type=list[msgspec.Raw]))


def _read(path: Path) -> State | None:
    """The state in a file; ``None`` where there is none. StateRefused for a file that is no whole state."""
    try:
        with path.open("rb") as file:
            kept, content = os.fstat(file.fileno()), file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateRefused(f"{path} cannot be read: {error.strerror}; name another file") from error
    if not content:
        return None
    if kept.st_uid != os.geteuid() or kept.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        # Whoever writes it says what need not be proven again.
        raise StateRefused(f"others may have written {path}: name a file that is yours alone")
    if blake3(content[_CHECK:]).digest() != content[:_CHECK]:
        raise StateRefused(f"{path} is no state of an interrupted verification, or is damaged: name another file")
    try:
        return msgspec.msgpack.decode(content[_CHECK:], type=State)
    except msgspec.MsgspecError as error:
        raise StateRefused(f"{path} was left by another version of mwnode: delete it, or name another file") from error
