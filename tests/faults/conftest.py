"""A served node with a clock that stands still, as the gateway's tests have it."""

from tests.gateway.conftest import served, start

__all__ = ["served", "start"]
