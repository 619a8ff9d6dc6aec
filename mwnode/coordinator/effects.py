"""What a Coordinator's engine asks of its shell. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from mwnode.protocol.commands import Payload


class Send(Struct, frozen=True):
    """Send one Command as the Coordinator; answer under the same ticket."""

    ticket: int
    kind: str
    payload: Payload
    group_id: str
    work_item_id: str | None
    coordinator_epoch: int | None
    """``None`` where the Coordinator acts as the owner of a child Mission (decision F38)."""
    expected_revision: int | None
    extensions: Mapping[str, Any] | None = None
    action_id: str | None = None
    """Chosen beforehand where a Cooperation Override Grant was made for it."""
    cooperation_override_grant_id: str | None = None


class Upload(Struct, frozen=True):
    """Upload a work's input files; answer with ``uploaded``."""

    group_id: str
    local: str


class Check(Struct, frozen=True):
    """Fetch these Artifacts and compare them with their hashes; answer with ``checked``."""

    group_id: str
    work_item_id: str
    """The WorkItem, or the child Mission, that submitted them."""
    content_hashes: tuple[str, ...]
    read: bool = False
    """Whether small ones are to be handed over: they are read by the engine."""


class Follow(Struct, frozen=True):
    """Follow the Group of a child Mission from its beginning; its Events go to ``children``."""

    group_id: str
    child_group_id: str


class LookUp(Struct, frozen=True):
    """Read Registry and Presence; answer with ``candidates``."""


class Note(Struct, frozen=True):
    """A line for the log."""

    event: str
    details: Mapping[str, Any]


Effect = Send | Upload | Check | Follow | LookUp | Note
