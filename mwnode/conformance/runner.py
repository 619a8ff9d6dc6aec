"""Evaluates a bundle: structural vectors, signed-document cryptography, first admission and historical replay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UnsetType

from mwnode.conformance import bundle as bundles
from mwnode.conformance.bundle import Bundle, BundleFault
from mwnode.conformance.fixtures import (
    AdmissionEvaluation,
    AppendFixture,
    CanonicalizationEvaluation,
    CryptographyManifest,
    LookupFixture,
    Profile,
    SignedEvaluation,
    SigningKeyFixture,
    VerifiedExpectation,
    seed_of,
)
from mwnode.conformance.report import Report
from mwnode.protocol import frames, jcs, strict_json
from mwnode.protocol.documents import Actor, FirstAdmissionRecord
from mwnode.protocol.errors import UnsupportedVersion
from mwnode.protocol.jcs import JcsFault
from mwnode.protocol.schemas import DOCUMENT_TYPES
from mwnode.protocol.strict_json import JsonFault, SchemaFault
from mwnode.trust import admission, ed25519
from mwnode.trust.admission import AppendOutcome, LookupOutcome
from mwnode.trust.verification import PROTECTED_TIMES, Failure, Verified, verify

SCHEMA_TYPES: dict[str, type[Any]] = {f"schemas/{name}.schema.json": kind for name, kind in DOCUMENT_TYPES.items()}
"""The type of each normative schema; frames and common definitions have none of their own."""
FRAME_SCHEMA = "schemas/websocket-frame.schema.json"


def run(root: Path) -> Report:
    """Evaluate whichever of the three manifests a directory has. Raises :class:`BundleFault` when it has none."""
    bundle = Bundle(root)
    sections: dict[str, Callable[[Bundle, Report], None]] = {
        bundles.STRUCTURAL: run_structural,
        bundles.CRYPTOGRAPHY: run_cryptography,
        bundles.ADMISSION: run_admission,
    }
    present = [path for path in sections if bundle.has(path)]
    if not present:
        raise BundleFault(f"{root} holds none of {', '.join(sections)}: point at a checkout of the protocol")
    report = Report()
    for path in present:
        sections[path](bundle, report)
    return report


# --- structural -------------------------------------------------------------------------------------------------------


def fits_schema(raw: bytes, schema: str) -> bool | None:
    """Whether JSON text fits one of the normative schemas by our types; None for a schema that is none of them."""
    if schema != FRAME_SCHEMA and schema not in SCHEMA_TYPES:
        return None
    try:
        if schema == FRAME_SCHEMA:
            frames.check_frame(raw)
        else:
            strict_json.decode(raw, SCHEMA_TYPES[schema])
    except (JsonFault, SchemaFault, UnsupportedVersion):
        return False
    return True


_WORDS = {True: "valid", False: "invalid", None: "an unknown schema"}


def run_structural(bundle: Bundle, report: Report) -> None:
    """R-22-01."""
    try:
        cases = bundles.load_structural(bundle)
    except BundleFault as fault:
        report.abort("structural", 1, str(fault))
        return
    for case in cases:
        got = _WORDS[fits_schema(bundle.read(case.instance), case.schema)]
        report.judge("structural", case.name, _WORDS[case.valid], got)


# --- cryptography -----------------------------------------------------------------------------------------------------


def run_cryptography(bundle: Bundle, report: Report) -> None:
    """R-22-02, R-22-06, R-22-07."""
    try:
        manifest = bundles.load_cryptography(bundle)
        _check_profiles(manifest)
        _check_fault_bases(manifest)
    except BundleFault as fault:
        report.abort("cryptography", _count(bundle, bundles.CRYPTOGRAPHY), str(fault))
        return
    for case in manifest.cases:
        for number, evaluation in enumerate(case.typed(), start=1):
            if isinstance(evaluation, CanonicalizationEvaluation):
                expected, got = "canonical bytes", _canonicalization(bundle, evaluation)
                name = case.id
            else:
                expected, got = evaluation.expect.stage, _signed(bundle, evaluation)
                if evaluation.expect.wire_code is not None:
                    expected = f"{expected} {evaluation.expect.wire_code}"
                label = evaluation.profile_id if evaluation.fault is None else evaluation.fault.id
                name = f"{case.id} [{number}] {label}"
            report.judge("cryptography", name, expected, got)


def _count(bundle: Bundle, path: str) -> int:
    """How many evaluations a manifest announces, as far as it can be read."""
    try:
        manifest = bundle.json(path)
        return sum(len(case["evaluations"]) for case in manifest["cases"])
    except (BundleFault, KeyError, TypeError):
        return 1


_SIGNERS: dict[str, tuple[str, str]] = {
    "agent-card": ("service-principal", ""),
    "approval": ("principal-object", "/approver"),
    "artifact": ("agent-id", "/producer/agentId"),
    "command": ("principal-object", "/actor"),
    "context-package": ("principal-object", "/generatedBy"),
    "event": ("principal-object", "/acceptedBy"),
    "evidence": ("principal-object", "/generatedBy"),
    "extension-profile": ("principal-object", "/approvedBy"),
    "group-snapshot": ("principal-object", "/createdBy"),
}


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(map(str.capitalize, tail))


def _check_profiles(manifest: CryptographyManifest) -> None:
    """The bundle must mean the same nine kinds, protected times and signers as this implementation."""
    for profile in manifest.profiles:
        wanted = (
            f"schemas/{profile.profile_id}.schema.json",
            f"/{_camel(PROTECTED_TIMES[profile.profile_id])}",
            _SIGNERS[profile.profile_id],
        )
        if wanted != (profile.schema, profile.protected_time_pointer, _signer(profile)):
            raise BundleFault(f"{bundles.CRYPTOGRAPHY}: profile {profile.profile_id} is not that of protocol 0.1")
    if len({profile.profile_id for profile in manifest.profiles}) != len(PROTECTED_TIMES):
        raise BundleFault(f"{bundles.CRYPTOGRAPHY}: does not list the nine profiles of protocol 0.1")


def _signer(profile: Profile) -> tuple[str, str]:
    signer = profile.expected_signer
    pointer = signer.pointer if isinstance(signer.pointer, str) else signer.id_pointer
    return signer.rule, pointer if isinstance(pointer, str) else ""


def _check_fault_bases(manifest: CryptographyManifest) -> None:
    """Every negative vector names the positive one that it was made from (R-6.4-46)."""
    complete = set()
    bases = set()
    for case in manifest.cases:
        for evaluation in case.typed():
            if isinstance(evaluation, CanonicalizationEvaluation):
                continue
            if evaluation.fault is None:
                complete.add((case.id, evaluation.profile_id))
            else:
                bases.add((evaluation.fault.basis.case_id, evaluation.fault.basis.profile_id))
    for case_id, profile_id in sorted(bases - complete):
        raise BundleFault(f"{bundles.CRYPTOGRAPHY}: no accepted evaluation {case_id} of {profile_id}")


def _canonicalization(bundle: Bundle, evaluation: CanonicalizationEvaluation) -> str:
    try:
        canonical = jcs.canonical(bundle.json(evaluation.input))
    except (BundleFault, JcsFault) as fault:
        return str(fault)
    if canonical != bundle.read(evaluation.expected_jcs):
        return "other canonical bytes"
    return "canonical bytes" if jcs.signing_hash(canonical) == evaluation.sha256 else "another hash"


def _stage(outcome: Verified | Failure) -> str:
    return "complete" if isinstance(outcome, Verified) else f"{outcome.stage} {outcome.code}"


def _signed(bundle: Bundle, evaluation: SignedEvaluation) -> str:
    raw = bundle.read(evaluation.document)
    outcome = verify(raw, evaluation.profile_id, bundle.registry(evaluation.registry))
    if isinstance(outcome, Failure) or not isinstance(evaluation.expect.verified, VerifiedExpectation):
        return _stage(outcome)
    differing = _differing(bundle, outcome, evaluation.expect.verified)
    if isinstance(evaluation.signing_key, str):
        differing += _differing_signature(bundle, outcome, evaluation.signing_key)
    return f"complete, but another {', '.join(differing)}" if differing else "complete"


def _differing(bundle: Bundle, verified: Verified, wanted: VerifiedExpectation) -> list[str]:
    document = verified.document
    facts = {
        "keyId": (verified.key_id, wanted.key_id),
        "principal": (verified.principal, wanted.principal),
        "protectedTime": (document.signature.created_at, wanted.protected_time),
        "signingBytes": (verified.canonical, bundle.read(wanted.signing_bytes)),
        "signingHash": (verified.signing_hash, wanted.signing_hash),
        "signature": (document.signature.value, wanted.signature),
        "signedDocumentHash": (jcs.signing_hash(jcs.canonical(document)), wanted.signed_document_hash),
    }
    return [name for name, (got, expected) in facts.items() if got != expected]


def _differing_signature(bundle: Bundle, verified: Verified, path: str) -> list[str]:
    """Sign again with the fixture's seed: Ed25519 gives the same signature for the same bytes."""
    fixture = bundle.typed(path, SigningKeyFixture)
    try:
        seed = seed_of(fixture)
    except ValueError:
        return ["publicKey of the signing key"]
    signature = ed25519.sign(seed, ed25519.public_key(seed), verified.canonical)
    same = ed25519.encode_base64url(signature) == verified.document.signature.value
    return [] if same and fixture.key_id == verified.key_id else ["signature by the signing key"]


