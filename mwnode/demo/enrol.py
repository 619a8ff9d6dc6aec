"""Registering an Agent as any program may: a key, a Card that the Organization signs, and one signed Command."""

from __future__ import annotations

from collections.abc import Sequence

from mwnode.client.http import HttpClient
from mwnode.demo.agents import in_seconds, new_id
from mwnode.enrolment import Capability, draft_card
from mwnode.home import Home, make_key
from mwnode.protocol.commands import EXT
from mwnode.protocol.documents import Actor
from mwnode.system import OsEntropy
from mwnode.trust.keys import sign_mapping

REGISTER = f"{EXT}.registry.agent_card_register"
SINCE_SECONDS = -60
"""A key is valid from a little before now on, so that no clock's difference refuses its first signature."""


def enrol(
    organization: HttpClient, name: str, capabilities: Sequence[str], slots: int, endpoint: str, home: Home
) -> str:
    """Make a key, register the Agent that it is for, and keep the key in HOME; the Agent's identifier."""
    root = organization.key
    assert root is not None, "the Organization signs with its key"
    principal = Actor(type="agent", id=f"urn:mwnode:agent:{name}")
    key = make_key(name, principal, root.organization_id, OsEntropy())
    action_id, now = new_id(), in_seconds(0)
    named = [Capability(*text.rsplit("@", 1)) for text in capabilities] or [Capability()]
    card = draft_card(
        agent_id=principal.id,
        organization_id=root.organization_id,
        display_name=name,
        owner=root.principal,
        capabilities=named,
        public_keys=[
            {
                "keyId": key.key_id,
                "algorithm": "Ed25519",
                "publicKey": key.public_key,
                "validFrom": in_seconds(SINCE_SECONDS),
            }
        ],
        slots=slots,
        endpoint=endpoint,
        evidence_id=action_id,
    )
    signed = sign_mapping({**card, "issuedAt": now}, root, now)
    organization.send(REGISTER, {"card": signed}, action_id=action_id)
    home.add_key(name, key)
    return principal.id
