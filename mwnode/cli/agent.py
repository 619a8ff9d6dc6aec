"""`mwnode agent`: the Agents of the Organization and their Cards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from mwnode.cli.asking import sure
from mwnode.cli.compose import new_id, now
from mwnode.cli.failure import Failure
from mwnode.cli.output import emit, facts, table
from mwnode.cli.principals import (
    PublicKey,
    find_agent,
    given_key,
    identifier,
    kept_key,
    key_options,
    organization_key,
    take_back,
    valid_from,
)
from mwnode.cli.reach import Reach, at, found, reach
from mwnode.cli.target import Target, at_node
from mwnode.coordinator.plan_format import capability
from mwnode.enrolment import Capability, draft_card
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import MissionWeaveError
from mwnode.trust.keys import SigningKey, sign_mapping

CARD_REGISTER = "ext.missionweaveprotocol.registry.agent_card_register"


@click.group()
def agent() -> None:
    """Register, show and revoke Agents."""


@agent.command("add")
@click.argument("name")
@click.option("--id", "agent_id", metavar="URI", help="The Agent's identifier; default: urn:mwnode:agent:NAME.")
@key_options
@click.option(
    "--capability",
    "capabilities",
    metavar="ID@VERSION",
    multiple=True,
    help="Repeatable; default: what the Agent has, else mwnode.generic@1.0.0.",
)
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    metavar="N",
    help="WorkItems done at a time; default: what the Agent has, else 1.",
)
@at_node
def add(
    target: Target,
    name: str,
    agent_id: str | None,
    key_id: str | None,
    public_key: str | None,
    capabilities: tuple[str, ...],
    slots: int | None,
) -> None:
    """Register an Agent: make a key (or take the given public one) and sign its Card.

    For an Agent that is registered already, a new version of its Card with the same key. Capabilities and slots that
    are not named stay as they are; --capability names all that it shall have.
    """
    named = [_capability(text) for text in capabilities]
    actor = Actor(type="agent", id=agent_id or identifier("agent", name))
    given = given_key(name, key_id, public_key)
    organization = organization_key(target, "registering")
    with reach(target, organization) as node:
        earlier = found(node, at("agents", actor.id))
        key = given or kept_key(target, name, actor)
        action_id = new_id()
        card = draft_card(
            agent_id=actor.id,
            organization_id=organization.organization_id,
            display_name=name,
            owner=organization.principal,
            capabilities=named or [Capability()],
            public_keys=_public_keys(earlier, key, target),
            slots=slots or (earlier["maxConcurrency"] if earlier else 1),
            endpoint=_endpoint(target),
            evidence_id=action_id,
            version=earlier["cardVersion"] + 1 if earlier else 1,
        )
        if earlier and not named:
            card["capabilities"] = earlier["capabilities"]
        try:
            signed = register(node, organization, card, action_id)
        except (MissionWeaveError, Failure):
            take_back(key)
            raise
    document = {
        "agentId": actor.id,
        "keyId": key.key_id,
        "keyFile": str(key.file) if key.file else None,
        "cardVersion": signed["cardVersion"],
    }
    shown = {name: value for name, value in _summary(signed).items() if name in {"slots", "capabilities"}}
    emit(target.as_json, document, facts(document | shown))


@agent.command("import")
@click.argument("card", metavar="CARD.json", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@at_node
def import_(target: Target, card: Path) -> None:
    """Register an Agent Card from a file; one without a signature is signed with the Organization's key."""
    try:
        document = msgspec.json.decode(card.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise Failure(f"{card} is no JSON object: {error}") from error
    organization = organization_key(target, "registering")
    with reach(target, organization) as node:
        signed = register(node, organization, document, new_id())
    told = {name: signed[name] for name in ("agentId", "cardVersion")}
    emit(target.as_json, told, facts(told))


@agent.command()
@click.argument("name", metavar="ID|NAME")
@at_node
def show(target: Target, name: str) -> None:
    """Show an Agent's current Card; with --json the signed document itself."""
    with reach(target, target.key("owner")) as node:
        card = node.get(at("agents", find_agent(node, name)))
    emit(target.as_json, card, facts(_summary(card) | {"keys": [key["keyId"] for key in card["publicKeys"]]}))


COUNTS = ("completed", "failed", "sentBack", "reassigned", "late", "budgetsSpent", "leasesExpired")


@agent.command()
@click.argument("name", metavar="ID|NAME")
@at_node
def performance(target: Target, name: str) -> None:
    """How an Agent's work went, per capability and Mission: counted, never one score."""
    with reach(target, target.key("owner")) as node:
        told = node.get(at("agents", find_agent(node, name), "performance"))
    rows = [
        [
            f"{row['capability']['id']}@{row['capability']['version']}",
            row["groupId"],
            *(str(row[name]) for name in COUNTS),
        ]
        for row in told["performance"]
    ]
    emit(target.as_json, told, table(["capability", "groupId", *COUNTS], rows))


@agent.command("list")
@at_node
def list_(target: Target) -> None:
    """List the Agents of the Organization."""
    with reach(target, target.key("owner")) as node:
        cards = node.get(at("agents"))["agents"]
    rows = [_summary(card) for card in cards]
    heads = ["agentId", "cardVersion", "status", "slots", "capabilities"]
    emit(target.as_json, {"agents": rows}, table(heads, [[row[head] for head in heads] for row in rows]))


@agent.command()
@click.argument("name", metavar="ID|NAME")
@click.option("--yes", is_flag=True, help="Revoke without being asked.")
@at_node
def revoke(target: Target, name: str, yes: bool) -> None:
    """Revoke an Agent: its Card becomes `revoked`, its sessions and leases end. There is no way back.

    Takes the whole name or identifier, and asks on a terminal.
    """
    organization = organization_key(target, "registering")
    with reach(target, organization) as node:
        card = node.get(at("agents", find_agent(node, name, whole=True)))
        if card["status"] == "revoked":
            raise Failure(f"{card['agentId']} is revoked already")
        sure(f"Revoke {card['agentId']} for good?", yes)
        changed = {**card, "status": "revoked", "cardVersion": card["cardVersion"] + 1}
        signed = register(node, organization, _unsigned(changed), new_id())
    told = {name: signed[name] for name in ("agentId", "cardVersion", "status")}
    emit(target.as_json, told, facts(told))


def register(node: Reach, organization: SigningKey, card: dict[str, Any], action_id: str) -> dict[str, Any]:
    """Register a Card, signing it first where it has no signature; the Card as registered. [R-6.1-01]"""
    if "signature" not in card:
        issued_at = now().text()
        card = sign_mapping({**card, "issuedAt": issued_at}, organization, issued_at)
    node.send(CARD_REGISTER, {"card": card}, action_id=action_id)
    return card


def _unsigned(card: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in card.items() if name not in {"signature", "issuedAt"}}


def _capability(text: str) -> Capability:
    try:
        named = capability(text)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return Capability(id=named.id, version=named.version)


def _public_keys(earlier: dict[str, Any] | None, key: PublicKey, target: Target) -> list[dict[str, Any]]:
    """The Card's keys: those of the earlier version, restated as they are (R-6.4-32), and this one."""
    kept: list[dict[str, Any]] = list(earlier["publicKeys"]) if earlier else []
    if all(entry["keyId"] != key.key_id for entry in kept):
        kept.append(
            {
                "keyId": key.key_id,
                "algorithm": "Ed25519",
                "publicKey": key.public_key,
                "validFrom": valid_from(target),
            }
        )
    return kept


def _endpoint(target: Target) -> str:
    """The node's WebSocket address, as a Card states it."""
    if target.url is not None:
        return f"wss://{target.url.partition('://')[2].rstrip('/')}/ws"
    served = target.home.served()
    server = target.home.settings.server
    port = served.port if served else target.home.last_port() or server.port
    return f"wss://{server.host}:{port}/ws"


def _summary(card: dict[str, Any]) -> dict[str, Any]:
    return {
        "agentId": card["agentId"],
        "cardVersion": card["cardVersion"],
        "status": card["status"],
        "slots": card["maxConcurrency"],
        "capabilities": [f"{entry['id']}@{entry['version']}" for entry in card["capabilities"]],
    }
