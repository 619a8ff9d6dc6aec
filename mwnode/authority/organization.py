"""What belongs to the Organization and not to one Group: Agent Cards, sessions, keys and Extension Profiles.

Only its services send these kinds (R-8-05). Keys and profiles leave a record instead of an Event (decision F7); replay
makes the same record of the same Command with :func:`record`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import msgspec
from msgspec import UNSET, structs

from mwnode.authority import execution
from mwnode.authority.case import Case, refuse
from mwnode.authority.request import EventFact
from mwnode.authority.state import (
    AGENTS,
    KEYS,
    PRINCIPALS,
    PROFILES,
    AgentRow,
    KeyRow,
    PrincipalRow,
    ProfileRow,
    principal_key,
)
from mwnode.authority.view import Overlay, View
from mwnode.protocol.commands import (
    CORE,
    EXT,
    AgentCardRegister,
    Binding,
    KeyBind,
    KeyRestrict,
    ProfileRegister,
    SessionOpen,
    ValidityChange,
)
from mwnode.protocol.documents import (
    CORE_COMMAND_KINDS,
    CORE_EVENT_KINDS,
    Actor,
    AgentCard,
    Cause,
    JsonObject,
    PublicKey,
    is_extension_kind,
)
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import AgentCardRegistered, SessionOpened
from mwnode.protocol.instants import parse
from mwnode.trust.registry import KeyBinding, Registry, RegistryFault
from mwnode.trust.verification import Verified

RESERVED_PREFIXES = (f"{EXT}.", "ext.mwnode.")
"""Extension kinds that no registered profile may claim."""


def _misfit(message: str, member: str, rule: str) -> NoReturn:
    refuse(ErrorCode.INVALID_COMMAND, message, rule, details={"path": f"/payload/{member}"})


def _signer(case: Case) -> Actor:
    """Whose key signed the document that the Command carries."""
    assert case.request is not None
    verdict = case.request.embedded[0].verdict
    assert isinstance(verdict, Verified), "the common checks refuse what does not verify"
    return verdict.principal


# --- ext.missionweaveprotocol.registry.agent_card_register ------------------------------------------------------------


def register_card(case: Case) -> None:
    """Register an Agent's next Card, signed by the registry service; its keys enter the Registry (R-6.1-01,
    R-6.4-01)."""
    card = case.payload(AgentCardRegister).card
    if card.organization_id != case.context.organization_id:
        _misfit("the Card belongs to another Organization", "card/organizationId", "R-6.1-01")
    if _signer(case) != case.context.services.organization:
        refuse(ErrorCode.AUTH_FORBIDDEN, "Agent Cards are signed by the Organization's registry service", "R-6.4-01")
    known = case.view.get(AGENTS, card.agent_id)
    current = known.card.card_version if known is not None else 0
    if card.card_version <= current:
        refuse(
            ErrorCode.REVISION_CONFLICT,
            f"version {current} of this Card is registered; the next must be higher",
            "R-6.1-04",
            expected_revision=card.card_version,
            current_revision=current,
        )
    registry = case.context.registry
    for index, key in enumerate(card.public_keys):
        registry = _enter(case, registry, _card_key(case.view, card, key, case.now_text), f"card/publicKeys/{index}")
    if registry is not case.context.registry:
        case.registry = registry
    fact = case.emit(
        f"{EXT}.registry.agent_card_registered",
        AgentCardRegistered(agent_id=card.agent_id, card_version=card.card_version),
        organization_scoped=True,
    )
    if card.status == "revoked" and known is not None:
        cause = Cause(type="event", id=fact.event_id)
        execution.revoke_for_session(case, card.agent_id, max(1, known.session_epoch), cause, resumes=False)
    case.note_policy(
        f"agent card {card.status}",
        {"agentId": card.agent_id, "cardVersion": card.card_version, "eventId": fact.event_id},
    )


def written(binding: Binding) -> JsonObject:
    """A binding in the form that Registry evidence has."""
    document: JsonObject = msgspec.to_builtins(binding)
    document.setdefault("validityHistory", [])
    return document


def _enter(case: Case, registry: Registry, binding: Binding, path: str) -> Registry:
    """The Registry with that binding; INVALID_COMMAND where it would rebind, alias or prolong (R-6.4-22)."""
    try:
        return registry.bind(msgspec.convert(written(binding), KeyBinding))
    except RegistryFault as fault:
        _misfit(f"the Registry refuses the key: {fault}", path, "R-6.4-22")


def _card_key(view: View, card: AgentCard, key: PublicKey, recorded_at: str) -> Binding:
    """A key as a Card states it, with the history that the Registry knows. A Card may end its keys, or end them
    earlier; longer validity takes a new key (R-6.4-33)."""
    known = view.get(KEYS, key.key_id)
    history = known.binding.validity_history if known is not None else ()
    changes = {
        name: stated
        for name, stated in (("valid_until", key.valid_until), ("revoked_at", key.revoked_at))
        if stated is not UNSET and _is_earlier(stated, _end(history, name))
    }
    if changes:
        history = (*history, ValidityChange(sequence=len(history) + 1, recorded_at=recorded_at, **changes))
    return Binding(
        key_id=key.key_id,
        principal=Actor(type="agent", id=card.agent_id),
        algorithm=key.algorithm,
        public_key=key.public_key,
        valid_from=key.valid_from,
        validity_history=history,
    )


def _end(history: tuple[ValidityChange, ...], name: str) -> str | None:
    """The standing boundary: history only ever shortens, so it is the last one stated."""
    stated = [getattr(change, name) for change in history if getattr(change, name) is not UNSET]
    return stated[-1] if stated else None


def _is_earlier(stated: str, standing: str | None) -> bool:
    return standing is None or parse(stated) < parse(standing)


# --- ext.missionweaveprotocol.identity.session_open -------------------------------------------------------------------


def open_session(case: Case) -> None:
    """Issue an Agent's next Session Epoch and fence the one before (R-6.3-05, R-11.3-17, R-15.1-08)."""
    payload = case.payload(SessionOpen)
    row = case.view.get(AGENTS, payload.agent_id)
    if row is None:
        _misfit(f"Agent {payload.agent_id} has no Agent Card", "agentId", "R-6.4-18")
    if row.card.status != "active":
        refuse(ErrorCode.AUTH_FORBIDDEN, f"the Agent Card is {row.card.status}", "R-19-14")
    epoch = row.session_epoch + 1
    fact = case.emit(
        f"{EXT}.identity.session_opened",
        SessionOpened(agent_id=payload.agent_id, session_epoch=epoch),
        organization_scoped=True,
    )
    execution.revoke_for_session(case, payload.agent_id, epoch, Cause(type="event", id=fact.event_id))


