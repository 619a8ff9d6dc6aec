"""Whatever arrives, the ingress answers with a document or a typed fault, within bounded time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mwnode.protocol import frames, jcs
from mwnode.protocol.errors import ProtocolViolation, UnsupportedVersion, error_document
from mwnode.protocol.frames import CommandFrame
from mwnode.protocol.strict_json import JsonFault, SchemaFault
from mwnode.trust.verification import STAGES, Failure, Verified, verify
from tests.protocol.test_frames import GOOD, text
from tests.trust import makers

REGISTRY = makers.registry()
SEEDS = [text(frame) for frame in GOOD.values()]
DOCUMENTS = [(makers.raw(makers.signed(kind)), kind) for kind in makers.KINDS]
TOKENS = [
    token.encode("latin-1")
    for token in (
        *(
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            '"',
            "\\",
            "\\u",
            "\\ud800",
            "\\u0000",
            "null",
            "true",
            "-",
            "1e999",
            "0.0",
            "%zz",
        ),
        *(
            "Z",
            "e",
            ".",
            " ",
            "\n",
            '"a":1,',
            '"signature":',
            "[[[[",
            "9" * 400,
            "\xff",
            "\xef\xbb\xbf",
            "\0",
            "\xf0\x9f\x98\x80",
        ),
    )
]


def ingress(raw: bytes) -> None:
    """A frame's way in; anything but a frame, a verdict or a typed fault fails the test."""
    try:
        frame = frames.decode_client_frame(raw)
    except (JsonFault, SchemaFault) as fault:
        error_document(frames.rejection_of(fault), makers.NOW)
        frames.related_ids(raw)
        return
    except (ProtocolViolation, UnsupportedVersion):
        return
    frames.encode(frame)
    if isinstance(frame, CommandFrame):
        judge(bytes(frame.command), "command")


def judge(raw: bytes, kind: Any) -> None:
    outcome = verify(raw, kind, REGISTRY)
    if isinstance(outcome, Failure):
        assert outcome.stage in STAGES
        assert outcome.rejection().message
    else:
        assert isinstance(outcome, Verified)
        assert jcs.signing_bytes(outcome.document) == outcome.canonical


def mangle(raw: bytes, rng: random.Random) -> bytes:
    changed = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(changed) + 1)
        action = rng.randrange(4)
        if action == 0:
            changed[at : at + rng.randrange(1, 20)] = b""
        elif action == 1:
            changed[at:at] = rng.choice(TOKENS)
        elif action == 2:
            start = rng.randrange(len(changed) + 1)
            changed[at:at] = changed[start : start + rng.randrange(60)]
        elif at < len(changed):
            changed[at] = rng.randrange(256)
    return bytes(changed)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.req("R-6.4-45", "R-19-34")
def test_mangled_frames_and_documents(scale: Callable[[int, int], int]) -> None:
    seed = 17
    rng = random.Random(seed)
    for number in range(scale(4_000, 4_000_000)):
        started = time.thread_time()
        if number % 2:
            raw = mangle(rng.choice(SEEDS), rng)
            ingress(raw)
        else:
            document, kind = rng.choice(DOCUMENTS)
            raw = mangle(document, rng)
            judge(raw, kind)
        assert time.thread_time() - started < 2, f"seed {seed}, number {number}: {raw!r}"


@settings(max_examples=300, deadline=None)
@given(raw=st.binary(max_size=300) | st.lists(st.sampled_from(TOKENS), max_size=40).map(b"".join))
def test_noise(raw: bytes) -> None:
    ingress(raw)
    for kind in makers.KINDS:
        outcome = verify(raw, kind, REGISTRY)
        assert isinstance(outcome, Failure)


@pytest.mark.req("R-6.4-38")
@pytest.mark.parametrize("filler", [b"[", b"{", b"9", b"\\u0041", b"\\", b'"', b'{"a":', b"\xf0\x9f\x98\x80", b" "])
def test_a_mebibyte_inside_a_command_is_cheap(filler: bytes) -> None:
    room = (1 << 20) - 2000
    for before, after in ((b'"payload":{"x":', b","), (b'"payload":{"x":"', b'",')):
        document = makers.raw(makers.signed("command"))
        raw = document.replace(b'"payload":{', before + filler * (room // len(filler)) + after, 1)
        started = time.thread_time()
        judge(raw, "command")
        ingress(frames.encode_command_frame("urn:f:1", raw))
        assert time.thread_time() - started < 5
