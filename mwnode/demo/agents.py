"""Scripted Agents: Agents are any program, and these say what an act has them say, through ``mwnode.Client``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mwnode.client import Client
from mwnode.client.commands import signed_command
from mwnode.client.http import HttpClient
from mwnode.demo.background import Background
from mwnode.home import load_key
from mwnode.protocol.documents import Event
from mwnode.protocol.errors import MissionWeaveError
from mwnode.protocol.identifiers import uuid7_urn
from mwnode.system import OsEntropy, SystemClock
from mwnode.trust.keys import sign_mapping

ACCEPTED = "accepted"
_TIMES = ("createdAt", "generatedAt", "occurredAt")
"""Where a Signed Document states when it was made, which its signature repeats."""
_CLOCK, _ENTROPY = SystemClock(), OsEntropy()


def new_id() -> str:
    """A fresh identifier."""
    return uuid7_urn(_CLOCK.now(), _ENTROPY.random(10))


def in_seconds(seconds: int) -> str:
    """The time so many seconds from now."""
    return _CLOCK.now().plus(seconds).text()


def answer_of(http: HttpClient, raw: bytes) -> str:
    """What the node says to one signed Command: ``accepted``, or the code of its refusal."""
    try:
        http.command(raw)
    except MissionWeaveError as error:
        return error.code.value
    return ACCEPTED


class Agent:
    """One connected Agent. Its Commands go over its WebSocket; what they must look like exactly goes over HTTP."""

    def __init__(self, background: Background, url: str, ca: str | None, key_file: Path) -> None:
        self.key = load_key(key_file)
        self._background = background
        self.client = background.run(Client.connect(url, self.key, ca))
        assert self.client.http is not None, "a client that was connected has an HTTP side"
        self.http: HttpClient = self.client.http
        self.heard: list[dict[str, Any]] = []
        """Every Event that arrived, in the order of arrival."""
        background.run(self._listen())

    @property
    def id(self) -> str:
        return self.key.principal.id

    @property
    def principal(self) -> dict[str, str]:
        return {"type": self.key.principal.type, "id": self.id}

    @property
    def session_epoch(self) -> int:
        return self.client.session_epoch

    def close(self) -> None:
        """End the connection."""
        self._background.run(self.client.close())

    # --- hearing ------------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        async def listen() -> None:
            async for event in self.client.events():
                self.heard.append(msgspec.to_builtins(event))

        self._listening = asyncio.create_task(listen())

    def follow(self, group_id: str, after: int = 0) -> None:
        """Subscribe to a Group from a position on, and wait until all that exists has come."""
        self._background.run(self.client.subscribe({group_id: after}, caught_up=True))

    # --- speaking -----------------------------------------------------------------------------------------------------

    def send(self, kind: str, payload: Mapping[str, Any], group_id: str, **envelope: Any) -> dict[str, Any]:
        """Send a Command over the WebSocket; its receipt Event. Raises the MissionWeaveError of a refusal."""
        event: Event = self._background.run(self.client.send(kind, payload, group_id=group_id, **envelope))
        receipt: dict[str, Any] = msgspec.to_builtins(event)
        return receipt

    def raw(self, kind: str, payload: Mapping[str, Any], group_id: str, **envelope: Any) -> bytes:
        """The signed bytes of a Command, with exactly the epochs that are given; ours of now where none is."""
        envelope.setdefault("action_id", new_id())
        envelope.setdefault("issued_at", _CLOCK.now().text())
        envelope.setdefault("session_epoch", self.session_epoch)
        envelope.setdefault("membership_epoch", 1)
        return signed_command(self.key, kind, payload, group_id=group_id, **envelope)

    def answer(self, kind: str, payload: Mapping[str, Any], group_id: str, **envelope: Any) -> str:
        """What the node says to a Command sent over HTTP: ``accepted``, or the code of its refusal."""
        return answer_of(self.http, self.raw(kind, payload, group_id, **envelope))

    def sign(self, **members: Any) -> dict[str, Any]:
        """A Signed Document of this Agent, signed at the time that it states; ``members`` by wire name."""
        return sign_mapping(members, self.key, next(members[name] for name in _TIMES if name in members))
