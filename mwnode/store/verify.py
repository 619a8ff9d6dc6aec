"""Prove the file: every signature, hash, chain value, number, index, receipt, chunk and row, from the bytes alone.

Nothing is repaired here and nothing is believed because it was written by us: a flipped bit in a value comes back from
the file without a word, so each thing is compared with something that was derived another way.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
from blake3 import blake3

from mwnode.authority.state import KEYS
from mwnode.store import kept
from mwnode.store.artifacts import checked_chunk, decode_manifest
from mwnode.store.checking import Finding, Progress, Report
from mwnode.store.command_proof import CommandProof
from mwnode.store.environment import LmdbReading, LmdbStore
from mwnode.store.errors import StoreCorrupt
from mwnode.store.fold import compare_rows
from mwnode.store.layout import DATABASES, U64
from mwnode.store.log_proof import LogProof
from mwnode.store.port import ORGANIZATION
from mwnode.store.proving import Prover
from mwnode.store.resuming import Resuming
from mwnode.trust.registry import Registry, RegistryFault

__all__ = ["Finding", "Progress", "Report", "verify"]


class _Check(LogProof, CommandProof):
    """One verification of one consistent view."""

    resuming: Resuming | None = None

    def _faults(self, check: Callable[[LmdbReading, kept.Tick], Iterator[kept.Fault]]) -> None:
        for fault in check(self.view, self.tick):
            self.find(*fault)

    def _read_registry(self) -> None:
        if self.organization_id not in (None, self.view.organization_id):
            self.find(
                "organization",
                "the whole file",
                f"it belongs to Organization {self.view.organization_id}, and HOME's mwnode.toml names "
                f"{self.organization_id}: put the files of one HOME together again",
            )
        try:
            bindings = [{"validityHistory": [], **msgspec.to_builtins(row.binding)} for row in self.view.all(KEYS)]
            evidence = {"organizationId": self.view.organization_id, "bindings": bindings}
            self.registry = Registry.from_evidence(evidence)
        except (RegistryFault, StoreCorrupt) as fault:
            self.find("registry", "the Registry's rows", str(fault))

    def run(self, *, artifacts: bool, rows: bool, jobs: int = 1, resume: Path | None = None) -> Report:
        try:
            return self._run(artifacts, rows, jobs, resume)
        finally:
            if self.prover is not None:
                self.prover.close()

    def _prepare_prover(self, jobs: int, resume: Path | None) -> None:
        if self.registry is None:
            return
        self.prover = Prover(self.registry, self.view.authority, jobs)
        if resume is not None:
            heads = {}
            for group_id in [ORGANIZATION, *self.view.groups()]:
                head = self.view.head_record(group_id)
                if head is not None:
                    heads[group_id] = head.sequence, head.chain
            self.resuming = self.prover.resuming = Resuming(resume, self.prover.setting, heads, self._holds)

    def _holds(self, group_id: str, sequence: int, chain: bytes) -> bool:
        """Whether a log still has that chain value there; what was trimmed does not speak against it."""
        trim = self.view.trimmed(group_id)
        if trim is not None and sequence <= trim.through:
            return sequence < trim.through or chain == trim.chain
        stored = self.view.event(group_id, sequence)
        return stored is not None and stored.chain == chain

    def _run(self, artifacts: bool, rows: bool, jobs: int, resume: Path | None) -> Report:
        for db in DATABASES:
            self.part("pages", partial(self._faults, partial(kept.structure, db)))
        groups = self.part("names of Groups", self.view.groups) or []
        self.part("keys", self._read_registry)
        self.part("state of the check before", lambda: self._prepare_prover(jobs, resume), told=resume is not None)
        if self.prover is not None:
            self.part("signatures of Events", self.prove_events)
            self.part("events", lambda: self.logs([ORGANIZATION, *groups]))
            self.part("erased Commands", self.erased_in_trimmed)
            self.part("commands", self.commands)
            self.part("admissions", self.admissions)
        self.part("documents", self._documents)
        for what, faults in kept.PARTS:
            self.part(what, partial(self._faults, faults))
        if artifacts:
            self.part("artifacts", self._artifacts)
        if rows:
            self.part("rows", self._rows)
        warnings = self.part("erasures", lambda: tuple(self._warnings())) or ()
        if self.resuming is not None:
            self.resuming.finish()
        findings = tuple(self.findings)
        return Report(not findings, len(groups), self.events, self.artifacts, findings, warnings)

    def _warnings(self) -> Iterator[Finding]:
        if self.resuming is not None and self.resuming.changed:
            detail = "it was left by the check of another file, or this one changed since: all was checked anew"
            yield Finding("resume", "the state of the check before", detail)
        if self.view.erasures_linger():
            detail = "free pages may still hold the bytes of erased Events: run 'mwnode compact' while no node serves"
            yield Finding("erasure", "free pages", detail)

    def _documents(self) -> None:
        for key, content in self.view.pages.scan("documents", b""):
            self.tick("documents")
            if hashlib.sha256(content).digest() != key:
                self.find("document", f"document sha256:{key.hex()}", "the bytes have another hash")

    def _artifacts(self) -> None:
        references: Counter[bytes] = Counter()
        total = self.view.pages.count("artifacts")
        for content_hash, record, manifest in self._manifests():
            self.artifacts += 1
            # The chunks that were hashed to the end are the same when the manifest that names them is.
            known = self.resuming is not None and self.resuming.knows_artifact(bytes.fromhex(content_hash[7:]), record)
            whole = hashlib.sha256()
            where = f"artifact {content_hash}"
            try:
                for key, size in manifest:
                    self.tick("chunks")
                    references[key] += 1
                    chunk = checked_chunk(self.view, content_hash, key, size)
                    if not known:
                        whole.update(chunk)
            except StoreCorrupt as error:
                references.update(key for key, _ in manifest[manifest.index((key, size)) + 1 :])
                self.find("artifact", where, str(error))
            else:
                if not known and f"sha256:{whole.hexdigest()}" != content_hash:
                    self.find("artifact", where, "the bytes have another hash")
                elif self.resuming is not None:
                    self.resuming.keep_artifact(bytes.fromhex(content_hash[7:]), record)
            self.progress("artifacts", self.artifacts, total)
        for key, chunk in self.view.pages.scan("uploads", b""):
            references[chunk] += 1
            content = self.view.pages.get("chunks", chunk)
            if content is None or blake3(content).digest() != chunk:
                self.find("artifact", f"upload {key.hex()}", "a chunk of the unfinished upload is damaged")
        for key, value in self.view.pages.scan("chunk_references", b""):
            self.tick("chunks")
            if value != U64.pack(references.pop(key, 0)):
                self.find("artifact", f"chunk {key.hex()}", "the chunk is counted wrongly")
            elif self.view.pages.get("chunks", key) is None:
                self.find("artifact", f"chunk {key.hex()}", "the chunk is gone")
        if self.view.pages.count("chunks") != self.view.pages.count("chunk_references"):
            self.find("artifact", "chunks", "there are chunks that nothing counts")
        for key in references:
            self.find("artifact", f"chunk {key.hex()}", "the chunk is not counted")

    def _manifests(self) -> Iterator[tuple[str, bytes, tuple[tuple[bytes, int], ...]]]:
        for key, value in self.view.pages.scan("artifacts", b""):
            content_hash = f"sha256:{key.hex()}"
            try:
                yield content_hash, value, decode_manifest(content_hash, value).chunks
            except StoreCorrupt as error:
                self.find("artifact", error.where, str(error))

    def _rows(self) -> None:
        for kind, where, detail in compare_rows(self.view, self.progress):
            self.find(kind, where, detail)


def verify(
    target: LmdbStore | Path,
    *,
    artifacts: bool = True,
    rows: bool = True,
    progress: Progress | None = None,
    organization_id: str | None = None,
    on_finding: Callable[[Finding], None] | None = None,
    jobs: int = 1,
    resume: Path | None = None,
) -> Report:
    """Check a store, or the file at a path, which may be in use by its node.

    A damaged file gives findings; one that cannot be opened for another reason raises the StoreError. The check sees
    one state of the file and keeps it from reusing freed pages meanwhile. ``organization_id`` names whose file it
    should be; ``on_finding`` is told of each finding at once. ``jobs`` is how many processes share the work, this one
    included. ``resume`` names a file in which the check leaves what it has proven, every few seconds, and which it
    takes up again (``Resuming``); StateRefused when that is something else. Pages that are damaged badly enough end the
    process inside LMDB: ``verify_apart`` lives on.
    """
    if isinstance(target, Path):
        try:
            store = LmdbStore.open(target, read_only=True)
        except StoreCorrupt as error:
            return unreadable(error.where or str(target), str(error))
        try:
            return verify(
                store,
                artifacts=artifacts,
                rows=rows,
                progress=progress,
                organization_id=organization_id,
                on_finding=on_finding,
                jobs=jobs,
                resume=resume,
            )
        finally:
            store.close()
    with target.read() as view:
        first = view.pages.txn

        def end() -> None:
            if view.pages.txn is not first:
                view.pages.txn.abort()

        def renew() -> None:
            end()
            view.pages.txn = target.file.begin_read()

        try:
            check = _Check(view, progress, organization_id, on_finding, renew)
            return check.run(artifacts=artifacts, rows=rows, jobs=jobs, resume=resume)
        finally:
            end()


def unreadable(where: str, detail: str, findings: tuple[Finding, ...] = ()) -> Report:
    """The report on a file whose check came no further, with what was found up to there."""
    return Report(False, 0, 0, 0, (*findings, Finding("structure", where, detail)))
