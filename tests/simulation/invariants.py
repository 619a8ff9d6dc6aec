"""What must hold after every commit, and at the end of all."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from mwnode.authority import tokens
from mwnode.authority.access import Sight, sees, sight_of
from mwnode.authority.state import ACCOUNTS, LEASES, MEMBERSHIPS, MISSIONS, WORK_ITEMS
from mwnode.client.fold import decode_payload
from mwnode.node import Node
from mwnode.protocol.documents import Actor, Event, Lease
from mwnode.protocol.events import CoordinatorAssigned, MissionCreated
from mwnode.protocol.instants import parse
from mwnode.store.environment import LmdbStore
from mwnode.store.outcome import Accepted, CommittedEvent
from mwnode.store.verify import verify
from tests.simulation.rules import Rules

MESSAGE_KINDS = frozenset(
    {
        "message.posted",
        "message.corrected",
        "message.retracted",
        "message.redacted",
        "ext.missionweaveprotocol.core.resource_usage_recorded",
    }
)
"""The only Events that a Message may lead to: what was used while offline is charged with the Message that tells it."""
UNTOUCHED_BY_MESSAGES = ("message.post", "message.correct", "message.retract", "message.redact")


class Violation(Exception):
    """Something that must never be."""


class Checker:
    """Looks on. ``violation`` is the first thing that was wrong."""

    def __init__(self, *, rooted: bool = False) -> None:
        self.rules = Rules(self.fail, rooted=rooted)
        self.groups: set[str] = set()
        """Every Group of a Mission that was accepted."""
        self.violation: str | None = None
        self.cause: BaseException | None = None
        self.node: Node | None = None
        self.heads: dict[str, int] = {}
        self.bytes: dict[tuple[str, int], bytes] = {}
        self.acknowledged: dict[tuple[str, str], tuple[bytes, ...]] = {}
        self.commands: dict[bytes, tuple[str, str, str]] = {}
        self.seen: dict[tuple[str, str], set[int]] = {}
        self.highest: dict[tuple[str, ...], int] = {}
        self.leases: dict[str, dict[str, Lease]] = {}
        self.keys: dict[tuple[str, int], str] = {}
        self.created: set[str] = set()
        self.secrets: set[bytes] = set()
        self.commits = 0
        self.over = False
        """Set when the run has ended: what is cleared away then says nothing."""

    def fail(self, text: str, cause: BaseException | None = None) -> None:
        """Remember the first violation; the run ends at the next look."""
        if self.violation is None and not self.over:
            self.violation, self.cause = text, cause

    # --- the node ---

    def opened(self, node: Node) -> None:
        """The node is up, for the first time or again: what was committed is there."""
        self.node = node
        with node.read() as view:
            for group_id in self._children_first(view):
                self._known(view, group_id)
            for group_id, head in self.heads.items():
                if view.head(group_id) != head:
                    self.fail(f"{group_id} ends at {view.head(group_id)}, and {head} was committed")

    def _children_first(self, view: Any) -> list[str]:
        """Every Group, a child Mission's before its parent's: what a batch says of both is said in this order."""
        missions = {row.mission.mission_id: row.mission for row in view.all(MISSIONS)}

        def depth(mission: Any) -> int:
            return 0 if mission.parent is UNSET else 1 + depth(missions[mission.parent.mission_id])

        depths = {mission.group_id: depth(mission) for mission in missions.values()}
        return sorted(view.groups(), key=lambda group_id: -depths.get(group_id, 0))

    def _known(self, view: Any, group_id: str) -> None:
        """A crash between commit and listeners hides a batch from us; it is read now."""
        for stored in view.events(group_id, self.heads.get(group_id, 0), 1_000_000):
            self._event(group_id, stored.sequence, stored.event)

    def closed(self) -> None:
        """The node is down."""
        self.node = None

    def committed(self, events: Sequence[CommittedEvent]) -> None:
        """A batch is durable."""
        assert self.node is not None
        self.commits += 1
        touched: set[str] = set()
        for event in events:
            if event.group_id is not None and event.sequence is not None:
                self._event(event.group_id, event.sequence, event.event)
            self._epochs(event)
            if event.work_item_id is not None:
                touched.add(event.work_item_id)
        with self.node.read() as view:
            for work_item_id in sorted(touched):
                self._work_item(view, work_item_id)
            self._accounts(view, touched)

    def _event(self, group_id: str, sequence: int, raw: bytes) -> None:
        head = self.heads.get(group_id, 0)
        if sequence != head + 1:
            self.fail(f"{group_id} went from {head} to {sequence}")
        self.heads[group_id] = sequence
        self.bytes[(group_id, sequence)] = raw
        event = msgspec.json.decode(raw, type=Event)
        payload = decode_payload(event)
        self.rules.event(group_id, event, payload)
        if payload is None:
            self.fail(f"{event.kind} at {group_id} {sequence} has no payload of its kind")
        if isinstance(payload, MissionCreated):
            self.created.add(payload.mission.mission_id)
            self.groups.add(group_id)
        elif isinstance(payload, CoordinatorAssigned):
            self._rise(("coordinator epoch", group_id), payload.coordinator_epoch, strictly=True)
        if event.work_item_id is not UNSET:
            self._leases(event.work_item_id, payload)

    def _rise(self, name: tuple[str, ...], value: int, *, strictly: bool = False) -> None:
        known = self.highest.get(name, 0)
        if value < known or (strictly and value == known):
            self.fail(f"the {' '.join(name)} went from {known} to {value}")
        self.highest[name] = max(value, known)

    def _epochs(self, event: CommittedEvent) -> None:
        payload = event.payload
        if event.kind.endswith("identity.session_opened"):
            self._rise(("session epoch", payload.agent_id), payload.session_epoch, strictly=True)

    def _leases(self, work_item_id: str, payload: Any) -> None:
        """Fold what Events say of leases: one active of each kind, whatever the rows say."""
        stated = self.leases.setdefault(work_item_id, {})
        for name in ("ownership_lease", "execution_lease", "blocked_lease"):
            lease = getattr(payload, name, UNSET)
            if isinstance(lease, Lease):
                stated[lease.lease_id] = lease
        for kind in ("ownership", "execution", "blocked"):
            active = [one for one in stated.values() if one.lease_type == kind and one.state == "active"]
            if len(active) > 1:
                self.fail(f"{work_item_id} has {len(active)} active {kind} leases by its Events")

    def _work_item(self, view: Any, work_item_id: str) -> None:
        row = view.get(WORK_ITEMS, work_item_id)
        if row is None:
            self.fail(f"{work_item_id} has Events and no row")
            return
        self._rise(("ownership epoch", work_item_id), row.ownership_epoch)
        mission = view.get(MISSIONS, row.item.mission_id)
        self._rise(("coordinator epoch", row.item.group_id), mission.mission.coordinator.coordinator_epoch)
        if row.item.state == "active" and (row.item.owner is UNSET or row.execution_lease is None):
            self.fail(f"{work_item_id} is active without owner and lease")
        if row.item.owner is not UNSET and row.item.owner.ownership_epoch > row.ownership_epoch:
            self.fail(f"{work_item_id} has an owner of epoch {row.item.owner.ownership_epoch} > {row.ownership_epoch}")
        held = [view.get(LEASES, lease_id) for lease_id in self.leases.get(work_item_id, ())]
        for kind in ("ownership", "execution"):
            active = [one for one in held if one and one.lease.lease_type == kind and one.lease.state == "active"]
            if len(active) > 1:
                self.fail(f"{work_item_id} has {len(active)} rows of active {kind} leases")

    def _accounts(self, view: Any, work_item_ids: Iterable[str]) -> None:
        """No budget is exceeded and nothing is negative, along the whole ancestry."""
        looked: set[str] = set()
        for work_item_id in sorted(work_item_ids):
            account_id: str | None = work_item_id
            while account_id is not None and account_id not in looked:
                looked.add(account_id)
                account = view.get(ACCOUNTS, account_id)
                if account is None:
                    break
                for limit, reserved, used in zip(account.limits, account.reserved, account.used, strict=True):
                    if reserved < 0 or used < 0 or (limit is not None and used + reserved > limit):
                        self.fail(f"account {account_id}: limit {limit}, reserved {reserved}, used {used}")
                account_id = account.parent_id

    # --- answers ---

    def answered(self, raw: bytes, outcome: Any) -> None:
        """The node answers a Command."""
        if not isinstance(outcome, Accepted):
            return
        command = msgspec.json.decode(raw)
        if not outcome.duplicate:
            self._fenced(command)
        name = (command["actor"]["id"], command["actionId"])
        known = self.acknowledged.setdefault(name, outcome.events)
        if known != outcome.events:
            self.fail(f"{name} was answered twice, and differently")
        if command["kind"] in UNTOUCHED_BY_MESSAGES:
            kinds = {msgspec.json.decode(event)["kind"] for event in outcome.events}
            if not kinds <= MESSAGE_KINDS:
                self.fail(f"a Message led to {sorted(kinds)}")

    def _fenced(self, command: dict[str, Any]) -> None:
        """Nothing is accepted under an epoch that is known to have been replaced."""
        kind, payload = command["kind"], command["payload"]
        if "sessionEpoch" in command:
            self._current(command, ("session epoch", command["actor"]["id"]), command["sessionEpoch"])
        if kind.startswith(("work.", "mission.")) and "coordinatorEpoch" in command:
            self._current(command, ("coordinator epoch", command["groupId"]), command["coordinatorEpoch"])
        if not kind.startswith("message.") and "ownershipEpoch" in payload:
            work_item_id = payload.get("workItemId") or command.get("workItemId")
            if work_item_id is not None:
                self._current(command, ("ownership epoch", work_item_id), payload["ownershipEpoch"])

    def _current(self, command: dict[str, Any], name: tuple[str, ...], cited: int) -> None:
        if cited < self.highest.get(name, 0):
            self.fail(f"{command['kind']} was accepted under {name[0]} {cited}, and there is {self.highest[name]}")

    def delivered(self, agent_id: str, frame: bytes) -> None:
        """An Agent has received a frame."""
        if b'"frameType":"EVENT"' in frame:
            event = msgspec.json.decode(frame)["event"]
            if "sequence" in event:
                self.seen.setdefault((agent_id, event["groupId"]), set()).add(event["sequence"])
        elif b'"sessionToken"' in frame:
            self.secrets.add(msgspec.json.decode(frame)["sessionToken"].encode())

    def shown(self, agent_id: str, token: str, meant: tuple[str, int]) -> bool:
        """An executor shows its Capability Token to an outside tool, which asks the node whether it still stands."""
        self.secrets.add(token.encode())
        if self.node is None:
            return False
        stated = self.node.tokens.claims(token)
        claims = None if stated is None else tokens.read(stated)
        now = self.node.clock.now()
        with self.node.read() as view:
            stands = claims is not None and tokens.stands(view, now, claims)
        if stands:
            self.current(agent_id, meant)
        return stands

    def current(self, agent_id: str, meant: tuple[str, int]) -> None:
        """An effect is accepted: its work is that Agent's now, under that epoch and a live lease (R-22-05)."""
        assert self.node is not None, "nothing is accepted while the node cannot be asked"
        now = self.node.clock.now()
        with self.node.read() as view:
            row = view.get(WORK_ITEMS, meant[0])
        item, lease = row.item, row.execution_lease
        holds = item.state == "active" and item.owner is not UNSET and item.owner.agent_id == agent_id
        if not holds or row.ownership_epoch != meant[1] or lease is None or parse(lease.expires_at) <= now:
            self.fail(f"a Capability Token of {agent_id} stands for {meant}, which is not its own any more")

    def effect(self, agent_id: str, key: str, meant: tuple[str, int]) -> None:
        """An executor acts outside."""
        known = self.keys.setdefault(meant, key)
        if known != key:
            self.fail(f"{meant} acts under two idempotency keys")

    # --- the end ---

    def finish(self, node: Node, seeds: Iterable[bytes], files: Iterable[Path], agents: Iterable[str]) -> None:
        """Everything that can only be told at the end; the node is up and nothing moves."""
        with node.read() as view:
            gone = self._trimmed(view)
            for name, events in self.acknowledged.items():
                for raw in events:
                    if raw not in gone:
                        self._still_there(view, name, raw)
            for (group_id, sequence), raw in self.bytes.items():
                stored = view.event(group_id, sequence)
                if raw not in gone and (stored is None or stored.event != raw):
                    self.fail(f"{group_id} {sequence} is not what was committed")
            for agent_id in agents:
                self._cursors(node, view, agent_id)
            for mission_id in sorted(self.created):
                row = view.get(MISSIONS, mission_id)
                if row is None or row.mission.state not in ("approved", "cancelled", "failed"):
                    self.fail(f"{mission_id} is {'gone' if row is None else row.mission.state} at the end")
            epochs = [row.membership for row in view.all(MEMBERSHIPS)]
            for membership in epochs:
                self._rise(("membership epoch", membership.group_id, membership.member.id), membership.membership_epoch)
        self._verify(node.store)
        self._secrets(seeds, files)

    def _trimmed(self, view: Any) -> set[bytes]:
        """Events that an archived Group's signed snapshot stands for; of no other Group may anything be gone."""
        gone: set[bytes] = set()
        for group_id in sorted(self.heads):
            trim = view.trimmed(group_id)
            if trim is None:
                continue
            if not self.rules.is_archived(group_id):
                self.fail(f"{group_id} was trimmed and never archived")
            gone |= {self.bytes[(group_id, sequence)] for sequence in range(1, trim.through + 1)}
            self.whole(group_id, view.event_ids(group_id, 0, self.heads[group_id]))
        return gone

    def whole(self, group_id: str, event_ids: Iterable[str]) -> None:
        """Somebody was told which Events a Group has had: all that were committed, in their order."""
        told = list(event_ids)
        known = [self.bytes[(group_id, sequence)] for sequence in range(1, self.heads[group_id] + 1)]
        if told != [msgspec.json.decode(raw)["eventId"] for raw in known]:
            self.fail(f"{group_id} is told of as {len(told)} Events that are not the {len(known)} that were committed")

    def copied(self, file: Path, heads: dict[str, int]) -> None:
        """A copy made while the node was at work is a store of its own: whole as of some moment after that."""
        store = LmdbStore.open(file, read_only=True)
        try:
            with store.read() as view:
                for group_id, head in heads.items():
                    if view.head(group_id) != head:
                        self.fail(f"{group_id} ends at {view.head(group_id)} in {file.name}, and {head} was committed")
            self._verify(store)
        finally:
            store.close()

    def _still_there(self, view: Any, name: tuple[str, str], raw: bytes) -> None:
        event = msgspec.json.decode(raw)
        stored = view.event_by_id(event["eventId"])
        if stored is None or stored.event != raw:
            self.fail(f"{event['kind']} was acknowledged to {name} and is not there")

    def _cursors(self, node: Node, view: Any, agent_id: str) -> None:
        actor, now = Actor(type="agent", id=agent_id), node.clock.now()
        for group_id, cursor in view.cursors(agent_id):
            head = view.head(group_id)
            if cursor > head:
                self.fail(f"the Cursor of {agent_id} in {group_id} is {cursor}, the head {head}")
            sight = sight_of(view, actor, group_id, now)
            if not isinstance(sight, Sight):
                continue
            seen = self.seen.get((agent_id, group_id), set())
            for sequence in range(1, cursor + 1):
                conversation = msgspec.json.decode(self.bytes[(group_id, sequence)]).get("conversationId")
                if sequence not in seen and sees(view, sight, sequence, conversation):
                    self.fail(f"the Cursor of {agent_id} is {cursor}, and {sequence} of {group_id} never reached it")
                    return

    def _verify(self, store: LmdbStore) -> None:
        report = verify(store)
        if not report.ok:
            self.fail(f"verify finds {report.findings[:3]}")

    def _secrets(self, seeds: Iterable[bytes], files: Iterable[Path]) -> None:
        wanted = [*seeds, *self.secrets]
        for file in files:
            content = file.read_bytes()
            for secret in wanted:
                if secret in content:
                    self.fail(f"a secret of {len(secret)} bytes stands in {file.name}")


class Ears(logging.Handler):
    """Hears what the product logs: a traceback is a fault of ours."""

    def __init__(self, checker: Checker) -> None:
        super().__init__(logging.ERROR)
        self._checker = checker

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            self._checker.fail(f"{record.name} logged {record.getMessage()}: {type(error).__name__}: {error}", error)
