"""Work while the node cannot be reached: signed, buffered, reconciled before anything else. Part of the engine.

Only Messages and checkpoints are buffered, only for work that was running when the link went, and only while the lease
of then holds (R-11.5-05 to R-11.5-22). On reconnection the binding stays as it was, and the Command around it is signed
anew under the session of now.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Struct

from mwnode.client.commands import signed_command
from mwnode.client.fold import WorkView
from mwnode.protocol.commands import MessagePost, Payload, Usage, WorkCheckpoint
from mwnode.protocol.documents import Command, DataBlock, Progress, TextBlock
from mwnode.protocol.errors import ErrorCode, MissionWeaveError
from mwnode.protocol.identifiers import OFFLINE_EXTENSION
from mwnode.protocol.instants import Instant, parse
from mwnode.worker.effects import Buffer, Send, Unbuffer
from mwnode.worker.jobs import Job
from mwnode.worker.whole import Whole

VERSION = "0.1.0"
PROGRESS_SCHEMA = "urn:mwnode:schema:progress"
BUFFER_MAX = 1000
"""Commands buffered at most; further progress is left out."""


class Entry(Struct):
    """One buffered Command. ``binding`` never changes (R-11.5-21)."""

    number: int
    action_id: str
    kind: str
    payload: Payload
    group_id: str
    work_item_id: str
    epoch: int
    binding: dict[str, Any]
    raw: bytes
    usage: Usage
    in_flight: bool = False
    not_before: float = 0.0


class Offline:
    """The buffer of one Worker, over all its Groups, in the order in which things happened."""

    def __init__(self, engine: Whole) -> None:
        self.engine = engine
        self.entries: list[Entry] = []
        self.disconnected_at: Instant | None = None
        self._number = 0

    def disconnected(self) -> None:
        """The link went just now."""
        self.disconnected_at = self.engine.clock.now()

    # --- buffering ----------------------------------------------------------------------------------------------------

    def progress(self, job: Job, progress: Progress) -> bool:
        """Buffer a progress report as a Message in the WorkItem's Conversation; whether that was possible."""
        view = self.engine.view(job)
        payload = MessagePost(
            message_id=self.engine.papers.new_id(),
            conversation_id=view.item.conversation_id,
            content=(
                TextBlock(text=f"{progress.current_phase} (while disconnected)"),
                DataBlock(schema=PROGRESS_SCHEMA, data=msgspec.to_builtins(progress)),
            ),
        )
        return self._buffer(job, view, "message.post", payload)

    def checkpoint(self, job: Job, payload: WorkCheckpoint) -> bool:
        """Buffer the checkpoint at which a run stopped; whether that was possible."""
        return self._buffer(job, self.engine.view(job), "work.checkpoint", payload)

    def _buffer(self, job: Job, view: WorkView, kind: str, payload: Payload) -> bool:
        lease = view.execution_lease
        group = self.engine.groups[job.group_id]
        if lease is None or self.disconnected_at is None or len(self.entries) >= BUFFER_MAX:
            return False
        now = self.engine.clock.now()
        expiry = parse(lease.expires_at)
        deadline = min(self.disconnected_at.plus(int(self.engine.settings.offline_grace_seconds)), expiry)
        if lease.state != "active" or not parse(lease.starts_at) <= self.disconnected_at <= now < deadline:
            return False
        usage = job.meter.unrecorded(final=False)
        nothing = Usage(
            financial_microunits=0,
            model_tokens=0,
            tool_calls=0,
            compute_seconds=0,
            wall_clock_seconds=0,
            external_actions=0,
        )
        if usage is None or usage.external_actions:
            # External actions are never charged from offline; they are recorded under the next lease.
            usage = nothing
        binding = {
            "agentId": self.engine.agent_id,
            "groupId": job.group_id,
            "workItemId": job.work_item_id,
            "sessionEpoch": lease.session_epoch,
            "ownershipEpoch": job.epoch,
            "executionLeaseId": lease.lease_id,
            "disconnectedAt": self.disconnected_at.text(),
            "bufferedAt": now.text(),
            "graceDeadline": deadline.text(),
            "executionLeaseExpiresAt": lease.expires_at,
            "resourceUsageDelta": msgspec.to_builtins(usage),
        }
        action_id = self.engine.papers.new_id()
        raw = signed_command(
            self.engine.papers.key,
            kind,
            payload,
            action_id=action_id,
            issued_at=now.text(),
            group_id=job.group_id,
            session_epoch=lease.session_epoch,
            membership_epoch=group.membership_epoch,
            work_item_id=job.work_item_id,
            extensions=extension(binding),
        )
        self._number += 1
        entry = Entry(
            self._number, action_id, kind, payload, job.group_id, job.work_item_id, job.epoch, binding, raw, usage
        )
        self.entries.append(entry)
        job.meter.record(usage)
        self.engine.emit(Buffer(entry.number, job.work_item_id, raw))
        return True

    def restore(self, stored: list[tuple[int, bytes]]) -> None:
        """Take up what an earlier run of this Worker had buffered."""
        for number, raw in stored:
            command = msgspec.json.decode(raw, type=Command)
            binding = command.extensions[OFFLINE_EXTENSION].data if command.extensions is not UNSET else {}
            kinds: dict[str, type[Payload]] = {"message.post": MessagePost, "work.checkpoint": WorkCheckpoint}
            self._number = max(self._number, number)
            self.entries.append(
                Entry(
                    number,
                    command.action_id,
                    command.kind,
                    msgspec.convert(command.payload, kinds[command.kind]),
                    binding["groupId"],
                    binding["workItemId"],
                    binding["ownershipEpoch"],
                    binding,
                    raw,
                    msgspec.convert(binding["resourceUsageDelta"], Usage),
                )
            )

    # --- reconciling --------------------------------------------------------------------------------------------------

    def waits(self, job: Job, kind: str | None = None) -> bool:
        """Whether something of this job still has to be reconciled."""
        return any(
            entry.work_item_id == job.work_item_id and (kind is None or entry.kind == kind) for entry in self.entries
        )

    def tick(self, now: float) -> None:
        """Reconcile the next entry of every WorkItem, in buffer order, each answered before the next."""
        seen: set[str] = set()
        for entry in list(self.entries):
            if entry.work_item_id in seen or entry.in_flight or now < entry.not_before:
                seen.add(entry.work_item_id)
                continue
            seen.add(entry.work_item_id)
            group = self.engine.groups.get(entry.group_id)
            if group is None or not group.live:
                continue
            view = group.views.get(entry.work_item_id)
            job = self.engine.jobs.get(entry.work_item_id)
            if view is None or job is None or job.epoch != entry.epoch:
                # Somebody else owns it, or it is over: the authority would refuse it for just that (R-11.5-25).
                self._give_up(entry, "the WorkItem is not ours any more")
            elif entry.kind == "message.post":
                self._send(entry, entry.payload)
            elif view.state == "active" and job.hold is not None and job.in_flight is None:
                assert isinstance(entry.payload, WorkCheckpoint), "the other kind is a checkpoint"
                self._send(entry, msgspec.structs.replace(entry.payload, execution_lease_id=job.hold.lease_id))

    def _send(self, entry: Entry, payload: Payload) -> None:
        entry.in_flight = True
        ticket = self.engine.ticket(entry.work_item_id, f"reconcile {entry.number}")
        self.engine.emit(
            Send(
                ticket,
                entry.kind,
                payload,
                entry.group_id,
                entry.work_item_id,
                action_id=entry.action_id,
                correlation_id=f"{entry.action_id}:reconciliation",
                extensions=extension(entry.binding),
            )
        )

    def _entry(self, step: str) -> Entry | None:
        number = int(step.partition(" ")[2])
        return next((entry for entry in self.entries if entry.number == number), None)

    def answered(self, step: str) -> None:
        """An entry was taken."""
        entry = self._entry(step)
        if entry is None:
            return
        self.entries.remove(entry)
        self.engine.emit(Unbuffer(entry.number, entry.raw))
        job = self.engine.jobs.get(entry.work_item_id)
        if job is not None and entry.kind == "work.checkpoint":
            self.engine.finish(job, "checkpoint")

    def refused(self, step: str, error: MissionWeaveError, passing: frozenset[ErrorCode]) -> None:
        """An entry was not taken: again later for a passing reason, else it is kept aside (R-11.5-25)."""
        entry = self._entry(step)
        if entry is None:
            return
        entry.in_flight = False
        if error.code in passing:
            entry.not_before = self.engine.clock.monotonic() + self.engine.settings.retry_seconds
        else:
            self._give_up(entry, f"{error.code.value}: {error.message}")

    def _give_up(self, entry: Entry, why: str) -> None:
        self.entries.remove(entry)
        job = self.engine.jobs.get(entry.work_item_id)
        if job is not None and job.epoch == entry.epoch:
            job.meter.unrecord(entry.usage)
        self.engine.emit(Unbuffer(entry.number, entry.raw, why))
        self.engine.note("buffered_refused", workItemId=entry.work_item_id, kind=entry.kind, because=why)


def extension(binding: dict[str, Any]) -> dict[str, Any]:
    """The critical extension that carries a binding (R-11.5-09)."""
    return {OFFLINE_EXTENSION: {"version": VERSION, "critical": True, "data": binding}}