# --- key_bind, key_restrict, profile_register -------------------------------------------------------------------------


def bind_key(case: Case) -> None:
    """Bind a key to a Principal; that registers humans and services (R-6.4-18, decision F7)."""
    payload = case.payload(KeyBind)
    binding = payload.binding
    case.unused(KEYS, binding.key_id, "key")
    case.registry = _enter(case, case.context.registry, binding, "binding")
    _keep_record(
        case, payload, "key bound", {"keyId": binding.key_id, "principal": msgspec.to_builtins(binding.principal)}
    )


def restrict_key(case: Case) -> None:
    """End a key's validity, or end it earlier; the history before stays (R-6.4-32, R-6.4-33)."""
    payload = case.payload(KeyRestrict)
    case.need(KEYS, payload.key_id, "key")
    try:
        case.registry = case.context.registry.restrict(
            payload.key_id, case.now_text, valid_until=payload.valid_until, revoked_at=payload.revoked_at
        )
    except RegistryFault as fault:
        member = "validUntil" if payload.revoked_at is None else "revokedAt"
        _misfit(f"the Registry refuses the change: {fault}", member, "R-6.4-33")
    ends = {"validUntil": payload.valid_until, "revokedAt": payload.revoked_at}
    stated = {name: end for name, end in ends.items() if end is not None}
    _keep_record(case, payload, "key restricted", {"keyId": payload.key_id, **stated})


