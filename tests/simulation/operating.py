"""Who runs the node: archives what has ended, lets its Events go, makes copies, and reads what is left."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mwnode.client import ClientError
from mwnode.client.http import segment
from mwnode.client.restore import check_snapshot, check_state
from mwnode.protocol.commands import EXT
from mwnode.protocol.errors import CursorTooOld, MissionWeaveError
from mwnode.store.carry import backup
from mwnode.store.errors import StoreFull
from mwnode.store.trim import trim_group
from mwnode.trust.registry import Registry
from tests.simulation.loop import Process, wait
from tests.simulation.machines import Chance, Machine
from tests.simulation.network import SimHttp
from tests.simulation.people import TERMINAL

if TYPE_CHECKING:
    from concurrent.futures import Future

ARCHIVE = f"{EXT}.core.group_archive"
LOOK_SECONDS = 3.0
COPIES_MAX = 2


class OperatorMachine(Machine):
    """Acts as the Organization, by HTTP; trims and copies the store as the node's own upkeep does."""

    def __init__(self, *arguments: Any, trims: bool, copies: Path, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.trims = trims
        self.copies = copies
        self.mind = random.Random(f"{self.seed} operator")
        self.archived: set[str] = set()
        self.trimmed: set[str] = set()
        self.copied: dict[Path, dict[str, int]] = {}
        """Each backup, and where every Group ended when it was made."""

    @property
    def done(self) -> bool:
        """Whether every Group is archived, trimmed and read, as far as it is to be."""
        groups = self.checker.groups
        return groups <= self.archived and (not self.trims or groups <= self.trimmed)

    async def program(self, process: Process, http: SimHttp, entropy: Chance) -> None:
        while True:
            for mission in (await self._listed(http)) or []:
                with suppress(ClientError):
                    try:
                        await self._look_after(mission, http)
                    except MissionWeaveError as error:
                        self.trace(self.name, "refused", error.code.value)
            if self.mind.random() < 0.1 and len(self.copied) < COPIES_MAX:
                self._copy()
            await asyncio.sleep(LOOK_SECONDS * self.mind.uniform(0.5, 1.5))

    async def _listed(self, http: SimHttp) -> list[dict[str, Any]] | None:
        try:
            found: list[dict[str, Any]] = (await asyncio.to_thread(http.get, "/v0.1/missions"))["missions"]
        except (ClientError, MissionWeaveError):
            return None
        return found

    async def _look_after(self, mission: dict[str, Any], http: SimHttp) -> None:
        group_id = mission["groupId"]
        if mission["state"] not in TERMINAL:
            return
        if group_id not in self.archived:
            await self._archive(group_id, http)
        elif self.trims and group_id not in self.trimmed:
            await self._trim(group_id)
            await self._read(group_id, http)
            self.trimmed.add(group_id)

    async def _archive(self, group_id: str, http: SimHttp) -> None:
        if self.checker.rules.is_archived(group_id):
            self.archived.add(group_id)  # the answer was lost
            return
        answer = await asyncio.to_thread(http.get, f"/v0.1/groups/{segment(group_id)}/snapshots")
        payload = {"snapshot": answer["snapshots"][-1]}
        await asyncio.to_thread(lambda: http.send(ARCHIVE, payload, group_id=group_id))
        self.trace(self.name, "archived", group_id)
        self.network.injected["Groups archived"] += 1
        self.archived.add(group_id)

    async def _trim(self, group_id: str) -> None:
        node = self.network.node
        if not node.up:
            raise ClientError("the node is down")

        def write(change: Callable[[Any], Any]) -> Any:
            future: Future[Any] = node.node.call(change)
            if not future.done():
                wait(lambda go_on: future.add_done_callback(lambda _: go_on()))
            return future.result()

        try:
            # It runs in the node's process: a node that dies takes it along.
            done = await asyncio.wait_for(asyncio.to_thread(lambda: trim_group(write, group_id)), 20.0)
        except TimeoutError:
            raise ClientError("the node went down") from None
        except StoreFull as error:
            raise ClientError("no room to trim in; again later") from error
        self.trace(self.name, "trimmed", group_id, done.through_sequence)
        self.network.injected["Groups trimmed"] += 1

    async def _read(self, group_id: str, http: SimHttp) -> None:
        """Read the Group from its beginning: told of the snapshot, which names every Event that there was."""
        try:
            await asyncio.to_thread(http.events, group_id)
        except CursorTooOld as error:
            named = str((error.rejection.details or {})["snapshotArtifactHash"])
        else:
            self.checker.fail(f"{group_id} was trimmed, and is read from its beginning")
            return
        raw = await asyncio.to_thread(lambda: b"".join(http.artifact_chunks(named)))
        registry = Registry.from_evidence(await asyncio.to_thread(http.get, "/v0.1/registry"))
        snapshot = check_snapshot(raw, group_id, named, registry)
        check_state(await asyncio.to_thread(lambda: b"".join(http.artifact_chunks(snapshot.state_hash))), snapshot)
        rest = await asyncio.to_thread(http.events, group_id, snapshot.through_sequence)
        named_ids = [*snapshot.event_ids, *(event["eventId"] for event in rest["events"])]
        self.checker.whole(group_id, named_ids)
        self.network.injected["Groups read from their snapshot"] += 1

    def _copy(self) -> None:
        node = self.network.node
        if not node.up:
            return
        self.copies.mkdir(exist_ok=True)
        target = self.copies / f"copy-{len(self.copied)}.mdb"
        backup(node.node.store, target, compact=self.mind.random() < 0.5)
        self.copied[target] = dict(self.checker.heads)
        self.network.injected["live backups"] += 1
        self.trace(self.name, "copied", len(self.copied))


__all__ = ["OperatorMachine"]
