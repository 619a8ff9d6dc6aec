"""A world to decide in: a View made of dictionaries, actors with real keys, and a clock that only moves when told.

``World.send`` builds a Command, signs it, verifies it, decides it and folds the outcome. After every step the Events
are encoded, decoded and folded a second time into a shadow that knows nothing else, and both must hold the same rows:
the state is always the fold of the log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from mwnode.authority.case import Context, Services
from mwnode.authority.decide import decide, decide_due
from mwnode.authority.evolve import evolve, fact_of
from mwnode.authority.intake import prepare
from mwnode.authority.policy import Policy
from mwnode.authority.request import Decision, EventFact, PolicyNote
from mwnode.authority.standing import MAY_SEND
from mwnode.authority.state import (
    ACCOUNTS,
    AGENTS,
    ARTIFACTS,
    GROUPS,
    LEASES,
    MEMBERSHIPS,
    MISSIONS,
    PRINCIPALS,
    TABLES,
    WORK_ITEMS,
    AccountRow,
    AgentRow,
    MembershipRow,
    MissionRow,
    PrincipalRow,
    R,
    Row,
    Table,
    WorkItemRow,
    membership_key,
)
from mwnode.authority.view import Overlay
from mwnode.protocol.commands import EXT
from mwnode.protocol.documents import GENESIS_COMMAND_KINDS, Actor, Cause, Command, Event, PolicyLogEntry, Signature
from mwnode.protocol.errors import ErrorCode, Rejection
from mwnode.protocol.identifiers import uuid7_urn
from mwnode.protocol.instants import Instant, parse
from mwnode.protocol.jcs import canonical
from mwnode.trust.keys import SigningKey, generate, sign_mapping
from mwnode.trust.registry import KeyBinding, Registry
from mwnode.trust.verification import Verified, verify
from tests.authority import coverage

ORGANIZATION = "urn:example:organization"
START = "2030-01-01T00:00:00Z"
CAPABILITY = {"id": "example.build", "version": "1.2.0"}
DAY = 86_400


class MemoryView:
    """A ``View`` over plain dictionaries."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Row]] = {table.code: {} for table in TABLES}
        self.log: dict[str, list[str]] = {}
        self.times: dict[str, str] = {}
        self.actions: set[tuple[str, str]] = set()
        self.contents: dict[str, int] = {}
        self.policy: dict[str | None, list[PolicyLogEntry]] = {}

    def get(self, table: Table[R], key: str) -> R | None:
        return self.rows[table.code].get(key)  # type: ignore[return-value]

    def in_group(self, table: Table[R], group_id: str) -> list[R]:
        assert table.group is not None, f"{table} is not listed by Group"
        rows: dict[str, R] = self.rows[table.code]  # type: ignore[assignment]
        return [rows[key] for key in sorted(rows) if table.group(rows[key]) == group_id]

    def all(self, table: Table[R]) -> list[R]:
        rows: dict[str, R] = self.rows[table.code]  # type: ignore[assignment]
        return [rows[key] for key in sorted(rows)]

    def head(self, group_id: str) -> int:
        return len(self.log.get(group_id, ()))

    def last_occurred_at(self, group_id: str) -> str | None:
        return self.times.get(group_id)

    def accepted(self, actor_id: str, action_id: str) -> bool:
        return (actor_id, action_id) in self.actions

    def has_content(self, content_hash: str) -> int | None:
        return self.contents.get(content_hash)

    def event_ids(self, group_id: str, after: int, through: int) -> list[str]:
        return self.log.get(group_id, [])[after:through]

    def policy_log(self, group_id: str | None, after: int = 0, limit: int = 1000) -> list[PolicyLogEntry]:
        return self.policy.get(group_id, [])[after : after + limit]

    def deriving_groups(self, content_hash: str) -> Iterator[str]:
        made = [row.artifact for row in self.all(ARTIFACTS) if content_hash in row.artifact.source_artifact_hashes]
        return iter(sorted({artifact.group_id for artifact in made}))

    def derivations(self, content_hash: str, group_id: str, after: str | None, limit: int) -> list[str]:
        made = [row.artifact for row in self.in_group(ARTIFACTS, group_id)]
        names = [artifact.artifact_id for artifact in made if content_hash in artifact.source_artifact_hashes]
        return [name for name in sorted(names) if after is None or name > after][:limit]

    def put(self, table: Table[Any], row: Row) -> None:
        self.rows[table.code][table.key(row)] = row

    def append(self, fact: EventFact) -> None:
        """Take an Event into its Group's log; sequences are gap-free (R-15.2-02)."""
        if fact.group_id is None:
            return
        log = self.log.setdefault(fact.group_id, [])
        assert fact.sequence == len(log) + 1, "a Group's sequence has no gap"
        log.append(fact.event_id)
        self.times[fact.group_id] = fact.occurred_at


