"""The other end of the gateway: sign, send, subscribe, replay, reconnect."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mwnode.client.client import Client
    from mwnode.client.cursors import CursorFile
    from mwnode.client.errors import ChallengeRefused, ClientError, ConnectionLost, Unreachable
    from mwnode.client.http import HttpClient
    from mwnode.client.restore import Restored

__all__ = [
    "ChallengeRefused",
    "Client",
    "ClientError",
    "ConnectionLost",
    "CursorFile",
    "HttpClient",
    "Restored",
    "Unreachable",
]

_MODULES = {"Client": "client", "CursorFile": "cursors", "HttpClient": "http", "Restored": "restore"}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: the synchronous client starts without aiohttp."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
