"""Policy is versioned: a change of ``[policy]`` makes a new version, and the policy log says so."""

from __future__ import annotations

import hashlib

import msgspec
from msgspec import Struct

from mwnode.authority.policy import Policy
from mwnode.home import Home
from mwnode.protocol.documents import PolicyLogEntry
from mwnode.protocol.identifiers import uuid7_urn
from mwnode.protocol.ports import Clock, Entropy
from mwnode.store.port import Store, WriteTransaction

POLICY_META = "policy"


class AdoptedPolicy(Struct, frozen=True):
    """The policy that the store last ran under."""

    version: str
    digest: str


def adopt_policy(store: Store, home: Home, clock: Clock, entropy: Entropy) -> Policy:
    """The policy of HOME under its version; a policy that changed since the last start gets the next minor version."""
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
        decision="policy adopted",
        actor=home.authority_service,
        occurred_at=now.text(),
        details={
            "policyVersion": version,
            "previousVersion": adopted.version if adopted else "",
            "policy": msgspec.to_builtins(policy),
        },
    )

    def write(transaction: WriteTransaction) -> None:
        transaction.put_meta(POLICY_META, msgspec.json.encode(AdoptedPolicy(version, digest)))
        transaction.put_policy(None, entry)

    store.write(write)
    return policy
