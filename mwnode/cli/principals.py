"""Keys of Agents, humans and services: made or taken, kept in HOME, and bound in the Registry."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import click

from mwnode.cli.compose import ENTROPY, now
from mwnode.cli.failure import Failure
from mwnode.cli.naming import Candidate, pick
from mwnode.cli.reach import Reach, at
from mwnode.cli.target import Target, read_key
from mwnode.home import make_key
from mwnode.narrative import short
from mwnode.protocol.documents import Actor
from mwnode.trust.ed25519 import KEY_BYTES, decode_base64url
from mwnode.trust.keys import SigningKey

F = TypeVar("F", bound=Callable[..., Any])

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


def human_key(target: Target, doing: str) -> SigningKey:
    """The key to act with where only a human may: HOME's owner, or --key; Failure for an Agent's or service's."""
    key = target.key("owner")
    if key.principal.type != "human":
        path = target.key_option or target.home.key_path("owner")
        raise Failure(
            f"{doing} needs a human's key, and {path} is the key of {key.principal.type} {key.principal.id}: "
            "leave --key out to act as HOME's owner, or give the key of the MissionOwner"
        )
    return key


def organization_key(target: Target, doing: str) -> SigningKey:
    """The key to act with where only the Organization may: HOME's, or --key; Failure for anybody else's."""
    key = target.key("organization")
    if key.principal.type != "service":
        path = target.key_option or target.home.key_path("organization")
        raise Failure(
            f"{doing} needs the Organization's key, and {path} is the key of {key.principal.type} {key.principal.id}: "
            "leave --key out to act with HOME's keys/organization.key, or give that file from wherever it is kept"
        )
    return key


def find_agent(node: Reach, name: str, likely: str | None = None, *, whole: bool = False) -> str:
    """The registered Agent that a name, an identifier or a part of one means; ``likely`` is tried first.

    With ``whole`` a part is not enough.
    """
    cards = node.get(at("agents"))["agents"]
    wanted = likely or identifier("agent", name)
    if any(card["agentId"] == wanted for card in cards):
        return wanted
    if not cards:
        raise Failure(f"no Agent is registered, so none is called {name!r}: make one with `mwnode agent add {name}`")
    known = [Candidate(card["agentId"], card["displayName"], card["status"] != "revoked") for card in cards]
    if not any(name in one.identifier or name == one.label for one in known):
        names = ", ".join(short(one.identifier) for one in known[:10])
        raise Failure(f"no Agent is called {name!r}; registered are {names}: see `mwnode agent list`")
    return pick("Agent", name, known, "mwnode agent list", whole=whole)


def key_options(command: F) -> F:
    """Give a command --public-key and --key-id: a key whose private half is kept elsewhere."""
    named = click.option(
        "--key-id", metavar="URI", help="With --public-key: the key's identifier; default: made from the key."
    )
    given = click.option("--public-key", metavar="B64URL", help="An Ed25519 public key, base64url without padding.")
    return named(given(command))


def given_key(name: str, key_id: str | None, public_key: str | None) -> PublicKey | None:
    """The public key that the options give, None without one; UsageError for what is no key.

    The identifier is made from name and key unless given, so that the same key always gets the same one.
    """
    if public_key is None:
        if key_id is not None:
            raise click.UsageError("--key-id names the key of --public-key: give that too, or neither")
        return None
    try:
        raw = decode_base64url(public_key)
    except ValueError as error:
        raise click.UsageError(f"--public-key {public_key!r} is not base64url without padding") from error
    if len(raw) != KEY_BYTES:
        raise click.UsageError(f"--public-key holds {len(raw)} bytes; an Ed25519 public key has {KEY_BYTES}")
    made = f"urn:mwnode:key:{name}:{sha256(raw).hexdigest()[:16]}"
    return PublicKey(key_id or made, public_key, None, fresh=False)


def kept_key(target: Target, name: str, principal: Actor) -> PublicKey:
    """The key kept under that name in HOME, a new one if there is none yet."""
    home = target.home
    path = home.key_path(name)
    if path.exists():
        key = read_key(path)
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
