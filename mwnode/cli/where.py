"""Where the node of an Agent's process is: --url, else the node that serves HOME."""

from __future__ import annotations

from pathlib import Path

from mwnode.cli.exits import Failure
from mwnode.cli.target import Target


def address_of(target: Target) -> tuple[str, Path | None]:
    """The node's WebSocket address and the CA that vouches for it; Failure where none is named and none serves HOME."""
    if target.url is not None:
        return target.url, target.ca
    served = target.home.served()
    if served is None:
        raise Failure(f"no node serves {target.home.path}: start one with `mwnode serve`, or name one by --url")
    return served.url, Path(served.ca) if served.ca else None
