"""How a command reaches the authority: over HTTP where a node serves, else by opening the store itself."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from mwnode.cli.failure import Failure
from mwnode.cli.keyless import Reading, is_keyless
from mwnode.cli.target import Target
from mwnode.client.derivations import Direction, Provenances
from mwnode.client.http import HttpClient, segment
from mwnode.protocol.errors import GroupNotFound
from mwnode.trust.keys import SigningKey


class Reach(Protocol):
    """The authority, wherever it is. Every call raises MissionWeaveError with the wire code of a refusal."""

    def command(self, document: bytes) -> dict[str, Any]:
        """Hand in one signed Command; what it answers: `{"events": [Event, ...]}`, receipt first."""

    def send(self, kind: str, payload: Mapping[str, Any], **envelope: Any) -> dict[str, Any]:
        """Sign a Command as the key that one acts with and hand it in; `envelope` as in `signed_command`."""

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """Read one view of the HTTP surface."""

    def put_artifact(self, source: Path) -> dict[str, Any]:
        """Store the bytes of a file; `{"contentHash", "sizeBytes", "uri"}`."""

    def get_artifact(self, content_hash: str, path: Path) -> int:
        """Fetch the bytes of that hash into a file, verified; their number."""

    def artifact(self, content_hash: str, after: str | None = None) -> dict[str, Any]:
        """Size, classification and manifests of an Artifact; a page of them."""

    def walk(self, content_hash: str, direction: Direction, *, depth: int) -> Provenances:
        """The steps to what it was made of, or to what was made of it."""


@contextmanager
def reach(target: Target, key: SigningKey) -> Iterator[Reach]:
    """Reach the node that a command means, acting as the key's Principal."""
    if target.url is None:
        _check_organization(target, key)
    served = target.home.served() if target.url is None else None
    if target.url is not None:
        with HttpClient(target.url, key, target.ca) as client:
            yield client
    elif served is not None:
        with HttpClient(served.http, key, served.ca) as client:
            yield client
    else:
        # A whole node with its gateway takes a moment to import; most commands talk to one that runs.
        opened = importlib.import_module("mwnode.cli.embedded").embedded(target.home)
        with opened as http, HttpClient(http, key) as client:
            yield Reading(client, target.home) if is_keyless(target.home) else client


def _check_organization(target: Target, key: SigningKey) -> None:
    """A key of another Organization can do nothing here, and no signature of it would say why."""
    home = target.home
    if key.organization_id and key.organization_id != home.organization_id:
        raise Failure(
            f"the key of {key.principal.id} belongs to Organization {key.organization_id}, and {home.path} to "
            f"{home.organization_id}: give a key of this one by --key, or the other HOME by --home"
        )


def found(node: Reach, path: str, **query: Any) -> dict[str, Any] | None:
    """A view, or None where there is no such thing for this caller."""
    try:
        return node.get(path, **query)
    except GroupNotFound:
        return None


def at(*parts: str) -> str:
    """A path of the HTTP surface; identifiers in it are percent-encoded."""
    return "/v0.1/" + "/".join(map(segment, parts))
