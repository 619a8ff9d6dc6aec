"""`mwnode sign`, `check` and `schema`: what somebody who debugs by hand sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mwnode.cli.documents import check, schema, sign
from mwnode.trust import keys
from mwnode.trust.verification import Verified, verify
from tests.cli.support import cli
from tests.trust import makers
from tests.trust.makers import AGENT, HUMAN, registry


def run(command: Any, *arguments: Any, **options: Any) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments], **options)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MWNODE_HOME", str(tmp_path / "no-home"))
    (tmp_path / "agent.key").write_bytes(keys.dump(AGENT))
    (tmp_path / "human.key").write_bytes(keys.dump(HUMAN))
    for path in tmp_path.glob("*.key"):
        path.chmod(0o600)
    (tmp_path / "registry.json").write_text(json.dumps(registry().export()))
    return tmp_path


def write(files: Path, document: Any) -> Path:
    path = files / "document.json"
    path.write_text(json.dumps(document, indent=2))
    return path


@pytest.mark.parametrize("kind", ["command", "evidence", "artifact", "context-package"])
def test_a_signed_document_verifies(files: Path, kind: Any) -> None:
    result = run(sign, kind, write(files, makers.unsigned(kind)), "--key", files / "agent.key")
    assert result.exit_code == 0, result.output
    assert result.output.encode() == makers.raw(makers.signed(kind)) + b"\n"
    assert isinstance(verify(result.output.encode(), kind, registry()), Verified)


def test_signing_again_replaces_the_signature_and_puts_in_the_time(files: Path) -> None:
    document = makers.unsigned("command", signature={"any": "thing"})
    del document["issuedAt"]
    result = run(sign, "command", "-", "--key", files / "agent.key", input=json.dumps(document))
    assert result.exit_code == 0, result.output
    signed = json.loads(result.output)
    assert signed["issuedAt"] == signed["signature"]["createdAt"]
    assert isinstance(verify(result.output.encode(), "command", registry()), Verified)


@pytest.mark.parametrize(
    "document, words",
    [
        (makers.unsigned("command", actor=makers.actor(HUMAN)), "only"),
        (makers.unsigned("command", issuedAt="2026-07-15T10:00:00+00:00"), "ending in Z"),
        (makers.unsigned("command", unknown=1), "unknown"),
        (makers.unsigned("command", payload={"x": "\ud800"}), "surrogate"),
        ([1], "no JSON object"),
    ],
)
def test_what_cannot_be_signed_is_said(files: Path, document: Any, words: str) -> None:
    result = run(sign, "command", write(files, document), "--key", files / "agent.key")
    assert result.exit_code == 1
    assert words in str(result.exception)


def test_check_names_stage_and_reason(files: Path) -> None:
    evidence = ("--registry", files / "registry.json", "--json")
    good = run(check, "command", write(files, makers.signed("command")), *evidence)
    assert good.exit_code == 0, good.output
    assert json.loads(good.output)["keyId"] == AGENT.key_id
    cases = {
        "signature": {**makers.signed("command"), "actionId": "urn:example:other:1"},
        "key-resolution": makers.signed("command", HUMAN),
        "signature-envelope": makers.resigned(makers.signed("command"), createdAt="2026-07-15T10:00:01Z"),
        "schema": makers.signed("command", unknown=1),
    }
    for stage, document in cases.items():
        result = run(check, "command", write(files, document), *evidence)
        assert result.exit_code == 1
        found = json.loads(result.output)
        assert (found["ok"], found["stage"]) == (False, stage)
        assert found["reason"]


def test_check_without_a_registry_says_how_far_it_came(files: Path) -> None:
    result = run(check, "command", write(files, makers.signed("command")))
    assert result.exit_code == 1
    assert "name a Registry" in result.output


def test_check_of_what_has_no_signature(files: Path) -> None:
    frame = {"protocolVersion": "0.1", "frameId": "urn:f:1", "frameType": "PING", "nonce": "AAAA", "sentAt": makers.NOW}
    assert run(check, "websocket-frame", write(files, frame)).exit_code == 0
    assert run(check, "websocket-frame", write(files, {**frame, "x": 1})).exit_code == 1
    bad = run(check, "group", write(files, {"groupId": "x"}), "--json")
    assert bad.exit_code == 1
    assert json.loads(bad.output)["stage"] == "schema"
    (files / "broken").write_bytes(b'{"a":1,"a":1}')
    assert json.loads(run(check, "group", files / "broken", "--json").output)["reason"] == "duplicate-member"


def test_an_empty_file_is_said_to_be_empty(files: Path) -> None:
    (files / "empty.json").write_text("\n")
    for command, extra in ((check, ()), (sign, ("--key", files / "agent.key"))):
        result = run(command, "command", files / "empty.json", *extra)
        assert result.exit_code == 1
        assert "is empty" in str(result.exception)
    assert "standard input is empty" in str(run(check, "group", "-", input="").exception)


def test_nothing_is_written_where_nothing_could_be_signed(files: Path) -> None:
    target = files / "signed.json"
    refused = run(sign, "command", write(files, {"kind": "<kind>"}), "--key", files / "agent.key", "-o", target)
    assert refused.exit_code == 1
    assert "is to be filled in" in str(refused.exception)
    assert not target.exists()
    good = run(sign, "command", write(files, makers.unsigned("command")), "--key", files / "agent.key", "-o", target)
    assert good.exit_code == 0
    assert target.read_bytes() == makers.raw(makers.signed("command")) + b"\n"


def test_schemas_are_written(files: Path) -> None:
    result = run(schema, files / "schemas", "--json")
    assert result.exit_code == 0
    assert json.loads(result.output)["schemas"] == len(list((files / "schemas").rglob("*.schema.json")))
    assert json.loads((files / "schemas/command.schema.json").read_text())["title"] == "command"
    assert (files / "schemas/commands/work.start.schema.json").is_file()
    assert (files / "schemas/events/work.started.schema.json").is_file()


def test_a_draft_is_not_signed_while_something_in_it_is_to_be_said(tmp_path: Path) -> None:
    assert cli("init", tmp_path / "home").status == 0
    draft = cli("command", "draft", "message.post", "--home", tmp_path / "home")
    (tmp_path / "draft.json").write_text(draft.out)
    refused = cli("sign", "command", tmp_path / "draft.json", "--key", tmp_path / "home" / "keys" / "owner.key")
    assert refused.status == 1
    assert "<content>" in refused.err
    assert refused.out == ""
