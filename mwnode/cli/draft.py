"""Drafts of documents: every member that must be there, with what belongs into it between angle brackets."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct, UnsetType

from mwnode.authority.table import MISSION_ADMITS, WORK_ITEM_COMMANDS
from mwnode.protocol import scalars
from mwnode.protocol.commands import CORE, PAYLOADS
from mwnode.protocol.documents.kinds import COORDINATOR_COMMAND_KINDS, GENESIS_COMMAND_KINDS
from mwnode.protocol.identifiers import mission_conversation_id

NUMBER = "<number>"
INVENTED = frozenset({"messageId", "amendmentId", "proposalId", "approvalId"})
"""Identifiers that the sender makes up."""
NEW_MISSIONS = frozenset({"mission.create", "mission.create_child", "mission.create_follow_up"})
"""Kinds whose `missionId` and `groupId` are those of a Mission that does not exist yet."""
GROUP_KINDS = frozenset(MISSION_ADMITS) - GENESIS_COMMAND_KINDS
"""Kinds that are about a Mission's Group, as it is now."""
ITEM_KINDS = WORK_ITEM_COMMANDS - NEW_MISSIONS
"""Kinds that are about one of its WorkItems."""
ME = ("approver", "generatedBy", "createdBy", "producedBy")
"""Members that name the Principal who signs."""
_AT_MISSION = ("mission.", "membership.", "policy.")
_AT_MISSION_TOO = frozenset(
    f"{CORE}.{name}" for name in ("budget_amend", "mission_prioritize", "root_approval_grant", "coordinator_reconcile")
)
_HINTS: dict[Any, str] = {
    scalars.Id: "<URI>",
    scalars.Uri: "<URI>",
    scalars.WssUri: "<wss://...>",
    scalars.Timestamp: "<2030-01-31T12:00:00Z>",
    scalars.Sha256: "<sha256:...>",
    scalars.Semver: "<1.0.0>",
    scalars.Duration: "<PT30M>",
}


class About(NamedTuple):
    """What a Command is about: a Mission's view, one of its WorkItems, the sender's epoch in its Group."""

    view: dict[str, Any]
    item: dict[str, Any] | None
    membership_epoch: int | None


def draft_command(kind: str, actor: dict[str, str], new_id: Callable[[], str], about: About | None) -> dict[str, Any]:
    """A Command of that kind, with all that is known filled in and all else in angle brackets."""
    payload = draft_payload(PAYLOADS[kind])
    document: dict[str, Any] = {
        "protocolVersion": "0.1",
        "actionId": new_id(),
        "actor": actor,
        "kind": kind,
        "correlationId": new_id(),
    }
    known: dict[str, Any] = {name: new_id() for name in INVENTED}
    if kind in NEW_MISSIONS:
        known |= {"missionId": new_id(), "groupId": new_id()}
    if kind in GENESIS_COMMAND_KINDS:
        document["groupId"] = known["groupId"]
    elif kind in GROUP_KINDS:
        document |= _envelope(kind, actor, about)
    if about is not None:
        for name, value in _known(about).items():
            known.setdefault(name, value)
        if kind == "message.post":
            payload["conversationId"] = mission_conversation_id(about.view["mission"]["groupId"])
        if kind.startswith("mission.create") and "followUpToMissionId" in payload:
            payload["followUpToMissionId"] = about.view["mission"]["missionId"]
    document["payload"] = _filled(payload, known, actor)
    return document


def _envelope(kind: str, actor: dict[str, str], about: About | None) -> dict[str, Any]:
    """The members of the envelope that a kind needs."""
    mission = about.view["mission"] if about is not None else {}
    item = about.item if about is not None else None
    envelope: dict[str, Any] = {"groupId": mission.get("groupId", "<groupId>")}
    if actor["type"] != "service":
        envelope["membershipEpoch"] = NUMBER if about is None else about.membership_epoch
    if actor["type"] == "agent":
        envelope["sessionEpoch"] = NUMBER
        if kind in COORDINATOR_COMMAND_KINDS:
            envelope["coordinatorEpoch"] = mission.get("coordinator", {}).get("coordinatorEpoch", NUMBER)
    if kind in ITEM_KINDS:
        envelope["workItemId"] = "<workItemId>" if item is None else item["workItemId"]
        if item is not None:
            envelope["expectedRevision"] = item["revision"]
    elif mission and (kind.startswith(_AT_MISSION) or kind in _AT_MISSION_TOO):
        envelope["expectedRevision"] = mission["revision"]
    return envelope


def _known(about: About) -> dict[str, Any]:
    """What members of a payload are called by their name alone."""
    mission, item = about.view["mission"], about.item
    known = {
        "missionId": mission["missionId"],
        "groupId": mission["groupId"],
        "missionRevision": mission["revision"],
    }
    if item is not None:
        known |= {"workItemId": item["workItemId"], "parentWorkItemId": item["workItemId"]}
        if "owner" in item:
            known["ownershipEpoch"] = item["owner"]["ownershipEpoch"]
        for lease in about.view["leases"]:
            if lease["leaseType"] == "execution" and lease.get("workItemId") == item["workItemId"]:
                known["executionLeaseId"] = lease["leaseId"]
    return known


def _filled(value: Any, known: dict[str, Any], me: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_filled(one, known, me) for one in value]
    if not isinstance(value, dict):
        return value
    filled = {}
    for name, one in value.items():
        if name in known and isinstance(one, str):
            filled[name] = known[name]
        elif name in ME and isinstance(one, dict):
            filled[name] = me
        else:
            filled[name] = _filled(one, known, me)
    return filled


def draft_payload(kind: type[Struct]) -> dict[str, Any]:
    """The required members of a payload, each as a placeholder of its type."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        field.encode_name: _placeholder(hints[field.name], field.encode_name)
        for field in msgspec.structs.fields(kind)
        if field.required
    }


def _placeholder(stated: Any, name: str) -> Any:
    if stated in _HINTS:
        return _HINTS[stated]
    origin, arguments = get_origin(stated), get_args(stated)
    if origin in (Union, types.UnionType):
        return _placeholder(next(one for one in arguments if one not in (types.NoneType, UnsetType)), name)
    if origin is Literal:
        return f"<{'|'.join(map(str, arguments))}>" if len(arguments) > 1 else arguments[0]
    if origin is tuple:
        return [_placeholder(arguments[0], name)]
    if isinstance(stated, type) and issubclass(stated, Struct):
        tag = stated.__struct_config__.tag
        tagged = {stated.__struct_config__.tag_field: tag} if tag is not None else {}
        return tagged | draft_payload(stated)
    if origin is not None and hasattr(stated, "__metadata__"):
        return _placeholder(arguments[0], name)
    plain = stated if isinstance(stated, type) else getattr(stated, "__origin__", Any)
    return {int: NUMBER, float: NUMBER, bool: "<true|false>", dict: {}}.get(plain, f"<{name}>")