# --- admission --------------------------------------------------------------------------------------------------------


class _ScriptedLog:
    """A log and an accepting service that answer what an evaluation says; it remembers whether it was appended to."""

    def __init__(self, bundle: Bundle, evaluation: AdmissionEvaluation) -> None:
        self._bundle = bundle
        self._evaluation = evaluation
        self.appended = False

    def lookup(self, organization_id: str, signing_hash: str) -> LookupOutcome:
        scripted = self._evaluation.lookup
        if scripted.status == "found":
            return admission.Found(*self._record(scripted))
        return admission.AuthoritativeAbsence() if scripted.status == _ABSENT else _TROUBLES[scripted.status]

    def append_or_existing(self, candidate: FirstAdmissionRecord) -> AppendOutcome:
        self.appended = True
        scripted = self._evaluation.append
        if scripted is None:
            return admission.CommitFailed()
        if scripted.status == "committed":
            return admission.Committed(*self._record(scripted))
        if scripted.status == "existing":
            return admission.Existing(*self._record(scripted))
        return admission.Conflict() if scripted.status == "conflict" else _TROUBLES[scripted.status]

    def accept(self) -> admission.Acceptance:
        context = self._evaluation.trusted_context
        if context is None:
            return admission.Acceptance("", "", Actor(type="service", id="urn:mwnode:none"))
        service = Actor(type="service", id=context.accepted_by.id)
        return admission.Acceptance(context.admission_record_id, context.trusted_accepted_at, service)

    def _record(self, scripted: LookupFixture | AppendFixture) -> tuple[bytes, Actor]:
        record, service = scripted.record, scripted.authenticated_service
        if isinstance(record, UnsetType) or isinstance(service, UnsetType):
            raise BundleFault(f"{self._evaluation.id}: {scripted.status} carries a record and authenticatedService")
        return self._bundle.read(record), service


