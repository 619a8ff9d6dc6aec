"""Policy is versioned: a change of ``[policy]`` makes a new version, and the policy log says so."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec
from msgspec import Struct

from mwnode.authority.policy import Policy
from mwnode.home import Home
from mwnode.protocol.documents import PolicyLogEntry
from mwnode.protocol.identifiers import uuid7_urn
from mwnode.protocol.ports import Clock, Entropy
from mwnode.store.port import ReadTransaction, WriteTransaction

POLICY_META = "policy"
_ADOPTED = "policy adopted"


class AdoptedPolicy(Struct, frozen=True):
    """The policy that the store last ran under."""

    version: str
    digest: str


class Reads(Protocol):
    """A store as far as it is read here."""

    def read(self) -> AbstractContextManager[ReadTransaction]: ...


def adopt_policy(
    store: Reads,
    home: Home,
    clock: Clock,
    entropy: Entropy,
    write: Callable[[Callable[[WriteTransaction], None]], None],
) -> Policy:
    """The policy of HOME under its version; a policy that changed since the last start gets the next minor version,
    and is noted by ``write``, which runs a change in one durable transaction."""
    unversioned = msgspec.structs.replace(home.policy, version="")
    digest = hashlib.sha256(msgspec.json.encode(unversioned, order="sorted")).hexdigest()
    with store.read() as view:
        stored = view.meta(POLICY_META)
    adopted = msgspec.json.decode(stored, type=AdoptedPolicy) if stored is not None else None
    if adopted is not None and adopted.digest == digest:
        return msgspec.structs.replace(home.policy, version=adopted.version)
    version = "1.0.0" if adopted is None else f"1.{int(adopted.version.split('.')[1]) + 1}.0"
    policy = msgspec.structs.replace(home.policy, version=version)
    now = clock.now()
    entry = PolicyLogEntry(
        entry_id=uuid7_urn(now, entropy.random(10)),
        decision=_ADOPTED,
        actor=home.authority_service,
        occurred_at=now.text(),
        details={
            "policyVersion": version,
            "previousVersion": adopted.version if adopted else "",
            "policy": msgspec.to_builtins(policy),
        },
    )

    def note(transaction: WriteTransaction) -> None:
        transaction.put_meta(POLICY_META, msgspec.json.encode(AdoptedPolicy(version, digest)))
        transaction.put_policy(None, entry)

    write(note)
    return policy


def policy_in_force(view: ReadTransaction) -> Policy | None:
    """The policy that the store last ran under, as its policy log tells; ``None`` for a store that never ran."""
    after, newest = 0, None
    while entries := view.policy_log(None, after):
        after += len(entries)
        newest = next((entry for entry in reversed(entries) if entry.decision == _ADOPTED), newest)
    if newest is None:
        return None
    noted = newest.details["policy"]
    return msgspec.convert({name: noted[name] for name in Policy.__struct_fields__ if name in noted}, Policy)
