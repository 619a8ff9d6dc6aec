"""A bundle directory: its files, their hashes, and what its manifests refer to.

Nothing is evaluated before all of it is intact: digests, file hashes and references first, fixtures next (R-22-06 to
R-22-08).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from mwnode.conformance.fixtures import (
    AdmissionManifest,
    ArtifactEntry,
    CanonicalizationEvaluation,
    CryptographyManifest,
    RegistryFixture,
    SigningKeyFixture,
    StructuralCase,
    VerifiedExpectation,
)
from mwnode.protocol import jcs, strict_json
from mwnode.protocol.jcs import JcsFault
from mwnode.protocol.strict_json import JsonFault, SchemaFault
from mwnode.trust.registry import NoRegistry, Registry, RegistryFault

T = TypeVar("T")
STRUCTURAL = "conformance/manifest.json"
CRYPTOGRAPHY = "cryptography/manifest.json"
ADMISSION = "admission/manifest.json"
_BYTES_MAX = 64 * 1024 * 1024


class BundleFault(Exception):
    """The bundle is not what its manifests say; the text names the file."""


class Bundle:
    """Read access to one directory, every file read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files: dict[str, bytes] = {}
        self._registries: dict[str, Registry | NoRegistry] = {}

    def has(self, path: str) -> bool:
        """Whether a file is there."""
        return (self.root / path).is_file()

    def read(self, path: str) -> bytes:
        """The bytes of a file. Raises :class:`BundleFault` when it cannot be read."""
        if path not in self._files:
            try:
                self._files[path] = (self.root / path).read_bytes()
            except OSError as fault:
                raise BundleFault(f"{path}: cannot be read ({fault.strerror})") from None
        return self._files[path]

    def json(self, path: str) -> Any:
        """A file as one strict JSON value. Raises :class:`BundleFault`."""
        try:
            return strict_json.parse(self.read(path), bytes_max=_BYTES_MAX)
        except JsonFault as fault:
            raise BundleFault(f"{path}: {fault}") from None

    def typed(self, path: str, kind: type[T]) -> T:
        """A file as a fixture or manifest. Raises :class:`BundleFault`."""
        try:
            value: T = strict_json.convert(self.json(path), kind)
            return value
        except SchemaFault as fault:
            raise BundleFault(f"{path}: {fault}") from None

    def registry(self, path: str) -> Registry | NoRegistry:
        """The Registry that a fixture proves, or why it proves none."""
        if path not in self._registries:
            try:
                self._registries[path] = Registry.from_evidence(self.json(path))
            except RegistryFault as fault:
                self._registries[path] = NoRegistry(fault.reason)
        return self._registries[path]

    # --- integrity ---

    def check_digest(self, path: str) -> str:
        """A manifest's own digest, checked: JCS without the top-level ``artifactDigest`` (R-22-07)."""
        manifest = self.json(path)
        if not isinstance(manifest, dict):
            raise BundleFault(f"{path}: is no JSON object")
        stated = manifest.get("artifactDigest")
        try:
            signing = jcs.canonical({name: value for name, value in manifest.items() if name != "artifactDigest"})
        except JcsFault as fault:
            raise BundleFault(f"{path}: {fault}") from None
        if stated != jcs.signing_hash(signing):
            raise BundleFault(f"{path}: artifactDigest is not the digest of the manifest")
        return str(stated)

    def check_artifacts(self, path: str, artifacts: Iterable[ArtifactEntry]) -> set[str]:
        """Length and hash of every file that a manifest lists; returns their paths."""
        paths = set()
        for entry in artifacts:
            data = self.read(entry.path)
            if entry.path in paths:
                raise BundleFault(f"{path}: lists {entry.path} twice")
            if len(data) != entry.byte_length or f"sha256:{hashlib.sha256(data).hexdigest()}" != entry.sha256:
                raise BundleFault(f"{entry.path}: is not the file that {path} lists")
            paths.add(entry.path)
        return paths


def load_structural(bundle: Bundle) -> tuple[StructuralCase, ...]:
    """The structural cases, their instances present."""
    cases = bundle.typed(STRUCTURAL, tuple[StructuralCase, ...])
    for case in cases:
        bundle.read(case.instance)
    return cases


def load_cryptography(bundle: Bundle) -> CryptographyManifest:
    """The cryptography manifest with everything it refers to intact and every fixture of its shape."""
    manifest = bundle.typed(CRYPTOGRAPHY, CryptographyManifest)
    bundle.check_digest(CRYPTOGRAPHY)
    listed = bundle.check_artifacts(CRYPTOGRAPHY, manifest.artifacts)
    registries, signing_keys, others = set(), set(), set()
    for case in manifest.cases:
        for evaluation in case.typed():
            if isinstance(evaluation, CanonicalizationEvaluation):
                others |= {evaluation.input, evaluation.expected_jcs}
                continue
            registries.add(evaluation.registry)
            others.add(evaluation.document)
            if isinstance(evaluation.signing_key, str):
                signing_keys.add(evaluation.signing_key)
            if isinstance(evaluation.expect.verified, VerifiedExpectation):
                others.add(evaluation.expect.verified.signing_bytes)
    _check_listed(CRYPTOGRAPHY, registries | signing_keys | others, listed)
    for path in registries:
        bundle.typed(path, RegistryFixture)
    for path in signing_keys:
        bundle.typed(path, SigningKeyFixture)
    return manifest


def load_admission(bundle: Bundle) -> AdmissionManifest:
    """The admission manifest with everything it refers to intact, the pinned cryptography bundle included."""
    manifest = bundle.typed(ADMISSION, AdmissionManifest)
    bundle.check_digest(ADMISSION)
    listed = bundle.check_artifacts(ADMISSION, manifest.artifacts)
    cryptography = bundle.typed(CRYPTOGRAPHY, CryptographyManifest)
    if bundle.check_digest(CRYPTOGRAPHY) != manifest.cryptography.artifact_digest:
        raise BundleFault(f"{ADMISSION}: pins another {CRYPTOGRAPHY}")
    listed |= bundle.check_artifacts(CRYPTOGRAPHY, cryptography.artifacts)
    registries, others = set(), set()
    for case in manifest.cases:
        for evaluation in case.evaluations:
            registries.add(evaluation.registry)
            others.add(evaluation.document)
            outcomes = (evaluation.lookup, evaluation.append, evaluation.expect)
            others |= {
                outcome.record for outcome in outcomes if outcome is not None and isinstance(outcome.record, str)
            }
    _check_listed(ADMISSION, registries | others, listed)
    for path in registries:
        bundle.typed(path, RegistryFixture)
    return manifest


def _check_listed(path: str, referenced: set[str], listed: set[str]) -> None:
    for missing in sorted(referenced - listed):
        raise BundleFault(f"{path}: refers to {missing}, which no list of artifacts covers")