class Refusal(NamedTuple):
    """What a test compares a refusal with."""

    code: ErrorCode
    rule: str
    message: str
    details: dict[str, Any] | None
    expected_revision: int | None = None
    current_revision: int | None = None


class World:
    """One Organization, its actors and its log."""

    def __init__(self, policy: Policy | None = None, *, checked: bool = True) -> None:
        self.policy = policy or Policy()
        self.checked = checked
        self.now: Instant = parse(START)
        self.view = MemoryView()
        self.shadow = MemoryView()
        self.registry = Registry(ORGANIZATION)
        self.keys: dict[str, SigningKey] = {}
        self.facts: list[EventFact] = []
        self.events: list[Event] = []
        self.policy_notes: list[PolicyNote] = []
        self.documents: dict[str, bytes] = {}
        self.receipts: dict[tuple[str, str], tuple[str, Decision]] = {}
        self._ids = 0
        self._actions = 0
        self.organization = self._principal("service", "organization")
        self.authority = self._principal("service", "authority")
        self.services = Services(self.organization, self.authority)

    # --- actors ---

    def _principal(self, kind: str, name: str) -> Actor:
        actor = Actor(type=kind, id=f"urn:example:{kind}:{name}")  # type: ignore[arg-type]
        seed = hashlib.sha256(actor.id.encode()).digest()
        key = generate(f"urn:example:key:{name}", actor, ORGANIZATION, seed)
        self.keys[actor.id] = key
        self.registry = self.registry.bind(
            KeyBinding(
                key_id=key.key_id,
                principal=actor,
                algorithm="Ed25519",
                public_key=key.public_key,
                valid_from="2029-01-01T00:00:00Z",
                validity_history=(),
            )
        )
        return actor

    def human(self, name: str) -> Actor:
        """A registered human with a key."""
        actor = self._principal("human", name)
        for view in (self.view, self.shadow):
            view.put(PRINCIPALS, PrincipalRow(actor, name))
        return actor

    def agent(
        self,
        name: str,
        *,
        capabilities: tuple[dict[str, str], ...] = (CAPABILITY,),
        max_concurrency: int = 4,
        status: str = "active",
        connected: bool = True,
    ) -> Actor:
        """An Agent with a key, a registered Agent Card and a first Session, unless it never connected."""
        actor = self._principal("agent", name)
        self.card(actor, capabilities=capabilities, max_concurrency=max_concurrency, status=status)
        if connected:
            self.session(actor)
        return actor

    def card(
        self,
        actor: Actor,
        *,
        capabilities: tuple[dict[str, str], ...] = (CAPABILITY,),
        max_concurrency: int = 4,
        status: str = "active",
        version: int | None = None,
    ) -> Decision:
        """Register the next Agent Card of an Agent."""
        known = self.view.get(AGENTS, actor.id)
        key = self.keys[actor.id]
        card = {
            "agentId": actor.id,
            "organizationId": ORGANIZATION,
            "cardVersion": version or (known.card.card_version + 1 if known else 1),
            "displayName": actor.id.rsplit(":", 1)[1],
            "owner": {"type": "service", "id": self.organization.id},
            "status": status,
            "protocolVersions": ["0.1"],
            "endpoints": [{"transport": "wss", "uri": "wss://node.example/"}],
            "publicKeys": [
                {
                    "keyId": key.key_id,
                    "algorithm": "Ed25519",
                    "publicKey": key.public_key,
                    "validFrom": "2029-01-01T00:00:00Z",
                }
            ],
            "capabilities": [
                {
                    **capability,
                    "inputSchema": "urn:mwnode:schema:any",
                    "inputSchemaHash": content_hash(b"{}"),
                    "outputSchema": "urn:mwnode:schema:any",
                    "outputSchemaHash": content_hash(b"{}"),
                    "constraints": {},
                    "verifiedEvidence": ["urn:example:evidence:card"],
                }
                for capability in capabilities
            ],
            "maxConcurrency": max_concurrency,
            "issuedAt": self.now.text(),
        }
        signed = self.sign(self.organization, card)
        return self.ok(self.organization, f"{EXT}.registry.agent_card_register", {"card": signed})

    def session(self, actor: Actor) -> Decision:
        """Open the Agent's next Session."""
        return self.ok(self.authority, f"{EXT}.identity.session_open", {"agentId": actor.id})

    # --- time ---

    def advance(self, seconds: int, *, timers: bool = True) -> None:
        """Move the clock; the authority's timer looks at what became due on the way."""
        self.now = self.now.plus(seconds)
        if timers:
            self.run_timers()

    def run_timers(self) -> list[Decision]:
        """Decide everything due by now, oldest first."""
        due = [
            (row_due, table.code, table.key(row))
            for table in (LEASES, MEMBERSHIPS)
            if table.due is not None
            for row in self.view.all(table)
            if (row_due := table.due(row)) is not None and parse(row_due) <= self.now
        ]
        decisions = []
        for _, code, key in sorted(due, key=lambda entry: (parse(entry[0]), entry[1:])):
            decision = decide_due(self.view, code, key, self.context())
            if isinstance(decision, Decision):
                coverage.note_facts(self.view, decision.facts)
                self._commit(decision)
                decisions.append(decision)
        return decisions

    def context(self) -> Context:
        return Context(
            now=self.now,
            policy=self.policy,
            organization_id=ORGANIZATION,
            services=self.services,
            registry=self.registry,
            new_id=self._new_id,
            evolve=evolve,
        )

    def _new_id(self) -> str:
        self._ids += 1
        return uuid7_urn(self.now, self._ids.to_bytes(10, "big"))

    # --- Commands ---

    def sign(self, signer: Actor, document: dict[str, Any], *, at: str | None = None) -> dict[str, Any]:
        """A Signed Document in wire form; the protected time must be ``at`` (now by default)."""
        return sign_mapping(document, self.keys[signer.id], at or self.now.text())

    def command(self, actor: Actor, kind: str, payload: dict[str, Any], **envelope: Any) -> bytes:
        """The signed bytes of a Command.

        Epochs and the Group are filled in as the actor's client would; ``envelope`` gives or, with ``None``, removes
        members by their wire names. ``signed_by`` names another signer.
        """
        signer = envelope.pop("signed_by", actor)
        self._actions += 1
        mapping: dict[str, Any] = {
            "protocolVersion": "0.1",
            "actionId": f"urn:example:action:{self._actions}",
            "actor": {"type": actor.type, "id": actor.id},
            "kind": kind,
            "correlationId": "urn:example:correlation:1",
            "issuedAt": self.now.text(),
            "payload": payload,
        }
        group_id = envelope.get("groupId")
        if group_id is None and "groupId" not in envelope and actor.type != "service":
            group_id = self._only_group()
        if group_id is not None:
            mapping["groupId"] = group_id
            mapping.update(self._epochs(actor, kind, payload, group_id))
        mapping.update(envelope)
        mapping = {name: value for name, value in mapping.items() if value is not None}
        return canonical(sign_mapping(mapping, self.keys[signer.id], mapping["issuedAt"]))

    def _only_group(self) -> str | None:
        groups = self.view.rows[GROUPS.code]
        return next(iter(groups), None)

    def _epochs(self, actor: Actor, kind: str, payload: dict[str, Any], group_id: str) -> dict[str, int]:
        epochs: dict[str, int] = {}
        if actor.type == "service" or kind in GENESIS_COMMAND_KINDS:
            return epochs
        if actor.type == "agent":
            agent = self.view.get(AGENTS, actor.id)
            epochs["sessionEpoch"] = agent.session_epoch if agent else 1
        member = self.view.get(MEMBERSHIPS, membership_key(group_id, actor))
        epochs["membershipEpoch"] = member.membership.membership_epoch if member else 1
        group = self.view.get(GROUPS, group_id)
        mission = self.view.get(MISSIONS, group.group.mission_id) if group else None
        if (
            mission is not None
            and mission.mission.coordinator.agent_id == actor.id
            and "C" in MAY_SEND.get(kind, {})
            and payload.get("delegationGrantId") is None
        ):
            epochs["coordinatorEpoch"] = mission.mission.coordinator.coordinator_epoch
        return epochs

    def submit(self, raw: bytes) -> Decision | Rejection:
        """Verify and decide the bytes of a Command, and fold what was accepted; a duplicate gets the first answer."""
        verified = verify(raw, "command", self.registry)
        assert isinstance(verified, Verified), f"the test's Command does not verify: {verified}"
        receipt = (verified.document.actor.id, verified.document.action_id)  # type: ignore[union-attr]
        known = self.receipts.get(receipt)
        if known is not None:
            if known[0] != verified.signing_hash:
                return Rejection(ErrorCode.ACTION_ID_COLLISION, "the Action ID stands for other content", "R-19-22")
            return known[1]
        before = {code: dict(rows) for code, rows in self.view.rows.items()} if self.checked else None
        outcome = decide(self.view, prepare(verified, self.registry), self.context())
        assert isinstance(verified.document, Command)
        coverage.note_outcome(self.view, verified.document, outcome)
        if before is not None:
            assert before == self.view.rows, "deciding changes nothing"
        if isinstance(outcome, Decision):
            self.view.actions.add(receipt)
            self.receipts[receipt] = (verified.signing_hash, outcome)
            self._commit(outcome)
        return outcome

    def send(self, actor: Actor, kind: str, payload: dict[str, Any], **envelope: Any) -> Decision | Rejection:
        """Build, sign and submit a Command."""
        return self.submit(self.command(actor, kind, payload, **envelope))

    def ok(self, actor: Actor, kind: str, payload: dict[str, Any], **envelope: Any) -> Decision:
        """Send a Command that must be accepted."""
        outcome = self.send(actor, kind, payload, **envelope)
        assert isinstance(outcome, Decision), f"{kind} was refused: {outcome}"
        return outcome

    def refused(self, actor: Actor, kind: str, payload: dict[str, Any], **envelope: Any) -> Refusal:
        """Send a Command that must be refused; nothing may have changed."""
        heads = {group_id: len(log) for group_id, log in self.view.log.items()}
        outcome = self.send(actor, kind, payload, **envelope)
        assert isinstance(outcome, Rejection), f"{kind} was accepted"
        assert heads == {group_id: len(log) for group_id, log in self.view.log.items()}
        return Refusal(
            outcome.code,
            outcome.rule,
            outcome.message,
            outcome.details,
            outcome.expected_revision,
            outcome.current_revision,
        )

    def code(self, actor: Actor, kind: str, payload: dict[str, Any], **envelope: Any) -> str:
        """The code of a refusal, or ``"accepted"``: what matrices compare. The outcome is folded."""
        outcome = self.send(actor, kind, payload, **envelope)
        return outcome.code.value if isinstance(outcome, Rejection) else "accepted"

    # --- folding ---

    def _commit(self, decision: Decision) -> None:
        for table, row in decision.changes:
            self.view.put(table, row)
        if decision.registry is not None:
            self.registry = decision.registry
        for name, data in decision.stored_documents:
            self.documents[name] = data
        self.policy_notes.extend(decision.policy_notes)
        for note in decision.policy_notes:
            self.view.policy.setdefault(note.group_id, []).append(note.entry)
        self.facts.extend(decision.facts)
        for fact in decision.facts:
            self.view.append(fact)
            event = as_event(fact, self.authority)
            self.events.append(event)
            if self.checked:
                overlay = Overlay(self.shadow)
                again = fact_of(event, fact.command_payload, fact.override_grant_id)
                if again.group_id is not None:
                    overlay.advance(again.group_id, again.event_id, again.occurred_at)
                evolve(overlay, again)
                for table, row in overlay.changes.values():
                    self.shadow.put(table, row)
                self.shadow.append(again)
        if not self.checked:
            return
        if decision.record is not None:  # Registry Commands leave a record instead of an Event (decision F7)
            for table, row in decision.changes:
                self.shadow.put(table, row)
        for table in TABLES:
            real, replayed = self.view.rows[table.code], self.shadow.rows[table.code]
            assert real == replayed, f"{table}: the state is not the fold of the log"

    # --- reading ---

    def item(self, work_item_id: str) -> WorkItemRow:
        row = self.view.get(WORK_ITEMS, work_item_id)
        assert row is not None
        return row

    def state(self, work_item_id: str) -> str:
        return self.item(work_item_id).item.state

    def mission_row(self, mission_id: str) -> MissionRow:
        row = self.view.get(MISSIONS, mission_id)
        assert row is not None
        return row

    def member(self, group_id: str, actor: Actor) -> MembershipRow:
        row = self.view.get(MEMBERSHIPS, membership_key(group_id, actor))
        assert row is not None
        return row

    def agent_row(self, actor: Actor) -> AgentRow:
        row = self.view.get(AGENTS, actor.id)
        assert row is not None
        return row

    def account(self, account_id: str) -> AccountRow:
        row = self.view.get(ACCOUNTS, account_id)
        assert row is not None
        return row

    # --- documents ---

    def store(self, data: bytes) -> str:
        """Put Artifact bytes where the authority finds them; gives their hash."""
        name = content_hash(data)
        for view in (self.view, self.shadow):
            view.contents[name] = len(data)
        return name


