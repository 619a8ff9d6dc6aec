"""What a Worker says of itself while it is connected: slots and capabilities, nothing of any Group (R-6.2-05)."""

from __future__ import annotations

from mwnode.protocol.documents import CapabilityAvailability, Capacity, PresenceRecord
from mwnode.worker.engine import WorkerEngine

LIFE_SECONDS = 60


def presence(engine: WorkerEngine, session_epoch: int) -> PresenceRecord:
    """The Presence of this moment; good for ``LIFE_SECONDS``. Renews no lease and starts nothing."""
    slots, running = engine.settings.scheduling.slots, engine.scheduler.running
    now = engine.clock.now()
    return PresenceRecord(
        agent_id=engine.agent_id,
        session_epoch=session_epoch,
        status="draining" if engine.draining else "busy" if running >= slots else "online",
        capacity=Capacity(
            max_slots=slots,
            active_slots=running,
            available_slots=max(0, slots - running),
            queued_items=engine.scheduler.queued,
        ),
        capability_availability=tuple(
            CapabilityAvailability(capability=one, status="available") for one in engine.capabilities
        ),
        last_heartbeat=now.text(),
        expires_at=now.plus(LIFE_SECONDS).text(),
    )
