"""`mwnode key`: the keys that the Registry binds to Principals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mwnode.cli.asking import sure
from mwnode.cli.compose import ENTROPY, now
from mwnode.cli.failure import Failure
from mwnode.cli.naming import Candidate, pick
from mwnode.cli.output import emit, facts, table
from mwnode.cli.principals import (
    KEY_RESTRICT,
    bind,
    given_key,
    kept_key,
    key_options,
    organization_key,
    take_back,
    valid_from,
)
from mwnode.cli.reach import at, reach
from mwnode.cli.target import Target, at_home, at_node, new_passphrase
from mwnode.home import seal_key
from mwnode.protocol import instants
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import MissionWeaveError


@click.group()
def key() -> None:
    """Bind, list and revoke keys. A key is never bound anew; its validity only ever shrinks."""


@key.command()
@click.argument("name")
@click.option("--principal", required=True, metavar="TYPE:ID", help="Whose key: agent:, human: or service: and its ID.")
@key_options
@at_node
def add(target: Target, name: str, principal: str, key_id: str | None, public_key: str | None) -> None:
    """Bind a further key to a Principal: a new one kept as keys/NAME.key, or the given public one."""
    actor, given = _principal(principal), given_key(name, key_id, public_key)
    organization = organization_key(target, "binding and revoking keys")
    with reach(target, organization) as node:
        made = given or kept_key(target, name, actor)
        try:
            bind(node, actor, made, valid_from(target))
        except (MissionWeaveError, Failure):
            take_back(made)
            raise
    document = {"keyId": made.key_id, "principal": principal, "keyFile": str(made.file) if made.file else None}
    emit(target.as_json, document, facts(document))


@key.command("list")
@at_node
def list_(target: Target) -> None:
    """List every key that was ever bound, and how long it is or was valid."""
    with reach(target, target.key("owner")) as node:
        bindings = node.get(at("registry"))["bindings"]
    rows = [_row(binding) for binding in bindings]
    heads = ["keyId", "principal", "validFrom", "validUntil", "revokedAt"]
    emit(target.as_json, {"keys": rows}, table(heads, [[row[head] for head in heads] for row in rows]))


@key.command()
@click.argument("key_id", metavar="KEY-ID")
@click.option("--valid-until", metavar="TIMESTAMP", help="Let it end then, in place of revoking it now.")
@click.option("--yes", is_flag=True, help="Revoke without being asked.")
@at_node
def revoke(target: Target, key_id: str, valid_until: str | None, yes: bool) -> None:
    """Revoke a key, from now on: what it signed before stays good. There is no way back.

    Takes the whole KEY-ID, or its last eight characters, and asks on a terminal.
    """
    if valid_until is not None:
        try:
            instants.parse(valid_until)
        except ValueError as error:
            raise click.UsageError(f"--valid-until: {error}") from error
    change = {"validUntil": valid_until} if valid_until else {"revokedAt": now().text()}
    organization = organization_key(target, "binding and revoking keys")
    with reach(target, organization) as node:
        known = [Candidate(one["keyId"]) for one in node.get(at("registry"))["bindings"]]
        key_id = pick("key", key_id, known, "mwnode key list", whole=True)
        sure(f"End the key {key_id} {f'at {valid_until}' if valid_until else 'now'}, for good?", yes)
        node.send(KEY_RESTRICT, {"keyId": key_id, **change})
    document = {"keyId": key_id, **change}
    emit(target.as_json, document, facts(document))


@key.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@at_home
def seal(target: Target, file: Path) -> None:
    """Seal the key in FILE by a passphrase (Argon2id), in place: from $MWNODE_PASSPHRASE_FILE, else asked for.

    Commands that use it then take the passphrase from there too. A node signs without anybody at hand: leave
    keys/authority.key as it is.
    """
    sealed = seal_key(file, new_passphrase(file), ENTROPY)
    document = {"keyId": sealed.key_id, "keyFile": str(file), "sealed": True}
    emit(target.as_json, document, facts(document))


def _principal(text: str) -> Actor:
    kind, _, identifier = text.partition(":")
    if kind == "agent" and identifier:
        return Actor(type="agent", id=identifier)
    if kind == "human" and identifier:
        return Actor(type="human", id=identifier)
    if kind == "service" and identifier:
        return Actor(type="service", id=identifier)
    raise click.UsageError(f"{text!r} is no principal: agent:ID, human:ID or service:ID")


def _row(binding: dict[str, Any]) -> dict[str, Any]:
    """One key: the earliest bound of its whole history counts (R-6.4-34)."""
    bounds: dict[str, str | None] = {}
    for name in ("validUntil", "revokedAt"):
        stated = [change[name] for change in binding["validityHistory"] if name in change]
        bounds[name] = min(stated, key=instants.parse) if stated else None
    principal = binding["principal"]
    return {
        "keyId": binding["keyId"],
        "principal": f"{principal['type']}:{principal['id']}",
        "validFrom": binding["validFrom"],
        **bounds,
    }
