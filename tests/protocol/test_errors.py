"""One code, one class, one status, one retry rule."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mwnode.protocol import jcs
from mwnode.protocol.errors import (
    BY_CODE,
    HTTP_STATUS,
    RETRYABLE,
    SIGNED_DOCUMENT_REJECTED,
    ErrorCode,
    ErrorDocument,
    MissionWeaveError,
    Rejection,
    error_document,
)
from mwnode.protocol.strict_json import decode
from tests.trust.makers import NOW


@pytest.mark.req("R-19-01")
def test_there_is_one_class_and_one_status_for_each_of_the_27_codes() -> None:
    assert len(ErrorCode) == 27
    assert set(BY_CODE) == set(ErrorCode) == set(HTTP_STATUS)
    assert len(set(BY_CODE.values())) == 27
    for code, kind in BY_CODE.items():
        assert kind.code is code
        assert kind.help, f"{kind.__name__} says what to do next"
        assert kind.__doc__
        assert 400 <= HTTP_STATUS[code] <= 503


@pytest.mark.req("R-19-01")
def test_the_codes_are_those_of_the_schema(protocol_bundle: Path) -> None:
    schema = json.loads((protocol_bundle / "schemas/error.schema.json").read_bytes())
    assert [code.value for code in ErrorCode] == schema["properties"]["code"]["enum"]


@pytest.mark.req("R-19-02")
def test_only_what_was_not_taken_is_retryable() -> None:
    assert {code.value for code in RETRYABLE} == {"BACKPRESSURE", "RATE_LIMITED", "INTERNAL_ERROR"}
    for code in ErrorCode:
        assert error_document(Rejection(code, "x"), NOW).retryable == (code in RETRYABLE)
        assert BY_CODE[code]("x").retryable == (code in RETRYABLE)


@pytest.mark.req("R-19-01", "R-19-03")
@pytest.mark.parametrize("code", ErrorCode)
def test_every_error_document_fits_its_schema(code: ErrorCode) -> None:
    rejection = Rejection(code, "m" * 3000, "R-19-01", {"path": "/x"}, 1, 2, 3)
    document = error_document(
        rejection,
        NOW,
        fatal=True,
        related_frame_id="urn:f:1",
        related_action_id="urn:a:1",
        group_id="urn:g:1",
        snapshot_artifact_hash="sha256:" + "a" * 64,
    )
    assert decode(jcs.canonical(document), ErrorDocument) == document
    assert b"R-19-01" not in jcs.canonical(document), "the rule is for us"
    bare = jcs.canonical(error_document(Rejection(code, ""), NOW))
    assert set(json.loads(bare)) == {"code", "message", "retryable", "occurredAt"}
    assert decode(bare, ErrorDocument).message


@pytest.mark.req("R-6.4-81")
def test_a_refused_signature_says_nothing_more() -> None:
    masked = error_document(Rejection(ErrorCode.AUTH_INVALID_SIGNATURE, "bad R", details={"stage": 3}), NOW)
    assert masked.message == SIGNED_DOCUMENT_REJECTED
    assert "details" not in json.loads(jcs.canonical(masked))
    plain = error_document(Rejection(ErrorCode.AUTH_FORBIDDEN, "no role", details={"role": "x"}), NOW)
    assert (plain.message, plain.details) == ("no role", {"role": "x"})


@pytest.mark.parametrize("code", ErrorCode)
def test_rejections_and_exceptions_and_documents_say_the_same(code: ErrorCode) -> None:
    rejection = Rejection(code, SIGNED_DOCUMENT_REJECTED, "R-1-01", None, 3, 4, 500)
    error = MissionWeaveError.of(rejection)
    assert type(error) is BY_CODE[code]
    assert error.rejection == rejection
    assert error.message == str(error) == SIGNED_DOCUMENT_REJECTED
    received = MissionWeaveError.of_document(error_document(rejection, NOW))
    assert type(received) is BY_CODE[code]
    assert (received.rejection.expected_revision, received.rejection.current_revision) == (3, 4)
    assert received.rejection.retry_after_ms == 500
    assert received.rejection.details is None
