"""One Command being decided: its overlay, its clock reading, and the checks that every kind shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import UNSET, Struct

from mwnode.authority.policy import Policy
from mwnode.authority.request import Decision, EventFact, PolicyNote, Request
from mwnode.authority.state import (
    GROUPS,
    MEMBERSHIPS,
    MISSIONS,
    AgentRow,
    GroupRow,
    MembershipRow,
    MissionRow,
    R,
    Table,
    membership_key,
)
from mwnode.authority.view import Overlay, View
from mwnode.protocol.commands import Payload
from mwnode.protocol.documents import Actor, Cause, Command, Extension, JsonObject, PolicyLogEntry
from mwnode.protocol.errors import ErrorCode, Rejection
from mwnode.protocol.instants import Instant, parse
from mwnode.trust.registry import Registry

P = TypeVar("P", bound=Payload)


class Refused(Exception):
    """Leaves a decision; ``decide`` turns it into the ``Rejection`` it carries."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.message)
        self.rejection = rejection


def refuse(
    code: ErrorCode,
    message: str,
    rule: str = "",
    *,
    details: JsonObject | None = None,
    expected_revision: int | None = None,
    current_revision: int | None = None,
    retry_after_ms: int | None = None,
) -> NoReturn:
    """End the decision with a refusal; nothing that the overlay gathered is kept."""
    raise Refused(
        Rejection(
            code,
            message,
            rule,
            details=details,
            expected_revision=expected_revision,
            current_revision=current_revision,
            retry_after_ms=retry_after_ms,
        )
    )


class Services(Struct, frozen=True):
    """The two service Principals that ``init`` makes (decision F14)."""

    organization: Actor
    """Agent Cards, Registry changes, policy Commands."""
    authority: Actor
    """Events, snapshots, tokens, sessions."""


class Admitted(Struct, frozen=True):
    """The rows and the time that the common checks looked at, and the letters that they found."""

    agent: AgentRow
    group: GroupRow
    mission: MissionRow
    member: MembershipRow
    member_key: str
    now: Instant
    roles: frozenset[str]


class Context(Struct, frozen=True, kw_only=True):
    """What deciding needs besides state: all of it passed in, so that a decision can be repeated exactly."""

    now: Instant
    policy: Policy
    organization_id: str
    services: Services
    registry: Registry
    new_id: Callable[[], str]
    """Makes a fresh ``urn:uuid:`` identifier."""
    evolve: Callable[[Overlay, EventFact], None]
    """Folds an Event into the overlay; ``mwnode.authority.evolve.evolve``."""
    now_text: str = ""
    """``now`` as it is written into documents; made of ``now`` where it is not given."""
    admitted: dict[tuple[object, ...], Admitted] = msgspec.field(default_factory=dict)
    """What the common checks found so far: Commands of one actor that come together pass them once, as long as the
    rows they looked at stay the same."""
    is_token: Callable[[str], bool] | None = None
    """Whether a text verifies as one of this node's tokens; without it nothing is taken for one."""


