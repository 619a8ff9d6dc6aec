"""A HOME without its authority's key, as `mwnode import` makes one: read and proven there, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from mwnode.cli.failure import Failure
from mwnode.client.derivations import Direction, Provenances
from mwnode.client.http import HttpClient
from mwnode.home import Home


def is_keyless(home: Home) -> bool:
    """Whether nothing can be decided in a HOME, for want of the key that signs Events."""
    return not home.key_path("authority").exists()


class Reading:
    """A keyless HOME as a command reaches it: views and Artifacts, and a refusal for whatever would change it."""

    def __init__(self, node: HttpClient, home: Home) -> None:
        self._node = node
        self._home = home

    def command(self, document: bytes) -> dict[str, Any]:
        self._refuse()

    def send(self, kind: str, payload: Mapping[str, Any], **envelope: Any) -> dict[str, Any]:
        self._refuse()

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        return self._node.get(path, **query)

    def put_artifact(self, source: Path) -> dict[str, Any]:
        self._refuse()

    def get_artifact(self, content_hash: str, path: Path) -> int:
        return self._node.get_artifact(content_hash, path)

    def artifact(self, content_hash: str, after: str | None = None) -> dict[str, Any]:
        return self._node.artifact(content_hash, after)

    def walk(self, content_hash: str, direction: Direction, *, depth: int) -> Provenances:
        return self._node.walk(content_hash, direction, depth=depth)

    def _refuse(self) -> NoReturn:
        raise Failure(
            f"{self._home.path} has no keys/authority.key, so it is for reading and proving only: change things at the "
            "node that it was exported from (--home or --url), or put that key there"
        )
