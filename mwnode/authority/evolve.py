"""``evolve``: one Event's effect on the state. It never refuses: the Event already happened."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from mwnode.authority import archival, cooperation
from mwnode.authority.aggregates import EVOLVERS
from mwnode.authority.request import EventFact
from mwnode.authority.view import Overlay
from mwnode.protocol.commands import Payload
from mwnode.protocol.documents import Event
from mwnode.protocol.events import EVENT_PAYLOADS


def evolve(view: Overlay, fact: EventFact) -> None:
    """Fold one Event into the overlay."""
    EVOLVERS[fact.kind](view, fact)
    if fact.override_grant_id is not None:
        cooperation.consume(view, fact)


def fact_of(event: Event, command_payload: Payload | None = None, override_grant_id: str | None = None) -> EventFact:
    """What replay folds: a stored Event with its payload typed.

    ``command_payload`` is the payload of the Command that is its ``cause``, ``override_grant_id`` the Cooperation
    Override Grant which that Command cited.
    Raises msgspec.ValidationError when the payload does not fit its kind.
    """
    payload = msgspec.convert(archival.remains_of(event.payload), EVENT_PAYLOADS[event.kind])
    return EventFact(
        event_id=event.event_id,
        kind=event.kind,
        actor=event.actor,
        cause=event.cause,
        correlation_id=event.correlation_id,
        occurred_at=event.occurred_at,
        payload=payload,
        group_id=None if event.group_id is UNSET else event.group_id,
        sequence=None if event.sequence is UNSET else event.sequence,
        aggregate_revision=None if event.aggregate_revision is UNSET else event.aggregate_revision,
        conversation_id=None if event.conversation_id is UNSET else event.conversation_id,
        work_item_id=None if event.work_item_id is UNSET else event.work_item_id,
        command_hash=None if event.command_hash is UNSET else event.command_hash,
        extensions=None if event.extensions is UNSET else event.extensions,
        command_payload=command_payload,
        override_grant_id=override_grant_id,
    )
