"""The first rows of a new store: the Organization, its root key, and what the root key vouches for.

The registry service's key is the root of trust and is bound by the file itself. Every other key enters by a signed
``key_bind`` Command of that service, so that an auditor can follow each of them back to the root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from mwnode.authority.case import Services
from mwnode.authority.state import KEYS
from mwnode.client.commands import signed_command
from mwnode.home import Home, HomeError
from mwnode.protocol.commands import CORE, Binding
from mwnode.protocol.identifiers import uuid7_urn
from mwnode.protocol.instants import Instant
from mwnode.protocol.ports import Clock, Entropy
from mwnode.store.audit import AUDIT_KEY_META, AuditSeal
from mwnode.store.founding import Founding, keep_founding
from mwnode.store.port import ReadTransaction, Store, WriteTransaction
from mwnode.trust.keys import SigningKey
from mwnode.trust.registry import Registry

ORGANIZATION_META = "organization"


def is_empty(view: ReadTransaction) -> bool:
    """Whether no Organization was ever founded in the store."""
    return view.meta(ORGANIZATION_META) is None


def binding_of(key: SigningKey, valid_from: str) -> Binding:
    """The Registry binding of a key, valid from that time on."""
    return Binding(
        key_id=key.key_id,
        principal=key.principal,
        algorithm="Ed25519",
        public_key=key.public_key,
        valid_from=valid_from,
    )


def valid_from(now: Instant, freshness_window: int) -> str:
    """Since when a key made now is valid: a freshness window ago, so that a slow clock can use it (decision E12)."""
    return now.plus(-freshness_window).text()


def found(store: Store, home: Home, root: SigningKey, now: Instant) -> None:
    """Write the Organization and its root key into an empty store."""
    binding = binding_of(root, valid_from(now, home.policy.freshness_window))
    founding = Founding(binding, (home.registry_service, home.authority_service))

    def write(transaction: WriteTransaction) -> None:
        transaction.put_meta(ORGANIZATION_META, home.organization_id.encode())
        keep_founding(transaction, founding)

    store.write(write)


def check_owner(view: ReadTransaction, home: Home) -> None:
    """Refuse a store that belongs to another Organization than HOME does."""
    stored = view.meta(ORGANIZATION_META)
    if stored is not None and stored.decode() != home.organization_id:
        raise HomeError(
            f"{home.store_path} belongs to Organization {stored.decode()}, but mwnode.toml names "
            f"{home.organization_id}: put the files of one HOME together again"
        )


def check_own_keys(registry: Registry, home: Home, keys: Iterable[tuple[str, SigningKey]], now: Instant) -> None:
    """Refuse an authority or owner key that is new beside one that is valid, and an owner whom nobody registered:
    nobody who lost a file by mistake, or got one from elsewhere, should find a second key bound for good (R-6.4-22)."""
    for name, key in keys:
        if registry.resolve(key.key_id) is not None:
            continue
        bound = [binding for binding in registry.keys_of(key.principal) if binding.valid_at(now)]
        if not bound and not registry.keys_of(key.principal):
            # Some other human's key: only a new Organization takes its first human from there.
            bound = [
                binding for binding in registry.all_keys() if binding.principal.type == key.principal.type == "human"
            ]
        if bound:
            ours, theirs = (f"{each.key_id} of {each.principal.id}" for each in (key, bound[0]))
            raise HomeError(
                f"{home.key_path(name)} holds {ours}, and {theirs} is the {name}'s key in the Registry: put that key "
                "file back; or bind this one too by `mwnode serve --new-keys`, then revoke the other by "
                "`mwnode key revoke`"
            )


def read_registry(view: ReadTransaction, organization_id: str) -> Registry:
    """The Registry's present revision, as the store's rows tell it."""
    rows = view.all(KEYS)
    bindings = [msgspec.to_builtins(row.binding) for row in rows]
    for binding in bindings:
        binding.setdefault("validityHistory", [])
    evidence = {"organizationId": organization_id, "bindings": bindings}
    return Registry.from_evidence(evidence, proven_points=True)


def audit_seal(store: Store, home: Home, entropy: Entropy) -> AuditSeal | None:
    """What closes the protected diagnostics of a node: for the audit key in HOME, or for the one that was there last
    (decision F14). ``None`` for a HOME that never had one."""
    with store.read() as view:
        known = view.meta(AUDIT_KEY_META)
    public = home.public_key("audit")
    if public is not None and public != known:
        store.write(lambda transaction: transaction.put_meta(AUDIT_KEY_META, public))
    wanted = public or known
    return None if wanted is None else AuditSeal(wanted, entropy)


def services_of(home: Home) -> Services:
    return Services(home.registry_service, home.authority_service)


def service_command(
    key: SigningKey,
    kind: str,
    payload: Mapping[str, object],
    clock: Clock,
    entropy: Entropy,
    group_id: str | None = None,
) -> bytes:
    """The canonical bytes of one service Command, signed now."""
    now = clock.now()
    action_id = uuid7_urn(now, entropy.random(10))
    return signed_command(key, kind, payload, action_id=action_id, issued_at=now.text(), group_id=group_id)


def bind_keys(
    send: Callable[[bytes], object],
    root: SigningKey,
    keys: Iterable[SigningKey],
    home: Home,
    clock: Clock,
    entropy: Entropy,
) -> None:
    """Bind further keys by Commands of the registry service."""
    since = valid_from(clock.now(), home.policy.freshness_window)
    for key in keys:
        payload = {"binding": msgspec.to_builtins(binding_of(key, since))}
        send(service_command(root, f"{CORE}.key_bind", payload, clock, entropy))