def content_hash(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def as_event(fact: EventFact, authority: Actor) -> Event:
    """The Event document of a fact, its payload encoded and decoded as a peer sees it; the signature is a blank."""
    payload = msgspec.json.decode(msgspec.json.encode(fact.payload))
    assert "null" not in _leaves(payload), "Events never carry null"
    return Event(
        protocol_version="0.1",
        event_id=fact.event_id,
        kind=fact.kind,
        actor=fact.actor,
        cause=Cause(type=fact.cause.type, id=fact.cause.id),
        correlation_id=fact.correlation_id,
        occurred_at=fact.occurred_at,
        payload=payload,
        accepted_by=authority,
        signature=Signature(
            algorithm="Ed25519", key_id="urn:example:key:blank", created_at=fact.occurred_at, value="AA"
        ),
        group_id=UNSET if fact.group_id is None else fact.group_id,
        sequence=UNSET if fact.sequence is None else fact.sequence,
        aggregate_revision=UNSET if fact.aggregate_revision is None else fact.aggregate_revision,
        conversation_id=UNSET if fact.conversation_id is None else fact.conversation_id,
        work_item_id=UNSET if fact.work_item_id is None else fact.work_item_id,
        command_hash=UNSET if fact.command_hash is None else fact.command_hash,
        extensions=UNSET if fact.extensions is None else dict(fact.extensions),
    )


def _leaves(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set().union(*(_leaves(inner) for inner in value.values()))
    if isinstance(value, list):
        return set().union(*(_leaves(inner) for inner in value))
    return {"null"} if value is None else set()
