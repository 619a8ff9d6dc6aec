"""What payloads share: the base type, Usage and Checkpoint."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from mwnode.protocol.documents import Document
from mwnode.protocol.scalars import Id, SafeInteger, Sha256, Text500, Text4000, Timestamp

EXT = "ext.missionweaveprotocol"


CORE = "ext.mwnode.core"


class Payload(Document):
    """Base of every payload."""


class Usage(Payload):
    """Resource usage in the six dimensions: micro-units of currency, tokens, calls, seconds, seconds, actions."""

    financial_microunits: SafeInteger
    model_tokens: SafeInteger
    tool_calls: SafeInteger
    compute_seconds: SafeInteger
    wall_clock_seconds: SafeInteger
    external_actions: SafeInteger


class Checkpoint(Payload):
    """Durable progress of one execution; ``state_artifact_hash`` names the bytes to resume from."""

    checkpoint_id: Id
    phase: Text500
    completed_milestones: tuple[Text500, ...]
    created_at: Timestamp
    next_step: Text4000 | UnsetType = UNSET
    state_artifact_hash: Sha256 | UnsetType = UNSET
