"""Figures about the node in Prometheus' format, and health."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from mwnode.gateway.hub import Hub
from mwnode.protocol.commands import CORE
from mwnode.store.batch import CommittedEvent

_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counts what passes through the gateway. One for a server, in a registry of its own."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.registry = CollectorRegistry()
        self._commands = Counter(
            "mwnode_commands", "Commands by transport and outcome.", ["transport", "outcome"], registry=self.registry
        )
        self._events = Counter("mwnode_events", "Events committed, by kind.", ["kind"], registry=self.registry)
        self._expired = Counter(
            "mwnode_leases_expired", "Leases that ran out, by type.", ["type"], registry=self.registry
        )
        self._batch = Histogram(
            "mwnode_commit_events", "Events in one durable batch.", buckets=_BATCH_BUCKETS, registry=self.registry
        )
        for name, text, value in (
            ("mwnode_connections", "WebSocket connections.", lambda: len(hub.connections)),
            ("mwnode_sessions", "Authenticated Agents.", lambda: len(hub.delivery.live_by_agent)),
            ("mwnode_subscriptions", "Groups followed, over all connections.", lambda: hub.delivery.followed),
            ("mwnode_replayed_events", "Events sent by replay.", lambda: hub.delivery.replayed),
            ("mwnode_delivered_events", "Events sent live.", lambda: hub.delivery.delivered),
            ("mwnode_paused_groups", "Times a Group was paused by BACKPRESSURE.", lambda: hub.delivery.paused),
            ("mwnode_outbox_frames", "Frames waiting, over all connections.", self._outbox_frames),
            ("mwnode_outbox_bytes", "Bytes waiting, over all connections.", self._outbox_bytes),
            ("mwnode_commands_in_flight", "Commands not answered yet.", self._in_flight),
        ):
            Gauge(name, text, registry=self.registry).set_function(value)
        hub.on_batch.append(self._batch_committed)
        hub.on_command = self.command

    def command(self, transport: str, outcome: str) -> None:
        """A Command was answered."""
        self._commands.labels(transport, outcome).inc()

    def text(self) -> bytes:
        """Everything, in the text exposition format."""
        return generate_latest(self.registry)

    def _batch_committed(self, events: Sequence[CommittedEvent]) -> None:
        self._batch.observe(len(events))
        for event in events:
            self._events.labels(event.kind).inc()
            if event.kind == f"{CORE}.lease_expired":
                self._expired.labels(str(getattr(event.payload, "lease_type", "unknown"))).inc()

    def _outbox_frames(self) -> int:
        return sum(connection.outbox.frames for connection in self._hub.connections.values())

    def _outbox_bytes(self) -> int:
        return sum(connection.outbox.bytes for connection in self._hub.connections.values())

    def _in_flight(self) -> int:
        return sum(connection.engine.in_flight for connection in self._hub.connections.values())
