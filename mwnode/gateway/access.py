"""The authority's rule of who reads what, in the form that delivery needs: from memory, Event by Event. Pure.

``mwnode.authority.access`` decides; here restricted Conversations are remembered per Group, so that fan-out asks the
store nothing.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Struct

from mwnode.authority.access import Sight, in_conversation, sight_under
from mwnode.authority.state import CONVERSATIONS, MembershipRow
from mwnode.authority.view import View
from mwnode.protocol.documents import Conversation, Membership
from mwnode.protocol.errors import Rejection
from mwnode.protocol.instants import Instant, parse

Rooms = dict[str, Conversation]
"""The restricted Conversations of one Group, by ID."""


def rooms_of(view: View, group_id: str) -> Rooms:
    """The restricted Conversations of a Group."""
    found: Rooms = {}
    for row in view.in_group(CONVERSATIONS, group_id):
        add_room(found, row.conversation)
    return found


def add_room(rooms: Rooms, conversation: Conversation) -> None:
    """Take note of a Conversation, if it is a restricted one."""
    if conversation.access.mode == "restricted":
        rooms[conversation.conversation_id] = conversation


def shows(sight: Sight, rooms: Rooms, sequence: int, conversation_id: str | None) -> bool:
    """Whether an Event of the Group may be read: not before the visibility start, not from a closed room."""
    if sight.whole:
        return True
    if sequence < sight.start:
        return False
    room = rooms.get(conversation_id) if conversation_id is not None else None
    return room is None or in_conversation(sight, room)


def sight_after(membership: Membership, now: Instant) -> Sight | Rejection:
    """What the holder of a Membership sees, just as an Event states it."""
    return sight_under(MembershipRow(membership), now)


def expiry_of(sight: Sight) -> Instant | None:
    """When a provisional Membership ends by itself, without any Event (decision D43)."""
    membership = sight.membership
    if membership is None or membership.state != "provisional" or membership.provisional_expires_at is UNSET:
        return None
    return parse(membership.provisional_expires_at)


# --- stored Events ----------------------------------------------------------------------------------------------------


class Place(Struct, rename="camel"):
    """Where an Event stands; the rest of it is not looked at."""

    group_id: str | None = None
    sequence: int | None = None
    conversation_id: str | None = None


class _Nested(Struct, rename="camel"):
    conversation_id: str | None = None


class _Contents(Struct):
    conversation: _Nested | None = None


class _Opening(Place):
    payload: _Contents | None = None


_PLACE = msgspec.json.Decoder(Place)
_OPENING = msgspec.json.Decoder(_Opening)


def conversation_of(event: bytes) -> str | None:
    """The Conversation that a stored Event belongs to, or opens."""
    place = _PLACE.decode(event)
    if place.conversation_id is not None:
        return place.conversation_id
    payload = _OPENING.decode(event).payload
    return payload.conversation.conversation_id if payload is not None and payload.conversation is not None else None
