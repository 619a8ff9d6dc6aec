"""`mwnode human`: the people of the Organization."""

from __future__ import annotations

import click

from mwnode.cli.failure import Failure
from mwnode.cli.output import emit, facts
from mwnode.cli.principals import (
    bind,
    given_key,
    identifier,
    kept_key,
    key_options,
    organization_key,
    take_back,
    valid_from,
)
from mwnode.cli.reach import reach
from mwnode.cli.target import Target, at_node
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import MissionWeaveError


@click.group()
def human() -> None:
    """Register people, who own Missions and approve them."""


@human.command()
@click.argument("name")
@click.option("--id", "human_id", metavar="URI", help="The person's identifier; default: urn:mwnode:human:NAME.")
@key_options
@at_node
def add(target: Target, name: str, human_id: str | None, key_id: str | None, public_key: str | None) -> None:
    """Register a person: make a key, or take the given public one."""
    given = given_key(name, key_id, public_key)
    actor = Actor(type="human", id=human_id or identifier("human", name))
    organization = organization_key(target, "registering")
    with reach(target, organization) as node:
        key = given or kept_key(target, name, actor)
        try:
            bind(node, actor, key, valid_from(target))
        except (MissionWeaveError, Failure):
            take_back(key)
            raise
    document = {"humanId": actor.id, "keyId": key.key_id, "keyFile": str(key.file) if key.file else None}
    emit(target.as_json, document, facts(document))