_ABSENT = "authoritative-absence"
_TROUBLES: dict[str, admission.LogTrouble] = {
    "unauthenticated": admission.Unauthenticated(),
    "integrity-failed": admission.IntegrityFailed(),
    "unavailable": admission.Unavailable(),
    "indeterminate": admission.Indeterminate(),
}


def run_admission(bundle: Bundle, report: Report) -> None:
    """R-22-03, R-22-08."""
    try:
        manifest = bundles.load_admission(bundle)
    except BundleFault as fault:
        report.abort("admission", _count(bundle, bundles.ADMISSION), str(fault))
        return
    for case in manifest.cases:
        for evaluation in case.evaluations:
            expect = evaluation.expect
            wanted = expect.stage if expect.wire_code is None else f"{expect.stage} {expect.wire_code} {expect.reason}"
            report.judge("admission", f"{case.id} {evaluation.id}", wanted, _admitted(bundle, evaluation))


def _admitted(bundle: Bundle, evaluation: AdmissionEvaluation) -> str:
    verified = verify(bundle.read(evaluation.document), evaluation.profile_id, bundle.registry(evaluation.registry))
    if isinstance(verified, Failure):
        return f"{verified.stage} {verified.code}"
    log = _ScriptedLog(bundle, evaluation)
    if evaluation.mode == "historical-replay":
        outcome = admission.replay(verified, log)
    else:
        outcome = admission.admit(verified, log, log)
    if log.appended != (evaluation.append is not None):
        return "an append that was not expected" if log.appended else "no append"
    if isinstance(outcome, Failure):
        return f"{outcome.stage} {outcome.code} {outcome.reason}"
    if not isinstance(evaluation.expect.record, str):
        return "complete"
    wanted = bundle.json(evaluation.expect.record)
    return "complete" if msgspec.to_builtins(outcome) == wanted else "complete, but another record"