class Case:
    """A decision in progress. Handlers read ``payload``, check, and ``emit``; each Event is folded at once, so that the
    next one sees its effect."""

    command: Command
    """The Command being decided; what a timer or policy decides has none."""
    group_id: str
    """The Command's Group; only a Command that names one has it."""

    def __init__(self, view: View, context: Context, request: Request | None) -> None:
        if request is not None:
            document = request.verified.document
            assert isinstance(document, Command)
            self.command = document
        self.view = Overlay(view)
        self.context = context
        self.policy = context.policy
        self.now = context.now
        self.now_text = context.now_text or context.now.text()
        if request is not None and (group_id := self.command.group_id) is not UNSET:
            self.group_id = group_id
            # Leases run on the Group's clock, which never steps back (decision A44).
            last = view.last_occurred_at(group_id)
            if last is not None and last != self.now_text and parse(last) > self.now:
                self.now, self.now_text = parse(last), last
        self.request = request
        self.facts: list[EventFact] = []
        self.policy_notes: list[PolicyNote] = []
        self.stored_documents: list[tuple[str, bytes]] = []
        self.registry: Registry | None = None
        self.record: dict[str, Any] | None = None
        self.receipt_kind: str | None = None
        self.override_used: str | None = None
        """The Cooperation Override Grant that let this Command pass a limit."""
        self.roles: frozenset[str] = frozenset()
        """Letters of "Who may send what" in which the actor stands here; set by the common checks."""

    # --- the Command ---

    def payload(self, kind: type[P]) -> P:
        """The typed payload."""
        assert self.request is not None
        assert isinstance(self.request.payload, kind)
        return self.request.payload

    def reference(self, name: str, given: str | None) -> str:
        """A Conversation or WorkItem named in the envelope, the payload or both (decision D8)."""
        envelope = getattr(self.command, name)
        value = given if given is not None else (envelope if envelope is not UNSET else None)
        wire = {"work_item_id": "workItemId", "conversation_id": "conversationId"}[name]
        if value is None:
            refuse(ErrorCode.INVALID_COMMAND, f"{wire} is missing", details={"path": f"/payload/{wire}"})
        if envelope is not UNSET and envelope != value:
            refuse(
                ErrorCode.INVALID_COMMAND,
                f"{wire} differs between the envelope and the payload",
                details={"path": f"/payload/{wire}"},
            )
        return value

    # --- state ---

    def need(self, table: Table[R], key: str, what: str) -> R:
        """A row that must exist; ``INVALID_COMMAND`` otherwise (R-19-19)."""
        row = self.view.get(table, key)
        if row is None:
            refuse(ErrorCode.INVALID_COMMAND, f"{what} {key} is not known here", "R-19-19")
        return row

    def unused(self, table: Table[R], key: str, what: str) -> None:
        """Refuse an identifier that names an object already (R-2-14)."""
        if self.view.get(table, key) is not None:
            refuse(ErrorCode.INVALID_COMMAND, f"{what} {key} exists already", "R-2-14")

    def group(self, group_id: str | None = None) -> GroupRow:
        row = self.view.get(GROUPS, group_id or self.group_id)
        assert row is not None, "the common checks found the Group"
        return row

    def mission(self, group_id: str | None = None) -> MissionRow:
        """The Mission of a Group (one to one, R-4-01)."""
        row = self.view.get(MISSIONS, self.group(group_id).group.mission_id)
        assert row is not None, "a Group has its Mission"
        return row

    def membership(self, principal: Actor, group_id: str | None = None) -> MembershipRow | None:
        return self.view.get(MEMBERSHIPS, membership_key(group_id or self.group_id, principal))

    def expect_revision(self, current: int) -> None:
        """Compare ``expectedRevision``, where stated, with the aggregate's (R-10.2-43, R-19-21)."""
        expected = self.command.expected_revision
        if expected is not UNSET and expected != current:
            refuse(
                ErrorCode.REVISION_CONFLICT,
                f"the current revision is {current}, not {expected}; read it again and decide anew",
                "R-19-21",
                expected_revision=expected,
                current_revision=current,
            )

    def later(self, seconds: int, maximum: int) -> str:
        """The timestamp that many seconds from now, cut to the policy's maximum."""
        return self.now.plus(min(seconds, maximum)).text()

    def passed(self, timestamp: str) -> bool:
        """Whether a half-open interval ending there is over."""
        return parse(timestamp) <= self.now

    # --- effects ---

    def emit(
        self,
        kind: str,
        payload: Payload,
        *,
        revision: int | None = None,
        group_id: str | None = None,
        conversation_id: str | None = None,
        work_item_id: str | None = None,
        cause: Cause | None = None,
        actor: Actor | None = None,
        organization_scoped: bool = False,
    ) -> EventFact:
        """Append an Event and fold it into the overlay.

        Without ``cause`` the Command is the cause, and the Event carries its hash. ``revision`` is the aggregate's new
        revision; it defaults to the payload's. Consequences name the Event that caused them (decision D26).
        """
        event_id = self.context.new_id()
        request = self.request
        command = None if request is None else self.command
        extensions: Mapping[str, Extension] | None = None
        command_hash = command_payload = override_grant_id = None
        if cause is None:
            assert request is not None, "an Event without a Command names its cause"
            assert command is not None
            cause = Cause(type="command", id=command.action_id)
            command_hash = request.verified.signing_hash
            if isinstance(request.payload, Payload):
                command_payload = request.payload
            if command.extensions is not UNSET:
                extensions = command.extensions
            if command.cooperation_override_grant_id is not UNSET:
                override_grant_id = command.cooperation_override_grant_id
        if organization_scoped:
            place, sequence, aggregate, occurred = None, None, None, self.now_text
        else:
            place = group_id if group_id is not None else self.group_id
            occurred = self._occurred_at(place)
            sequence = self.view.advance(place, event_id, occurred)
            aggregate = revision if revision is not None else getattr(payload, "revision", 0)
        fact = EventFact(
            event_id=event_id,
            kind=kind,
            actor=actor if actor is not None else (command.actor if command else self.context.services.authority),
            cause=cause,
            correlation_id=command.correlation_id if command else cause.id,
            occurred_at=occurred,
            payload=payload,
            group_id=place,
            sequence=sequence,
            aggregate_revision=aggregate,
            conversation_id=conversation_id,
            work_item_id=work_item_id,
            command_hash=command_hash,
            extensions=extensions,
            command_payload=command_payload,
            override_grant_id=override_grant_id,
        )
        self.facts.append(fact)
        self.context.evolve(self.view, fact)
        return fact

    def _occurred_at(self, group_id: str) -> str:
        """Never before the Group's newest Event, even when the clock stepped back (decision A44)."""
        last = self.view.last_occurred_at(group_id)
        return last if last is not None and parse(last) > self.now else self.now_text

    def note_policy(
        self, decision: str, details: JsonObject, *, group_id: str | None = None, actor: Actor | None = None
    ) -> None:
        """Append a policy-log row (R-G-10). ``group_id`` ``None`` = the Organization's own log."""
        author = actor or (self.context.services.authority if self.request is None else self.command.actor)
        entry = PolicyLogEntry(
            entry_id=self.context.new_id(),
            decision=decision,
            actor=author,
            occurred_at=self.now_text,
            details={"policyVersion": self.policy.version, **details},
        )
        self.policy_notes.append(PolicyNote(group_id, entry))

    def decision(self) -> Decision:
        """What gathered so far, as one unit of commitment."""
        receipt = 0
        if self.receipt_kind is not None and len(self.facts) > 1:
            receipt = next(i for i, fact in enumerate(self.facts) if fact.kind == self.receipt_kind)
        return Decision(
            facts=tuple(self.facts),
            receipt=receipt,
            changes=tuple(self.view.changes.values()),
            policy_notes=tuple(self.policy_notes),
            stored_documents=tuple(self.stored_documents),
            registry=self.registry,
            record=self.record,
        )
