"""mwnode: an embedded single-file store and reference node for MissionWeaveProtocol 0.1.

    from mwnode import Client, Node, Worker

`Node` is the authority over one file, in process; `Client` one Agent's connection to a node; `Worker` an Agent that
takes work. The documents and errors are in `mwnode.protocol`, a node for tests in `mwnode.testing`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mwnode.client.client import Client
    from mwnode.node import Node
    from mwnode.worker.runner import Worker

__version__ = "0.1.0"
__all__ = ["Client", "Node", "Worker"]

_MODULES = {"Client": "client.client", "Node": "node", "Worker": "worker.runner"}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: `import mwnode` alone costs nothing."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
