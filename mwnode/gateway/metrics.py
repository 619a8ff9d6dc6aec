"""Figures about the node in Prometheus' format, and health."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from mwnode.gateway.hub import Hub
from mwnode.protocol.commands import CORE, PAYLOADS
from mwnode.store.batch import CommittedEvent

_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SECONDS_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)
_NO_KIND = "unknown"


class _Kind(msgspec.Struct):
    kind: str = _NO_KIND


_KIND = msgspec.json.Decoder(_Kind)


def kind_of(raw: bytes) -> str:
    """The kind of a Command, where it is one of those there are: what anybody may send makes no figure of its own."""
    try:
        kind = _KIND.decode(raw).kind
    except (msgspec.DecodeError, RecursionError):
        return _NO_KIND
    return kind if kind in PAYLOADS else _NO_KIND


class Metrics:
    """Counts what passes through the gateway. One for a server, in a registry of its own."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.registry = CollectorRegistry()
        self._commands = Counter(
            "mwnode_commands",
            "Commands by transport, kind and outcome.",
            ["transport", "kind", "outcome"],
            registry=self.registry,
        )
        self._events = Counter("mwnode_events", "Events committed, by kind.", ["kind"], registry=self.registry)
        self._expired = Counter(
            "mwnode_leases_expired", "Leases that ran out, by type.", ["type"], registry=self.registry
        )
        self._batch = Histogram(
            "mwnode_commit_events", "Events in one durable batch.", buckets=_BATCH_BUCKETS, registry=self.registry
        )
        self._commands_in_batch = Histogram(
            "mwnode_commit_commands", "Commands in one durable batch.", buckets=_BATCH_BUCKETS, registry=self.registry
        )
        self._seconds = Histogram(
            "mwnode_commit_seconds",
            "Seconds from the beginning of a batch until it was durable.",
            buckets=_SECONDS_BUCKETS,
            registry=self.registry,
        )
        self._bytes = Gauge(
            "mwnode_file_bytes",
            "Bytes that hold data, are free for later writes, of the whole file, of its map, and free on its disk.",
            ["part"],
            registry=self.registry,
        )
        self._lag = Gauge(
            "mwnode_file_reader_lag_commits",
            "How many commits old the oldest state is that somebody still reads: what was freed since cannot be used.",
            registry=self.registry,
        )
        self._dead = Gauge(
            "mwnode_file_dead_readers",
            "Readers whose process is gone: until they are cleared, freed pages wait for them.",
            registry=self.registry,
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
        # A labelled counter is looked up under a lock: what comes thousands of times a second is tallied beside it.
        self._commands_new: Tally[tuple[str, str, str]] = Tally()
        self._events_new: Tally[str] = Tally()
        hub.on_batch.append(self._batch_committed)
        hub.on_command = self.command
        hub.authority.meter(self._durable)

    def command(self, transport: str, raw: bytes, outcome: str) -> None:
        """A Command was answered."""
        self._commands_new[transport, kind_of(raw), outcome] += 1

    def look_at_file(self) -> None:
        """Where the bytes of the file are, and why free ones are not used again. Not for the event loop."""
        space, readers = self._hub.authority.file()
        for part, size in (
            ("data", space.data),
            ("free", space.free),
            ("file", space.file),
            ("map", space.map),
            ("disk_free", space.disk_free),
        ):
            self._bytes.labels(part).set(size)
        self._lag.set(max((reader.behind or 0 for reader in readers if reader.alive), default=0))
        self._dead.set(sum(not reader.alive for reader in readers))

    def text(self) -> bytes:
        """Everything, in the text exposition format. Call it where Commands and batches are told of: on the loop."""
        for labels, count in self._commands_new.items():
            self._commands.labels(*labels).inc(count)
        for kind, count in self._events_new.items():
            self._events.labels(kind).inc(count)
        self._commands_new.clear()
        self._events_new.clear()
        return generate_latest(self.registry)

    def _durable(self, seconds: float, commands: int) -> None:
        self._seconds.observe(seconds)
        self._commands_in_batch.observe(commands)

    def _batch_committed(self, events: Sequence[CommittedEvent]) -> None:
        self._batch.observe(len(events))
        for event in events:
            self._events_new[event.kind] += 1
            if event.kind == f"{CORE}.lease_expired":
                self._expired.labels(str(getattr(event.payload, "lease_type", "unknown"))).inc()

    def _outbox_frames(self) -> int:
        return sum(connection.outbox.frames for connection in self._hub.connections.values())

    def _outbox_bytes(self) -> int:
        return sum(connection.outbox.bytes for connection in self._hub.connections.values())

    def _in_flight(self) -> int:
        return sum(connection.engine.in_flight for connection in self._hub.connections.values())