def register_profile(case: Case) -> None:
    """Register an approved Extension Profile; a version of it is never replaced (R-18-02, R-18-04)."""
    payload = case.payload(ProfileRegister)
    profile = payload.profile
    case.unused(PROFILES, f"{profile.profile_uri} {profile.version}", "Extension Profile")
    if profile.approved_by != case.context.services.organization:
        refuse(ErrorCode.AUTH_FORBIDDEN, "the Organization's registry service approves profiles", "R-18-01")
    core = CORE_COMMAND_KINDS | CORE_EVENT_KINDS
    for member, kinds in (("commandKinds", profile.command_kinds), ("eventKinds", profile.event_kinds)):
        for kind in kinds:
            if kind in core or kind.startswith(RESERVED_PREFIXES) or not is_extension_kind(kind):
                _misfit(
                    f"{kind} is not the profile's to define; its kinds read ext.<organization>.<profile>.<name>",
                    f"profile/{member}",
                    "R-18-04",
                )
    details: JsonObject = {"profileUri": profile.profile_uri, "version": profile.version}
    _keep_record(case, payload, "extension profile registered", details)


def _keep_record(
    case: Case, payload: KeyBind | KeyRestrict | ProfileRegister, decision: str, details: JsonObject
) -> None:
    record(case.view, payload, case.now_text)
    case.note_policy(decision, details)
    case.record = answer(case.view, payload)


def answer(view: View, payload: KeyBind | KeyRestrict | ProfileRegister) -> JsonObject:
    """What the sender of a Registry Command gets in place of an Event, once its rows are there."""
    if isinstance(payload, ProfileRegister):
        return {"profile": msgspec.to_builtins(payload.profile)}
    row = view.get(KEYS, payload.binding.key_id if isinstance(payload, KeyBind) else payload.key_id)
    assert row is not None
    return {"binding": written(row.binding)}


def record(view: Overlay, payload: KeyBind | KeyRestrict | ProfileRegister, accepted_at: str) -> None:
    """Fold an accepted Registry Command, which has no Event: the rows it leaves. Replay calls it with the time at which
    the Command was accepted."""
    if isinstance(payload, KeyBind):
        _put_key(view, payload.binding)
        principal = payload.binding.principal
        if principal.type != "agent":
            known = view.get(PRINCIPALS, principal_key(principal))
            name = payload.display_name or (known.display_name if known is not None else None)
            view.put(PRINCIPALS, PrincipalRow(principal, name))
    elif isinstance(payload, KeyRestrict):
        row = view.get(KEYS, payload.key_id)
        assert row is not None
        history = row.binding.validity_history
        change = ValidityChange(
            sequence=len(history) + 1,
            recorded_at=accepted_at,
            valid_until=UNSET if payload.valid_until is None else payload.valid_until,
            revoked_at=UNSET if payload.revoked_at is None else payload.revoked_at,
        )
        _put_key(view, structs.replace(row.binding, validity_history=(*history, change)))
    else:
        view.put(PROFILES, ProfileRow(payload.profile))


def _put_key(view: Overlay, binding: Binding) -> None:
    view.put(KEYS, KeyRow(binding, 1 + len(binding.validity_history)))


# --- folding ----------------------------------------------------------------------------------------------------------


def _fold_card(view: Overlay, fact: EventFact) -> None:
    payload = fact.command_payload
    assert isinstance(payload, AgentCardRegister), "the Event carries less than it changes"
    card = payload.card
    known = view.get(AGENTS, card.agent_id)
    view.put(AGENTS, AgentRow(card) if known is None else structs.replace(known, card=card))
    for key in card.public_keys:
        _put_key(view, _card_key(view, card, key, fact.occurred_at))


def _fold_session(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, SessionOpened)
    row = view.get(AGENTS, payload.agent_id)
    assert row is not None
    view.put(AGENTS, structs.replace(row, session_epoch=payload.session_epoch))


DECIDERS: dict[str, Callable[[Case], None]] = {
    f"{EXT}.registry.agent_card_register": register_card,
    f"{EXT}.identity.session_open": open_session,
    f"{CORE}.key_bind": bind_key,
    f"{CORE}.key_restrict": restrict_key,
    f"{CORE}.profile_register": register_profile,
}
EVOLVERS: dict[str, Callable[[Overlay, EventFact], None]] = {
    f"{EXT}.registry.agent_card_registered": _fold_card,
    f"{EXT}.identity.session_opened": _fold_session,
}
