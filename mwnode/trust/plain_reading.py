"""The fast way from the bytes of a good document to its struct and its signing bytes.

Every answer is the exact one (:mod:`mwnode.protocol.strict_json`, :mod:`mwnode.protocol.jcs`) or none at all: what the
scans here cannot vouch for goes the exact way.

Commands, which everybody sends all the time, are read into a relaxed type first. Its identifiers are plain strings, and
one search over all of them together takes the place of one search for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from mwnode.protocol import instants, jcs, strict_json
from mwnode.protocol.documents import SIGNED_DOCUMENTS, Actor, Command, DocumentKind, Signature, SignedDocument
from mwnode.protocol.identifiers import ID_LENGTH_MAX
from mwnode.protocol.scalars import PLAIN_URI
from mwnode.trust import ed25519


class _RelaxedActor(Actor):
    id: str


class _RelaxedSignature(Signature):
    key_id: str
    created_at: str
    value: str


class _RelaxedCommand(Command):
    """A Command of which ``_strict`` has not looked at the scalars yet."""

    action_id: str
    actor: _RelaxedActor
    correlation_id: str
    issued_at: str
    signature: _RelaxedSignature
    group_id: str | UnsetType = UNSET
    conversation_id: str | UnsetType = UNSET
    work_item_id: str | UnsetType = UNSET
    cooperation_override_grant_id: str | UnsetType = UNSET
    caused_by_event_id: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Left to the Command that is made of this one."""


def _untyped_real(text: str) -> Any:
    raise ValueError("a number with a fraction or exponent is canonicalized the exact way")


_TYPES: dict[DocumentKind, type[SignedDocument]] = {**SIGNED_DOCUMENTS, "command": _RelaxedCommand}
_DECODERS: dict[DocumentKind, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(document, float_hook=_untyped_real) for kind, document in _TYPES.items()
}
_encode_sorted: Callable[[Any], bytes] = msgspec.json.Encoder(order="sorted").encode
_MATCH_PLAIN_LINES = {count: re.compile(rf"(?:{PLAIN_URI}\n){{{count}}}\Z").match for count in range(4, 8)}
"""Finds that a text is so many plain identifiers, each with a line feed behind it. None of them holds one."""


def _strict(relaxed: _RelaxedCommand) -> Command | None:
    """The Command, when its scalars are plainly what their types ask for; ValueError when its members do not fit.

    Identifiers are plain when each is a scheme and a path without escapes, and all of them together are no longer than
    one may be (R-2-15). The signature's value is left to ``read_plain``.
    """
    actor, signature = relaxed.actor, relaxed.signature
    action_id, correlation_id, key_id = relaxed.action_id, relaxed.correlation_id, signature.key_id
    lines, count = f"{action_id}\n{correlation_id}\n{actor.id}\n{key_id}\n", 4
    group_id, conversation_id, work_item_id = relaxed.group_id, relaxed.conversation_id, relaxed.work_item_id
    if group_id is not UNSET:
        lines, count = f"{lines}{group_id}\n", count + 1
    if conversation_id is not UNSET:
        lines, count = f"{lines}{conversation_id}\n", count + 1
    if work_item_id is not UNSET:
        lines, count = f"{lines}{work_item_id}\n", count + 1
    issued_at = relaxed.issued_at
    if (
        len(lines) > ID_LENGTH_MAX
        or _MATCH_PLAIN_LINES[count](lines) is None
        # Rare members and a createdAt of its own take the exact way.
        or signature.created_at != issued_at
        or relaxed.cooperation_override_grant_id is not UNSET
        or relaxed.caused_by_event_id is not UNSET
    ):
        return None
    instants.parse(issued_at)
    return Command(
        protocol_version=relaxed.protocol_version,
        action_id=action_id,
        actor=Actor(type=actor.type, id=actor.id),
        kind=relaxed.kind,
        correlation_id=correlation_id,
        issued_at=issued_at,
        payload=relaxed.payload,
        signature=Signature(algorithm=signature.algorithm, key_id=key_id, created_at=issued_at, value=signature.value),
        session_epoch=relaxed.session_epoch,
        membership_epoch=relaxed.membership_epoch,
        coordinator_epoch=relaxed.coordinator_epoch,
        group_id=group_id,
        conversation_id=conversation_id,
        work_item_id=work_item_id,
        expected_revision=relaxed.expected_revision,
        extensions=relaxed.extensions,
    )


def read_plain(raw: bytes, kind: DocumentKind, depth_max: int) -> tuple[SignedDocument, bytes, bytes] | None:
    """The document, its signing bytes and its signature, when scans prove that all three are the exact ones.

    No signed document has a typed number other than integers, the hook turns away untyped reals and ``nothing_hidden``
    turns away long integers; so what is left for RFC 8785 is the order of names beyond the Basic Multilingual Plane.
    """
    try:
        document = _DECODERS[kind].decode(raw)
        signature = ed25519.decode_signature(document.signature.value)
        if signature is None:
            return None
        encoded = _encode_sorted(document)
        if type(document) is _RelaxedCommand:
            document = _strict(document)
            if document is None:
                return None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if not strict_json.nothing_hidden(raw, encoded, depth_max):
        return None
    if not raw.isascii() and not jcs.names_sort_alike(raw):
        return None
    signing = jcs.cut_signature(encoded)
    return None if signing is None else (document, signing, signature)
