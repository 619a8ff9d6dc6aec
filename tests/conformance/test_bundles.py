"""The conformance runner: passes what is right, names what is not, and runs nothing of a bundle that was touched."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from mwnode.cli.conformance import conformance
from mwnode.conformance import Report, Tally, run
from mwnode.conformance.bundle import BundleFault
from mwnode.protocol.documents import SIGNED_DOCUMENTS
from mwnode.trust import ed25519
from tests.conformance.builder import BundleBuilder
from tests.trust import makers

CRYPTOGRAPHY, ADMISSION = "cryptography/manifest.json", "admission/manifest.json"


@pytest.fixture
def bundle(tmp_path: Path) -> BundleBuilder:
    builder = BundleBuilder(tmp_path)
    builder.build()
    return builder


def whole(report: Report) -> tuple[Tally, Tally, Tally]:
    return report.structural, report.cryptography, report.admission


# --- the published bundle ---------------------------------------------------------------------------------------------


@pytest.mark.req("R-22-01", "R-22-02", "R-22-03", "R-6.4-46")
def test_the_published_bundle_passes(protocol_bundle: Path) -> None:
    report = run(protocol_bundle)
    assert report.failures == []
    assert whole(report) == (Tally(58, 0), Tally(62, 0), Tally(30, 0))
    assert report.ok
    cases = json.loads((protocol_bundle / "conformance/manifest.json").read_bytes())
    assert [case["valid"] for case in cases].count(True) == 27
    assert [case["valid"] for case in cases].count(False) == 31
    cryptography = json.loads((protocol_bundle / CRYPTOGRAPHY).read_bytes())
    assert len(cryptography["cases"]) == 22
    kinds = {
        evaluation["profileId"]
        for case in cryptography["cases"]
        for evaluation in case["evaluations"]
        if "input" not in evaluation
    }
    assert kinds == set(SIGNED_DOCUMENTS)
    assert len(json.loads((protocol_bundle / ADMISSION).read_bytes())["cases"]) == 5


@pytest.mark.req("R-22-07", "R-22-08")
def test_a_touched_copy_of_the_published_bundle_does_not_run(protocol_bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(protocol_bundle, copy)
    touched = copy / "cryptography/vectors/signed-documents/valid/command.json"
    touched.chmod(0o644)
    touched.write_bytes(touched.read_bytes() + b"\n")
    report = run(copy)
    assert report.structural == Tally(58, 0)
    assert (report.cryptography, report.admission) == (Tally(0, 62), Tally(0, 30))
    assert all("command.json" in failure.got for failure in report.failures)


# --- any bundle of the layout -----------------------------------------------------------------------------------------


@pytest.mark.req("R-22-01", "R-22-02", "R-22-03")
def test_a_bundle_of_our_own_passes(bundle: BundleBuilder) -> None:
    report = run(bundle.root)
    assert report.failures == []
    assert whole(report) == (Tally(18, 0), Tally(16, 0), Tally(11, 0))


@pytest.mark.parametrize("section", ["conformance", "cryptography", "admission"])
def test_whichever_manifests_are_there_run(bundle: BundleBuilder, section: str) -> None:
    for other in {"conformance", "admission"} - {section}:
        (bundle.root / other / "manifest.json").unlink()
    if section == "conformance":
        (bundle.root / CRYPTOGRAPHY).unlink()
    report = run(bundle.root)
    assert report.ok
    ran = [tally.passed > 0 for tally in whole(report)]
    assert (
        ran
        == {
            "conformance": [True, False, False],
            "cryptography": [False, True, False],
            "admission": [False, True, True],
        }[section]
    )


def test_a_directory_without_manifests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleFault, match="point at a checkout"):
        run(tmp_path)


def expectation(path: str, case: int, evaluation: int, **changes: Any) -> tuple[str, Callable[[Any], Any]]:
    return path, lambda it: it["cases"][case]["evaluations"][evaluation]["expect"].update(changes)


def verified_fact(name: str, value: Any) -> tuple[str, Callable[[Any], Any]]:
    return CRYPTOGRAPHY, lambda it: it["cases"][0]["evaluations"][3]["expect"]["verified"].update({name: value})


HASH = "sha256:" + "0" * 64
WRONG = {
    "another stage": expectation(CRYPTOGRAPHY, 2, 0, stage="schema"),
    "another code": expectation(CRYPTOGRAPHY, 2, 0, wireCode="AUTH_INVALID_SIGNATURE"),
    "another key": verified_fact("keyId", "urn:example:key:other"),
    "another principal": verified_fact("principal", {"type": "agent", "id": "urn:example:agent:other"}),
    "another time": verified_fact("protectedTime", "2026-07-15T10:00:00.0Z"),
    "other signing bytes": verified_fact("signingBytes", "cryptography/vectors/canonicalization/event.jcs"),
    "another hash": verified_fact("signingHash", HASH),
    "another document hash": verified_fact("signedDocumentHash", HASH),
    "another signature": verified_fact("signature", "A" * 86),
    "another signing key": (
        CRYPTOGRAPHY,
        lambda it: it["cases"][0]["evaluations"][3].update(signingKey="cryptography/keys/signing-event.json"),
    ),
    "another canonical hash": (CRYPTOGRAPHY, lambda it: it["cases"][1]["evaluations"][0].update(sha256=HASH)),
    "other canonical bytes": (
        CRYPTOGRAPHY,
        lambda it: it["cases"][1]["evaluations"][0].update(
            expectedJcs="cryptography/vectors/canonicalization/event.jcs"
        ),
    ),
    "another reason": expectation(ADMISSION, 0, 4, reason="log-unavailable"),
    "admitted where refused": (
        ADMISSION,
        lambda it: it["cases"][0]["evaluations"][0].update(
            expect={"stage": "admission", "wireCode": "AUTH_INVALID_SIGNATURE", "reason": "record-missing"}
        ),
    ),
    "another record": expectation(ADMISSION, 0, 0, record="admission/records/other-key.json"),
    "an append that never comes": (
        ADMISSION,
        lambda it: it["cases"][0]["evaluations"][2].update(append={"status": "conflict"}),
    ),
    "an append that nobody expects": (ADMISSION, lambda it: it["cases"][0]["evaluations"][0].update(append=None)),
}


@pytest.mark.parametrize("name", WRONG)
def test_one_wrong_expectation_is_one_failure(bundle: BundleBuilder, name: str) -> None:
    path, change = WRONG[name]
    bundle.change(path, change)
    if path == CRYPTOGRAPHY:
        (bundle.root / ADMISSION).unlink()
    report = run(bundle.root)
    assert len(report.failures) == 1, report.failures
    tally = report.cryptography if path == CRYPTOGRAPHY else report.admission
    assert tally.failed == 1
    assert tally.passed > 5
    assert not report.ok


def test_a_structural_vector_that_is_judged_otherwise_fails(bundle: BundleBuilder) -> None:
    cases = json.loads((bundle.root / "conformance/manifest.json").read_bytes())
    cases[0]["valid"] = False
    cases[1]["valid"] = True
    cases[2]["schema"] = "schemas/unknown.schema.json"
    bundle.write("conformance/manifest.json", cases)
    report = run(bundle.root)
    assert report.structural == Tally(15, 3)
    assert [failure.got for failure in report.failures] == ["valid", "invalid", "an unknown schema"]


# --- integrity --------------------------------------------------------------------------------------------------------


def _rewrite(path: str, change: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    return lambda root: (root / path).write_bytes(change((root / path).read_bytes()))


def _relist(path: str, content: Any) -> Callable[[Path], Any]:
    """Replace a fixture and list its new hash, so that only its content is wrong."""

    def act(root: Path) -> None:
        builder = BundleBuilder(root)
        builder.write(path, content)
        builder.change(CRYPTOGRAPHY, lambda it: it.update(artifacts=builder.listing("cryptography")))

    return act


WEAK_FIXTURE = {**makers.registry().export(), "extra": 1}
TOUCHED: dict[str, Callable[[Path], Any]] = {
    "a value of the manifest": _rewrite(CRYPTOGRAPHY, lambda it: it.replace(b'"parse"', b'"parsed"', 1)),
    "a line feed after a vector": _rewrite("cryptography/vectors/valid/event.json", lambda it: it + b"\n"),
    "a vector that is gone": lambda root: (root / "cryptography/vectors/valid/event.json").unlink(),
    "a manifest that is no JSON": _rewrite(CRYPTOGRAPHY, lambda it: it[:-2]),
    "a duplicate member in the manifest": _rewrite(
        CRYPTOGRAPHY, lambda it: it.replace(b"{", b'{"artifactDigest": "x",', 1)
    ),
    "a member more in the manifest": lambda root: BundleBuilder(root).change(
        CRYPTOGRAPHY, lambda it: it.update(extra=1)
    ),
    "a file that is not listed": lambda root: BundleBuilder(root).change(
        CRYPTOGRAPHY, lambda it: it["artifacts"].pop(0)
    ),
    "a file listed twice": lambda root: BundleBuilder(root).change(
        CRYPTOGRAPHY, lambda it: it["artifacts"].append(it["artifacts"][0])
    ),
    "a path that leaves the bundle": lambda root: BundleBuilder(root).change(
        CRYPTOGRAPHY, lambda it: it["artifacts"][0].update(path="../../etc/passwd")
    ),
    "a Registry fixture of another shape": _relist("cryptography/keys/registry.json", WEAK_FIXTURE),
    "a Registry fixture without bindings": _relist(
        "cryptography/keys/registry.json", {**makers.registry().export(), "bindings": []}
    ),
    "a signing key that is not for tests": _relist(
        "cryptography/keys/signing-event.json",
        {
            "testOnly": False,
            "keyId": "urn:k:1",
            "algorithm": "Ed25519",
            "seed": ed25519.encode_base64url(bytes(32)),
            "publicKey": ed25519.encode_base64url(bytes(32)),
        },
    ),
    "another fixture schema": lambda root: BundleBuilder(root).change(
        CRYPTOGRAPHY, lambda it: it["fixtureSchemas"].update(registry="schemas/command.schema.json")
    ),
    "another signer rule": lambda root: BundleBuilder(root).change(
        CRYPTOGRAPHY, lambda it: it["profiles"][3]["expectedSigner"].update(pointer="/signer")
    ),
    "another protected time": lambda root: BundleBuilder(root).change(
        CRYPTOGRAPHY, lambda it: it["profiles"][3].update(protectedTimePointer="/createdAt")
    ),
    "a profile less": lambda root: BundleBuilder(root).change(CRYPTOGRAPHY, lambda it: it["profiles"].pop()),
    "a fault without basis": lambda root: BundleBuilder(root).change(
        CRYPTOGRAPHY, lambda it: it["cases"][2]["evaluations"][0]["fault"]["basis"].update(caseId="accept.nothing")
    ),
}


@pytest.mark.req("R-22-06", "R-22-07", "R-6.4-46")
@pytest.mark.parametrize("name", TOUCHED)
def test_nothing_of_a_touched_cryptography_bundle_runs(bundle: BundleBuilder, name: str) -> None:
    TOUCHED[name](bundle.root)
    report = run(bundle.root)
    assert report.cryptography.passed == 0
    assert report.cryptography.failed >= 1
    assert report.structural == Tally(18, 0)
    assert report.failures[0].case == "integrity"
    assert not report.ok


ADMISSION_TOUCHED: dict[str, Callable[[Path], Any]] = {
    "another pinned digest": lambda root: BundleBuilder(root).change(
        ADMISSION, lambda it: it["cryptography"].update(artifactDigest=HASH)
    ),
    "a sealed change of the pinned bundle": lambda root: BundleBuilder(root).change(
        CRYPTOGRAPHY, lambda it: it["cases"][2]["evaluations"].pop()
    ),
    "a record that is gone": lambda root: (root / "admission/records/good.json").unlink(),
    "a record that was touched": _rewrite("admission/records/good.json", lambda it: it + b" "),
    "a document of the pinned bundle that was touched": _rewrite(
        "cryptography/vectors/valid/command.json", lambda it: it + b" "
    ),
    "no pinned bundle": lambda root: (root / CRYPTOGRAPHY).unlink(),
    "a reference that no list covers": lambda root: BundleBuilder(root).change(
        ADMISSION, lambda it: it["cases"][0]["evaluations"][0].update(document="conformance/vectors/valid/command.json")
    ),
    "a value of the manifest": _rewrite(ADMISSION, lambda it: it.replace(b'"new"', b'"now"', 1)),
    "an outcome without its record": lambda root: BundleBuilder(root).change(
        ADMISSION, lambda it: it["cases"][0]["evaluations"][0]["append"].pop("record")
    ),
    "a replay that appends": lambda root: BundleBuilder(root).change(
        ADMISSION, lambda it: it["cases"][0]["evaluations"][3].update(append={"status": "conflict"})
    ),
}


@pytest.mark.req("R-22-07", "R-22-08")
@pytest.mark.parametrize("name", ADMISSION_TOUCHED)
def test_nothing_of_a_touched_admission_bundle_runs(bundle: BundleBuilder, name: str) -> None:
    ADMISSION_TOUCHED[name](bundle.root)
    report = run(bundle.root)
    assert report.admission.passed == 0
    assert report.admission.failed >= 1
    assert not report.ok


def test_a_structural_vector_that_is_gone_stops_that_section(bundle: BundleBuilder) -> None:
    (bundle.root / "conformance/vectors/valid/event.json").unlink()
    report = run(bundle.root)
    assert report.structural.passed == 0
    assert report.cryptography == Tally(16, 0)


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_a_table_or_json_and_its_status(bundle: BundleBuilder) -> None:
    good = CliRunner().invoke(conformance, [str(bundle.root)])
    assert good.exit_code == 0
    assert good.output.splitlines()[1].split() == ["structural", "18", "0"]
    as_json = CliRunner().invoke(conformance, [str(bundle.root), "--json"])
    assert as_json.exit_code == 0
    assert json.loads(as_json.output) == {
        "structural": {"passed": 18, "failed": 0},
        "cryptography": {"passed": 16, "failed": 0},
        "admission": {"passed": 11, "failed": 0},
        "failures": [],
    }
    (bundle.root / "admission/records/good.json").unlink()
    bad = CliRunner().invoke(conformance, [str(bundle.root), "--json"])
    assert bad.exit_code == 1
    report = msgspec.json.decode(bad.output, type=Report)
    assert report.admission == Tally(0, 11)
    assert "good.json" in report.failures[0].got
    empty = CliRunner().invoke(conformance, [str(bundle.root / "admission")])
    assert empty.exit_code == 1
    assert "point at a checkout" in str(empty.exception)
