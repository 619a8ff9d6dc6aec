"""Signed Commands, and the table of their receipts."""

from __future__ import annotations

import json

import pytest

from mwnode.client.commands import RECEIPT_KINDS, signed_command
from mwnode.protocol.commands import PAYLOADS
from mwnode.protocol.documents import Actor
from mwnode.protocol.events import EVENT_PAYLOADS
from mwnode.trust.keys import SigningKey

KEY = SigningKey(
    "urn:example:key", Actor(type="agent", id="urn:example:agent"), "urn:example:organization", bytes(range(32))
)


def test_every_command_kind_has_its_receipt() -> None:
    assert set(RECEIPT_KINDS) == set(PAYLOADS)
    assert {kind for kind in RECEIPT_KINDS.values() if kind is not None} <= set(EVENT_PAYLOADS)


@pytest.mark.req("R-19-04")
def test_the_same_command_has_the_same_bytes() -> None:
    def make() -> bytes:
        return signed_command(
            KEY,
            "message.post",
            {"content": "ready", "messageId": "urn:example:message"},
            action_id="urn:example:action",
            issued_at="2030-01-01T00:00:00Z",
            group_id="urn:example:group",
            session_epoch=1,
            membership_epoch=1,
        )

    first = make()
    assert make() == first
    command = json.loads(first)
    assert command["signature"]["createdAt"] == command["issuedAt"]
    assert command["correlationId"] == command["actionId"]
    assert "coordinatorEpoch" not in command
    assert first == json.dumps(command, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
