"""The gateway's served node, for clients to talk to."""

from tests.gateway.conftest import served, start

__all__ = ["served", "start"]
