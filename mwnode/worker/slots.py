"""One slot: a directory in which one WorkItem is done, with nothing in it of any other (R-11.1-14 to R-11.1-18)."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from mwnode.files import write_whole
from mwnode.protocol import terms
from mwnode.protocol.documents import Deliverable, WorkContract
from mwnode.worker.effects import Assignment
from mwnode.worker.keys import attempt_key
from mwnode.worker.words import parts_of, plain

Fetch = Callable[[str, Path], Awaitable[object]]
"""Fetches the Artifact of a content hash into a file."""

WORK_ITEM_FILE = "work_item.json"
PROGRESS_FILE = "progress.jsonl"
STATE_FILE = "checkpoint/state"
CAPABILITY_FILE = "capability.json"
TAIL_CHARACTERS = 2000
"""Most of what an executor said last that is kept."""


class _Held(Struct):
    """What is secret in a capability file."""

    token: str


class SlotError(Exception):
    """A slot cannot be prepared, or what it holds cannot be used; one line."""


def safe_path(text: str) -> PurePosixPath:
    """A relative path that stays inside. Raises SlotError."""
    path = PurePosixPath(text)
    if not text or path.is_absolute() or any(part in ("", "..", ".") for part in text.split("/")) or "\0" in text:
        raise SlotError(f"{text!r} is not a relative path inside of the slot")
    return path


class Slot:
    """The directory of one run. Made anew for each WorkItem and Ownership Epoch; kept over retries of it."""

    def __init__(self, root: Path, assignment: Assignment) -> None:
        name = hashlib.sha256(assignment.run_id.encode()).hexdigest()[:24]
        self.assignment = assignment
        self.path = root / name
        self.inputs = self.path / "inputs"
        self.outputs = self.path / "outputs"
        self.work_item_file = self.path / WORK_ITEM_FILE
        self.progress_file = self.path / PROGRESS_FILE
        self.capability_file = self.path / CAPABILITY_FILE
        self.stdout_file = self.path / "stdout.log"
        self.stderr_file = self.path / "stderr.log"
        self._secrets: set[str] = set()
        """What was handed to the executor and is nobody else's business, renewed tokens and former ones."""

    async def prepare(self, fetch: Fetch, context_package: Mapping[str, Any] | None) -> None:
        """Make the directory and fetch what the WorkItem needs. Outputs and reports of an earlier run are removed."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.rmtree(self.outputs, ignore_errors=True)
        for directory in (self.inputs, self.outputs, self.path / "tmp"):
            directory.mkdir(mode=0o700, exist_ok=True)
        for file in (self.progress_file, self.stdout_file, self.stderr_file):
            file.write_bytes(b"")
        listed = []
        for path, content_hash in self._wanted():
            target = self.inputs / path
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not target.exists():
                await fetch(content_hash, target)
            listed.append({"path": f"inputs/{path}", "contentHash": content_hash})
        checkpoint = self.assignment.checkpoint
        if checkpoint is not None and checkpoint.state_artifact_hash is not UNSET:
            state = self.path / STATE_FILE
            state.parent.mkdir(mode=0o700, exist_ok=True)
            await fetch(checkpoint.state_artifact_hash, state)
        self.work_item_file.write_bytes(msgspec.json.format(self._work_item(listed, context_package), indent=2))

    def _wanted(self) -> Iterator[tuple[str, str]]:
        """Path under inputs/ and content hash of every input; inputs without a path are named by their hash."""
        contract = self.assignment.contract
        named = set()
        for entry in terms.entries(contract, "inputs"):
            path, content_hash = terms.path_in(entry), entry.get("contentHash")
            if path is not None and content_hash in contract.input_artifacts:
                named.add(content_hash)
                yield str(safe_path(path)), content_hash
        for content_hash in contract.input_artifacts:
            if content_hash not in named:
                yield content_hash.removeprefix("sha256:"), content_hash

    def _work_item(self, inputs: list[dict[str, str]], context_package: Mapping[str, Any] | None) -> bytes:
        it = self.assignment
        return msgspec.json.encode(
            {
                "workItemId": it.work_item_id,
                "missionId": it.mission_id,
                "groupId": it.group_id,
                "ownershipEpoch": it.ownership_epoch,
                "attempt": it.attempt,
                "idempotencyKey": it.idempotency_key,
                "attemptKey": attempt_key(it.idempotency_key, it.attempt),
                "contract": it.contract,
                "contextPackage": context_package,
                "inputs": inputs,
                "checkpoint": it.checkpoint,
            }
        )

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The executor's environment: where programs are and how to spell, and nothing else of the Worker's own."""
        kept = {name: value for name, value in inherited.items() if name in ("PATH", "LANG", "TZ") or name[:3] == "LC_"}
        return kept | {
            "HOME": str(self.path),
            "TMPDIR": str(self.path / "tmp"),
            "MWNODE_WORK_ITEM": str(self.work_item_file),
            "MWNODE_PROGRESS": str(self.progress_file),
            "MWNODE_CAPABILITY": str(self.capability_file),
            "MWNODE_IDEMPOTENCY_KEY": self.assignment.idempotency_key,
            "MWNODE_RUN": self.path.name,
            "MWNODE_STEP": self._step(),
        }

    def _step(self) -> str:
        """The plan's ``run`` for the WorkItem, so that a shell script needs no JSON; empty where there is none."""
        step = terms.text(self.assignment.contract, "run") or ""
        return "" if "\0" in step else step

    def deliverables(self, bytes_max: int) -> list[tuple[Deliverable, Path]]:
        """Each deliverable's file. Raises SlotError when one is missing, no plain file, or everything is too large."""
        contract = self.assignment.contract
        found = [(deliverable, self._file(contract, deliverable)) for deliverable in contract.required_deliverables]
        total = sum(os.stat(path).st_size for _, path in found)
        if total > bytes_max:
            raise SlotError(f"outputs/ holds {total} bytes of deliverables, {bytes_max} are allowed")
        return found

    def _file(self, contract: WorkContract, deliverable: Deliverable) -> Path:
        named = terms.deliverable_path(contract, deliverable.deliverable_id)
        path = self.outputs / safe_path(named or deliverable.deliverable_id)
        if not path.exists() and named is None and len(contract.required_deliverables) == 1:
            # No path was agreed: one deliverable and one file can only mean each other.
            files = [one for one in self.outputs.iterdir() if one.is_file()]
            path = files[0] if len(files) == 1 else path
        return self.inside(path)

    def hold_token(self, raw: bytes) -> None:
        """Put a Capability Token where the executor looks for it: whole or not at all, readable by this user only."""
        self._secrets.update(parts_of(msgspec.json.decode(raw, type=_Held).token))
        # It may come before the slot is prepared.
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(self.capability_file, raw, durable=False)

    def token(self) -> bytes | None:
        """The slot's Capability Token file, if there is one now."""
        try:
            return self.capability_file.read_bytes()
        except OSError:
            return None

    def revoke(self) -> None:
        """Remove the Capability Token. Idempotent."""
        try:
            self.capability_file.unlink(missing_ok=True)
        except (IsADirectoryError, PermissionError):
            # An executor may have left a folder there (macOS says EPERM); what is in it is as little a token as that.
            shutil.rmtree(self.capability_file)

    def add_output(self, name: str, content: bytes) -> None:
        """Write a file under outputs/ in place of whatever is there. Raises SlotError."""
        path = self.outputs / safe_path(name)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.write_bytes(content)
        except OSError as error:
            raise SlotError(f"outputs/{name} cannot be written: {error.strerror or error}") from error
        self.inside(path)

    def inside(self, path: Path) -> Path:
        """The path, if it is a plain file inside of the slot. Raises SlotError."""
        shown = path.relative_to(self.path)
        if path.is_dir():
            raise SlotError(f"{shown} is a folder: pack it into one file")
        if not path.is_file():
            raise SlotError(f"{shown} was not written")
        if not path.resolve().is_relative_to(self.path.resolve()):
            raise SlotError(f"{shown} leads out of the slot")
        return path

    def tail(self, size: int = TAIL_CHARACTERS) -> str:
        """The end of what the executor wrote to standard error, else to standard output: ``size`` characters."""
        return self._tail(self.stderr_file, size) or self._tail(self.stdout_file, size)

    def words(self, text: str, *, cut: bool = False) -> str:
        """What the executor said, fit for others to read: without escapes, and without what was handed to it."""
        return plain(text, self._secrets, cut=cut).strip()

    def line(self, value: Any) -> Any:
        """A line of progress, every text in it fit for others to read; where a state lies is a path, and stays."""
        if isinstance(value, str):
            return plain(value, self._secrets)
        if isinstance(value, Mapping):
            return {self.line(name): one if name == "state" else self.line(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.line(one) for one in value]
        return value

    def _tail(self, path: Path, size: int) -> str:
        read = _end_of(path, 4 * size + max(map(len, self._secrets), default=0))
        if read is None:
            return ""
        raw, cut = read
        return self.words(raw.decode("utf-8", "replace"), cut=cut)[-size:].strip()

    def discard(self) -> None:
        """Remove the directory and everything in it; of a link that lies in its place, the link."""
        if self.path.is_symlink():
            self.path.unlink()
        shutil.rmtree(self.path, ignore_errors=True)

    def set_aside(self, stale: Path) -> Path:
        """Keep the directory elsewhere, for this user alone: a result that nobody accepted, for audit.

        OSError where a link lies in its place, or in the other one's: what is behind it is not ours to move or open.
        """
        if self.path.is_symlink():
            self.path.unlink()
            raise OSError(errno.ELOOP, "the executor left a link in place of its directory", str(self.path))
        self.revoke()
        stale.mkdir(mode=0o700, parents=True, exist_ok=True)
        if stale.is_symlink():
            raise OSError(errno.ELOOP, "a link, which is not followed", str(stale))
        stale.chmod(0o700)
        target = stale / self.path.name
        if target.is_symlink():
            target.unlink()
        shutil.rmtree(target, ignore_errors=True)
        if self.path.exists():
            # Whatever the executor made of it: closed before it is moved, and a link in it stays a link.
            self.path.chmod(0o700)
            shutil.move(self.path, target)
        return target


def _end_of(path: Path, size: int) -> tuple[bytes, bool] | None:
    """The last so many bytes of a plain file, and whether more stood before them.

    An executor may have put something else there: a link leads to what is none of its words, a pipe never ends.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        state = os.fstat(file)
        if not stat.S_ISREG(state.st_mode):
            return None
        start = max(0, state.st_size - size)
        return os.pread(file, size, start), start > 0
    except OSError:
        return None
    finally:
        os.close(file)
