"""Keys of Agents, humans and services: made or taken, kept in HOME, and bound in the Registry."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from mwnode.cli.compose import ENTROPY, now
from mwnode.cli.exits import Failure
from mwnode.cli.reach import Reach
from mwnode.cli.target import Target, passphrase
from mwnode.home import load_key, make_key
from mwnode.protocol.documents import Actor

KEY_BIND = "ext.mwnode.core.key_bind"
KEY_RESTRICT = "ext.mwnode.core.key_restrict"
_NAME = re.compile(r"\A[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}\Z")


@dataclass(frozen=True)
class PublicKey:
    """The public half of a Principal's key, and where the private half is kept, if here."""

    key_id: str
    public_key: str
    file: Path | None
    fresh: bool
    """Whether this very command made the file: it is taken back when the Registry refuses the key."""


def identifier(kind: str, name: str) -> str:
    """The identifier that a local name stands for; an identifier stands for itself."""
    if ":" in name:
        return name
    if not _NAME.match(name):
        raise click.UsageError(f"{name!r} is neither an identifier nor a name of letters, digits, '.', '_' and '-'")
    return f"urn:mwnode:{kind}:{name}"


def given_key(key_id: str | None, public_key: str | None) -> PublicKey | None:
    """The public key that the options give, None without them; UsageError for one of two."""
    if key_id is not None and public_key is not None:
        return PublicKey(key_id, public_key, None, fresh=False)
    if key_id is not None or public_key is not None:
        raise click.UsageError("--key-id and --public-key go together")
    return None


def kept_key(target: Target, name: str, principal: Actor) -> PublicKey:
    """The key kept under that name in HOME, a new one if there is none yet."""
    home = target.home
    path = home.key_path(name)
    if path.exists():
        key = load_key(path, passphrase(path))
        if key.principal != principal:
            raise Failure(f"{path} is the key of {key.principal.type} {key.principal.id}: choose another name")
        return PublicKey(key.key_id, key.public_key, path, fresh=False)
    key = make_key(name, principal, home.organization_id, ENTROPY)
    return PublicKey(key.key_id, key.public_key, home.add_key(name, key), fresh=True)


def take_back(key: PublicKey) -> None:
    """Remove a key file that the Registry never came to know."""
    if key.fresh and key.file is not None:
        key.file.unlink()


def valid_from(target: Target) -> str:
    """When a new key's validity begins: the freshness window ago, for clients with slow clocks (decision E12)."""
    window = target.home.policy.freshness_window if target.url is None else 300
    return now().plus(-window).text()


def bind(node: Reach, principal: Actor, key: PublicKey, since: str) -> dict[str, Any]:
    """Bind a key to a Principal in the Registry, as the Organization's registry service."""
    binding = {
        "keyId": key.key_id,
        "principal": {"type": principal.type, "id": principal.id},
        "algorithm": "Ed25519",
        "publicKey": key.public_key,
        "validFrom": since,
    }
    return node.send(KEY_BIND, {"binding": binding})
