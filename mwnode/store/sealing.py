"""From decided Events to signed ones, a batch at a time.

All are encoded before the first is signed, and all are signed in one go: curve arithmetic then finds its tables in the
processor's cache, which is worth half of its time.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from mwnode.authority.request import EventFact
from mwnode.protocol import jcs
from mwnode.protocol.documents import Actor, Event
from mwnode.protocol.events import EVENT_PAYLOADS
from mwnode.trust.keys import SigningKey, sign_bytes

_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_PROTOCOL_VERSION: Final = "0.1"


class _Envelope(Struct, rename="camel", omit_defaults=True, gc=False):
    """The members of an Event but ``signature`` and ``workItemId``, in the order of RFC 8785, so that encoding sorts
    nothing. What is canonical already goes in as it is."""

    accepted_by: Raw
    actor: Raw
    aggregate_revision: int | UnsetType
    cause: Raw
    command_hash: str | UnsetType
    conversation_id: str | UnsetType
    correlation_id: str
    event_id: str
    extensions: Raw | UnsetType
    group_id: str | UnsetType
    kind: str
    occurred_at: str
    payload: Raw
    protocol_version: str
    sequence: int | UnsetType


class Draft(Struct, frozen=True, gc=False):
    """An Event's canonical bytes before and after the place of its signature."""

    head: bytes
    tail: bytes
    occurred_at: str

    @property
    def signing(self) -> bytes:
        """What is signed (R-6.4-42)."""
        return self.head + self.tail


class Sealed(Struct, frozen=True, gc=False):
    """A signed Event as it is stored and sent."""

    signing_hash: bytes
    encoded: bytes


def _optional(value: str | None) -> str | UnsetType:
    return UNSET if value is None else value


def _raw(value: object) -> Raw:
    return Raw(_encode_sorted(value))


class Sealer:
    """Signs Events with one key on behalf of one service."""

    def __init__(self, key: SigningKey, accepted_by: Actor) -> None:
        self._key = key
        self._accepted_by = _raw(accepted_by)
        self._before_time = b',"signature":{"algorithm":"Ed25519","createdAt":'
        self._before_value = b',"keyId":' + _encode(key.key_id) + b',"value":"'

    def draft(self, fact: EventFact) -> Draft:
        """The canonical bytes of an Event to be signed. ValueError or JcsFault for one that must not be."""
        if type(fact.payload) is not EVENT_PAYLOADS.get(fact.kind):
            raise ValueError(f"a {type(fact.payload).__name__} is no payload of {fact.kind}")
        group_id, sequence, revision = fact.group_id, fact.sequence, fact.aggregate_revision
        if (group_id is None) != (sequence is None) or (group_id is None) != (revision is None):
            raise ValueError(f"{fact.kind}: groupId, sequence and aggregateRevision go together")
        extensions = fact.extensions
        envelope = _Envelope(
            self._accepted_by,
            _raw(fact.actor),
            UNSET if revision is None else revision,
            _raw(fact.cause),
            _optional(fact.command_hash),
            _optional(fact.conversation_id),
            fact.correlation_id,
            fact.event_id,
            UNSET if extensions is None else Raw(jcs.canonical(msgspec.to_builtins(extensions))),
            _optional(group_id),
            fact.kind,
            fact.occurred_at,
            Raw(jcs.canonical(fact.payload)),
            _PROTOCOL_VERSION,
            UNSET if sequence is None else sequence,
        )
        tail = b"}" if fact.work_item_id is None else b',"workItemId":' + _encode(fact.work_item_id) + b"}"
        return Draft(_encode(envelope)[:-1], tail, fact.occurred_at)

    def seal(self, drafts: Iterable[Draft]) -> list[Sealed]:
        """Sign each, in order."""
        kept = list(drafts)
        texts = [draft.signing for draft in kept]
        signatures = self._key.sign_all(texts)
        return [
            Sealed(hashlib.sha256(text).digest(), self._whole(draft, signature))
            for draft, text, signature in zip(kept, texts, signatures, strict=True)
        ]

    def seal_again(self, draft: Event) -> bytes:
        """Sign an Event whose ``signature`` is ``UNSIGNED``: one that was erased."""
        return sign_bytes(draft, self._key, draft.occurred_at).encoded

    def _whole(self, draft: Draft, signature: bytes) -> bytes:
        value = urlsafe_b64encode(signature).rstrip(b"=")
        time = _encode(draft.occurred_at)
        return b"".join((draft.head, self._before_time, time, self._before_value, value, b'"}', draft.tail))
