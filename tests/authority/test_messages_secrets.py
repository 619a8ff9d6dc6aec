"""No token of the node enters the record, wherever somebody puts it (section 12)."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import msgspec
import pytest
from msgspec import structs

from mwnode.authority.case import Context
from mwnode.authority.secrets import token_shaped
from mwnode.protocol.commands import EXT
from mwnode.protocol.errors import ErrorCode
from mwnode.tokens import NodeTokens
from tests.authority.scene import GROUP
from tests.authority.staging import Stage


class Guarded(Stage):
    """A stage whose authority recognises its own tokens."""

    def context(self) -> Context:
        tokens = NodeTokens(self.keys[self.authority.id])
        return structs.replace(super().context(), is_token=lambda text: tokens.claims(text) is not None)

    def token(self) -> str:
        return NodeTokens(self.keys[self.authority.id]).issue({"groupId": GROUP, "principal": "anna"})


def words(content: str) -> dict[str, Any]:
    return {"messageId": "urn:example:message:1", "conversationId": f"{GROUP}:mission", "content": content}


@pytest.mark.req("R-12-13")
def test_a_token_is_refused_in_messages_artifacts_packages_and_cards() -> None:
    stage = Guarded()
    anna, token = stage.workers["anna"], stage.token()
    item = stage.bring(stage.authorize("one"), "active", anna)
    held = {name: value for name, value in stage.three(item).items() if name != "workItemId"}
    tools = [{"name": "builder", "version": token}]
    package = stage.context_package(stage.coordinator, summary=f"use {token} to go on")
    card = stage.agent_row(anna).card
    described = stage.sign(
        stage.organization,
        {
            **_builtins(card),
            "cardVersion": 2,
            "description": token,
        },
        at=card.issued_at,
    )
    attempts: list[tuple[Any, str, dict[str, Any]]] = [
        (anna, "message.post", words(f"here: {token}")),
        (anna, "artifact.publish", {"artifact": stage.artifact(item, anna, toolVersions=tools), **held}),
        (stage.coordinator, "ext.mwnode.core.context_package_publish", {"contextPackage": package}),
        (stage.organization, f"{EXT}.registry.agent_card_register", {"card": described}),
        (
            anna,
            "work.block",
            {**stage.three(item), "reason": token, "requiredResolution": "x", "checkpoint": stage.checkpoint()},
        ),
    ]
    for actor, kind, payload in attempts:
        refusal = stage.refused(actor, kind, payload)
        assert (refusal.code, refusal.rule) == (ErrorCode.INVALID_COMMAND, "R-12-13"), kind
    assert all(token.encode() not in repr(event).encode() for event in stage.events)


def _builtins(card: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(msgspec.json.encode(card))
    del document["signature"]
    return document


def test_what_only_looks_like_a_token_is_taken() -> None:
    stage = Guarded()
    fake = f"{base64.urlsafe_b64encode(b'{}').decode().rstrip('=')}.{'A' * 86}"
    assert list(token_shaped(fake.encode())) == [fake]
    stage.ok(stage.workers["anna"], "message.post", words(fake))


@pytest.mark.parametrize(
    "text, found",
    [
        (f"ab.{'A' * 86}", [f"ab.{'A' * 86}"]),
        (f"x ab.{'A' * 86}!", [f"ab.{'A' * 86}"]),
        (f"ab.{'A' * 85}", []),
        (f"ab.{'A' * 87}", []),
        (f".{'A' * 86}", []),
        (f"a.b.{'A' * 86}", [f"b.{'A' * 86}"]),
    ],
    ids=lambda value: str(value)[:10],
)
def test_the_shape_of_a_token(text: str, found: list[str]) -> None:
    assert list(token_shaped(text.encode())) == found


def test_looking_takes_linear_time() -> None:
    started = time.process_time()
    assert list(token_shaped(b"A" * 1_000_000)) == []
    assert list(token_shaped(b"." * 1_000_000)) == []
    # It takes a hundredth of a second; each byte looked at from each other one would take hours.
    assert time.process_time() - started < 30
