"""Where the node of an Agent's process is: --url, else the node that serves HOME."""

from __future__ import annotations

from pathlib import Path

from mwnode.cli.failure import Failure
from mwnode.cli.target import Target


def address_of(target: Target) -> tuple[str, Path | None]:
    """The node's WebSocket address and the CA that vouches for it; Failure where none is named and none serves HOME."""
    if target.url is not None:
        return target.url, target.ca
    served = target.home.served()
    if served is None:
        raise Failure(nobody_serves(target))
    return served.url, Path(served.ca) if served.ca else None


def is_served(target: Target) -> bool:
    """Whether somebody else can change what a command looks at: a node named by --url, or one that serves HOME."""
    return target.url is not None or target.home.served() is not None


def nobody_serves(target: Target) -> str:
    """What to tell somebody who needs a node that runs."""
    return f"no node serves {target.home.path}: start one with `mwnode serve`, or name one by --url"
