"""Shell: what a Worker does with its hands: slots, executors, uploads and fetches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mwnode.client import Client, ClientError
from mwnode.client.errors import passes
from mwnode.client.http import segment
from mwnode.protocol.errors import MissionWeaveError
from mwnode.protocol.identifiers import ANY_SCHEMA
from mwnode.worker.effects import Exit, Launch, Output
from mwnode.worker.engine import WorkerEngine
from mwnode.worker.executor import Executor, ExecutorLimits, Stop
from mwnode.worker.slots import Slot, SlotError

FETCH_TRIES = 3
DIE_SECONDS = 0.2
"""How long an executor that was killed is given before its directory goes."""

Log = Callable[[str, Mapping[str, Any]], None]
Answer = TypeVar("Answer")


class Hands:
    """Carries out the effects that are about runs, and tells the engine what came of them."""

    def __init__(
        self,
        client: Client,
        engine: WorkerEngine,
        executor: Executor,
        root: Path,
        log: Log,
        wake: Callable[[], None],
    ) -> None:
        self.client = client
        self.engine = engine
        self.executor = executor
        self.slots = root / "slots"
        self.stale = root / "stale"
        self._limits = getattr(executor, "limits", ExecutorLimits())
        self._log = log
        self._wake = wake
        self._runs: dict[str, tuple[Slot, Stop]] = {}

    def ask(self, run_id: str, grace_seconds: float) -> None:
        """Ask a run for a checkpoint and an end."""
        if run_id in self._runs:
            self._runs[run_id][1].ask(grace_seconds)

    def kill(self, run_id: str, reason: str) -> None:
        """End a run now."""
        if run_id in self._runs:
            self._log("killed", {"runId": run_id, "because": reason})
            self._runs[run_id][1].kill()

    def kill_all(self) -> None:
        """End every run now."""
        for _, stop in self._runs.values():
            stop.kill()

    def drop(self, run_id: str) -> Slot | None:
        """The run is no business of ours any more; its slot, which is still to be cleared."""
        kept = self._runs.pop(run_id, None)
        if kept is None:
            return None
        kept[1].kill()
        return kept[0]

    async def launch(self, effect: Launch) -> None:
        """Prepare the slot and run the executor to its end."""
        assignment = effect.assignment
        kept = self._runs.get(assignment.run_id)
        slot, stop = (kept[0] if kept is not None else Slot(self.slots, assignment)), Stop()
        slot.assignment = assignment
        self._runs[assignment.run_id] = (slot, stop)
        self._log("launch", {"workItemId": assignment.work_item_id, "attempt": assignment.attempt})
        try:
            slot.revoke()
            await slot.prepare(self._fetch, await self._context_package(assignment.context_package_id))
            if effect.token is not None:
                await self.fetch_token(assignment.run_id, effect.token)
        except (SlotError, ClientError, MissionWeaveError, OSError) as error:
            ended = Exit(-1, 0.0, 0.0, f"the slot cannot be prepared: {error}")
        else:
            ended = await self.executor.run(
                slot,
                stop,
                lambda line: self._reported(assignment.run_id, line),
                lambda seconds: self.engine.runs.sampled(assignment.run_id, seconds),
            )
        self._revoke(slot)
        self.engine.runs.exited(assignment.run_id, ended)
        self._wake()

    def _reported(self, run_id: str, line: Mapping[str, Any]) -> None:
        self.engine.runs.reported(run_id, line)
        self._wake()

    async def _fetch(self, content_hash: str, path: Path) -> object:
        """Fetch an Artifact; a node that is away for a moment is waited for."""
        for attempt in range(1, FETCH_TRIES + 1):
            try:
                return await self.client.get_artifact(content_hash, path)
            except (ClientError, MissionWeaveError) as error:
                if attempt == FETCH_TRIES or not passes(error):
                    raise
                await self.client.until_connected()
                await asyncio.sleep(attempt)
        raise AssertionError("the loop returns or raises")

    async def fetch_token(self, run_id: str, request: Mapping[str, Any]) -> None:
        """Fetch a Capability Token into a slot. It goes nowhere else, and into no log."""
        kept = self._runs.get(run_id)
        http = self.client.http
        if kept is None or http is None:
            return
        asked_at = self.engine.clock.monotonic()
        try:
            answer = await asyncio.to_thread(http.post, "/v0.1/tokens/capability", request)
        except MissionWeaveError as error:
            self.engine.capability.refused(run_id, error.code, f"{error.code.value}: {error.message}")
            return
        except ClientError as error:
            self.engine.capability.refused(run_id, None, str(error))
            return
        claims = answer["claims"]
        if not self.engine.capability.granted(run_id, str(request["executionLeaseId"]), claims, asked_at):
            return
        held = {
            "token": answer["token"],
            "operations": claims["allowedOperations"],
            "resources": claims["allowedResources"],
            "expiresAt": claims["expiresAt"],
        }
        now = self._runs.get(run_id)
        if now is None or now[0] is not kept[0]:
            return  # the run was given up meanwhile: a token has no place any more
        try:
            kept[0].hold_token(msgspec.json.encode(held))
        except OSError as error:
            self.engine.capability.refused(run_id, None, f"it cannot be kept: {error.strerror}")

    def revoke(self, run_id: str) -> None:
        """A run's Capability Token is over."""
        if run_id in self._runs:
            self._revoke(self._runs[run_id][0])

    def _revoke(self, slot: Slot) -> None:
        try:
            slot.revoke()
        except OSError as error:
            # The token ends by itself, soon; the Worker must not end for what an executor left behind.
            self._log("not_revoked", {"file": str(slot.capability_file), "because": str(error)})

    async def _context_package(self, context_package_id: str | None) -> dict[str, Any] | None:
        if context_package_id is None:
            return None
        try:
            return await self.client.get(f"/v0.1/context-packages/{segment(context_package_id)}")
        except (ClientError, MissionWeaveError) as error:
            # The contract is what binds; a summary that cannot be read is no reason not to work.
            self._log("no_context_package", {"contextPackageId": context_package_id, "because": str(error)})
            return None

    async def collect(self, run_id: str, made: tuple[tuple[str, bytes], ...] = ()) -> None:
        """Upload the deliverables of a run that ended well, with what the Worker itself ``made`` for it."""
        kept = self._runs.get(run_id)
        if kept is None:
            return  # given up before it could begin
        slot = kept[0]
        outputs: list[Output] = []
        try:
            for name, content in made:
                slot.add_output(name, content)
            for deliverable, path in slot.deliverables(self._limits.output_bytes):
                stored = await self._put(path)
                outputs.append(
                    Output(
                        deliverable.deliverable_id,
                        path.relative_to(slot.outputs).as_posix(),
                        stored["contentHash"],
                        stored["sizeBytes"],
                        stored["uri"],
                        deliverable.media_type,
                        deliverable.schema,
                    )
                )
        except (SlotError, OSError) as error:
            # The directory may also be gone because the run was given up meanwhile: then nobody asks any more.
            self.engine.runs.collected(run_id, (), str(error))
        else:
            self.engine.runs.collected(run_id, tuple(outputs))
        self._wake()

    async def _put(self, path: Path) -> dict[str, Any]:
        """Upload a file, over as many connections as it takes: a put is idempotent."""
        pause = 0.2
        while True:
            try:
                return await self.client.put_artifact(path)
            except MissionWeaveError as error:
                if not passes(error):
                    raise SlotError(f"the node refused {path.name}: {error.code.value}: {error.message}") from error
                waits: Exception = error
            except ClientError as error:
                waits = error
            self._log("upload_waits", {"because": str(waits)})
            await asyncio.sleep(pause)
            pause = min(2 * pause, 10.0)
            await self.client.until_connected()

    async def save_state(self, run_id: str, path: str) -> None:
        """Upload the state file of a checkpoint."""
        kept = self._runs.get(run_id)
        if kept is None:
            return
        slot = kept[0]
        try:
            file = slot.inside(slot.path / path)
            stored = await self._put(file)
        except (SlotError, ValueError, OSError) as error:
            self._log("state_not_saved", {"runId": run_id, "because": str(error)})
            return
        output = Output(
            "state",
            path,
            stored["contentHash"],
            stored["sizeBytes"],
            stored["uri"],
            "application/octet-stream",
            ANY_SCHEMA,
        )
        self.engine.runs.saved(run_id, output)
        self._wake()

    async def clear(self, slot: Slot, keep: bool) -> None:
        """Remove a slot, or keep it aside for audit."""
        # The executor may take a moment to die; a directory in use is not removed under it.
        try:
            await asyncio.sleep(DIE_SECONDS)
        finally:
            # Also when the Worker ends meanwhile: no slot outlives it.
            await self._remove(slot, keep)

    async def _remove(self, slot: Slot, keep: bool) -> None:
        if not keep:
            await _to_the_end(slot.discard)
            return
        try:
            where = await _to_the_end(slot.set_aside, self.stale)
        except OSError as error:
            self._log("not_kept_aside", {"directory": str(slot.path), "because": str(error)})
        else:
            self._log("kept_aside", {"directory": str(where)})


async def _to_the_end(work: Callable[..., Answer], *arguments: Any) -> Answer:
    """Run this in a thread; whoever cancels it waits until the thread is done, for nothing can stop it half-way."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        raise
