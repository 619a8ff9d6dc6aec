"""Who may send what: the table of the contract, as data, and where an actor stands in it.

Letters: ``C`` current Coordinator, ``O`` MissionOwner, ``RO`` root owner in a child Group, ``W`` owner of a WorkItem,
``K`` candidate of an offer, ``G`` grantee citing a Delegation Grant, ``M`` any active Member, ``S`` an Organization
service. ``W`` and ``K`` say only that the actor could be one: the object-bound check comes after the state.
"""

from __future__ import annotations

from mwnode.protocol.commands import CORE, EXT
from mwnode.protocol.documents import Role

ORGANIZATION = "organization"
AUTHORITY = "authority"
"""Instead of a scope, a service's row names which of the two services may send the kind (decision F14)."""

_COORDINATE = {"C": "mission.coordinate"}
_EXECUTE = {"W": "work.execute"}
_SERVICE = {"S": ORGANIZATION}

MAY_SEND: dict[str, dict[str, str]] = {
    # kind: {letter: scope that the Membership must have}
    "mission.assign_coordinator": {"O": "mission.direct", "S": ORGANIZATION},
    "mission.renew_coordinator": _COORDINATE,
    "mission.submit_for_approval": {"C": "mission.submit"},
    "mission.create_child": _COORDINATE,
    "membership.grant_delegation": _COORDINATE,
    "work.accept_result": {"C": "work.verify"},
    "work.unblock": {"C": "work.verify"},
    f"{EXT}.core.work_dependency_add": {"C": "work.authorize"},
    "mission.approve": {"O": "mission.approve"},
    "mission.request_changes": {"O": "mission.approve"},
    f"{CORE}.budget_amend": {"O": "mission.direct"},
    f"{CORE}.mission_prioritize": {"O": "mission.direct", "RO": "mission.approve"},
    "mission.cancel": {"O": "mission.cancel", "S": ORGANIZATION},
    "mission.terminate": {"C": "mission.coordinate", "S": ORGANIZATION},
    "membership.change": {"C": "mission.coordinate", "O": "mission.direct"},
    "membership.end": {"C": "mission.coordinate", "O": "mission.direct"},
    "message.post": {"M": "message.post"},
    "message.correct": {"M": "message.post"},
    "message.retract": {"M": "message.post"},
    "message.redact": {"C": "message.redact", "O": "message.redact", "S": ORGANIZATION},
    "work.propose": {"M": "work.propose"},
    f"{CORE}.coordinator_reconcile": _COORDINATE,
    f"{CORE}.artifact_forward": {"C": "mission.coordinate", "O": "mission.direct"},
    f"{CORE}.conversation_open": {"M": "message.post"},
    f"{CORE}.knowledge_publish": {"O": "mission.direct", "S": ORGANIZATION},
    "work.authorize": {"C": "work.authorize", "O": "mission.direct", "G": "work.delegate"},
    "work.offer": {"C": "work.offer", "O": "mission.direct", "G": "work.delegate"},
    "work.accept_offer": {"K": "work.accept_offer"},
    f"{CORE}.offer_decline": {"K": "work.accept_offer"},
    "work.start": _EXECUTE,
    "work.checkpoint": _EXECUTE,
    "work.block": _EXECUTE,
    "work.submit": _EXECUTE,
    "artifact.publish": _EXECUTE,
    f"{EXT}.core.work_execution_lease_renew": _EXECUTE,
    f"{CORE}.ownership_lease_renew": _EXECUTE,
    f"{CORE}.context_package_publish": {"W": "work.execute", "C": "mission.coordinate"},
    "work.fail": {"C": "work.verify", "W": "work.execute"},
    "work.cancel": {"C": "work.verify", "O": "mission.direct", "S": ORGANIZATION},
    "approval.grant_execution": {"O": "mission.approve", "RO": "mission.approve"},
    f"{CORE}.root_approval_grant": {"RO": "mission.approve"},
    "policy.grant_cooperation_override": {"O": "mission.direct", "S": ORGANIZATION},
    f"{EXT}.core.resource_usage_record": {"W": "work.execute", "S": ORGANIZATION},
    f"{EXT}.registry.agent_card_register": _SERVICE,
    f"{EXT}.identity.session_open": {"S": AUTHORITY},
    f"{EXT}.core.group_archive": _SERVICE,
    f"{CORE}.key_bind": _SERVICE,
    f"{CORE}.key_restrict": _SERVICE,
    f"{CORE}.profile_register": _SERVICE,
    f"{CORE}.event_tombstone": _SERVICE,
}
"""Every kind but the two that create a root Mission, which any registered human may send (decision D46)."""

PROVISIONAL_MAY_SEND = frozenset({"work.accept_offer", f"{CORE}.offer_decline", "message.post"})
"""All that a provisional Member may send (decision A2)."""

_WORKER = ("message.read", "message.post", "work.propose", "work.accept_offer", "work.execute")
DEFAULT_SCOPES: dict[Role, tuple[str, ...]] = {
    "mission_owner": (
        "mission.inspect",
        "mission.direct",
        "mission.approve",
        "mission.cancel",
        "message.read",
        "message.post",
        "message.redact",
        "work.propose",
    ),
    "coordinator": (
        "message.read",
        "message.post",
        "message.redact",
        "work.propose",
        "work.authorize",
        "work.offer",
        "work.verify",
        "mission.submit",
        "mission.coordinate",
        "mission.inspect",
    ),
    "worker": _WORKER,
    "reviewer": (*_WORKER, "work.review"),
    "observer": ("message.read", "message.post", "work.propose"),
    "work_delegate": (*_WORKER, "work.delegate"),
}
"""Scopes of a role unless the Membership names others (decision F1)."""
ROOT_OWNER_SCOPES = (*DEFAULT_SCOPES["observer"], "mission.inspect", "mission.approve")
"""Scopes of the root owner in a child Group."""
KNOWN_SCOPES = frozenset(
    {scope for row in MAY_SEND.values() for letter, scope in row.items() if letter != "S"}
    | {scope for scopes in DEFAULT_SCOPES.values() for scope in scopes}
)
